"""Planted bugs of groups that empty: mistakes in what stays of a group that is deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from comet_broker.coordination import coordinator
from comet_broker.coordination.journal import Head, Journal, Operation, Written
from tests.sim.group_checks import AT_LEAST_ONCE
from tests.sim.group_scenario import GroupProfile
from tests.sim.planting import Mutant, Patch

PASSING_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, *faults: str, caught_by: int = 0, **more: Any) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = GroupProfile(
            groups=(AT_LEAST_ONCE,), members=1, partitions=2, faults=faults, fault_every_s=3.0,
            member_fault_every_s=3.0, pause_s=0.8, named=0, passing=2, assignments=("sticky",),
            **more,
        )  # fmt: skip
        PASSING_MUTANTS[patches.__name__] = Mutant("passing", why, ("C17",), profile, patches, caught_by)
        return patches

    return register


@mutant("a group that is made anew begins at generation 0")
def begin_generations_anew() -> list[Patch]:
    return [(Journal, "generation_floor", property(lambda self: 0))]


@mutant("the next coordinator does not take over which generations are used up", "kill", "drain", caught_by=13)
def claims_forget_generations() -> list[Patch]:
    def head(broker: int, epoch: int, sequence: int, generation_floor: int = 0) -> Head:
        return Head(broker=broker, epoch=epoch, sequence=sequence)

    head.decode = Head.decode  # type: ignore[attr-defined]
    return [(coordinator, "Head", head)]


@mutant("which generations are used up is not stored with the deletion", "kill", "kill_all", caught_by=9)
def keep_generations_in_memory() -> list[Patch]:
    real = Journal.write

    def write(self: Journal, operations: Sequence[Operation], done: Written, *, generation: int = 0) -> None:
        real(self, operations, done)
        self._generation_floor = max(self._generation_floor, generation)

    return [(Journal, "write", write)]
