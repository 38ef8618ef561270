"""Groups that empty before their first commit, or are deleted: their generations never go back."""

from __future__ import annotations

import pytest

from tests.sim.group_scenario import GroupProfile
from tests.sim.hunting import assert_found
from tests.sim.passing_mutants import PASSING_MUTANTS
from tests.sim.runs import run_many, run_one, tell

SEEDS = 8


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("passing", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


def test_without_faults_the_group_is_deleted_again_and_again() -> None:
    result = run_one("passing", 1, GroupProfile(faults=(), members=1, partitions=1))
    assert result.ok, "\n".join(tell(result, verbose=False))
    assert result.verdict.findings["C17"].checked > 20


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(PASSING_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, PASSING_MUTANTS[name])
