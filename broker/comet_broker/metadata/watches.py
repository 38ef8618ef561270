"""Watches: iterators over the history that wait at its end.

A watch has a revision and no queue, so that one that is read slowly, or never, costs nothing; it gets Compacted when
the history no longer has its revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from comet_broker.metadata.history import History
from comet_broker.metadata.keyspace import FIRST_REVISION
from comet_broker.metadata.store import Reconnected, WatchEvent


class Watches:
    """The watches that wait for the next revision. Owned by one store, on its event loop."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.closed = False
        self.breaks = 0  # a watch from before the last one has broken off
        self._waiting: dict[Watch, asyncio.Future[None]] = {}

    def publish(self, revisions: Sequence[tuple[WatchEvent, ...]]) -> None:
        """Adds revisions to the history and wakes the watches of their keys."""
        for events in revisions:
            self.history.append(events)
        if not self._waiting:
            return
        keys = [event.key for events in revisions for event in events]
        for watch in [watch for watch in self._waiting if any(key.startswith(watch.prefix) for key in keys)]:
            self.wake(watch)

    def restart(self, history: History, *, quietly: bool = False) -> None:
        """Replaces the history, after the store was restored."""
        self.history = history
        if not quietly:
            self.breaks += 1
            for watch in list(self._waiting):
                self.wake(watch)

    def close(self) -> None:
        self.closed = True
        for watch in list(self._waiting):
            self.wake(watch)

    async def wait(self, watch: Watch) -> None:
        if watch in self._waiting:
            raise RuntimeError("a watch can be read by one task at a time")
        future = asyncio.get_running_loop().create_future()
        self._waiting[watch] = future
        try:
            await future
        finally:
            if self._waiting.get(watch) is future:  # cancelled, not woken
                del self._waiting[watch]

    def wake(self, watch: Watch) -> None:
        future = self._waiting.pop(watch, None)
        if future is not None and not future.done():
            future.set_result(None)


class Watch(AsyncIterator[Sequence[WatchEvent]]):
    """One reader of the history: every revision that touches its prefix, in order."""

    def __init__(self, watches: Watches, prefix: str, from_revision: int) -> None:
        if from_revision < 1:
            raise ValueError(f"a watch starts at a revision from 1 on, not {from_revision}")
        self.prefix = prefix
        self._watches = watches
        self._next_revision = max(from_revision, FIRST_REVISION + 1)  # the first revision is the empty store's
        self._closed = False
        self._breaks = watches.breaks

    async def __anext__(self) -> Sequence[WatchEvent]:
        while not self._closed and not self._watches.closed:
            if self._breaks != self._watches.breaks:
                raise Reconnected("the store was restored")
            if events := self._read():
                return events
            await self._watches.wait(self)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the watch, also for a task that waits in it."""
        self._closed = True
        self._watches.wake(self)

    def _read(self) -> Sequence[WatchEvent]:
        history = self._watches.history
        if self._next_revision > history.next_revision:
            return ()  # it watches from a future revision
        for events in history.since(self._next_revision):
            self._next_revision += 1
            if mine := tuple(event for event in events if event.key.startswith(self.prefix)):
                return mine
        return ()
