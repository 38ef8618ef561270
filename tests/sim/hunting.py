"""The hunt for planted bugs: seeds are run with a bug in the code until an invariant that it breaks finds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.sim.cluster_mutants import CLUSTER_MUTANTS
from tests.sim.group_mutants import GROUP_MUTANTS
from tests.sim.mutants import MUTANTS
from tests.sim.note_mutants import NOTE_MUTANTS
from tests.sim.planting import Mutant, planted
from tests.sim.request_mutants import REQUEST_MUTANTS
from tests.sim.result import Result
from tests.sim.runs import run_one

ALL_MUTANTS: Final[dict[str, Mutant]] = {
    **MUTANTS, **CLUSTER_MUTANTS, **GROUP_MUTANTS, **NOTE_MUTANTS, **REQUEST_MUTANTS,
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
