"""Clusters under faults with more producers than a partition remembers: what is sent again is there once."""

from __future__ import annotations

import pytest

from tests.sim.cluster_profile import ClusterProfile
from tests.sim.crowd_mutants import CROWD_MUTANTS
from tests.sim.hunting import hunt
from tests.sim.planting import SEEDS_MAX
from tests.sim.runs import run_many, run_one, tell

SEEDS = 8


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("crowds", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


def test_without_faults_all_is_answered_or_refused_as_unknown() -> None:
    profile = ClusterProfile(faults=(), final_crash="none", admin=False, acks=2, available=False, producers=1)
    result = run_one("crowds", 1, profile)
    assert result.ok, "\n".join(tell(result, verbose=False))
    counts = result.history.counts()
    assert counts.get("produce unknown", 0) == result.history.faults["crowd forgot"] > 0
    assert result.history.faults["crowd"] > result.history.faults["crowd forgot"]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(CROWD_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    bug = CROWD_MUTANTS[name]
    known_first = sorted(range(SEEDS_MAX), key=lambda seed: seed != bug.caught_by)
    found = hunt(bug, known_first)
    assert found is not None, f"{name} ({bug.why}) went unnoticed for {SEEDS_MAX} seeds"
    result = run_one(bug.scenario, found.seed, bug.profile)
    assert result.ok, "\n".join(tell(result, verbose=False))
