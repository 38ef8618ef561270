"""Reads a range of a partition by one request: whole batches as they are stored.

    Fetch{whole_batches} ─► led here? ─► the position as an offset ─► [nothing there: wait] ─► batches, [filter], aborts

Nothing is decoded but for a filter: the client drops the records that it does not want. The epoch is compared again
after every await, so that records of another epoch are never taken for the continuation.

Owned by UnaryRecords; lives as long as the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from comet import records
from comet.errors import CometError, Unavailable
from comet.types import AtOffset, Earliest, Latest, Position
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import position_from_pb
from comet_broker import limits
from comet_broker.core.watermarks import ReadBound
from comet_broker.env import Env
from comet_broker.memory.in_flight import InFlight
from comet_broker.partitions.filtering import EXAMINED_BYTES_MAX, READ_BYTES, FilteredDelivery, RowFilter, parsed
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.offset_lookup import check_not_truncated, check_settled, resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.shared_answers import SharedAnswers


class Ranges:
    def __init__(self, reader: LogReader, env: Env, shared: SharedAnswers[pb.FetchResponse]) -> None:
        self._reader = reader
        self._env = env
        self._in_flight = env.in_flight
        self._shared = shared

    async def fetch(self, partition: Partition, request: pb.FetchRequest) -> pb.FetchResponse:
        offset, seen = await self._position(partition, request)
        answer = partial(self._whole_from, partition, offset, seen, request)
        if offset >= end_of(partition, uncommitted=request.uncommitted) and request.wait_ms:
            return await answer_later(partition, offset, request, self._in_flight, self._shared, answer)
        return await answer()

    async def fetch_now(self, partition: Partition, request: pb.FetchRequest) -> tuple[pb.FetchResponse, bytes]:
        """The answer without its batches, and these. Does not wait for records."""
        while True:
            offset, seen = await self._position(partition, request)
            found = await self._batches_from(partition, offset, seen, request)
            if found is not None:
                return found

    async def _position(self, partition: Partition, request: pb.FetchRequest) -> tuple[int, int | None]:
        """The offset to read at, and the epoch of the record before it, if the reader has seen that."""
        at: Position = position_from_pb(request.start) if request.HasField("start") else Earliest()
        seen = request.leader_epoch if request.HasField("leader_epoch") and isinstance(at, AtOffset) else None
        self._check(partition, at, seen)
        if isinstance(at, Latest):
            return resolve(partition, at, uncommitted=request.uncommitted), seen
        return await self._reader.resolve(partition, at), seen

    async def _whole_from(
        self, partition: Partition, offset: int, seen: int | None, request: pb.FetchRequest
    ) -> pb.FetchResponse:
        found = await self._batches_from(partition, offset, seen, request)
        if found is None:
            return await self.fetch(partition, request)
        answer, batches = found
        answer.batches = batches
        return answer

    async def _batches_from(
        self, partition: Partition, offset: int, seen: int | None, request: pb.FetchRequest
    ) -> tuple[pb.FetchResponse, bytes] | None:
        async with self._in_flight.reserved(_bytes_max(request)):
            return await self._read_from(partition, offset, seen, request)

    async def _read_from(
        self, partition: Partition, offset: int, seen: int | None, request: pb.FetchRequest
    ) -> tuple[pb.FetchResponse, bytes] | None:
        """The answer and its batches; None if those at the offset were deleted meanwhile, together with their aborted
        transactions, so that the position is to be resolved again."""
        self._check(partition, AtOffset(offset), seen)
        uncommitted, chosen = request.uncommitted, parsed(request.filter)
        storage, end = partition.log, end_of(partition, uncommitted=uncommitted)
        data, next_offset, times = b"", offset, None
        compactions = storage.compaction.rounds
        if storage.log_start <= offset < end:
            if chosen is None:
                data, next_offset = await self._read(partition, offset, end, _bytes_max(request))
                data, next_offset, _ = leading(data, next_offset, offset, request.records_max or 100)
            else:
                data, next_offset, times = await self._filtered(partition, offset, end, chosen, request)
        if next_offset == offset >= end and not request.wait_ms:
            check_known(partition, offset)
        if offset < storage.log_start or compactions != storage.compaction.rounds:
            return None
        aborted = [] if uncommitted else partition.watermarks.isolation.aborted(offset, next_offset)
        partition.counts.delivered(next_offset - offset, len(data))
        answer = pb.FetchResponse(
            first_offset=offset,
            next_offset=next_offset,
            leader_epoch=storage.epochs.epoch_at(next_offset - 1) if 0 < next_offset <= storage.log_end else 0,
            aborted=[
                groups_pb.AbortedTransaction(producer_id=one.producer_id, epoch=one.epoch, first=one.first, end=one.end)
                for one in aborted
            ],
            log_start=storage.log_start,
            high_watermark=partition.high_watermark,
            readable_end=end_of(partition, uncommitted=uncommitted),
            clean_end=storage.compaction.notes.clean_end,
        )
        if times is not None:
            answer.min_timestamp_us, answer.max_timestamp_us = times
        return answer, data

    async def _filtered(
        self, partition: Partition, offset: int, end: int, chosen: RowFilter, request: pb.FetchRequest
    ) -> tuple[bytes, int, tuple[int, int] | None]:
        """What a filter leaves of the batches from `offset` on, the offset after what it looked at, and the bounds of
        the timestamps there. Reads on until enough matches, or enough was looked at."""
        env, epoch, left = self._env, partition.leader_epoch, request.records_max or 100
        found = FilteredDelivery(chosen, partition.index, env.filter_time, env.filter_turn, env.worker)
        while offset < end and left > 0:
            if found.size >= _bytes_max(request) or found.examined_bytes >= EXAMINED_BYTES_MAX:
                break
            data, after = await self._read(partition, offset, end, READ_BYTES)
            data, offset, count = leading(data, after, offset, left)
            left -= count
            await found.take(memoryview(data))
            if partition.leader_epoch != epoch:
                raise Unavailable(f"{partition} changed its leader during the read", retry_after_ms=50)
            if partition.closed is not None:
                raise partition.closed
        return found.batches(), offset, found.times

    def _check(self, partition: Partition, at: Position, seen: int | None) -> None:
        """Raises unless this broker leads and has the records that the reader has read."""
        if partition.closed is not None:
            raise partition.closed
        if not partition.named:
            raise partition.not_leader()
        if seen is not None and isinstance(at, AtOffset):
            check_not_truncated(partition, at.offset, seen)

    async def _read(self, partition: Partition, offset: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """Whole batches from the one that holds `offset`; from memory if possible."""
        try:
            extent = partition.log.extent(offset, end)
        except CometError as error:
            raise partition.explain(error) from error
        try:
            into = self._reader.buffer[:bytes_max]
            result = extent.read(into, wait=False)
            if result is not None and result.size:
                return bytes(into[: result.size]), result.next_offset
            room = bytes_max if result is None else max(result.needed, bytes_max)
            epoch = partition.leader_epoch
            data, size, next_offset = await self._reader.read(extent, room)
            if partition.leader_epoch != epoch:
                raise Unavailable(f"{partition} changed its leader during the read", retry_after_ms=50)
        except CometError as error:
            raise partition.explain(error) from error
        except OSError as error:
            raise self._reader.unreadable(partition, error) from error
        finally:
            extent.release()
        return bytes(data[:size]), next_offset


def _bytes_max(request: pb.FetchRequest) -> int:
    return min(request.bytes_max or limits.MIB, limits.FETCH_BYTES_MAX)


def leading(data: bytes, end: int, offset: int, records_max: int) -> tuple[bytes, int, int]:
    """The leading batches that hold that many records from `offset` on, the next offset, and the records from there."""
    at = found = 0
    while at < len(data):
        header = records.read_header(data, at)
        at += header.length
        found += header.record_count
        if header.base_offset < offset:
            found -= min(offset - header.base_offset, header.record_count)
        if found >= records_max:
            return data[:at], header.next_offset, found
    return data, end, found


def end_of(partition: Partition, *, uncommitted: bool) -> int:
    """The end for readers: the high watermark, or the last stable offset."""
    return partition.high_watermark if uncommitted else partition.last_stable_offset


def check_known(partition: Partition, offset: int) -> None:
    """Raises if there may be readable records at `offset` that this broker does not know yet. A reader that saw them at
    the last leader would take an empty answer for a loss; a reader that waits for records does not mind.

    A leader has all records that any other has reported. A leader whose lease has expired still knows what it knew
    before.
    """
    if partition.leads:
        known = partition.settled or offset >= partition.log.log_end
    else:
        known = partition.state is not None and partition.settled_in == partition.state.epoch
    if not known:
        check_settled(partition)


async def answer_later(
    partition: Partition,
    offset: int,
    request: pb.FetchRequest,
    in_flight: InFlight,
    shared: SharedAnswers[pb.FetchResponse],
    answer: Callable[[], Coroutine[Any, Any, pb.FetchResponse]],
) -> pb.FetchResponse:
    """Answers when there are new records, or the time is up; once for all calls with this request. Raises LimitExceeded
    when too many calls wait."""
    key = (partition.handle, offset, request.SerializeToString())
    with in_flight.waiting_call(), shared.expect(key):
        await wait_for_more(partition, request.wait_ms, uncommitted=request.uncommitted)
        end = end_of(partition, uncommitted=request.uncommitted)
        return await shared.answer(key, (end, partition.log.log_start, partition.leader_epoch), answer)


async def wait_for_more(partition: Partition, wait_ms: int, *, uncommitted: bool) -> None:
    """Waits until there are new records, or until the time is up."""
    bound = ReadBound.HIGH_WATERMARK if uncommitted else ReadBound.LAST_STABLE_OFFSET
    waiter = FetchWaiter(asyncio.get_running_loop().create_future())
    partition.readers.wait(bound, waiter, waiter)
    try:
        async with asyncio.timeout(min(wait_ms, limits.FETCH_WAIT_MS_MAX) / 1000):
            await waiter.future
    except TimeoutError:
        pass
    finally:
        partition.readers.stop_waiting(waiter)


class FetchWaiter:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def advanced(self, _: FetchWaiter) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def partition_closed(self, _: FetchWaiter, error: CometError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
