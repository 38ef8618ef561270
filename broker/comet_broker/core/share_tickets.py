"""Locks that no stream holds: whoever shows the number of one may acknowledge what is acquired under it.

    open ─► acknowledged, record by record, and each remembered ─► nothing is acquired under it ─► for a while ─► gone

What was acknowledged is remembered, so that an acknowledgement that is said again, because its answer was lost, is
answered as the first time. All of it is bounded: what is over is forgotten first, the oldest first.

Pure, single-threaded; part of what core.shares is for, which does the acquiring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from comet_broker.core.shares import Holder

Range = tuple[int, int]


@dataclass(slots=True, eq=False)
class Ticket:
    """One lock. `told` is what was said of the records that were acquired under it, by offset."""

    holder: Holder
    told: dict[int, int] = field(default_factory=dict)
    over_at: float | None = None


class Tickets:
    """Those of one group at one partition. Owned by its driver."""

    def __init__(self, *, tickets_max: int, told_max: int, remembered_s: float) -> None:
        assert tickets_max > 0
        assert told_max > 0
        self._tickets: dict[int, Ticket] = {}
        self._tickets_max = tickets_max
        self._told_max = told_max
        self._told = 0
        self._remembered_s = remembered_s

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def open(self) -> int:
        """Those under which something is acquired."""
        return sum(ticket.holder.open > 0 for ticket in self._tickets.values())

    def find(self, number: int) -> Ticket | None:
        return self._tickets.get(number)

    def has_room(self) -> bool:
        """Whether one more may be opened; what is over makes way."""
        if len(self._tickets) >= self._tickets_max:
            over = next((number for number, ticket in self._tickets.items() if not ticket.holder.open), None)
            if over is None:
                return False
            self._forget(over)
        return True

    def add(self, number: int, holder: Holder) -> None:
        """Records were acquired by the holder under that number, now for the first time or once more."""
        known = self._tickets.get(number)
        assert known is None or known.holder is holder, "a number stands for one lock"
        if known is None:
            assert len(self._tickets) < self._tickets_max
            self._tickets[number] = Ticket(holder)

    def acknowledged(
        self, ticket: Ticket, kind: int, firsts: Sequence[int], ends: Sequence[int], lost: Iterable[Range]
    ) -> list[Range]:
        """Remembers what was said, of all but what was `lost`. Returns what of that stays lost: where the same was said
        before under this ticket, it is not."""
        gone = {offset for first, end in lost for offset in range(first, end)}
        told = ticket.told
        before = len(told)
        for first, end in zip(firsts, ends, strict=True):
            told.update((offset, kind) for offset in range(first, end) if offset not in gone)
        self._told += len(told) - before
        self._make_room()
        return _ranges(sorted(offset for offset in gone if told.get(offset) != kind))

    def _make_room(self) -> None:
        for ticket in self._tickets.values():
            if self._told <= self._told_max:
                return
            self._told -= len(ticket.told)
            ticket.told.clear()

    def tick(self, now: float) -> None:
        """Forgets what has been over for long enough, and at once that of which nothing was said."""
        for number, ticket in list(self._tickets.items()):
            if ticket.holder.open:
                continue
            if ticket.over_at is None:
                ticket.over_at = now
            if not ticket.told or now - ticket.over_at >= self._remembered_s:
                self._forget(number)

    def _forget(self, number: int) -> None:
        self._told -= len(self._tickets.pop(number).told)
        assert self._told >= 0


def _ranges(offsets: Sequence[int]) -> list[Range]:
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
