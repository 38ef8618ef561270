"""The hunt for planted bugs: seeds are run with a bug in the code until an invariant that it breaks finds it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.sim.calendar_mutants import CALENDAR_MUTANTS
from tests.sim.cluster_mutants import CLUSTER_MUTANTS
from tests.sim.compaction_mutants import COMPACTION_MUTANTS
from tests.sim.crowd_mutants import CROWD_MUTANTS
from tests.sim.expiry_mutants import EXPIRY_MUTANTS
from tests.sim.group_mutants import GROUP_MUTANTS
from tests.sim.mutants import MUTANTS
from tests.sim.note_mutants import NOTE_MUTANTS
from tests.sim.passing_mutants import PASSING_MUTANTS
from tests.sim.planting import SEEDS_MAX, Mutant, planted
from tests.sim.register_mutants import REGISTER_MUTANTS
from tests.sim.request_mutants import REQUEST_MUTANTS
from tests.sim.result import Result
from tests.sim.runs import run_one, tell
from tests.sim.schedule_mutants import SCHEDULE_MUTANTS
from tests.sim.store_mutants import STORE_MUTANTS

ALL_MUTANTS: Final[dict[str, Mutant]] = {
    **MUTANTS, **CLUSTER_MUTANTS, **GROUP_MUTANTS, **NOTE_MUTANTS, **REQUEST_MUTANTS,
    **CROWD_MUTANTS, **PASSING_MUTANTS, **REGISTER_MUTANTS,
    **STORE_MUTANTS, **COMPACTION_MUTANTS, **EXPIRY_MUTANTS, **SCHEDULE_MUTANTS,
    **CALENDAR_MUTANTS,
}  # fmt: skip


def finds(bug: Mutant, seed: int) -> Result | None:
    """The run of this seed with the bug in it, if the checker sees it."""
    with planted(bug):
        result = run_one(bug.scenario, seed, bug.profile)
    return result if set(result.verdict.violated) & set(bug.breaks) else None


def hunt(bug: Mutant, seeds: Iterable[int]) -> Result | None:
    """The first run in which an invariant that the bug breaks finds it."""
    for seed in seeds:
        if (result := finds(bug, seed)) is not None:
            return result
    return None


def assert_found(name: str, bug: Mutant) -> None:
    """Fails unless a seed finds the bug, the known one first, and the same run without it is clean."""
    found = hunt(bug, dict.fromkeys([bug.caught_by, *range(SEEDS_MAX)]))
    assert found is not None, f"{name} ({bug.why}) went unnoticed for {SEEDS_MAX} seeds"
    result = run_one(bug.scenario, found.seed, bug.profile)
    assert result.ok, "\n".join(tell(result, verbose=False))


@dataclass(frozen=True, slots=True)
class Hunt:
    """What came of the hunt for one bug."""

    name: str
    seed: int | None  # that found it
    seeds: int  # how many were run
    seconds: float

    def line(self) -> str:
        bug = ALL_MUTANTS[self.name]
        found = "NOT FOUND" if self.seed is None else f"seed {self.seed}"
        return f"{bug.scenario:8} {self.name:50} {found:>12} {self.seeds:5} run {self.seconds:7.1f} s"


def order(bug: Mutant, first: int | None = None, seeds: int | None = None) -> list[int]:
    """The seeds of a hunt: the one that is known to find the bug, then the others; from `first` on, if it is given."""
    count = seeds or SEEDS_MAX
    if first is not None:
        return list(range(first, first + count))
    return sorted(range(count), key=lambda seed: seed != bug.caught_by)


def _hunt_one(task: tuple[str, int | None, int | None]) -> Hunt:
    name, first, seeds = task
    bug, began = ALL_MUTANTS[name], time.perf_counter()
    tried = order(bug, first, seeds)
    found = hunt(bug, tried)
    count = len(tried) if found is None else tried.index(found.seed) + 1
    return Hunt(name, None if found is None else found.seed, count, time.perf_counter() - began)


def hunt_all(first: int | None = None, seeds: int | None = None, *, jobs: int = 1) -> Iterator[Hunt]:
    """One hunt after the other, or several at a time in processes of their own."""
    tasks = [(name, first, seeds) for name in ALL_MUTANTS]
    if jobs == 1:
        yield from map(_hunt_one, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_hunt_one, tasks)
