"""The leader's side of PartitionEnds: log ends of partitions, append times of records, and offsets of timestamps."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from typing import Any, Final

from comet import records
from comet.errors import CometError, Internal, InvalidArgument, Unavailable
from comet.types import AtTime
from comet.v1 import coordination_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker.core.share_record import ShareStatus
from comet_broker.core.tail import TailEntry
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.storage.extent import Extent
from comet_broker.tasks import Tasks

QUERIES_MAX: Final = 1_000  # in one call
TURN: Final = 100  # answers before other tasks get a turn
_BUFFER_BYTES: Final = 256 << 10


class LocalEnds:
    """Owned by the broker. `share_status` returns the status of a share group in a partition, by group, topic id and
    index; None if this broker does not have it."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        topics: TopicTable,
        reader: LogReader,
        share_status: Callable[[str, bytes, int], ShareStatus | None],
    ) -> None:
        self._tasks = tasks
        self._topics = topics
        self._reader = reader
        self._share_status = share_status

    async def answer(self, request: pb.PartitionEndsRequest) -> pb.PartitionEndsResponse:
        """The answers, each with an error of its own if there is one."""
        if len(request.queries) > QUERIES_MAX:
            raise InvalidArgument(f"at most {QUERIES_MAX} partitions in one request")
        ends: list[pb.PartitionEnd] = []
        slow: list[Coroutine[Any, Any, None]] = []
        for number, one in enumerate(request.queries):
            if number and number % TURN == 0:
                await asyncio.sleep(0)  # other tasks get a turn
            try:
                end, lookup = self._answer_one(one)
            except Exception as error:  # noqa: BLE001 - an error of one partition must not cost the others' answers
                end, lookup = self._broken(one, error), None
            ends.append(end)
            if lookup is not None:
                slow.append(lookup)
        if slow:
            await asyncio.gather(*slow)
        return pb.PartitionEndsResponse(ends=ends)

    def _answer_one(self, query: pb.PartitionEndQuery) -> tuple[pb.PartitionEnd, Coroutine[Any, Any, None] | None]:
        """The part of an answer that is known at once, and how to complete it where a log has to be read."""
        tp = (query.topic_id.hex(), query.partition)
        try:
            state = self._topics.state_of(*tp)
            if state is None:
                raise Unavailable("this broker does not know the partition yet")
            partition = self._topics.leading(tp, state.epoch)
            if not partition.settled:
                raise Unavailable("the new leader does not know its high watermark yet")
        except CometError as error:
            return pb.PartitionEnd(code=error_to_pb(error).code), None
        end = pb.PartitionEnd(
            log_start=partition.log.log_start,
            high_watermark=partition.high_watermark,
            last_stable_offset=min(partition.high_watermark, partition.last_stable_offset),
        )
        status = self._share_status(query.group, query.topic_id, query.partition) if query.group else None
        if status is not None:
            end.floor, end.acknowledged, end.in_flight = status.floor, status.acknowledged, status.in_flight
            end.redelivered, end.dead_lettered = status.redelivered, status.dead_lettered
            end.dead_waiting, end.dead_problem = status.dead, status.problem if status.dead else ""
        needs_offset = query.HasField("offset")
        if needs_offset:
            at_once = _append_time_at_hand(partition, query.offset)
            if at_once is not None:
                end.append_time_us, needs_offset = at_once, False
        if needs_offset or query.HasField("timestamp_us"):
            return end, self._look_up(partition, query, end, needs_offset=needs_offset)
        return end, None

    async def _look_up(
        self, partition: Partition, query: pb.PartitionEndQuery, end: pb.PartitionEnd, *, needs_offset: bool
    ) -> None:
        try:
            if needs_offset:
                end.append_time_us = await self._append_time(partition, query.offset)
            if query.HasField("timestamp_us"):
                end.offset_at = await self._reader.resolve(partition, AtTime(query.timestamp_us))
        except CometError as error:
            end.CopyFrom(pb.PartitionEnd(code=error_to_pb(error).code))
        except Exception as error:  # noqa: BLE001 - as above
            end.CopyFrom(self._broken(query, error))

    def _broken(self, query: pb.PartitionEndQuery, error: Exception) -> pb.PartitionEnd:
        self._tasks.report(f"the end of {query.topic_id.hex()}/{query.partition}", error)
        return pb.PartitionEnd(code=error_to_pb(Internal(repr(error))).code)

    async def _append_time(self, partition: Partition, offset: int) -> int:
        """The append time of the record at an offset, or of the next one after it; 0 if readers see none."""
        at_once = _append_time_at_hand(partition, offset)
        if at_once is not None:
            return at_once
        extent = partition.log.extent(max(offset, partition.log.log_start), partition.high_watermark)
        try:
            return await self._reader.worker.run(lambda: _read_time(extent))
        except OSError as error:
            raise self._reader.unreadable(partition, error) from error
        finally:
            extent.release()


def _append_time_at_hand(partition: Partition, offset: int) -> int | None:
    """The append time if no log has to be read for it."""
    offset = max(offset, partition.log.log_start)
    if offset >= partition.high_watermark:
        return 0
    entries = partition.readers.tail.entries
    if entries and entries[0].base_offset <= offset < entries[-1].next_offset:
        entry = entries[bisect_right(entries, offset, key=_base_offset) - 1]
        return int.from_bytes(entry.stamp[8:16], "little", signed=True)
    return None


def _read_time(extent: Extent) -> int:
    """Reads the append time; blocks, on a worker."""
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while True:
        result = extent.read(buffer, wait=True)
        assert result is not None
        if result.size:
            return records.read_header(buffer).append_time_us
        if not result.needed:
            return 0
        buffer = memoryview(bytearray(result.needed))


def _base_offset(entry: TailEntry) -> int:
    return entry.base_offset
