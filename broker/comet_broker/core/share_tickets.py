"""Lock tickets: a client that has a ticket's number, and no stream, may acknowledge the records acquired under it.

    open ─► acknowledged, record by record, and each remembered ─► no acquired record is left ─► for a while ─► gone

Acknowledgements are remembered, so that a repeated one, whose answer was lost, gets the same answer as the first. All
of it is bounded: finished tickets are dropped first, the oldest first.

Pure, single-threaded; a complement of core.shares, which acquires the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from comet_broker.core.shares import Holder

Range = tuple[int, int]


@dataclass(slots=True, eq=False)
class Ticket:
    """One ticket. `remembered` are the acknowledgements of the records that were acquired under it, by offset."""

    holder: Holder
    remembered: dict[int, int] = field(default_factory=dict)
    over_at: float | None = None


class Tickets:
    """The tickets of one group in one partition. Owned by its driver."""

    def __init__(self, *, tickets_max: int, remembered_max: int, remembered_s: float) -> None:
        assert tickets_max > 0
        assert remembered_max > 0
        self._tickets: dict[int, Ticket] = {}
        self._tickets_max = tickets_max
        self._remembered_max = remembered_max
        self._remembered = 0
        self._remembered_s = remembered_s

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def open(self) -> int:
        """The number of tickets with acquired records."""
        return sum(ticket.holder.open > 0 for ticket in self._tickets.values())

    def find(self, number: int) -> Ticket | None:
        return self._tickets.get(number)

    def has_room(self) -> bool:
        """Whether one more ticket may be opened; drops a finished one if needed."""
        if len(self._tickets) >= self._tickets_max:
            over = next((number for number, ticket in self._tickets.items() if not ticket.holder.open), None)
            if over is None:
                return False
            self._forget(over)
        return True

    def add(self, number: int, holder: Holder) -> None:
        """Opens a ticket for the holder, unless it is open. The holder has acquired records under that number."""
        known = self._tickets.get(number)
        assert known is None or known.holder is holder, "a number belongs to one holder"
        if known is None:
            assert len(self._tickets) < self._tickets_max
            self._tickets[number] = Ticket(holder)

    def acknowledged(
        self, ticket: Ticket, kind: int, firsts: Sequence[int], ends: Sequence[int], lost: Iterable[Range]
    ) -> list[Range]:
        """Remembers the acknowledgements of all records but the `lost` ones. Returns the ranges that stay lost: those
        without the same acknowledgement before under this ticket."""
        gone = {offset for first, end in lost for offset in range(first, end)}
        remembered = ticket.remembered
        before = len(remembered)
        for first, end in zip(firsts, ends, strict=True):
            remembered.update((offset, kind) for offset in range(first, end) if offset not in gone)
        self._remembered += len(remembered) - before
        self._make_room()
        return _ranges(sorted(offset for offset in gone if remembered.get(offset) != kind))

    def _make_room(self) -> None:
        for ticket in self._tickets.values():
            if self._remembered <= self._remembered_max:
                return
            self._remembered -= len(ticket.remembered)
            ticket.remembered.clear()

    def tick(self, now: float) -> None:
        """Drops tickets that have been finished for long enough, and at once those without acknowledgements."""
        for number, ticket in list(self._tickets.items()):
            if ticket.holder.open:
                continue
            if ticket.over_at is None:
                ticket.over_at = now
            if not ticket.remembered or now - ticket.over_at >= self._remembered_s:
                self._forget(number)

    def _forget(self, number: int) -> None:
        self._remembered -= len(self._tickets.pop(number).remembered)
        assert self._remembered >= 0


def _ranges(offsets: Sequence[int]) -> list[Range]:
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
