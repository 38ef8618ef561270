"""Deletion from the start of one partition's log, the rolls that make way for it, and compaction.

    timer           ─► run: rolls by age, syncs full segments, deletes by retention what is below the high watermark,
                            compacts
    DeleteRecords   ─► delete_before; the log start offset is durable when it returns

`lock` is held to delete from the log, at either end, to put compacted segments in place, or to close it.

Owned by a Partition.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from comet_broker.partitions.compaction import CompactedPartition, Leadership, PartitionCompaction
from comet_broker.storage.log import DeleteTicket


class Leader(Leadership, Protocol):
    def log_start_moved(self) -> None: ...


class DeletablePartition(CompactedPartition, Protocol):
    """The partition."""

    @property
    def leadership(self) -> Leader | None: ...


class Housekeeping:
    def __init__(self, partition: DeletablePartition) -> None:
        self.lock = asyncio.Lock()
        self.compaction = PartitionCompaction(partition, self.lock)
        self._partition = partition
        self._log = partition.log

    async def run(self) -> None:
        """Called by a timer. A full disk must not stop the timer."""
        storage = self._log
        flushing, context = self._partition.flushing, self._partition.context
        if self._partition.closed is not None or storage.failed is not None or flushing.stopped:
            return
        storage.segments.roll_by_age()
        if storage.durability.unfinished:
            flushing.start()  # with flush=os nothing else would finish a sealed segment
        async with self.lock:
            await self._delete(
                storage.deletion.start_retention(context.clock.wall_us(), self._partition.watermarks.high_watermark)
            )
            if self._partition.closed is None:
                storage.rest()
        self.compaction.check()

    async def delete_before(self, offset: int) -> int:
        """Deletes all records below `offset`; the log start offset is durable when it returns."""
        async with self.lock:
            if self._partition.closed is not None:
                raise self._partition.closed
            await self._delete(self._log.deletion.start_delete(offset))
        return self._log.log_start

    async def _delete(self, ticket: DeleteTicket | None) -> None:
        if ticket is None:
            return
        partition, worker = self._partition, self._partition.context.worker
        error: OSError | None = None
        try:
            await worker.run(ticket.run)
        except OSError as caught:
            error = caught
        before = self._log.log_start
        log_start = self._log.deletion.finish_delete(ticket, error)
        assert log_start >= before, "the log start offset never goes back"
        if partition.leadership is not None and log_start > before:
            partition.leadership.log_start_moved()
        # An open transaction may have no records left.
        partition.readers.wake(partition.watermarks.stabilize(log_start))
        await worker.run(ticket.remove)
