"""Whole clusters under faults: no promise is broken, and a seed is one run."""

from __future__ import annotations

import pytest

from comet_testing.simulation.link import EARLIER_KEEPALIVE_S, KEEPALIVE_S
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.result import Result
from tests.sim.runs import run_many, run_one, tell
from tests.sim.test_simulation import fingerprint

SEEDS = 30

# Seeds that found a bug once, each with what it was. Faults that are younger are left out.
REGRESSIONS = [
    (20, "damage that a leader found in reading was told to readers as a loss, and never mended from the others"),
    (33, "a change of the in-sync set that began as another ended was taken for ended, too"),
    (63, "a mark of a damaged replica that came when it was mended stayed, and it went in and out of sync for ever"),
    (91, "a replica with a failed log was taken in by its leader and out by the controller, a thousand times a second"),
    (95, "a follower that caught up from memory was told an old watermark, and no later one"),
    (113, "records that went with a failed fsync at the start were not missed, and the broker led without them"),
    (198, "a broker that came back with less, and was named as leader still, told a reader that its place was gone"),
    (583, "a flipped bit was taken for the torn end of a crash, and the broker led without what was behind it"),
    (643, "a broker that was stopped before it had joined was waited for for ever, by the simulation itself"),
    (767, "a follower that had fallen silent was taken in again each time it was taken out"),
    (1000, "a topic of which one log could not be opened had the others opened twice"),
    (15, "a follower held a stream on which its leader was silent, and was out of sync for good"),
    (48, "a follower held a stream on which its leader was silent, and was out of sync for good"),
    (660_266, "a follower held a stream on which its leader was silent, and a partition took no record for 5 s"),
    (660_103, "a follower in which damage was found was not mended until somebody else led, or its stream was cut"),
    (5_000_376, "the checker missed what the only copy loses when an fsync fails while its log is opened"),
    (8_100_104, "the checker asked for a second copy of records that were lost and came back with their replica"),
    (8_200_218, "the checker did not see a loss that was decided by the election of a broker whose process had ended"),
    (8_201_190, "the simulation put a disk back before another replica had noted what it had just caught up with"),
    (8_401_274, "the checker asked that a replica follow over damage in the only copy that was in sync"),
    (8_400_981, "a log that had lost its end while it was opened anew was written again in the same epoch"),
    (4_410_440, "a broker that registered again was taken for one with less, and one that had less led in its place"),
]

# The same with all of today's faults.
LATER_REGRESSIONS = [
    (91_000_822, "the checker took a log for removed whose broker died in place of removing it"),
    (91_000_872, "a controller whose view lagged took a broker for absent that was back, and elected one with less"),
    (8_401_558, "a seek whose unsubscribe was not answered gave records of the old subscription, and skipped to them"),
]

# The same as the first, with the keepalive that gRPC has.
KEEPALIVE_REGRESSIONS = [
    (4_410_440, "a leader that failed in place was replaced at once by one with less: others had no time to return"),
]


def report(result: Result) -> str:
    return "\n".join(tell(result, verbose=False))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise() -> None:
    simulated_s = 0.0
    for done in run_many("cluster", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)
        simulated_s += done.simulated_s
    assert simulated_s >= 60.0 * SEEDS


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), REGRESSIONS)
def test_a_seed_that_found_a_bug_stays_clean(seed: int, why: str) -> None:
    result = run_one("cluster", seed, ClusterProfile(later=False))
    assert result.ok, f"{why} is back\n{report(result)}"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), LATER_REGRESSIONS)
def test_a_seed_of_later_faults_stays_clean(seed: int, why: str) -> None:
    result = run_one("cluster", seed, ClusterProfile(keepalive_s=EARLIER_KEEPALIVE_S))
    assert result.ok, f"{why} is back\n{report(result)}"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "why"), KEEPALIVE_REGRESSIONS)
def test_a_seed_with_the_keepalive_of_grpc_stays_clean(seed: int, why: str) -> None:
    result = run_one("cluster", seed, ClusterProfile(later=False, keepalive_s=KEEPALIVE_S))
    assert result.ok, f"{why} is back\n{report(result)}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_after_a_silent_death_of_a_connection_all_are_in_sync_again_soon(seed: int) -> None:
    profile = ClusterProfile(
        faults=("one_silent_death",), fault_every_s=1.5, replicas=3, final_crash="none", admin=False, available=False
    )
    result = run_one("cluster", seed, profile)
    assert result.ok, report(result)
    assert result.history.faults["one_silent_death"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_both_sides_notice_the_silent_death_of_a_clients_connection(seed: int) -> None:
    profile = ClusterProfile(
        faults=("one_silent_client",), fault_every_s=1.5, wires=1.0, replicas=3, final_crash="none", admin=False
    )
    result = run_one("cluster", seed, profile)
    assert result.ok, report(result)
    assert result.history.faults["one_silent_client"] > 3


@pytest.mark.parametrize("wires", [0.0, 1.0])
def test_a_seed_is_one_run(wires: float) -> None:
    profile = ClusterProfile(wires=wires)
    assert fingerprint(run_one("cluster", 3, profile)) == fingerprint(run_one("cluster", 3, profile))


def test_without_faults_nothing_fails() -> None:
    result = run_one("cluster", 1, ClusterProfile(faults=(), final_crash="none", admin=False, acks=2, available=False))
    assert result.ok, report(result)
    counts = result.history.counts()
    assert counts.get("produce unknown", 0) == counts.get("produce fail", 0) == 0
    assert counts["produce ok"] > 100
