"""Whole runs under faults: no promise is broken, every kind of fault and every invariant is met, a seed is one run."""

from __future__ import annotations

import hashlib

import pytest

from tests.sim.hash_seeds import prints
from tests.sim.nemesis import FAULTS
from tests.sim.result import Result, Totals
from tests.sim.scenario import Profile, simulate

SEEDS = 60

# Seeds that found a bug once, each with what it was, and its profile; None: the seed's own.
FIRST = Profile(later=False)
REGRESSIONS = [
    (16, "a consumer that was told to seek while deliveries waited lost their credit, and starved", FIRST),
    (182, "the same, with deliveries that had come over a connection that was lost since", FIRST),
    (324, "a topic that could not be opened was reported as gone, and producers began again at epoch 0", FIRST),
    (412, "what lay below the log's start was taken for synced, so that a torn tail became a hole", FIRST),
    (1443, "the reason why a subscription ended was queued while looking for its next delivery, and not sent", FIRST),
    (2302, "a producer that lingers broke when its trouble was over and nothing was left to send", FIRST),
    (496, "a segment that begins with damage could not be read at all, and its readers hung", FIRST),
    (240, "a broker that had just started answered with the high watermark of its last checkpoint", None),
    (288, "the same", None),
]


def fingerprint(result: Result) -> str:
    """Everything that happened, in one line."""
    history = result.history
    everything = (result.log, history.produces, history.reads, history.ends, history.calls, history.recovered)
    return hashlib.sha256(repr(everything).encode()).hexdigest()


def report(result: Result) -> str:
    return "\n".join([result.error, *result.verdict.lines(), f"replay: {result.replay()}"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_seed_breaks_a_promise_and_together_they_exercise_all() -> None:
    totals = Totals()
    for seed in range(SEEDS):
        result = simulate(seed)
        assert result.ok, report(result)
        totals.add(result)
    missing = totals.missing((*FAULTS, "metered", "vandal"))
    assert not missing, f"never exercised: {missing}"
    assert totals.counts["produce ok"] > 1_000
    assert totals.counts["recoveries"] > SEEDS


@pytest.mark.parametrize(("seed", "why", "profile"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, why: str, profile: Profile | None) -> None:
    result = simulate(seed, profile)
    assert result.ok, f"{why} is back\n{report(result)}"


def test_a_seed_is_one_run() -> None:
    assert fingerprint(simulate(3)) == fingerprint(simulate(3))


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Neither the order of sets nor the addresses of objects may decide anything."""
    program = "from tests.sim.test_simulation import fingerprint, simulate; print(fingerprint(simulate(5)))"
    assert len(prints(program)) == 1


def test_without_faults_nothing_fails() -> None:
    result = simulate(1, Profile(faults=(), final_crash="none", deletes=False, retention_records=-1, acks=1))
    assert result.ok, report(result)
    assert result.history.counts().get("produce unknown", 0) == 0
    assert result.history.counts().get("produce fail", 0) == 0
