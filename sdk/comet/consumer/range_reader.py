"""The reader: fetches parts of partitions by request, and reads ranges of them. It has no subscription.

    fetch ─► the partition's leader, found again while it moves ─► whole batches ─► the requested records, as columns

Each `fetch` stands alone, so that any number of them may be under way at once, also for one partition.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, Unpack

from comet import limits, records
from comet.client.bootstrap import Addresses
from comet.client.client import Client
from comet.client.connection import Attachment, fetch
from comet.client.leader_request import at_leader
from comet.client.world import Seams, World
from comet.consumer.aborted import CONTROL, MARKED, Discards
from comet.consumer.contents import hole
from comet.consumer.options import Isolation, check_isolation, filter_of_brokers, parsed_filter
from comet.consumer.ranges import STEP_BYTES, STEP_RECORDS, Fetched, RangeReader, RangeSpec, locate
from comet.consumer.time_merge import MergedReader
from comet.encryption.keyring import Keyring
from comet.entities import TopicInfo
from comet.errors import CorruptBatch, CorruptRecords, InvalidArgument, TopicNotFound
from comet.types import (
    AtOffset,
    AtTime,
    Position,
    StartLike,
    TopicPartition,
    check_topic_name,
    position,
)
from comet.v1 import records_pb2 as pb
from comet.values.record import RecordBatch, unexpired
from comet.wire.corrupt import headers, opened
from comet.wire.protobuf import position_to_pb

if TYPE_CHECKING:
    from comet.filters import Filter

_FETCH: Final = "comet.v1.Comet/Fetch"
INT64_MAX: Final = (1 << 63) - 1
_RESOLVED_AT_ONCE: Final = 64  # partitions of a merged read whose bounds are requested at once


class _FetchSpec(NamedTuple):
    tp: TopicPartition
    records_max: int
    bytes_max: int
    uncommitted: bool
    topic_id: bytes  # empty: any topic of the name
    waits: bool
    give_up: float
    expired: bool
    filter_hint: str


class Reader:
    """Reads ranges of partitions by request. To follow a topic, use Consumer.

    Async; `comet.sync.Reader` is the same for synchronous code. While a partition has no leader, or its leader cannot
    be reached, a call retries for `timeout_ms`, plus its `wait_ms`. With `encryption` values are decrypted.

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
        addresses: Addresses = None,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        encryption: Keyring | None = None,
        name: str = "",
        **seams: Unpack[Seams],
    ) -> None:
        world = World.of(self, {**seams})
        self._client = Client(addresses, name=name, connect=world.connect, random=world.random)
        self._timeout_ms = timeout_ms
        self._keyring = encryption
        self._clock_us = world.clock_us

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
        expired: bool = False,
        filter_hint: str = "",
    ) -> Fetched:
        """Reads up to `records_max` records and `bytes_max` bytes of keys and values, but at least one record if there
        is one. Waits up to `wait_ms` for the first. With `expired` also those that have expired and are still there.

        With `filter_hint`, a filter that the caller applies to the batches, the broker may leave out records that do
        not match. `records_max` then counts offsets, and the answer may be empty before the end: continue at
        `next_offset`.

        With an offset, `epoch` is that of the record before it: if that record was truncated since, raises Truncated.
        With `topic_id`, the `id` of a TopicInfo, raises TopicNotFound if the topic was recreated. Raises
        OffsetOutOfRange, with `log_start` and `log_end` in its details, TopicNotFound, PartitionNotFound, DataLoss; and
        CorruptRecords if the first record is in a corrupt batch: continue at `details["end"]`.
        """
        at = position(start, now_us=self._clock_us())
        _check(at, epoch)
        limits.within("partition", partition, 0, limits.UINT32_MAX)
        limits.within("records_max", records_max, 1, limits.UINT32_MAX)
        limits.within("bytes_max", bytes_max, 1, limits.UINT32_MAX)
        limits.within("wait_ms", wait_ms, 0, limits.UINT32_MAX)
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
            expired=expired,
            filter_hint=filter_hint,
        )
        first_offset: int | None = None
        damaged = False
        while True:
            answer, data = await self._request(spec, at, epoch, wait_until)
            if first_offset is None:
                first_offset = answer.first_offset
            try:
                opening = _Opening(spec, answer, self._keyring)
                opening.read(data)
            except CorruptBatch as error:
                if damaged:
                    raise _damaged(spec.tp, error) from error
                damaged = True  # in transit, it seems: fetched again once
                continue
            batches, next_offset = opening.batches, opening.next_offset
            if not spec.expired:
                batches = _unexpired(batches, self._clock_us)
            for batch in batches:
                if batch.encrypted is not None:
                    await batch.encrypted.decrypt()
            epoch = opening.epoch or (epoch if next_offset == answer.first_offset else None)
            now = loop.time()
            # All records may have been markers, or aborted, or have expired.
            progress = filter_hint != "" and next_offset > answer.first_offset
            over = now >= spec.give_up or (next_offset >= answer.readable_end and now >= wait_until)
            if batches or progress or over:
                return Fetched(
                    batches, first_offset, next_offset, epoch, answer.log_start, answer.readable_end, answer.clean_end,
                    tuple(opening.epochs), _times(answer),
                )  # fmt: skip
            at = AtOffset(next_offset)

    async def _request(
        self, spec: _FetchSpec, at: Position, epoch: int | None, wait_until: float
    ) -> tuple[pb.FetchResponse, memoryview]:
        """Fetches from the partition's current leader."""
        loop = asyncio.get_running_loop()

        async def where() -> TopicPartition:
            return spec.tp

        async def call(attachment: Attachment, left: int) -> tuple[pb.FetchResponse, memoryview]:
            request = pb.FetchRequest(
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
                filter="" if self._keyring is not None else spec.filter_hint,
                forwarded=True,  # a broker that does not lead refuses it instead of forwarding it
            )
            connection = attachment.connection
            if connection.queue.over_wire and not request.wait_ms:  # one that waits would hold up others of the stream
                return await fetch(connection, request, left)
            answer = await self._client.unary_at(connection.address, _FETCH, request, pb.FetchResponse, left)
            return answer, memoryview(answer.batches)

        return await at_leader(self._client, where, call, give_up=spec.give_up, writes=False)

    def read(
        self,
        topic: str,
        partition: int,
        start: StartLike = "earliest",
        end: StartLike = "latest",
        *,
        backward: bool = False,
        epoch: int | None = None,
        topic_id: bytes = b"",
        isolation: Isolation = "committed",
        records_max: int | None = None,
        bytes_max: int | None = None,
        time_ms: int | None = None,
        step_records: int = STEP_RECORDS,
        step_bytes: int = STEP_BYTES,
        filter: str = "",  # noqa: A002 - the name of the option everywhere
        filter_hint: str = "",
    ) -> RangeReader:
        """Reads a partition from `start` up to, not including, `end`: an iterator over batches and gaps. Backward,
        the newest batch comes first.

        The positions are resolved when the read begins, so that it ends. It ends earlier once `records_max` records or
        `bytes_max` bytes of keys and values were read, or after `time_ms`; one request brings at most `step_records`
        and `step_bytes`. Missing records come as a `Gap`. With an offset, `epoch` is that of the record before it, as
        in `fetch`. Raises TopicNotFound if the topic is recreated meanwhile, or does not have the id `topic_id`. With
        `filter`, batches have only the records that match; `records_max` counts offsets then. With `filter_hint` the
        caller applies it, as in `fetch`.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
        ...     async with comet.Reader(address) as reader:
        ...         async for part in reader.read("quotes", 0, start=1, end="latest"):
        ...             print("gap" if isinstance(part, comet.Gap) else [*part.values])
        >>> run(example)
        [b'2', b'3']
        """
        now_us = self._clock_us()
        first, last = position(start, now_us=now_us), position(end, now_us=now_us)
        _check(first, epoch)
        _check(last, None)
        check_isolation(isolation)
        limits.within("partition", partition, 0, limits.UINT32_MAX)
        limits.within("step_records", step_records, 1, limits.UINT32_MAX)
        limits.within("step_bytes", step_bytes, 1, limits.UINT32_MAX)
        for name, most in (("records_max", records_max), ("bytes_max", bytes_max), ("time_ms", time_ms)):
            if most is not None and most < 0:
                raise InvalidArgument(f"{name} must not be negative, not {most!r}")
        chosen = parsed_filter(filter, now_us=now_us)
        spec = RangeSpec(
            check_topic_name(topic), partition, None, None, backward, topic_id, epoch, isolation=isolation,
            filter_hint=filter_of_brokers(chosen) or filter_hint,
            step_records_first=step_records, step_records=step_records, step_bytes=step_bytes,
            records_max=records_max, bytes_max=bytes_max, wait_ms=self._timeout_ms,
        )  # fmt: skip

        async def resolve() -> RangeSpec:
            known = topic_id or (await self._topic(topic)).id
            found = await locate(self, topic, partition, first, last, isolation=isolation, topic_id=known)
            return replace(
                spec, topic_id=known, start=found.start, end=found.end, end_epoch=found.end_epoch,
                epoch=found.epoch if epoch is None else epoch,
            )  # fmt: skip

        return RangeReader(self, spec, time_ms=time_ms, resolve=resolve, chosen=chosen)

    async def read_merged(
        self,
        topic: str,
        start: StartLike = "earliest",
        end: StartLike = "latest",
        *,
        partitions: Iterable[int] | None = None,
        backward: bool = False,
        isolation: Isolation = "committed",
        step_records: int = STEP_RECORDS,
        step_bytes: int = STEP_BYTES,
        filter: str = "",  # noqa: A002 - the name of the option everywhere
    ) -> MergedReader:
        """Reads partitions of a topic, merged by timestamp: an iterator over records and gaps. Backward, the newest
        record comes first.

        Within a partition records keep their order: a timestamp that goes back counts as the one before it. Of equal
        timestamps, the lower partition comes first. Each partition is read as by `read`; `step_bytes` are for all of
        them together. With `filter`, only records that match are handed out; others may or may not count as the one
        before it.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         for second, text in enumerate([b"1", b"2", b"3"]):
        ...             await producer.publish("quotes", text, timestamp_us=second * 1_000_000)
        ...     async with comet.Reader(address) as reader:
        ...         async for part in await reader.read_merged("quotes", backward=True):
        ...             print("gap" if isinstance(part, comet.Gap) else part.value)
        >>> run(example)
        b'3'
        b'2'
        b'1'
        """
        now_us = self._clock_us()
        begin, until = position(start, now_us=now_us), position(end, now_us=now_us)
        matching = parsed_filter(filter, now_us=now_us)
        hint = filter_of_brokers(matching)
        info = await self._topic(topic)
        chosen = sorted(set(range(len(info.partitions)) if partitions is None else partitions))
        share = max(step_bytes // max(len(chosen), 1), 1)
        ranges = [
            self.read(
                topic, partition, begin, until, backward=backward, topic_id=info.id, isolation=isolation,
                step_records=step_records, step_bytes=share, filter_hint=hint,
            )
            for partition in chosen
        ]  # fmt: skip
        select = None if matching is None else partial(_select, matching)
        return MergedReader(ranges, select=select, at_once=_RESOLVED_AT_ONCE)

    async def _topic(self, name: str) -> TopicInfo:
        """The metadata of a topic as brokers have it now: a cached id may be that of a deleted one."""
        found = await self._client.fetch([check_topic_name(name)])
        if name not in found:
            raise TopicNotFound(f"topic {name!r} does not exist", details={"topic": name})
        return found[name]

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _select(chosen: Filter, batch: RecordBatch[bytes], begin: int, end: int) -> Sequence[int]:
    return chosen.rows(batch, range(begin, end))


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
    limits.within("epoch", epoch or 0, 0, limits.UINT32_MAX)


class _Opening:
    """The requested records of one answer: `batches`, the offset after them, the epoch of the last one, and the first
    offset of each epoch."""

    def __init__(self, spec: _FetchSpec, answer: pb.FetchResponse, keyring: Keyring | None) -> None:
        self.batches: list[RecordBatch[bytes]] = []
        self.next_offset = answer.first_offset
        self.epoch: int | None = None
        self.epochs: list[tuple[int, int]] = []
        self._spec = spec
        self._answer = answer
        self._keyring = keyring
        self._until = self.next_offset + spec.records_max if spec.filter_hint else INT64_MAX
        self._records_left, self._bytes_left = spec.records_max, spec.bytes_max
        self._discards = Discards()
        for one in answer.aborted:
            self._discards.add(one.producer_id, one.epoch, one.first, one.end)

    def read(self, data: memoryview) -> None:
        """Raises CorruptRecords, DataLoss, CorruptBatch about the first batch; those behind it are left to the next
        call."""
        for at, header in headers(data):
            if header.next_offset <= self.next_offset:
                continue
            if self.next_offset >= self._until:
                return
            if header.base_offset > self.next_offset:
                if self.batches:
                    return
                raise hole(*self._spec.tp, self.next_offset, header.base_offset)
            if not self._take(data, at, header):
                return
        if self._answer.next_offset <= self._until:
            self.next_offset, self.epoch = self._answer.next_offset, self._answer.leader_epoch or None

    def _take(self, data: memoryview, at: int, header: records.BatchHeader) -> bool:
        """Takes a batch; False: not to its end, so that the answer ends here."""
        first, spec = self.next_offset, self._spec
        if header.flags & MARKED and _hidden(header, self._discards, uncommitted=spec.uncommitted):
            self._pass(first, min(header.next_offset, self._until), header.leader_epoch)
            return True
        try:
            batch = opened(header, data, at, *spec.tp, since=first)
        except CorruptRecords:
            if self.batches:
                return False
            raise
        skip = bisect_left(batch.offsets, first) if header.base_offset < first else 0
        upto = bisect_left(batch.offsets, self._until) if header.next_offset > self._until else len(batch)
        if skip >= upto:  # the others were removed
            self._pass(first, min(header.next_offset, self._until), header.leader_epoch)
            return True
        fitting = max(batch.fitting(skip, self._bytes_left), 0 if self.batches else 1)
        end = min(skip + min(self._records_left, fitting), upto)
        if end == skip:
            return False
        part = RecordBatch[bytes](
            *spec.tp, batch, skip=skip, end=end,
            high_watermark=self._answer.high_watermark, leader_epoch=header.leader_epoch, keyring=self._keyring,
        )  # fmt: skip
        self.batches.append(part)
        whole = end == upto
        self._pass(first, min(header.next_offset, self._until) if whole else part.next_offset, header.leader_epoch)
        self._records_left -= end - skip
        self._bytes_left -= batch.size_of(skip, end)
        return whole

    def _pass(self, first: int, end: int, epoch: int) -> None:
        if not self.epochs or self.epochs[-1][1] != epoch:
            self.epochs.append((first, epoch))
        self.next_offset, self.epoch = end, epoch or None


def _times(answer: pb.FetchResponse) -> tuple[int, int] | None:
    """The bounds of the timestamps of what the broker looked at, also of what it left out."""
    if not answer.HasField("min_timestamp_us"):
        return None
    return answer.min_timestamp_us, answer.max_timestamp_us


def _unexpired(batches: list[RecordBatch[bytes]], clock_us: Callable[[], int]) -> list[RecordBatch[bytes]]:
    if all(batch.expiry is None for batch in batches):
        return batches
    now_us = clock_us()
    return [alive for alive in [unexpired(batch, now_us) for batch in batches] if alive is not None]


def _hidden(header: records.BatchHeader, discards: Discards, *, uncommitted: bool) -> bool:
    """Leaves out markers, and aborted records unless the reader asked for read_uncommitted."""
    return bool(header.flags & CONTROL) if uncommitted else discards.drops(header)


def _damaged(tp: TopicPartition, error: CorruptBatch) -> CorruptBatch:
    return CorruptBatch(
        f"{tp.topic}/{tp.partition}: the broker's answer is damaged: {error.message}",
        details={"topic": tp.topic, "partition": str(tp.partition)},
    )
