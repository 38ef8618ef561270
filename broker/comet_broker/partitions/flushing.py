"""Syncs the log of a partition to disk, as its topic configures.

    flush=always      at once; one fsync serves all batches that arrived meanwhile
    flush=interval    a set time after the first write that is not synced
    flush=os          when a segment is full

    appended ─► [sync on the worker] ─► moved: the log or its durable end has grown
                                    └─► failed: the log takes no more writes

One sync is under way at a time. Owned by a Partition, on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from comet.errors import CometError
from comet.settings.topic import Flush
from comet_broker.partitions.context import PartitionContext
from comet_broker.storage.log import Log


class Flushing:
    """`halt` stops the partition after an unexpected error."""

    def __init__(
        self,
        name: str,
        log: Log,
        context: PartitionContext,
        *,
        moved: Callable[[], None],
        failed: Callable[[CometError], None],
        halt: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._log = log
        self._state = log.state
        self._worker = context.worker
        self._tasks = context.tasks
        self._moved = moved
        self._failed = failed
        self._halt = halt
        self._synced: Callable[[], None] | None = None
        self.stopped = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def durable_end(self) -> int:
        state = self._state
        return state.flushed_end if state.config.flush is Flush.ALWAYS else state.log_end

    def report_to(self, synced: Callable[[], None] | None) -> None:
        """Calls this after each sync: a follower reports to its leader."""
        self._synced = synced

    def appended(self) -> None:
        """Something was appended, or is still to be synced."""
        config = self._state.config
        if config.flush is Flush.ALWAYS:
            self.start()
            return
        if config.flush is Flush.INTERVAL and self._timer is None and self._task is None:
            self._timer = asyncio.get_running_loop().call_later(config.flush_interval_ms / 1000, self.start)
        self._moved()

    def catch_up(self) -> None:
        """Starts the sync of unsynced records, as after a change of the topic's configuration."""
        if self._state.flushed_end < self._state.log_end:
            self.appended()

    def start(self) -> None:
        self._cancel_timer()
        if self._task is None and not self.stopped:
            self._task = self._tasks.spawn(self._flush(), f"flush {self._name}")

    async def _flush(self) -> None:
        """Syncs until all is synced; with flush=always one fsync serves all batches that arrived meanwhile."""
        state = self._state
        try:
            while not self.stopped:  # truncation waits for the end of this
                await self.sync()
                if state.failed is not None or state.flushed_end >= state.log_end:
                    return
                if state.config.flush is not Flush.ALWAYS:
                    break
        except Exception as error:  # noqa: BLE001 - clients wait for this sync: stepping down answers them
            self._halt(error)
            return
        finally:
            self._task = None
        if state.config.flush is Flush.INTERVAL and not self.stopped:
            self.appended()

    async def sync(self) -> None:
        ticket = None if self.stopped else self._log.durability.start_sync()
        if ticket is None:
            return
        error: OSError | None = None
        try:
            await self._worker.run(ticket.run)
        except OSError as caught:
            error = caught
        self._log.durability.finish_sync(ticket, error)
        if self._state.failed is not None:
            self._failed(self._state.failed)
        self._moved()
        if self._synced is not None:
            self._synced()

    async def stop(self) -> None:
        """Ends syncing until `resume`. Returns when the running one has ended: an fsync on the worker is awaited."""
        self.stopped = True
        self._cancel_timer()
        if self._task is not None:
            await asyncio.wait([self._task])

    def resume(self) -> None:
        self.stopped = False

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
