"""Groups, share groups and transactions under faults: no promise is broken, and every planted bug is found."""

from __future__ import annotations

import pytest

from comet_testing.simulation.link import EARLIER_KEEPALIVE_S
from tests.sim.group_mutants import GROUP_MUTANTS
from tests.sim.group_scenario import GroupProfile
from tests.sim.hunting import assert_found
from tests.sim.note_mutants import NOTE_MUTANTS
from tests.sim.planting import SEEDS_MAX
from tests.sim.result import Totals
from tests.sim.runs import run_many, run_one, tell
from tests.sim.test_simulation import fingerprint

ALL_MUTANTS = {**GROUP_MUTANTS, **NOTE_MUTANTS}
SEEDS = 10
MUTANTS_MIN = 15

# Seeds that found a bug once, each with what it was. What a run is made of is given, so that it is what it was then.
REGRESSIONS = [
    (11, ("alo", "amo"), "a partition that came to a member on its way out was never said to be given up"),
    (38, ("alo", "amo"), "what was given and asked for in one assignment was neither read nor released, for ever"),
    (115, ("eos", "share"), "a new leader could not read a dead record yet, and never wrote it anywhere"),
    (242, ("eos", "alo"), "what was taken before a partition was lost counted, once it was won again, and then again"),
    (2, ("alo", "amo"), "a partition was given twice in one generation, after a static member had come back"),
    (
        8300281,
        ("alo", "amo"),
        "a consumer that was closed while its first partitions could not be read left an exception behind",
    ),
    (6000037, ("share", "amo", "alo"), "the run ended before a record was settled whose producer had given up"),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    totals = Totals()
    for done in run_many("groups", range(SEEDS)):
        assert done.ok, "\n".join(done.lines)
        totals.merge(done.totals)
    unchecked = [name for name, count in totals.checked.items() if not count]
    assert not unchecked, f"no seed has exercised {unchecked}"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("seed", "groups", "bug"), REGRESSIONS)
def test_a_seed_that_failed_passes(seed: int, groups: tuple[str, ...], bug: str) -> None:
    profile = GroupProfile(groups=groups, named=0, assignments=("sticky",), keepalive_s=EARLIER_KEEPALIVE_S)
    result = run_one("groups", seed, profile)
    assert result.ok, f"{bug}\n" + "\n".join(tell(result, verbose=False))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_seed_is_one_run() -> None:
    assert fingerprint(run_one("groups", 3)) == fingerprint(run_one("groups", 3))


@pytest.mark.slow
@pytest.mark.timeout(400)  # a bug can make a run long
@pytest.mark.parametrize("name", sorted(ALL_MUTANTS))
def test_a_planted_bug_is_found_and_the_same_run_without_it_is_clean(name: str) -> None:
    assert_found(name, ALL_MUTANTS[name])


def test_there_are_enough_and_each_is_found_in_few_seeds() -> None:
    assert len(GROUP_MUTANTS) >= MUTANTS_MIN
    assert all(bug.caught_by < SEEDS_MAX for bug in ALL_MUTANTS.values())
