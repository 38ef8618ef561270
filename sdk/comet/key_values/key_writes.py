"""The writes of a KV: those of one turn of the loop to one partition are sent in one request.

    put, create, update, delete ─► gathered until the turn ends ─► one request for each partition ─► an offset each
                                                                       └─► refused ─► each record on its own

A request is written whole or not at all. So the record that is refused is found by sending each one again: it gets its
own error, and the others are written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from comet.errors import CometError
from comet.key_values.key_calls import KeyCalls, Undecided
from comet.v1 import records_pb2 as pb

RECORDS_MAX: Final = 256  # of a request
BYTES_MAX: Final = 64 << 10  # of its keys and values, if it has more than one record


@dataclass(slots=True)
class _Write:
    record: pb.Record
    offset: asyncio.Future[int]


@dataclass(slots=True)
class _Request:
    """Records of different keys of one partition."""

    give_up: float
    writes: dict[bytes, _Write] = field(default_factory=dict)
    size: int = 0

    def takes(self, record: pb.Record) -> bool:
        full = len(self.writes) >= RECORDS_MAX or self.size + _size(record) > BYTES_MAX
        return not full and record.key not in self.writes

    def add(self, record: pb.Record) -> asyncio.Future[int]:
        offset = asyncio.get_running_loop().create_future()
        self.writes[record.key] = _Write(record, offset)
        self.size += _size(record)
        return offset


class KeyWrites:
    """Owned by a KV."""

    def __init__(self, calls: KeyCalls, timeout_s: float) -> None:
        self._calls = calls
        self._timeout_s = timeout_s
        self._gathered: dict[int, _Request] = {}  # of this turn, by partition
        self._sending: set[asyncio.Task[None]] = set()

    async def write(self, partition: int, record: pb.Record) -> int:
        """Writes one record; returns its offset."""
        loop = asyncio.get_running_loop()
        if not self._gathered:
            loop.call_soon(self._send_gathered)
        request = self._gathered.get(partition)
        if request is not None and not request.takes(record):
            self._send(partition, request)
            request = None
        if request is None:
            request = self._gathered[partition] = _Request(loop.time() + self._timeout_s)
        return await request.add(record)

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for partition, request in gathered.items():
            self._send(partition, request)

    def _send(self, partition: int, request: _Request) -> None:
        writes = [write for write in request.writes.values() if not write.offset.done()]  # but for cancelled calls
        if writes:
            task = asyncio.create_task(self._publish(partition, writes, request.give_up), name="write keys")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _publish(self, partition: int, writes: list[_Write], give_up: float) -> None:
        try:
            offsets = await self._calls.publish(partition, [write.record for write in writes], give_up)
        except Undecided:
            await self._publish_singly(partition, writes, give_up)
        except CometError as error:
            if len(writes) > 1 and not (error.retriable or error.outcome_unknown):
                await self._publish_singly(partition, writes, give_up)
            else:
                _fail(writes, error)
        except Exception as error:
            _fail(writes, error)
            raise
        else:
            for write, offset in zip(writes, offsets, strict=True):
                if not write.offset.done():
                    write.offset.set_result(offset)
        finally:
            for write in writes:
                write.offset.cancel()  # the task was cancelled, or it is done

    async def _publish_singly(self, partition: int, writes: list[_Write], give_up: float) -> None:
        await asyncio.gather(*[self._publish(partition, [write], give_up) for write in writes])


def _fail(writes: list[_Write], error: Exception) -> None:
    for write in writes:
        if not write.offset.done():
            write.offset.set_exception(error)


def _size(record: pb.Record) -> int:
    return len(record.key) + len(record.value)
