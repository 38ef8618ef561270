"""Schedules by a calendar that is replaced under faults: no seed breaks a promise, and planted bugs are found."""

from __future__ import annotations

import pytest

from tests.sim.calendar_mutants import CALENDAR_MUTANTS
from tests.sim.hunting import hunt, order
from tests.sim.planting import SEEDS_MAX
from tests.sim.runs import run_many, run_one, tell

SEEDS = 4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("calendars", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)
        assert done.totals.checked["C42"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(CALENDAR_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    bug = CALENDAR_MUTANTS[name]
    found = hunt(bug, order(bug))
    assert found is not None, f"{name} ({bug.why}) went unnoticed for {SEEDS_MAX} seeds"
    result = run_one(bug.scenario, found.seed, bug.profile)
    assert result.ok, "\n".join(tell(result, verbose=False))
