"""The range reader: fetches parts of a partition by request. It has neither position nor subscription.

    fetch ─► the partition's leader, found again while it moves ─► whole batches ─► the requested records, as columns

Each call stands alone, so that any number of them may be under way at once, also for one partition.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, Self

from comet import limits, records
from comet.client.client import Addresses, Client
from comet.client.leader_request import call_leader
from comet.consumer.aborted import CONTROL, MARKED, Discards
from comet.consumer.iteration import hole
from comet.consumer.options import Isolation, check_isolation
from comet.errors import CorruptBatch, CorruptRecords, InvalidArgument
from comet.types import AtOffset, AtTime, Position, StartLike, TopicPartition, check_topic_name, position, wall_clock_us
from comet.v1 import records_pb2 as pb
from comet.values.record import RecordBatch
from comet.wire.corrupt import headers, opened
from comet.wire.protobuf import position_to_pb
from comet.wire.transport import Connect

_FETCH: Final = "comet.v1.Comet/Fetch"
INT64_MAX: Final = (1 << 63) - 1
KNOWN_WAIT_MS: Final = 500  # at one broker, for records that are known to exist: another may lead by then


class Fetched(NamedTuple):
    """A part of a partition: whole batches and parts of batches, with only the requested records.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.Reader(address) as reader:
    ...         first = await reader.fetch("quotes", 0, "earliest", records_max=2)
    ...         rest = await reader.fetch("quotes", 0, first.next_offset, epoch=first.epoch)
    ...     print([batch.values for batch in first.batches], [batch.values for batch in rest.batches], rest.log_end)
    >>> run(example)
    [[b'1', b'2']] [[b'3']] 3
    """

    batches: list[RecordBatch[bytes]]
    first_offset: int  # the offset of the requested start
    next_offset: int  # the offset at which to continue
    epoch: int | None  # of the record before next_offset, for the next fetch
    log_start: int
    log_end: int  # the end of the readable records


class _FetchSpec(NamedTuple):
    tp: TopicPartition
    records_max: int
    bytes_max: int
    uncommitted: bool
    topic_id: bytes  # empty: any topic of the name
    waits: bool
    give_up: float


class Reader:
    """Reads ranges of partitions by request. To follow a topic, use Consumer.

    Async; `comet.sync.Reader` is the same for synchronous code. While a partition has no leader, or its leader cannot
    be reached, a call retries for `timeout_ms`, plus its `wait_ms`.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await producer.publish("quotes", b"EURUSD 1.08")
    ...     async with comet.Reader(address) as reader:
    ...         found = await reader.fetch("quotes", 0, "-1h")
    ...     print(found.first_offset, found.next_offset, [list(batch.values) for batch in found.batches])
    >>> run(example)
    0 1 [[b'EURUSD 1.08']]
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        name: str = "",
        connect: Connect | None = None,
        random: Random | None = None,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._client = Client(addresses, name=name, connect=connect, random=random)
        self._timeout_ms = timeout_ms
        self._clock_us = clock_us

    async def fetch(
        self,
        topic: str,
        partition: int,
        start: StartLike = "earliest",
        *,
        epoch: int | None = None,
        records_max: int = 100,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        isolation: Isolation = "committed",
        topic_id: bytes = b"",
    ) -> Fetched:
        """Reads up to `records_max` records and `bytes_max` bytes of keys and values, but at least one record if there
        is one. Waits up to `wait_ms` for the first.

        With an offset, `epoch` is that of the record before it: if that record was truncated since, raises Truncated.
        With `topic_id`, the `id` of a TopicInfo, raises TopicNotFound if the topic was recreated. Raises
        OffsetOutOfRange, with `log_start` and `log_end` in its details, TopicNotFound, PartitionNotFound, DataLoss; and
        CorruptRecords if the first record is in a corrupt batch: continue at `details["end"]`.
        """
        at = position(start, now_us=self._clock_us())
        _check(at, epoch)
        _within("partition", partition, 0)
        _within("records_max", records_max, 1)
        _within("bytes_max", bytes_max, 1)
        _within("wait_ms", wait_ms, 0)
        loop = asyncio.get_running_loop()
        wait_until = loop.time() + wait_ms / 1000
        spec = _FetchSpec(
            TopicPartition(check_topic_name(topic), partition),
            records_max,
            bytes_max,
            check_isolation(isolation),
            topic_id,
            waits=wait_ms > 0,
            give_up=wait_until + self._timeout_ms / 1000,
        )
        first_offset: int | None = None
        damaged = False
        while True:
            answer = await self._request(spec, at, epoch, wait_until)
            if first_offset is None:
                first_offset = answer.first_offset
            try:
                batches, next_offset, found_epoch = _open(spec, answer)
            except CorruptBatch as error:
                if damaged:
                    raise _damaged(spec.tp, error) from error
                damaged = True  # in transit, it seems: fetched again once
                continue
            epoch = found_epoch or (epoch if next_offset == answer.first_offset else None)
            now = loop.time()
            # All records may have been markers, or aborted.
            if batches or now >= spec.give_up or (next_offset >= answer.readable_end and now >= wait_until):
                return Fetched(batches, first_offset, next_offset, epoch, answer.log_start, answer.readable_end)
            at = AtOffset(next_offset)

    async def _request(self, spec: _FetchSpec, at: Position, epoch: int | None, wait_until: float) -> pb.FetchResponse:
        """Fetches from the partition's current leader."""
        loop = asyncio.get_running_loop()

        async def where() -> TopicPartition:
            return spec.tp

        def request() -> pb.FetchRequest:
            return pb.FetchRequest(
                topic=spec.tp.topic,
                partition=spec.tp.partition,
                start=position_to_pb(at),
                records_max=spec.records_max,
                bytes_max=spec.bytes_max,
                wait_ms=left_ms(wait_until - loop.time(), waits=spec.waits),
                uncommitted=spec.uncommitted,
                whole_batches=True,
                leader_epoch=epoch,
                topic_id=spec.topic_id,
                forwarded=True,  # a broker that does not lead refuses it instead of forwarding it
            )

        return await call_leader(
            self._client, where, _FETCH, request, pb.FetchResponse, give_up=spec.give_up, writes=False
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def fetch_known(
    reader: Reader, topic: str, partition: int, start: int, *,
    epoch: int | None, records_max: int, bytes_max: int, isolation: Isolation, topic_id: bytes, within_ms: int,
) -> Fetched:  # fmt: skip
    """As `reader.fetch`, from an offset that was once known to have records. An empty answer counts only after
    `within_ms`: a new leader may not know the high watermark yet."""
    loop = asyncio.get_running_loop()
    until, wait_ms = loop.time() + within_ms / 1000, 0
    while True:
        found = await reader.fetch(
            topic, partition, start, epoch=epoch, records_max=records_max, bytes_max=bytes_max,
            wait_ms=wait_ms, isolation=isolation, topic_id=topic_id,
        )  # fmt: skip
        left_s = until - loop.time()
        if found.next_offset > start or left_s <= 0:
            return found
        wait_ms = min(left_ms(left_s, waits=True), KNOWN_WAIT_MS)


def left_ms(left_s: float, *, waits: bool) -> int:
    """The rest of a time to wait, at least 1 ms for a request that waits: a leader that does not know yet whether there
    are records refuses requests that do not wait, and answers the others with none.

    >>> left_ms(0.0004, waits=True), left_ms(-1.0, waits=True), left_ms(-1.0, waits=False)
    (1, 1, 0)
    """
    return max(math.ceil(left_s * 1000), 1) if waits else 0


def _check(at: Position, epoch: int | None) -> None:
    if isinstance(at, AtOffset):
        number = at.offset
    else:
        number = at.timestamp_us if isinstance(at, AtTime) else 0
        if epoch is not None:
            raise InvalidArgument("epoch needs an offset as start: it is the leader epoch of the record before it")
    if not -INT64_MAX <= number <= INT64_MAX:
        raise InvalidArgument(f"invalid offset or time: {number} is over 64 bits")
    _within("epoch", epoch or 0, 0)


def _within(name: str, value: int, least: int) -> None:
    if not least <= value <= limits.UINT32_MAX:
        raise InvalidArgument(f"{name} must be from {least} to {limits.UINT32_MAX}, not {value!r}")


def _open(spec: _FetchSpec, answer: pb.FetchResponse) -> tuple[list[RecordBatch[bytes]], int, int | None]:
    """The requested records of the batches, the offset after them, and the epoch of the last one."""
    discards = Discards()
    for one in answer.aborted:
        discards.add(one.producer_id, one.epoch, one.first, one.end)
    found: list[RecordBatch[bytes]] = []
    expected, epoch = answer.first_offset, 0
    records_left, bytes_left = spec.records_max, spec.bytes_max
    data = memoryview(answer.batches)
    for at, header in headers(data):
        if header.next_offset <= expected:
            continue
        if header.base_offset > expected:
            raise hole(*spec.tp, expected, header.base_offset)
        if not (header.flags & MARKED and _hidden(header, discards, uncommitted=spec.uncommitted)):
            try:
                batch = opened(header, data, at, *spec.tp, since=expected)
            except CorruptRecords:
                if found:
                    return found, expected, epoch or None  # the records before it; the next call raises
                raise
            skip = bisect_left(batch.offsets, expected) if header.base_offset < expected else 0
            fitting = max(batch.fitting(skip, bytes_left), 0 if found else 1)
            end = skip + min(records_left, fitting)
            if end == skip:
                return found, expected, epoch or None
            part = RecordBatch[bytes](
                *spec.tp, batch, skip=skip, end=end,
                high_watermark=answer.high_watermark, leader_epoch=header.leader_epoch,
            )  # fmt: skip
            found.append(part)
            if end < len(batch):
                return found, part.next_offset, header.leader_epoch
            records_left -= end - skip
            bytes_left -= batch.size_of(skip, end)
        expected, epoch = header.next_offset, header.leader_epoch
    return found, answer.next_offset, answer.leader_epoch or None


def _hidden(header: records.BatchHeader, discards: Discards, *, uncommitted: bool) -> bool:
    """Leaves out markers, and aborted records unless the reader asked for read_uncommitted."""
    return bool(header.flags & CONTROL) if uncommitted else discards.drops(header)


def _damaged(tp: TopicPartition, error: CorruptBatch) -> CorruptBatch:
    return CorruptBatch(
        f"{tp.topic}/{tp.partition}: the broker's answer is damaged: {error.message}",
        details={"topic": tp.topic, "partition": str(tp.partition)},
    )
