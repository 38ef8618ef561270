"""Liveness against its definition: whatever a process and its link do, a side that is there is never taken for dead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.wire.liveness import BETWEEN_BROKERS, OF_BROKERS, OF_CLIENTS, Liveness, LivenessVerdict, SilenceBounds

CHECK_S = BETWEEN_BROKERS.check_s
BOUNDS = (BETWEEN_BROKERS, OF_BROKERS, OF_CLIENTS)

gaps = st.one_of(st.just(CHECK_S), st.floats(0.0, 2 * CHECK_S), st.floats(0.0, 60.0))


@pytest.mark.parametrize("bounds", BOUNDS)
@given(st.lists(st.tuples(gaps, st.booleans(), st.booleans()), max_size=200))
def test_a_verdict_is_what_was_received_and_sent(bounds: SilenceBounds, checks: list[tuple[float, bool, bool]]) -> None:
    now = 0.0
    liveness = Liveness(bounds, now)
    unheard = unsaid = 0.0
    in_a_row = 0
    for gap, received, sent in checks:
        now += gap
        liveness.received += received
        liveness.sent += sent
        unheard = 0.0 if received else unheard + gap
        in_a_row = 0 if received else in_a_row + 1
        unsaid = 0.0 if sent else unsaid + gap
        verdict = liveness.check(now)
        if verdict is LivenessVerdict.SILENT:
            assert unheard >= bounds.silence_s - 1e-6
            assert in_a_row >= bounds.silence_s / bounds.check_s, "a late check counts as one on time"
        elif verdict is LivenessVerdict.HEARTBEAT:
            assert unsaid >= bounds.heartbeat_s - 1e-6


@pytest.mark.parametrize("bounds", BOUNDS)
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=60))
def test_two_sides_that_are_there_never_end_an_idle_stream(
    bounds: SilenceBounds, turns: list[tuple[float, float]]
) -> None:
    """Checks come late, and heartbeats arrive after any delay, in shares of `check_s` and `heartbeat_s`."""
    now = 0.0
    one, other = Liveness(bounds, now), Liveness(bounds, now)
    under_way: list[tuple[float, Liveness]] = []
    for late, delay in turns * 4:
        now += bounds.check_s * (1 + late)
        under_way.sort(key=lambda item: item[0])
        while under_way and under_way[0][0] <= now:
            under_way.pop(0)[1].received += 1
        for side, far in [(one, other), (other, one)]:
            verdict = side.check(now)
            assert verdict is not LivenessVerdict.SILENT
            if verdict is LivenessVerdict.HEARTBEAT:
                side.sent += 1
                under_way.append((now + delay * bounds.heartbeat_s, far))
