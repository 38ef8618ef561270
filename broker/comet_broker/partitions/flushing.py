"""The part of a partition that syncs its log to disk, as its topic configures.

    flush=always      at once; one fsync serves all batches that arrived meanwhile
    flush=interval    a set time after the first write that is not synced
    flush=os          when a segment is full

One sync is under way at a time, on the worker. The lower half of a Partition, which owns it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from comet.errors import CometError
from comet.types import Flush
from comet_broker.partitions.context import PartitionContext, Waiter
from comet_broker.storage.log import Log


class Flushing(ABC):
    def __init__(self, storage: Log, context: PartitionContext) -> None:
        self.log = storage
        self.context = context
        self.closed: CometError | None = None
        self.truncating = False  # a worker is truncating a follower's log: nothing else may touch it
        self.synced: Callable[[], None] | None = None  # a follower reports to its leader
        self.idle_followers: dict[Any, Waiter] = {}  # by cursor: woken by the next append, then gone
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def moved(self) -> None:
        """Called when the log or its durable end has grown."""

    @abstractmethod
    def halt(self, error: Exception) -> None:
        """Stops the partition after an unexpected error."""

    @abstractmethod
    def failed(self, error: CometError) -> None:
        """Called when the log takes no more writes."""

    def _durable_end(self) -> int:
        return self.log.flushed_end if self.log.config.flush is Flush.ALWAYS else self.log.log_end

    def _appended_one(self) -> None:
        match self.log.config.flush:
            case Flush.ALWAYS:
                self._start_flush()
            case Flush.INTERVAL:
                if self._flush_timer is None and self._flush_task is None:
                    delay_s = self.log.config.flush_interval_ms / 1000
                    self._flush_timer = asyncio.get_running_loop().call_later(delay_s, self._start_flush)
                self.moved()
            case Flush.OS:
                self.moved()
        if self.idle_followers:
            woken, self.idle_followers = self.idle_followers, {}
            self._wake(woken)

    def _wake(self, waiting: dict[Any, Waiter]) -> None:
        """Wakes each waiter; an error of one must not stop the others."""
        for waiter in waiting.values():
            try:
                waiter.advanced()
            except Exception as error:  # noqa: BLE001 - reported; it concerns a reader, not the partition
                self.context.tasks.report(f"waking a reader of {self}", error)

    def answer(self, done: Callable[[Any], None], what: object) -> None:
        """Calls `done`; its error is reported, as in `_wake`."""
        try:
            done(what)
        except Exception as caught:  # noqa: BLE001 - as above
            self.context.tasks.report(f"answering a client of {self}", caught)

    def _start_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flush_task is None and self.closed is None and not self.truncating:
            self._flush_task = self.context.tasks.spawn(self._flush(), f"flush {self}")

    async def _flush(self) -> None:
        """Syncs until all is synced; with flush=always one fsync serves all batches that arrived meanwhile."""
        try:
            while not self.truncating:  # truncation waits for the end of this
                await self.sync()
                if self.log.failed is not None or self.log.flushed_end >= self.log.log_end:
                    return
                if self.log.config.flush is not Flush.ALWAYS:
                    break
        except Exception as error:  # noqa: BLE001 - clients wait for this sync: stepping down answers them
            self.halt(error)
            return
        finally:
            self._flush_task = None
        if self.log.config.flush is Flush.INTERVAL and self.closed is None and not self.truncating:
            self._appended_one()

    async def sync(self) -> None:
        if self.truncating:
            return
        ticket = self.log.durability.start_sync()
        if ticket is None:
            return
        error: OSError | None = None
        try:
            await self.context.worker.run(ticket.run)
        except OSError as caught:
            error = caught
        self.log.durability.finish_sync(ticket, error)
        if self.log.failed is not None:
            self.failed(self.log.failed)
        self.moved()
        if self.synced is not None:
            self.synced()

    async def _stop_flushing(self) -> None:
        """Returns when no sync is running any more. An fsync on the worker is awaited."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task])
