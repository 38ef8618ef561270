"""The events that wait to be written to the topic: bounded, and what has no place is counted."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import NamedTuple

from comet_broker import limits


class QueuedEvent(NamedTuple):
    """A record to be written."""

    key: bytes
    value: bytes
    time_us: int


class EventQueue:
    """Owned by the audit log; on its loop."""

    def __init__(self) -> None:
        self.filled = asyncio.Event()  # while it holds events
        self.emptied = asyncio.Event()
        self.emptied.set()
        self.dropped = 0  # ever
        self._unreported = 0  # of these, since the last event that reports them
        self._waiting: deque[QueuedEvent] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: QueuedEvent, *, admin: bool) -> None:
        """Appends an event, or drops it if the queue is full."""
        if len(self._waiting) >= limits.AUDIT_QUEUE_MAX - (0 if admin else limits.AUDIT_QUEUE_ADMIN_MIN):
            self.dropped += 1
            self._unreported += 1
            return
        self._waiting.append(event)
        self.filled.set()
        self.emptied.clear()

    def first(self, number: int) -> list[QueuedEvent]:
        return list(islice(self._waiting, number))

    def remove(self, number: int) -> None:
        """Removes the first ones, which are written."""
        for _ in range(number):
            self._waiting.popleft()
        if not self._waiting:
            self.filled.clear()
            self.emptied.set()

    def take_unreported(self) -> int:
        """The number of dropped events that no event reports yet."""
        unreported, self._unreported = self._unreported, 0
        return unreported
