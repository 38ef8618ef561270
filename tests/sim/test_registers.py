"""Clusters under faults with clients that read and compare-and-set single keys: each key is a linearizable register."""

from __future__ import annotations

import pytest

from tests.sim.hunting import assert_found
from tests.sim.register_mutants import REGISTER_MUTANTS
from tests.sim.runs import run_many, run_one, tell

SEEDS = 8

# Seeds that found a bug once, each with what it was.
REGRESSIONS = [(125, "a write was told that it is not there after a leader that had it was replaced")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("registers", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, why: str) -> None:
    result = run_one("registers", seed)
    assert result.ok, f"{why} is back\n" + "\n".join(tell(result, verbose=False))


def test_keys_are_written_and_refused() -> None:
    result = run_one("registers", 1)
    assert result.ok, "\n".join(tell(result, verbose=False))
    codes = [operation.code for operation in result.history.produces if operation.process.startswith("k")]
    assert codes.count("") > 100
    assert "REVISION_MISMATCH" in codes
    assert result.history.register_answers > 500


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(REGISTER_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, REGISTER_MUTANTS[name])
