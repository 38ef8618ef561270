"""The deliveries of one stream's subscriptions: from memory, page cache, or disk.

A cursor at the end of its partition is served from the partition's tail: one encoding for all subscribers. One that
is behind is served from the log: from the page cache between two awaits, or, where that would block, by a worker
thread, while the other cursors of the stream go on. Every batch from the log is verified before it leaves.

A follower's feed goes to the log end offset, a reader's to the last stable offset or, with `read_uncommitted`, to the
high watermark. Readers get the aborted transactions before the deliveries that hold some of them.

Owned by one session; `ended` reports that a cursor ended and why, `rouse` tells the transport that there is work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from comet.errors import CometError, Internal, OffsetOutOfRange, Unavailable
from comet.v1 import groups_pb2, records_pb2
from comet.wire.frames import DELIVERY_PREFIX_BYTES, Outgoing, delivery_prefix, joined
from comet_broker import limits
from comet_broker.core.push import Cursor, DeliveryState, PushQueue
from comet_broker.core.watermarks import ReadBound
from comet_broker.env import Env
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.filtering import EXAMINED_BYTES_MAX, READ_BYTES, FilteredDelivery, RowFilter
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.partition import Partition
from comet_broker.storage.extent import Extent

MEASURED_ALL: Final = 256  # deliveries measured in a second before sampling
MEASURED_EVERY: Final = 16  # the sample from then on, of each stream
_APPEND_TIME: Final = slice(DELIVERY_PREFIX_BYTES + 8, DELIVERY_PREFIX_BYTES + 16)  # of a frame; see comet.records


Ended = Callable[["Cursor[Partition]", CometError], None]


class Feed:
    """The subscriptions of one stream and their deliveries. Implements context.Reader and context.Waiter, by cursor."""

    def __init__(
        self,
        env: Env,
        reader: LogReader,
        meter: RequestMeter,
        ended: Ended,
        rouse: Callable[[], None],
        *,
        follower: bool = False,
    ) -> None:
        self.push: PushQueue[Partition] = PushQueue(
            subscriptions_max=limits.SESSION_SUBSCRIPTIONS_MAX,
            cursors_max=limits.PARTITIONS_MAX if follower else limits.SESSION_CURSORS_MAX,
            credit_bytes_max=limits.CREDIT_BYTES_MAX,
        )
        self._env = env
        self._reader = reader
        self._meter = meter
        self._ended = ended
        self._rouse = rouse
        self._follower = follower
        self._unmeasured = 0  # until the next measured delivery
        # Read by a worker or, with a size of 0, complete: its aborted transactions go out before it.
        self._loaded: deque[tuple[Cursor[Partition], Outgoing, int, int, int]] = deque()

    # ---- subscriptions

    def add(
        self,
        number: int,
        partition: Partition,
        offset: int,
        *,
        leader_only: bool = False,
        uncommitted: bool = False,
        chosen: RowFilter | None = None,
    ) -> None:
        """Starts to feed a partition from `offset`."""
        assert partition.closed is None
        cursor = self.push.add(number, partition.handle, partition, offset, uncommitted=uncommitted, chosen=chosen)
        partition.readers.add(cursor, self, leader_only=leader_only)

    def grant(self, number: int, credit: int) -> None:
        """Adds credit: more bytes may go out."""
        if self.push.grant(number, credit):
            self._rouse()

    def end(self, cursor: Cursor[Partition], error: CometError) -> None:
        """Ends one partition of a subscription with an error."""
        if cursor.state is DeliveryState.ENDED:
            return
        self._forget(cursor)
        self.push.remove(cursor)
        self._ended(cursor, error)

    def remove(self, number: int, handles: list[int]) -> None:
        """Ends a subscription, or the named partitions, at the client's request."""
        for cursor in self.push.close(number, handles):
            self._forget(cursor)

    def close(self) -> None:
        """Ends all subscriptions with the stream."""
        for cursor in list(self.push.cursors.values()):
            self._forget(cursor)
            self.push.remove(cursor)
        self._loaded.clear()

    def _forget(self, cursor: Cursor[Partition]) -> None:
        cursor.partition.readers.remove(cursor)

    def _bound_of(self, cursor: Cursor[Partition]) -> ReadBound:
        if self._follower:
            return ReadBound.LOG_END
        return ReadBound.HIGH_WATERMARK if cursor.uncommitted else ReadBound.LAST_STABLE_OFFSET

    def _end_of(self, cursor: Cursor[Partition]) -> int:
        if self._follower:
            return cursor.partition.log.log_end
        marks = cursor.partition.watermarks
        return marks.high_watermark if cursor.uncommitted else marks.last_stable_offset

    # ---- partitions.context.Reader and Waiter

    def next_offset(self, cursor: Cursor[Partition]) -> int:
        """The offset up to which the cursor has read, or is reading."""
        return cursor.partition.log.log_end if cursor.state is DeliveryState.LOADING else cursor.next_offset

    def advanced(self, cursor: Cursor[Partition]) -> None:
        """Wakes an idle cursor after the partition moved."""
        if self.push.wake(cursor):
            self._rouse()

    def partition_closed(self, cursor: Cursor[Partition], error: CometError) -> None:
        self.end(cursor, error)

    # ---- deliveries

    def next_delivery(self) -> Outgoing | None:
        """The next frame of the cursor whose turn it is, if there is one."""
        while self._loaded:
            cursor, frame, size, next_offset, compactions = self._loaded.popleft()
            if cursor.state is DeliveryState.LOADING:
                if self._is_deleted(cursor):
                    continue
                if compactions != cursor.partition.log.compaction.rounds:
                    self.push.again(cursor)  # the aborted transactions of what was read may be forgotten
                    continue
                first = cursor.next_offset
                self.push.loaded(cursor, size, next_offset)
                self._count(cursor.partition, next_offset - first, size)
                return self._after_aborted(cursor, first, frame)
            if not size and cursor.state is not DeliveryState.ENDED:
                return frame
        while (ready := self.push.take()) is not None:
            try:
                served = self._serve(ready)
            except Exception as error:  # noqa: BLE001 - it ends this cursor, not the stream or its other partitions
                self._env.tasks.report(f"a delivery of {ready.partition}", error)
                self.end(ready, Internal(f"reading {ready.partition} failed: {error!r}"))
                continue
            if served is not None:
                return served
        return None

    def _is_deleted(self, cursor: Cursor[Partition]) -> bool:
        """Ends a cursor whose next record is deleted. Memory and buffers may still hold the record, but its aborted
        transactions are forgotten. Followers take everything."""
        storage = cursor.partition.log
        if cursor.next_offset >= storage.log_start or self._follower:
            return False
        self.end(
            cursor,
            OffsetOutOfRange(
                f"offset {cursor.next_offset} of {cursor.partition} is deleted: "
                f"the log holds {storage.log_start} up to {storage.log_end}",
                details={"log_start": str(storage.log_start), "log_end": str(storage.log_end)},
            ),
        )
        return True

    def _watermark_of(self, partition: Partition) -> int:
        return partition.committed if self._follower else partition.high_watermark

    def _serve(self, cursor: Cursor[Partition]) -> Outgoing | None:
        partition = cursor.partition
        end = self._end_of(cursor)
        if cursor.next_offset >= end or partition.follower.truncating:
            self.push.idle(cursor)
            partition.readers.wait(self._bound_of(cursor), cursor, self)
            return None
        bytes_max = min(limits.DELIVERY_BYTES_MAX, cursor.subscription.credit)
        if self._is_deleted(cursor):
            return None
        if cursor.chosen is not None:
            self.push.loading(cursor)
            self._env.tasks.spawn(self._load_filtered(cursor, end, bytes_max), f"filter {partition}")
            return None
        tail = partition.readers.tail.frame_from(
            cursor.next_offset,
            end,
            self._watermark_of(partition),
            partition.leader_epoch,
            bytes_max,
            follower=self._follower,
        )
        if tail is not None:
            first = cursor.next_offset
            more = tail.next_offset < end
            self.push.served(cursor, tail.size, tail.next_offset, more=more)
            if not more:
                partition.readers.wait(self._bound_of(cursor), cursor, self)
            if not self._follower:
                partition.counts.delivered(tail.next_offset - first, tail.size)
                if self._unmeasured:
                    self._unmeasured -= 1
                elif not more:  # others have yet to catch up
                    self._measure(tail.frame)
            if partition.watermarks.isolation.any_aborted:
                return self._after_aborted(cursor, first, tail.frame)
            return tail.frame
        return self._serve_from_log(cursor, end, bytes_max)

    def _count(self, partition: Partition, delivered: int, size: int) -> None:
        if not self._follower:
            partition.counts.delivered(delivered, size)

    def _measure(self, frame: Outgoing) -> None:
        """Measures the time of a delivery's first batch since its append."""
        meter = self._meter
        first = frame if isinstance(frame, bytes) else frame.parts[0]  # with prefix and stamp
        append_time_us = int.from_bytes(first[_APPEND_TIME], "little")
        meter.deliver_durations.note(self._env.clock.wall_us() - append_time_us)
        meter.measured += 1
        if meter.measured >= MEASURED_ALL:
            self._unmeasured = MEASURED_EVERY - 1

    def _serve_from_log(self, cursor: Cursor[Partition], end: int, bytes_max: int) -> Outgoing | None:
        partition = cursor.partition
        try:
            extent = partition.log.extent(cursor.next_offset, end)
        except CometError as error:
            self.end(cursor, partition.explain(error))
            return None
        buffer = self._reader.buffer
        try:
            result = extent.read(buffer[DELIVERY_PREFIX_BYTES : DELIVERY_PREFIX_BYTES + bytes_max], wait=False)
        except CometError as error:
            extent.release()
            self.end(cursor, partition.explain(error))
            return None
        if result is not None and result.size:
            extent.release()
            first = cursor.next_offset
            self.push.served(cursor, result.size, result.next_offset)
            self._count(partition, result.next_offset - first, result.size)
            return self._after_aborted(cursor, first, self._frame(buffer, partition, result.size))
        self.push.loading(cursor)
        room = bytes_max if result is None else max(result.needed, bytes_max)
        self._env.tasks.spawn(self._load(cursor, extent, room), f"read {partition}")
        return None

    async def _load(self, cursor: Cursor[Partition], extent: Extent, room: int) -> None:
        """Reads one delivery on a worker thread."""
        partition = cursor.partition
        epoch, compactions = partition.leader_epoch, partition.log.compaction.rounds
        try:
            data, size, next_offset = await self._reader.read(extent, room, DELIVERY_PREFIX_BYTES)
        except CometError as error:
            self.end(cursor, partition.explain(error))
        except OSError as error:
            self.end(cursor, self._reader.unreadable(partition, error))
        except Exception as error:
            self.end(cursor, Internal(f"reading {partition} failed: {error!r}"))
            raise
        else:
            if cursor.state is not DeliveryState.LOADING:
                return
            if partition.leader_epoch != epoch and next_offset > partition.log.log_end:
                self.end(cursor, Unavailable(f"{partition} was truncated during the read", retry_after_ms=50))
                return
            self._loaded.append((cursor, self._frame(data, partition, size), size, next_offset, compactions))
            self._rouse()
        finally:
            extent.release()

    async def _load_filtered(self, cursor: Cursor[Partition], end: int, bytes_max: int) -> None:
        """Reads on until enough matches, or enough was looked at."""
        partition, at = cursor.partition, cursor.next_offset
        epoch, compactions = partition.leader_epoch, partition.log.compaction.rounds
        env = self._env
        found = FilteredDelivery(cursor.chosen, partition.index, env.filter_time, env.filter_turn, env.worker)
        try:
            while at < end and found.size < bytes_max and found.examined_bytes < EXAMINED_BYTES_MAX:
                data, at = await self._read_some(partition, at, end)
                await found.take(data)
                if cursor.state is not DeliveryState.LOADING:
                    return
        except CometError as error:
            self.end(cursor, error)
        except Exception as error:
            self.end(cursor, Internal(f"reading {partition} failed: {error!r}"))
            raise
        else:
            if partition.leader_epoch != epoch and at > partition.log.log_end:
                self.end(cursor, Unavailable(f"{partition} was truncated during the read", retry_after_ms=50))
                return
            size = found.finish()
            prefix = delivery_prefix(partition.handle, self._watermark_of(partition), partition.leader_epoch, size)
            self._loaded.append((cursor, found.batches(prefix), size, at, compactions))
            self._rouse()

    async def _read_some(self, partition: Partition, offset: int, end: int) -> tuple[memoryview, int]:
        """Whole batches from the one that holds an offset, from memory or the log, and the offset after them."""
        tail = partition.readers.tail.frame_from(
            offset, end, self._watermark_of(partition), partition.leader_epoch, READ_BYTES
        )
        if tail is not None:
            return memoryview(joined(tail.frame))[DELIVERY_PREFIX_BYTES:], tail.next_offset
        return await self._reader.read_from(partition, offset, end, READ_BYTES)

    def _after_aborted(self, cursor: Cursor[Partition], first: int, frame: Outgoing) -> Outgoing:
        """Puts the aborted transactions of a delivery that begins at `first` before it, if there are new ones."""
        isolation = cursor.partition.watermarks.isolation
        if cursor.uncommitted or self._follower or not isolation.any_aborted:
            return frame
        # A transaction that began before `aborted_sent_end` was sent already.
        news = [one for one in isolation.aborted(first, cursor.next_offset) if one.first >= cursor.aborted_sent_end]
        cursor.aborted_sent_end = cursor.next_offset
        if not news:
            return frame
        self._loaded.appendleft((cursor, frame, 0, 0, 0))
        aborted = groups_pb2.Aborted(
            partition=cursor.handle,
            transactions=[
                groups_pb2.AbortedTransaction(
                    producer_id=one.producer_id, epoch=one.epoch, first=one.first, end=one.end
                )
                for one in news
            ],
        )
        return records_pb2.ServerFrame(aborted=aborted).SerializeToString()

    def _frame(self, buffer: memoryview, partition: Partition, size: int) -> bytes:
        """The delivery whose batches are in the buffer already, behind the room for its prefix."""
        prefix = delivery_prefix(partition.handle, self._watermark_of(partition), partition.leader_epoch, size)
        buffer[:DELIVERY_PREFIX_BYTES] = prefix
        return bytes(buffer[: DELIVERY_PREFIX_BYTES + size])
