"""Counts repetitions of an event: the first is reported at once, the others once a minute as a number. Pure.

Bounded, so that strangers and clients can neither fill the log nor the memory: an address or principal has a limited
number of rows, and so has the table; what has no row is counted in a row of the others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import msgspec

from comet_broker.audit.event import OTHERS, AuditEvent

REPORT_S: Final = 60.0


@dataclass(slots=True)
class CountedEvent:
    event: AuditEvent
    due_s: float  # when its repetitions are reported; a row without any goes then
    count: int = 0  # repetitions that are not reported yet


class EventCounts:
    """A table of rows, by owner (an address or principal) and the key of the event."""

    def __init__(self, rows_max: int, owner_rows_max: int) -> None:
        self._rows_max = rows_max
        self._owner_rows_max = owner_rows_max
        self._rows: OrderedDict[tuple[str, Hashable], CountedEvent] = OrderedDict()  # by `due_s`
        self._sizes: Counter[str] = Counter()  # rows of each owner

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, owner: str, key: Hashable, event: AuditEvent, now_s: float) -> AuditEvent | None:
        """Counts an event. Returns the one to report now; None: it is a repetition."""
        at = (owner, key)
        if at not in self._rows and self._sizes[owner] >= self._owner_rows_max:
            at = (owner, OTHERS)
            event = AuditEvent(event=event.event, principal=event.principal, address=event.address, name=OTHERS)
        if at not in self._rows and len(self._rows) >= self._rows_max:
            at, event = (OTHERS, OTHERS), AuditEvent(event=event.event, name=OTHERS)
        row = self._rows.get(at)
        if row is not None:
            row.count += 1
            return None
        self._rows[at] = CountedEvent(event, now_s + REPORT_S)
        self._sizes[at[0]] += 1
        return event

    def due(self, now_s: float, most: int) -> list[AuditEvent]:
        """Repetitions to report now, `most` at once."""
        found: list[AuditEvent] = []
        while self._rows and len(found) < most:
            at, row = next(iter(self._rows.items()))
            if row.due_s > now_s:
                break
            if row.count:
                found.append(_repeated(row))
                row.count, row.due_s = 0, now_s + REPORT_S
                self._rows.move_to_end(at)
            else:
                del self._rows[at]
                self._sizes[at[0]] -= 1
                if not self._sizes[at[0]]:
                    del self._sizes[at[0]]
        return found

    def rest(self) -> list[AuditEvent]:
        """All repetitions that are not reported yet. Empties the table."""
        found = [_repeated(row) for row in self._rows.values() if row.count]
        self._rows.clear()
        self._sizes.clear()
        return found


def _repeated(row: CountedEvent) -> AuditEvent:
    return msgspec.structs.replace(row.event, count=row.count)
