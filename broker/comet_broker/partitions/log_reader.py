"""Reads of logs: from the page cache on the loop, on a worker thread where that would block.

Owned by the broker; one for all streams and calls.
"""

from __future__ import annotations

import logging
from typing import Final

from comet.errors import CometError, Unavailable
from comet.types import AtTime, Position
from comet.wire.frames import DELIVERY_PREFIX_BYTES
from comet_broker import limits
from comet_broker.partitions.offset_lookup import check_settled, resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import storage_error
from comet_broker.ports import Worker
from comet_broker.storage.extent import Extent

log = logging.getLogger(__name__)

LOOP_READ_BYTES: Final = 1 << 20  # larger reads would hold up the loop
BUFFER_BYTES: Final = DELIVERY_PREFIX_BYTES + limits.DELIVERY_BYTES_MAX


class LogReader:
    """`buffer` is for reads from the page cache; it is used between two awaits only."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.buffer = memoryview(bytearray(BUFFER_BYTES))

    async def resolve(self, partition: Partition, position: Position) -> int:
        """The offset of a position; a time is looked up on a worker thread."""
        if not isinstance(position, AtTime):
            return resolve(partition, position)
        check_settled(partition)
        try:
            found = await self.worker.run(lambda: partition.log.segments.find_time(position.timestamp_us))
        except OSError as error:
            raise self.unreadable(partition, error) from error
        return max(partition.log.log_start, min(found, partition.high_watermark))

    async def read(self, extent: Extent, room: int, prefix_bytes: int = 0) -> tuple[memoryview, int, int]:
        """Whole batches, read on a worker thread; see `read_waiting`."""
        return await self.worker.run(lambda: read_waiting(extent, room, prefix_bytes))

    async def read_from(self, partition: Partition, offset: int, end: int | None, room: int) -> tuple[memoryview, int]:
        """Whole batches from the one that holds `offset`, and the offset after them. Raises what a client is told.

        Up to LOOP_READ_BYTES come from the page cache on the loop. A worker reads more, and what is not in the cache.
        """
        try:
            extent = partition.log.extent(offset, end)
        except CometError as error:
            raise partition.explain(error) from error
        try:
            if room <= LOOP_READ_BYTES:
                into = memoryview(bytearray(room))
                result = extent.read(into, wait=False)
                if result is not None and result.size:
                    return into[: result.size], result.next_offset
                room = room if result is None else max(result.needed, room)
            data, size, next_offset = await self.read(extent, room)
        except CometError as error:
            raise partition.explain(error) from error
        except OSError as error:
            raise self.unreadable(partition, error) from error
        finally:
            extent.release()
        return data[:size], next_offset

    @staticmethod
    def unreadable(partition: Partition, error: OSError) -> CometError:
        """Logs that the disk cannot be read; returns the error for clients."""
        log.error("cannot read %s: %s", partition, error)
        return storage_error(error)


def read_waiting(extent: Extent, room: int, prefix_bytes: int = 0) -> tuple[memoryview, int, int]:
    """Whole batches, blocking: (a buffer with them after `prefix_bytes`, their size, the next offset).

    A first batch that is larger than `room` is read anyway.
    """
    while True:
        buffer = memoryview(bytearray(prefix_bytes + room))
        result = extent.read(buffer[prefix_bytes:], wait=True)
        assert result is not None, "a read that may wait has an answer"
        if result.size:
            return buffer, result.size, result.next_offset
        if not result.needed:  # compacted, and this broker does not know yet how far the partition is committed
            raise Unavailable("the batch at this offset is not known to be committed here yet", retry_after_ms=50)
        assert result.needed > room
        room = result.needed
