"""The schedules of one partition of `__schedules`, as its leader has them: read by key, stored, one change at a time.

Owned by a Keeper, for one leadership; on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from google.protobuf.message import DecodeError

from comet.errors import CometError
from comet.types import SCHEDULES_TOPIC
from comet.v1 import records_pb2 as records_pb
from comet.v1 import schedules_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet_broker import limits
from comet_broker.key_values.views import KeyViews
from comet_broker.partitions.partition import Partition
from comet_broker.schedules.changes import key_of
from comet_broker.schedules.due_table import DueTable
from comet_broker.schedules.transaction import Publish
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)


class ScheduleStore:
    def __init__(self, partition: Partition, views: KeyViews, publish: Publish, tasks: Tasks) -> None:
        assert partition.leadership is not None
        self.partition = partition
        self.table = DueTable()
        self.moved = asyncio.Event()  # a schedule may be due earlier than the next known one
        self._leadership = partition.leadership
        self._views = views
        self._publish = publish
        self._tasks = tasks
        self._queue: deque[tuple[records_pb.Record, asyncio.Future[int]]] = deque()  # to be stored
        self._writing: asyncio.Task[None] | None = None
        self._busy: dict[bytes, asyncio.Future[None]] = {}  # schedules that are being changed, or fire

    @property
    def led(self) -> bool:
        """Whether this broker still leads the partition, since the same election."""
        return self.partition.leadership is self._leadership and self.partition.closed is None

    def check_led(self) -> None:
        if not self.led:
            raise self.partition.not_leader()

    # ---- one change at a time

    def is_busy(self, key: bytes) -> bool:
        return key in self._busy

    @asynccontextmanager
    async def alone(self, key: bytes) -> AsyncIterator[None]:
        """Nothing else changes or fires the schedule meanwhile."""
        while (other := self._busy.get(key)) is not None:
            await asyncio.shield(other)
        async with self.taken([key]):
            yield

    @asynccontextmanager
    async def taken(self, keys: Sequence[bytes]) -> AsyncIterator[None]:
        """The same for schedules that are not busy."""
        loop = asyncio.get_running_loop()
        waiting: dict[bytes, asyncio.Future[None]] = {key: loop.create_future() for key in keys}
        self._busy.update(waiting)
        try:
            yield
        finally:
            for key, future in waiting.items():
                del self._busy[key]
                future.set_result(None)

    # ---- read and stored

    async def read(self, keys: Sequence[bytes]) -> tuple[dict[bytes, pb.Schedule], dict[bytes, int]]:
        """The schedules of these keys; and when those that are over ended, as far as that is known."""
        request = records_pb.ReadKeysRequest(keys=records_pb.KeyList(keys=keys))
        answer = await self._views.read(self.partition, request)
        found: dict[bytes, pb.Schedule] = {}
        over: dict[bytes, int] = {}
        for record in answer.records:
            if not record.HasField("value"):
                over[record.key] = record.timestamp_us
            elif (one := schedule_of(record)) is not None:
                found[record.key] = one
        return found, over

    async def page(self, request: records_pb.ReadKeysRequest) -> records_pb.ReadKeysResponse:
        return await self._views.read(self.partition, request)

    async def write(self, key: bytes, after: pb.Schedule | None) -> int:
        """Stores a schedule, or its end, on all replicas in sync; returns the revision. What is stored at the same time
        shares a batch."""
        self.check_led()
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.append((state_of(key, after), written))
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.spawn(self._write_queued(), f"store schedules of {self.partition}")
        revision = await written
        self.stored(key, after)
        return revision

    async def _write_queued(self) -> None:
        while self._queue:
            await asyncio.sleep(0)  # others of this turn join
            chosen: list[tuple[records_pb.Record, asyncio.Future[int]]] = []
            size = 0
            while self._queue and len(chosen) < limits.SCHEDULES_PUT_MAX and size < limits.SCHEDULE_TICK_BYTES_MAX:
                chosen.append(self._queue.popleft())
                size += len(chosen[-1][0].value)
            request = records_pb.PublishRequest(
                topic=SCHEDULES_TOPIC,
                partition=self.partition.index,
                acks=ACKS_ALL,
                records=[record for record, _ in chosen],
                forwarded=True,  # not by way of another leader, which would not notice
            )
            try:
                self.check_led()
                first = (await self._publish(request)).receipts[0].offset
            except CometError as error:
                for _, written in chosen:
                    if not written.done():
                        written.set_exception(error)
                continue
            except BaseException:
                for _, written in chosen:
                    written.cancel()
                raise
            for index, (_, written) in enumerate(chosen):
                if not written.done():
                    written.set_result(first + index)

    def close(self) -> None:
        self.table.close()
        for _, written in self._queue:
            written.cancel()
        self._queue.clear()

    def stored(self, key: bytes, after: pb.Schedule | None) -> None:
        """Notes what the log has now."""
        if after is None:
            self.table.remove(key)
        else:
            self.table.put(key, after)
            self.moved.set()


def schedule_of(record: records_pb.Record) -> pb.Schedule | None:
    """The schedule in a record of the log; None: it has none, or cannot be read."""
    if not record.HasField("value"):
        return None
    found = pb.Schedule()
    try:
        found.MergeFromString(record.value)
    except DecodeError as error:
        log.error("the schedule %r cannot be read: %s", record.key[:100], error)
        return None
    if key_of(found.topic, found.id) != record.key:
        log.error("the record of key %r is not the schedule of that name", record.key[:100])
        return None
    found.revision = record.offset
    return found


def state_of(key: bytes, after: pb.Schedule | None) -> records_pb.Record:
    """The record that stores a schedule, or its end."""
    if after is None:
        return records_pb.Record(key=key)
    after.ClearField("revision")
    return records_pb.Record(key=key, value=after.SerializeToString())
