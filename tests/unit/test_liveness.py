"""When a side of a stream sends a heartbeat, and when it takes the other side for dead."""

from __future__ import annotations

import pytest

from comet.wire.liveness import BETWEEN_BROKERS, Liveness, LivenessVerdict
from comet_broker import limits

CHECK_S = BETWEEN_BROKERS.check_s


class Side:
    """One side whose checks come at the times that a test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.liveness = Liveness(BETWEEN_BROKERS, self.now)

    def check(self, after_s: float = CHECK_S) -> LivenessVerdict:
        self.now += after_s
        return self.liveness.check(self.now)

    def checks(self, seconds: float) -> list[LivenessVerdict]:
        return [self.check() for _ in range(round(seconds / CHECK_S))]

    def silent_after(self) -> float:
        began = self.now
        while self.check() is not LivenessVerdict.SILENT:
            assert self.now - began < 600
        return self.now - began


def test_a_heartbeat_is_due_when_nothing_was_sent_for_a_second() -> None:
    side = Side()
    assert side.checks(BETWEEN_BROKERS.heartbeat_s)[-1] is LivenessVerdict.HEARTBEAT
    side.liveness.sent += 1
    side.liveness.received += 1
    assert set(side.checks(BETWEEN_BROKERS.heartbeat_s)) == {LivenessVerdict.FINE}, (
        "the one that was sent counts from its check on"
    )
    assert side.check() is LivenessVerdict.HEARTBEAT
    for _ in range(40):
        side.liveness.sent += 1
        side.liveness.received += 1
        assert side.check() is LivenessVerdict.FINE


def test_silence_is_noticed_in_time_and_not_before() -> None:
    side = Side()
    assert BETWEEN_BROKERS.silence_s <= side.silent_after() <= BETWEEN_BROKERS.silence_s + 2 * CHECK_S
    assert side.liveness.silent


def test_one_frame_is_enough_to_be_there() -> None:
    side = Side()
    for _ in range(20):
        assert LivenessVerdict.SILENT not in side.checks(BETWEEN_BROKERS.silence_s)
        side.liveness.received += 1
    assert not side.liveness.silent


@pytest.mark.parametrize("heard_before_s", [0.0, 1.0, BETWEEN_BROKERS.silence_s - CHECK_S])
def test_a_process_that_stood_still_takes_what_waits_in_its_socket_before_it_decides(heard_before_s: float) -> None:
    side = Side()
    side.checks(heard_before_s)
    assert side.check(after_s=60.0) is not LivenessVerdict.SILENT
    side.liveness.received += 1
    assert LivenessVerdict.SILENT not in side.checks(BETWEEN_BROKERS.silence_s)


def test_silence_is_noticed_by_a_process_that_is_always_late() -> None:
    side = Side()
    verdicts = [side.check(after_s=1.0) for _ in range(20)]
    assert LivenessVerdict.SILENT in verdicts


def test_a_clock_that_stands_still_makes_no_silence() -> None:
    side = Side()
    assert {side.check(after_s=0.0) for _ in range(100)} == {LivenessVerdict.FINE}


def test_a_large_frame_that_was_announced_may_take_as_long_as_a_slow_link_needs() -> None:
    side = Side()
    size = limits.MESSAGE_BYTES_MAX
    side.liveness.received += 1
    side.liveness.expect(size / limits.LINK_BYTES_PER_S_MIN)
    assert LivenessVerdict.SILENT not in side.checks(size / limits.LINK_BYTES_PER_S_MIN)
    side.liveness.received += 1  # there it is
    assert side.silent_after() <= BETWEEN_BROKERS.silence_s + 3 * CHECK_S
