"""Reads the records of a share group: from memory, page cache, or disk, as feeds do.

Records that are read and not acquired yet are kept, so that members in turn, and small locks of large batches, do not
read the same again and again. All groups together keep a bounded number of chunks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from comet.errors import CometError, Internal
from comet.wire.frames import DELIVERY_PREFIX_BYTES
from comet_broker import limits
from comet_broker.sharing.chunk import Chunk
from comet_broker.storage.log import Extent
from comet_broker.streams.subscriptions import read_waiting

if TYPE_CHECKING:
    from comet_broker.sharing.state import SharePartition

AGAIN_BYTES: Final = 64 << 10  # read for redeliveries, which are seldom many in a row
CHUNKS_MAX: Final = 2  # chunks of one group in one partition: of new records, and of redeliveries


class Chunks:
    """The chunks of all readers of all groups. Owned by the table."""

    def __init__(self, chunks_max: int) -> None:
        self._recent: OrderedDict[tuple[ShareReader, Chunk], None] = OrderedDict()
        self._chunks_max = chunks_max

    def use(self, reader: ShareReader, chunk: Chunk) -> None:
        self._recent[reader, chunk] = None
        self._recent.move_to_end((reader, chunk))
        while len(self._recent) > self._chunks_max:
            (other, oldest), _ = self._recent.popitem(last=False)
            other.chunks.remove(oldest)

    def __len__(self) -> int:
        return len(self._recent)

    def forget(self, reader: ShareReader, chunk: Chunk) -> None:
        self._recent.pop((reader, chunk), None)


class ShareReader:
    """Owned by one SharePartition."""

    def __init__(self, state: SharePartition) -> None:
        self.chunks: list[Chunk] = []
        self._state = state
        self.loading: asyncio.Future[None] | None = None  # while a read runs; done at its end
        self._generation = 0  # a read from before a `clear` is dropped

    def at(self, offset: int, end: int) -> Chunk | None:
        """A chunk with that record; None while it is being read, or if it cannot be."""
        chunks = self._state.table.chunks
        for chunk in self.chunks:
            if chunk.first <= offset < chunk.end:
                chunks.use(self, chunk)
                return chunk
        if self.loading is not None:
            return None
        partition = self._state.partition
        bytes_max = limits.SHARE_READ_BYTES if self._state.shares.is_new(offset) else AGAIN_BYTES
        tail = partition.readers.tail.frame_from(
            offset, end, partition.high_watermark, partition.leader_epoch, bytes_max
        )
        if tail is not None:
            return self._keep(memoryview(tail.frame)[DELIVERY_PREFIX_BYTES:], offset, tail.next_offset)
        return self._from_log(offset, end, bytes_max)

    def _from_log(self, offset: int, end: int, bytes_max: int) -> Chunk | None:
        broker, partition = self._state.table.broker, self._state.partition
        try:
            extent = partition.log.extent(offset, end)
        except CometError as error:
            self._state.unreadable(error)
            return None
        buffer = broker.read_buffer
        try:
            result = extent.read(buffer[:bytes_max], wait=False)
        except CometError as error:
            extent.release()
            self._state.unreadable(error)
            return None
        if result is not None and result.size:
            extent.release()
            return self._keep(memoryview(bytes(buffer[: result.size])), offset, result.next_offset)
        room = bytes_max if result is None else max(result.needed, bytes_max)
        self.loading = asyncio.get_running_loop().create_future()
        broker.tasks.spawn(self._load(extent, room, offset), f"read {partition} for {self._state.group}")
        return None

    async def _load(self, extent: Extent, room: int, offset: int) -> None:
        state, generation = self._state, self._generation
        broker = state.table.broker
        error: CometError | None = None
        try:
            data, size, next_offset = await broker.worker.run(lambda: read_waiting(extent, room))
            if generation == self._generation and state.closed is None:
                self._keep(data[:size], offset, next_offset)
        except CometError as caught:
            error = caught
        except OSError as caught:
            error = broker.unreadable(state.partition, caught)
        except Exception as caught:
            error = Internal(f"reading {state.partition} failed: {caught!r}")
            raise
        finally:
            loading, self.loading = self.loading, None
            if loading is not None and not loading.done():
                loading.set_result(None)
            extent.release()
            if state.closed is None:
                if error is not None:
                    state.unreadable(error)
                state.wake()

    def _keep(self, data: memoryview, offset: int, end: int) -> Chunk:
        state = self._state
        isolation = state.partition.watermarks.isolation
        aborted = isolation.aborted(offset, end) if isolation.any_aborted else []
        chunk = Chunk(data, aborted, by_key=state.agreed.options.by_key)
        if len(self.chunks) >= CHUNKS_MAX:
            state.table.chunks.forget(self, self.chunks.pop(0))
        self.chunks.append(chunk)
        state.table.chunks.use(self, chunk)
        return chunk

    def clear(self) -> None:
        self._generation += 1
        for chunk in self.chunks:
            self._state.table.chunks.forget(self, chunk)
        self.chunks.clear()
