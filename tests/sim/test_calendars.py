"""Schedules by a calendar that is replaced under faults: no seed breaks a promise, and planted bugs are found."""

from __future__ import annotations

import pytest

from tests.sim.calendar_mutants import CALENDAR_MUTANTS
from tests.sim.hunting import assert_found
from tests.sim.runs import run_many

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
    assert_found(name, CALENDAR_MUTANTS[name])
