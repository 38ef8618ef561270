"""Clusters under faults with more producers than a partition remembers: what is sent again is there once."""

from __future__ import annotations

import pytest

from tests.sim.cluster_profile import ClusterProfile
from tests.sim.crowd_mutants import CROWD_MUTANTS
from tests.sim.hunting import assert_found
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
    assert_found(name, CROWD_MUTANTS[name])
