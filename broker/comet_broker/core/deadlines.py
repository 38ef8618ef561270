"""Until when each of many things may take: a heap that holds few entries for each, however often its time changes.

A thing whose deadline moves back keeps its entry, and is looked at again when that comes up. So one that is renewed all
the time costs nothing, and the heap does not grow with the number of renewals.

Pure.
"""

from __future__ import annotations

import heapq
from typing import Final

_FEW: Final = 64


class Deadlines:
    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._entry: dict[str, float] = {}  # the entry of the heap that counts; not after `_until`
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._until)

    def set(self, name: str, until: float) -> None:
        self._until[name] = until
        if self._entry.get(name, float("inf")) > until:
            self._entry[name] = until
            heapq.heappush(self._heap, (until, name))
            self._thin_out()

    def drop(self, name: str) -> None:
        """It need not be thought of any more. Its entry stays for the next time."""
        self._until.pop(name, None)

    @property
    def next(self) -> float | None:
        """When there is something to look at; it may turn out to be nothing."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> list[str]:
        """Those whose time is up. They are dropped."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            entry, name = heapq.heappop(self._heap)
            if self._entry.get(name) != entry:
                continue
            del self._entry[name]
            until = self._until.get(name)
            if until is None:
                continue
            if until <= now:
                del self._until[name]
                due.append(name)
            else:
                self._entry[name] = until
                heapq.heappush(self._heap, (until, name))
        return due

    def _thin_out(self) -> None:
        """Deadlines that move forward leave entries behind."""
        if len(self._heap) > _FEW + 2 * len(self._entry):
            self._heap = [(entry, name) for name, entry in self._entry.items()]
            heapq.heapify(self._heap)
