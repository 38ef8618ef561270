"""Liveness against its definition: whatever a process and its link do, a side that is there is never taken for dead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet_broker import limits
from comet_broker.core.liveness import Liveness, LivenessVerdict

CHECK_S = limits.LIVENESS_CHECK_S

gaps = st.one_of(st.just(CHECK_S), st.floats(0.0, 2 * CHECK_S), st.floats(0.0, 60.0))


@given(st.lists(st.tuples(gaps, st.booleans(), st.booleans()), max_size=200))
def test_a_verdict_is_what_was_received_and_sent(checks: list[tuple[float, bool, bool]]) -> None:
    now = 0.0
    liveness = Liveness(now)
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
            assert unheard >= limits.SILENCE_S
            assert in_a_row >= limits.SILENCE_S / CHECK_S, "a late check counts as one on time"
        elif verdict is LivenessVerdict.HEARTBEAT:
            assert unsaid >= limits.HEARTBEAT_S - 1e-6


@given(st.lists(st.tuples(st.floats(0.0, CHECK_S), st.floats(0.0, limits.HEARTBEAT_S)), min_size=1, max_size=60))
def test_two_sides_that_are_there_never_end_an_idle_stream(turns: list[tuple[float, float]]) -> None:
    """Heartbeats arrive after any delay that leaves half a second of the silence."""
    now = 0.0
    one, other = Liveness(now), Liveness(now)
    under_way: list[tuple[float, Liveness]] = []
    for late, delay in turns * 4:
        now += CHECK_S + late
        under_way.sort(key=lambda item: item[0])
        while under_way and under_way[0][0] <= now:
            under_way.pop(0)[1].received += 1
        for side, far in [(one, other), (other, one)]:
            verdict = side.check(now)
            assert verdict is not LivenessVerdict.SILENT
            if verdict is LivenessVerdict.HEARTBEAT:
                side.sent += 1
                under_way.append((now + delay, far))
