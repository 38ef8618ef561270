"""Reads the records of a share group: from memory, page cache, or disk, as feeds do.

Records that are read and not acquired yet are kept, so that members in turn, and small locks of large batches, do not
read the same again and again. All groups together keep a bounded number of chunks. With a filter a chunk has only the
records that match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from comet.errors import CometError, Internal
from comet.wire.frames import DELIVERY_PREFIX_BYTES, joined
from comet_broker import limits
from comet_broker.core.shares import Shares
from comet_broker.partitions.filtering import FilteredDelivery, parsed
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.chunk import Chunk
from comet_broker.sharing.context import Agreed, ShareContext
from comet_broker.storage.extent import Extent

AGAIN_BYTES: Final = 64 << 10  # read for redeliveries, which are seldom many in a row
CHUNKS_MAX: Final = 2  # chunks of one group in one partition: of new records, and of redeliveries

Read = Callable[[], Awaitable[tuple[memoryview, int]]]  # whole batches, and the offset after them


class ReadState(Protocol):
    """The part of a SharePartition that reading needs."""

    @property
    def partition(self) -> Partition: ...
    @property
    def group(self) -> str: ...
    @property
    def agreed(self) -> Agreed: ...
    @property
    def shares(self) -> Shares: ...
    @property
    def closed(self) -> CometError | None: ...
    def unreadable(self, error: CometError) -> None: ...
    def wake(self) -> None: ...


class ShareReader:
    """Owned by one SharePartition."""

    def __init__(self, state: ReadState, context: ShareContext) -> None:
        self.chunks: list[Chunk] = []
        self._state = state
        self._context = context
        self.loading: asyncio.Future[None] | None = None  # while a read runs; done at its end
        self._generation = 0  # a read from before a `clear` is dropped

    def at(self, offset: int, end: int) -> Chunk | None:
        """A chunk with that record; None while it is being read, or if it cannot be."""
        chunks = self._context.chunks
        for at, chunk in enumerate(self.chunks):
            if chunk.first <= offset < chunk.end:
                fresh = chunk.unexpired(self._context.env.clock.wall_us()) if chunk.expires_us else chunk
                if fresh is not chunk:
                    chunks.forget(self, chunk)
                    self.chunks[at] = fresh
                chunks.use(self, fresh)
                return fresh
        if self.loading is not None:
            return None
        partition = self._state.partition
        bytes_max = limits.SHARE_READ_BYTES if self._state.shares.window.is_new(offset) else AGAIN_BYTES
        tail = partition.readers.tail.frame_from(
            offset, end, partition.high_watermark, partition.leader_epoch, bytes_max
        )
        if tail is not None:
            return self._found(memoryview(joined(tail.frame))[DELIVERY_PREFIX_BYTES:], offset, tail.next_offset)
        return self._from_log(offset, end, bytes_max)

    def _from_log(self, offset: int, end: int, bytes_max: int) -> Chunk | None:
        partition = self._state.partition
        try:
            extent = partition.log.extent(offset, end)
        except CometError as error:
            self._state.unreadable(error)
            return None
        buffer = self._context.reader.buffer
        try:
            result = extent.read(buffer[:bytes_max], wait=False)
        except CometError as error:
            extent.release()
            self._state.unreadable(error)
            return None
        if result is not None and result.size:
            extent.release()
            return self._found(memoryview(bytes(buffer[: result.size])), offset, result.next_offset)
        room = bytes_max if result is None else max(result.needed, bytes_max)
        self._begin(partial(self._from_disk, extent, room), offset)
        return None

    def _found(self, data: memoryview, offset: int, end: int) -> Chunk | None:
        """Keeps what was read; with a filter once that was applied, and returns None."""
        if not self._state.agreed.filter:
            return self._keep(data, offset, end)
        self._begin(partial(self._matching, data, end), offset)
        return None

    async def _from_disk(self, extent: Extent, room: int) -> tuple[memoryview, int]:
        try:
            data, size, next_offset = await self._context.reader.read(extent, room)
        finally:
            extent.release()
        return await self._matching(data[:size], next_offset)

    async def _matching(self, data: memoryview, end: int) -> tuple[memoryview, int]:
        """What the group's filter leaves of these batches. The others are covered, and so never delivered."""
        env, chosen = self._context.env, parsed(self._state.agreed.filter)
        if chosen is None:
            return data, end
        index = self._state.partition.index
        found = FilteredDelivery(chosen, index, env.filter_time, env.filter_turn, env.worker, exact=True)
        await found.take(data)
        return memoryview(found.batches()), end

    def _begin(self, read: Read, offset: int) -> None:
        self.loading = asyncio.get_running_loop().create_future()
        name = f"read {self._state.partition} for {self._state.group}"
        self._context.env.tasks.spawn(self._load(read, offset), name)

    async def _load(self, read: Read, offset: int) -> None:
        state, generation = self._state, self._generation
        error: CometError | None = None
        try:
            data, next_offset = await read()
            if generation == self._generation and state.closed is None:
                self._keep(data, offset, next_offset)
        except CometError as caught:
            error = caught
        except OSError as caught:
            error = self._context.reader.unreadable(state.partition, caught)
        except Exception as caught:
            error = Internal(f"reading {state.partition} failed: {caught!r}")
            raise
        finally:
            loading, self.loading = self.loading, None
            if loading is not None and not loading.done():
                loading.set_result(None)
            if state.closed is None:
                if error is not None:
                    state.unreadable(error)
                state.wake()

    def _keep(self, data: memoryview, offset: int, end: int) -> Chunk:
        state = self._state
        isolation = state.partition.watermarks.isolation
        aborted = isolation.aborted(offset, end) if isolation.any_aborted else []
        chunk = Chunk(data, aborted, by_key=state.agreed.options.by_key, now_us=self._context.env.clock.wall_us())
        if len(self.chunks) >= CHUNKS_MAX:
            self._context.chunks.forget(self, self.chunks.pop(0))
        self.chunks.append(chunk)
        self._context.chunks.use(self, chunk)
        return chunk

    def clear(self) -> None:
        self._generation += 1
        for chunk in self.chunks:
            self._context.chunks.forget(self, chunk)
        self.chunks.clear()
