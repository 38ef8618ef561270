"""Compacted topics under faults: no seed breaks a promise, and planted bugs are found."""

from __future__ import annotations

import pytest

from tests.sim.cluster_profile import ClusterProfile
from tests.sim.compaction_mutants import COMPACTION_MUTANTS
from tests.sim.hash_seeds import prints
from tests.sim.hunting import assert_found
from tests.sim.runs import run_many, run_one, tell

SEEDS = 10
POWER = ClusterProfile(faults=("power_cut", "power_cut_all"))

# Seeds that found a bug once, each with what it was.
REGRESSIONS = [
    (1029, None, "records of an aborted transaction came from memory, after the broker had forgotten that it was"),
    (744, None, "a replica that was away kept a record whose tombstone was removed meanwhile, and led"),
    (4, POWER, "after a power cut a broker knew of less that is committed than its joined batches reach"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "profile", "why"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, profile: ClusterProfile | None, why: str) -> None:
    result = run_one("compaction", seed, profile)
    assert result.ok, f"{why} is back\n" + "\n".join(tell(result, verbose=False))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("compaction", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(COMPACTION_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, COMPACTION_MUTANTS[name])


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_every_process() -> None:
    """With little memory the keys of a round are taken in parts, which no process may draw in its own way."""
    program = """
from tests.sim.runs import run_one
result = run_one("compaction", 4)
assert "'compaction_memory': 1024" in result.log[0], result.log[0]
print(result.simulated_s, result.log)
"""
    assert len(prints(program)) == 1
