"""Restarts and ends of child processes, against simple models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet.processes.restart_policy import RestartBackoff, RestartPolicy, Schedule, end_order, stop_step

pauses = st.lists(st.floats(0.1, 60.0), min_size=1, max_size=6).map(tuple)
schedules = st.builds(Schedule, pauses, st.floats(0.5, 100.0), st.booleans())


@given(schedules, st.lists(st.floats(0.0, 200.0), max_size=30))
def test_pauses_follow_the_schedule_and_a_calm_run_starts_it_again(schedule: Schedule, runs: list[float]) -> None:
    backoff, row = RestartBackoff(schedule), 0  # row: failures in a row
    for ran_s in runs:
        row = 0 if ran_s > schedule.calm_s else row
        expected = schedule.pauses_s[row : row + 1] or (schedule.pauses_s[-1:] if schedule.endless else (None,))
        assert backoff.failed(ran_s) == expected[0]
        row = min(row + 1, len(schedule.pauses_s))


@given(schedules, st.data())
def test_each_process_restarts_once_for_each_end_and_never_early(schedule: Schedule, data: st.DataObject) -> None:
    """Processes end and time passes in any order; a model holds when each one is due."""
    policy, now = RestartPolicy[str](schedule), 0.0
    due: dict[str, float] = {}
    up = {"a", "b", "c"}
    gone: set[str] = set()
    for _ in range(data.draw(st.integers(0, 40))):
        if up and bool(data.draw(st.integers(0, 1))):
            name = data.draw(st.sampled_from(sorted(up)))
            up.remove(name)
            pause_s = policy.ended(name, now, data.draw(st.floats(0.0, 120.0)))
            if pause_s is None:
                assert not schedule.endless
                gone.add(name)
            else:
                due[name] = now + pause_s
        else:
            now += data.draw(st.floats(0.0, 30.0))
        found = policy.take_due(now)
        assert set(found) == {name for name, at in due.items() if at <= now} and len(found) == len(set(found))
        for name in found:
            del due[name]
            up.add(name)
        assert policy.next_due() == min(due.values(), default=None)
        assert {name for name in ("a", "b", "c") if policy.waits(name)} == due.keys() | gone


@given(st.dictionaries(st.integers(0, 50), st.integers(0, 4)))
def test_children_end_in_reverse_order_tier_by_tier(tiers: dict[int, int]) -> None:
    order = end_order(tiers)
    flat = [name for group in order for name in group]
    assert sorted(flat) == sorted(tiers) and all(order)
    started = list(tiers)
    assert flat == sorted(tiers, key=lambda name: (-tiers[name], -started.index(name)))
    assert all(len({tiers[name] for name in group}) == 1 for group in order)


@given(st.lists(st.booleans(), max_size=5), st.floats(0, 100), st.floats(1, 60), st.booleans())
def test_a_process_is_killed_only_late_or_in_a_hurry(
    running: list[bool], waited_s: float, within_s: float, hurry: bool
) -> None:
    step = stop_step(running, waited_s, within_s, hurry=hurry)
    assert (step == "done") == (not any(running))
    assert (step == "kill") == (any(running) and (hurry or waited_s > within_s))
