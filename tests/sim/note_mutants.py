"""Planted bugs of notes: mistakes in what a transactional id remembers of its last commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from comet.producer.transaction import TransactionalProducer
from comet_broker.core import transactions
from comet_broker.core.transactions import Open, TransactionRecord
from tests.sim.group_checks import EXACTLY_ONCE
from tests.sim.group_scenario import GroupProfile
from tests.sim.planting import Mutant, Patch

NOTE_MUTANTS: Final[dict[str, Mutant]] = {}

Patches = Callable[[], list[Patch]]


def mutant(why: str, caught_by: int = 0) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        profile = GroupProfile(
            groups=(EXACTLY_ONCE,),
            members=2,
            partitions=1,
            faults=(),
            member_fault_every_s=3.0,
            pause_s=0.8,
            named=2,
            assignments=("sticky",),
        )
        NOTE_MUTANTS[patches.__name__] = Mutant("groups", why, ("C36",), profile, patches, caught_by)
        return patches

    return register


@mutant("a note is lost when its id is opened anew")
def forget_the_note_at_open() -> list[Patch]:
    real = transactions._opened

    def opened(record: TransactionRecord, event: Open) -> TransactionRecord:
        return replace(real(record, event), note=b"")

    return [(transactions, "_opened", opened)]


@mutant("a note is kept however its transaction ends")
def keep_the_note_of_an_abort() -> list[Patch]:
    real_end, real_decided = TransactionalProducer._end, transactions._decided

    async def end(self: TransactionalProducer, commit: bool, offsets: Any = None, note: bytes = b"") -> None:
        assert self._current is not None
        await real_end(self, commit, offsets, self._current._note)

    def decided(record: TransactionRecord, *, commit: bool, reason: str, note: bytes = b"") -> TransactionRecord:
        return replace(real_decided(record, commit=commit, reason=reason), note=note or record.note)

    return [(TransactionalProducer, "_end", end), (transactions, "_decided", decided)]
