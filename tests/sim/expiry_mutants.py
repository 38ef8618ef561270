"""Planted bugs of expiry: in when a record is left out, and in what is left of its key when it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Final

from comet.consumer import iteration
from comet.records import BatchHeader
from comet.records.expiry import unexpired_rows
from comet.values import record as record_values
from comet_broker.storage import rewrite
from comet_broker.storage.rewrite import Rewriting
from tests.sim.cluster_profile import ClusterProfile
from tests.sim.planting import Mutant, Patch

EXPIRY_MUTANTS: Final[dict[str, Mutant]] = {}
A_MINUTE_US: Final = 60_000_000

Patches = Callable[[], list[Patch]]


def mutant(why: str, caught_by: int = 0) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        EXPIRY_MUTANTS[patches.__name__] = Mutant("expiry", why, ("C29",), ClusterProfile(), patches, caught_by)
        return patches

    return register


@mutant("consumers do not look at the expiry")
def deliver_what_has_expired() -> list[Patch]:
    def all_rows(rows: Iterable[int], _expiry: Sequence[int], _now_us: int) -> list[int]:
        return list(rows)

    def never(_expires_us: int, _now_us: int) -> bool:
        return False

    return [(record_values, "unexpired_rows", all_rows), (iteration, "has_expired", never)]


@mutant("compaction removes records a minute before their time", caught_by=2)
def remove_too_early() -> list[Patch]:
    def early(rows: Iterable[int], expiry: Sequence[int], now_us: int) -> list[int]:
        return unexpired_rows(rows, expiry, now_us + A_MINUTE_US)

    return [(rewrite, "unexpired_rows", early)]


@mutant("each replica removes by its own clock instead of the plan's time", caught_by=2)
def remove_by_its_own_clock() -> list[Patch]:
    clocks = cycle((0, A_MINUTE_US, -A_MINUTE_US))

    def by_its_clock(rows: Iterable[int], expiry: Sequence[int], now_us: int) -> list[int]:
        return unexpired_rows(rows, expiry, now_us + next(clocks))

    return [(rewrite, "unexpired_rows", by_its_clock)]


@mutant("an expired record does not count as the last of its key: the one before it stays", caught_by=3)
def leave_the_one_before() -> list[Patch]:
    real = Rewriting._mark_one

    def mark_one(
        self: Rewriting,
        header: BatchHeader,
        stored: memoryview,
        row: int,
        last: dict[bytes | None, int],
        part: tuple[int, int],
    ) -> int:
        before, count, found = dict(last), real(self, header, stored, row, last, part), self._data(header, stored)
        expiry = None if found is None else found[0].expiry
        if found is not None and expiry is not None and part[1] == 1:
            batch, skip = found
            for key, expires_us in zip(batch.keys[skip:], expiry[skip:], strict=True):
                if 0 < expires_us <= self._work.plan.now_us:
                    last.pop(key, None)
                    last |= {key: before[key]} if key in before else {}
        return count

    return [(Rewriting, "_mark_one", mark_one)]
