"""Every planted bug of a cluster is found within 200 seeds: as a rule by the seed that is known to find it, which is
tried first and makes this cheap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster_mutants import CLUSTER_MUTANTS, WITHOUT_COMPARISON
from tests.sim.hunting import assert_found
from tests.sim.planting import SEEDS_MAX, planted
from tests.sim.runs import run_one, tell

MUTANTS_MIN = 20

pytestmark = pytest.mark.timeout(240)  # a bug can make a run long


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLUSTER_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, CLUSTER_MUTANTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, bug in CLUSTER_MUTANTS.items() if WITHOUT_COMPARISON in bug.patches()])
def test_what_is_planted_beside_a_bug_breaks_nothing_alone(name: str) -> None:
    bug = CLUSTER_MUTANTS[name]
    with planted(replace(bug, patches=lambda: [WITHOUT_COMPARISON])):
        result = run_one(bug.scenario, bug.caught_by, bug.profile)
    assert result.ok, "\n".join(tell(result, verbose=False))


def test_there_are_enough_and_each_is_found_in_few_seeds() -> None:
    assert len(CLUSTER_MUTANTS) >= MUTANTS_MIN
    assert all(bug.caught_by < SEEDS_MAX for bug in CLUSTER_MUTANTS.values())


def test_a_planted_bug_is_gone_afterwards() -> None:
    for bug in CLUSTER_MUTANTS.values():
        before = [vars(where)[name] for where, name, _ in bug.patches()]
        with planted(bug):
            assert [vars(where)[name] for where, name, _ in bug.patches()] != before
        assert [vars(where)[name] for where, name, _ in bug.patches()] == before
