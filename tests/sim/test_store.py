"""Stores that go back in time or are emptied: no seed breaks a promise, and planted bugs are found."""

from __future__ import annotations

import pytest

from tests.sim.cluster_profile import ClusterProfile
from tests.sim.hunting import assert_found
from tests.sim.runs import run_many, run_one, tell
from tests.sim.store_mutants import STORE_MUTANTS

SEEDS = 12

ONE_ACK = STORE_MUTANTS["keep_what_was_written_in_an_epoch_given_twice"].profile

# Seeds that found a bug once, each with what it was.
REGRESSIONS = [
    (34, ONE_ACK, "a copy that was given up led in place of the one that an operator had chosen: its log was longer"),
    (125, ONE_ACK, "a copy that had been cut and had followed since was cut again by the next start of its broker"),
    (27, None, "a replica that trusted the old snapshot wrote on after the inventory of a recovery, and was not cut"),
    (279, None, "a warning lowered the floor of a broker that knew more, so that a recovery did not cover it"),
    (400, None, "a partition that the snapshot did not have yet was placed again in the epoch that it had had"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "profile", "why"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, profile: ClusterProfile | None, why: str) -> None:
    result = run_one("store", seed, profile)
    assert result.ok, f"{why} is back\n" + "\n".join(tell(result, verbose=False))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("store", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(STORE_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, STORE_MUTANTS[name])
