"""What one stream's subscribers get, and from where: memory, page cache, or disk.

A cursor at the end of its partition is served from the partition's tail: one encoding for all subscribers. One that
is behind is served from the log: from the page cache between two awaits, or, where that would block, by a worker
thread, while the other cursors of the stream go on. Every batch from the log is verified before it leaves.

Owned by one session; `say` queues a frame that is not a delivery, `rouse` tells the transport that there is work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from comet._frames import DELIVERY_PREFIX_BYTES, delivery_prefix
from comet._wire import error_to_pb
from comet.errors import CometError
from comet.v1 import events_pb2 as pb
from comet_broker import limits
from comet_broker.core.push import Cursor, PushQueue, State
from comet_broker.partition import Partition
from comet_broker.storage.log import Extent

if TYPE_CHECKING:
    from comet_broker.broker import Broker


class CursorWaiter:
    """Wakes one cursor when its partition moves."""

    __slots__ = ("cursor", "feed")

    def __init__(self, feed: Feed, cursor: Cursor[Partition]) -> None:
        self.feed = feed
        self.cursor = cursor

    def advanced(self) -> None:
        """The high watermark moved."""
        self.feed.wake(self.cursor)

    def partition_closed(self, error: CometError) -> None:
        """Nothing will come any more."""
        self.feed.end(self.cursor, error)


class Feed:
    """The subscriptions of one stream and their deliveries."""

    def __init__(self, broker: Broker, say: Callable[[pb.ServerFrame], None], rouse: Callable[[], None]) -> None:
        self.push: PushQueue[Partition] = PushQueue(
            subscriptions_max=limits.SESSION_SUBSCRIPTIONS_MAX,
            cursors_max=limits.SESSION_CURSORS_MAX,
            credit_bytes_max=limits.CREDIT_BYTES_MAX,
        )
        self._broker = broker
        self._say = say
        self._rouse = rouse
        self._loaded: deque[tuple[Cursor[Partition], bytes, int, int]] = deque()  # read by a worker, to be sent

    # ---- subscriptions

    def add(self, number: int, partition: Partition, offset: int) -> None:
        """Starts to feed a partition from `offset`."""
        assert partition.closed is None
        self.push.add(number, partition.handle, partition, offset)
        partition.readers += 1

    def grant(self, number: int, credit: int) -> None:
        """More bytes may go out."""
        if self.push.grant(number, credit):
            self._rouse()

    def wake(self, cursor: Cursor[Partition]) -> None:
        """The partition moved on: an idle cursor may have something to read."""
        if self.push.wake(cursor):
            self._rouse()

    def end(self, cursor: Cursor[Partition], error: CometError) -> None:
        """Ends one partition of a subscription and says why."""
        if cursor.state is State.ENDED:
            return
        self._forget(cursor)
        self.push.remove(cursor)
        ended = pb.StreamError(
            error=error_to_pb(error), subscription=cursor.subscription.number, partition=cursor.handle
        )
        self._say(pb.ServerFrame(error=ended))

    def remove(self, number: int, handles: list[int]) -> None:
        """Ends a subscription, or the partitions named, as the client asked."""
        for cursor in self.push.close(number, handles):
            self._forget(cursor)

    def close(self) -> None:
        """The stream is over."""
        for cursor in list(self.push.cursors.values()):
            self._forget(cursor)
            self.push.remove(cursor)
        self._loaded.clear()

    @staticmethod
    def _forget(cursor: Cursor[Partition]) -> None:
        partition = cursor.partition
        partition.idle.pop(cursor, None)
        partition.readers -= 1
        assert partition.readers >= 0
        if partition.readers == 0:
            partition.tail.clear()

    # ---- deliveries

    def next_delivery(self) -> bytes | None:
        """The frame of the cursor whose turn it is, if any has something."""
        while self._loaded:
            cursor, frame, size, next_offset = self._loaded.popleft()
            if cursor.state is State.LOADING:
                self.push.loaded(cursor, size, next_offset)
                return frame
        while (ready := self.push.take()) is not None:
            served = self._serve(ready)
            if served is not None:
                return served
        return None

    def _serve(self, cursor: Cursor[Partition]) -> bytes | None:
        partition = cursor.partition
        high_watermark = partition.high_watermark
        if cursor.next_offset >= high_watermark:
            self.push.idle(cursor)
            partition.idle[cursor] = CursorWaiter(self, cursor)
            return None
        bytes_max = min(limits.DELIVERY_BYTES_MAX, cursor.subscription.credit)
        tail = partition.tail.frame_from(cursor.next_offset, high_watermark, partition.leader_epoch, bytes_max)
        if tail is not None:
            self.push.served(cursor, tail.size, tail.next_offset)
            return tail.frame
        return self._serve_from_log(cursor, high_watermark, bytes_max)

    def _serve_from_log(self, cursor: Cursor[Partition], high_watermark: int, bytes_max: int) -> bytes | None:
        partition = cursor.partition
        try:
            extent = partition.log.extent(cursor.next_offset, high_watermark)
        except CometError as error:
            self.end(cursor, error)
            return None
        buffer = self._broker.read_buffer
        try:
            result = extent.read(buffer[DELIVERY_PREFIX_BYTES : DELIVERY_PREFIX_BYTES + bytes_max], wait=False)
        except CometError as error:
            extent.release()
            self.end(cursor, error)
            return None
        if result is not None and result.size:
            extent.release()
            self.push.served(cursor, result.size, result.next_offset)
            return _frame(buffer, partition, high_watermark, result.size)
        self.push.loading(cursor)
        room = bytes_max if result is None else max(result.needed, bytes_max)
        self._broker.tasks.spawn(
            self._load(cursor, extent, room, high_watermark), f"read {partition.topic}/{partition.index}"
        )
        return None

    async def _load(self, cursor: Cursor[Partition], extent: Extent, room: int, high_watermark: int) -> None:
        """Reads one delivery on a worker thread."""
        partition = cursor.partition

        def read() -> tuple[bytes, int, int]:
            data, size, next_offset = read_waiting(extent, room, DELIVERY_PREFIX_BYTES)
            return _frame(data, partition, high_watermark, size), size, next_offset

        try:
            frame, size, next_offset = await self._broker.worker.run(read)
        except CometError as error:
            self.end(cursor, error)
        except OSError as error:
            self.end(cursor, self._broker.unreadable(partition, error))
        else:
            if cursor.state is State.LOADING:
                self._loaded.append((cursor, frame, size, next_offset))
                self._rouse()
        finally:
            extent.release()


def _frame(buffer: memoryview, partition: Partition, high_watermark: int, size: int) -> bytes:
    """The delivery whose batches already stand behind the room for its prefix."""
    buffer[:DELIVERY_PREFIX_BYTES] = delivery_prefix(partition.handle, high_watermark, partition.leader_epoch, size)
    return bytes(buffer[: DELIVERY_PREFIX_BYTES + size])


def read_waiting(extent: Extent, room: int, prefix_bytes: int = 0) -> tuple[memoryview, int, int]:
    """Whole batches, blocking: (a buffer with them after `prefix_bytes`, their size, the next offset).

    A first batch that is larger than `room` is read all the same.
    """
    while True:
        buffer = memoryview(bytearray(prefix_bytes + room))
        result = extent.read(buffer[prefix_bytes:], wait=True)
        assert result is not None, "a read that may wait has an answer"
        if result.size:
            return buffer, result.size, result.next_offset
        assert result.needed > room, "an extent is not empty"
        room = result.needed
