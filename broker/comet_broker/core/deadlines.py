"""Deadlines of many names: a heap with few entries per name, however often its deadline changes.

A name whose deadline moves back keeps its entry, and is checked again when that entry is due. So frequent renewals cost
nothing, and the heap does not grow with their number.

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
            self._compact()

    def drop(self, name: str) -> None:
        """Removes a deadline. Its heap entry stays for the next `set`."""
        self._until.pop(name, None)

    @property
    def next(self) -> float | None:
        """The time of the next heap entry; its deadline may have moved since."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> list[str]:
        """Removes and returns the names whose deadline has passed."""
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

    def _compact(self) -> None:
        """Rebuilds the heap: deadlines that move forward leave entries behind."""
        if len(self._heap) > _FEW + 2 * len(self._entry):
            self._heap = [(entry, name) for name, entry in self._entry.items()]
            heapq.heapify(self._heap)
