"""Clusters under faults with clients that have no session: what they ask for under a key is there once."""

from __future__ import annotations

import pytest

from comet_testing.simulation.link import EARLIER_KEEPALIVE_S
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.hunting import assert_found
from tests.sim.request_mutants import REQUEST_MUTANTS
from tests.sim.runs import run_many, run_one, tell

SEEDS = 10

# Seeds that found a bug once, each with what it was.
REGRESSIONS = [
    (51, "a new file that went with the power in the middle of a write was looked for, by the simulation itself"),
    (990_328, "whole batches with a key were not found behind a damaged header"),
]

# The same with all of today's faults.
LATER_REGRESSIONS = [
    (91_000_965, "the simulation gave up a request of a damaged partition without noting what it was told"),
    (91_000_729, "the simulation ended before requests that went on through the last crash"),
    (91_000_302, "a full disk kept a broker that stopped from leaving the cluster"),
    (91_000_551, "a loss that was accepted once let a replica lose committed records to a later leader, too"),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("requests", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, why: str) -> None:
    result = run_one("requests", seed, ClusterProfile(later=False))
    assert result.ok, f"{why} is back\n" + "\n".join(tell(result, verbose=False))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), LATER_REGRESSIONS)
def test_a_seed_of_later_faults_stays_clean(seed: int, why: str) -> None:
    result = run_one("requests", seed, ClusterProfile(keepalive_s=EARLIER_KEEPALIVE_S))
    assert result.ok, f"{why} is back\n" + "\n".join(tell(result, verbose=False))


def test_without_faults_every_request_is_answered() -> None:
    profile = ClusterProfile(faults=(), final_crash="none", admin=False, acks=2, available=False, producers=1)
    result = run_one("requests", 1, profile)
    assert result.ok, "\n".join(tell(result, verbose=False))
    counts = result.history.counts()
    assert counts.get("produce unknown", 0) == counts.get("produce fail", 0) == 0
    assert sum(operation.process.startswith("r") for operation in result.history.produces) > 100


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(REQUEST_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, REQUEST_MUTANTS[name])
