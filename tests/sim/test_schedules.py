"""Schedules under faults: each time fires once, nothing is stranded, and planted bugs are found."""

from __future__ import annotations

import pytest

from tests.sim.cluster_profile import ClusterProfile
from tests.sim.hunting import assert_found
from tests.sim.runs import run_many, run_one, tell
from tests.sim.schedule_mutants import SCHEDULE_MUTANTS

SEEDS = 8
LOST = ClusterProfile(faults=("isolate", "lose_store", "slow_disk"), fault_every_s=1.5)

# Seeds that found a bug once, each with what it was.
REGRESSIONS = [
    (5, LOST, "a cancel that a broker gave up as it stopped leading was not answered"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    for done in run_many("schedules", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "profile", "why"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, profile: ClusterProfile, why: str) -> None:
    result = run_one("schedules", seed, profile)
    assert result.ok, f"{why} is back\n" + "\n".join(tell(result, verbose=False))


def test_every_promise_is_exercised() -> None:
    result = run_one("schedules", 1)
    assert result.ok, "\n".join(tell(result, verbose=False))
    checked = {name: finding.checked for name, finding in result.verdict.findings.items()}
    assert all(checked[name] > 100 for name in ("C38", "C39", "C40", "C41")), checked


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(SCHEDULE_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, SCHEDULE_MUTANTS[name])
