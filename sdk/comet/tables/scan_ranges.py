"""The ranges of a scan: parts of partitions, whose ends are fixed when it begins.

    positions ─► an offset per partition, start and end ─► shares of records_max ─► parts, each requested ahead

Every visible record of a range comes once, in order, one partition after the other; or an error is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from comet.client.client import Addresses
from comet.consumer.consumer import Isolation
from comet.consumer.range_reader import Reader, fetch_known
from comet.consumer.ranges import Fetched
from comet.consumer.record import RecordBatch
from comet.errors import CorruptRecords, DataLoss, InvalidArgument, PartitionNotFound
from comet.producer.producer import wall_clock_us
from comet.types import AtOffset, Latest, Position, StartLike, position
from comet.wire.corrupt import OnCorrupt, range_of

log = logging.getLogger("comet")

PART_BYTES: Final = 4 << 20  # per request; a broker returns no more
PART_RECORDS: Final = 1 << 17
_AT_ONCE: Final = 64  # partitions whose ends are requested at once

Bound = StartLike | Mapping[int, StartLike]
Part = list[RecordBatch[bytes]]


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """The arguments of a scan. `start` and `end` are positions, or one for each partition."""

    topic: str
    start: Bound
    end: Bound
    partitions: tuple[int, ...] | None
    records_max: int | None
    isolation: Isolation
    timeout_ms: int
    on_corrupt: OnCorrupt = "raise"


class Span(NamedTuple):
    """A part of a partition, from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int
    epoch: int | None = None  # of the record before `start`, if known
    topic_id: bytes = b""


async def parts(addresses: Addresses, request: ScanRequest) -> AsyncIterator[Part]:
    """The parts, which are never empty. Bound to the loop of the first request."""
    async with Reader(addresses, timeout_ms=request.timeout_ms, name="scan") as reader:
        spans = await spans_of(reader, request)
        shares = shared_out([span.end - span.start for span in spans], request.records_max)
        left = 0  # unused of earlier shares: not all their offsets were records
        for span, share in zip(spans, shares, strict=True):
            left += share
            async for part in _span(reader, request, span, left):
                left -= sum(map(len, part))
                yield part


async def spans_of(reader: Reader, request: ScanRequest) -> list[Span]:
    """The spans by partition, without empty ones."""
    now_us = wall_clock_us()
    topic = await reader._client.topic(request.topic)
    chosen = partitions_of(request, len(topic.partitions))
    starts, ends = (_positions(where, chosen, now_us) for where in (request.start, request.end))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def resolve(partition: int, at: Position) -> Fetched:
        async with gate:
            try:
                return await reader.fetch(
                    request.topic,
                    partition,
                    at,
                    records_max=1,
                    bytes_max=1,
                    isolation=request.isolation,
                    topic_id=topic.id,
                )
            except CorruptRecords as error:  # its offsets are skipped, or raised, in their turn
                first = range_of(error)[0]
                end = await reader.fetch(
                    request.topic, partition, "latest", records_max=1, isolation=request.isolation, topic_id=topic.id
                )
                return end._replace(first_offset=first, next_offset=first, epoch=None)

    async def span(partition: int) -> Span:
        at, where = starts[partition], ends[partition]
        # Another answer does not tell the log end: the leader may have just begun.
        bound = Latest() if isinstance(where, AtOffset) else where
        if bound == at:
            found = until = await resolve(partition, at)
        else:
            found, until = await asyncio.gather(resolve(partition, at), resolve(partition, bound))
        first, end = found.first_offset, min(until.first_offset, until.log_end)
        if isinstance(where, AtOffset):
            end = min(where.offset, end)
        return Span(partition, first, end, found.epoch if found.next_offset == first else None, topic.id)

    return [one for one in await asyncio.gather(*map(span, chosen)) if one.end > one.start]


def partitions_of(request: ScanRequest, count: int) -> list[int]:
    """The chosen partitions, else those with given offsets, else all."""
    given = [set(where) for where in (request.start, request.end) if isinstance(where, Mapping)]
    if request.partitions is None:
        chosen = sorted(given[0]) if given else list(range(count))
    else:
        chosen = sorted(set(request.partitions))
    for where in given:
        if where != set(chosen):
            raise InvalidArgument(
                f"positions are given for partitions {sorted(where)}, but {chosen} are read: give one for each"
            )
    missing = [one for one in chosen if not isinstance(one, int) or not 0 <= one < count]
    if missing:
        raise PartitionNotFound(f"topic {request.topic!r} has the partitions 0 to {count - 1}, not {missing[0]!r}")
    return chosen


def _positions(where: Bound, chosen: Iterable[int], now_us: int) -> dict[int, Position]:
    if isinstance(where, Mapping):
        return {one: position(at, now_us=now_us) for one, at in where.items()}
    return dict.fromkeys(chosen, position(where, now_us=now_us))


def shared_out(sizes: Sequence[int], most: int | None) -> list[int]:
    """Divides a maximum among partitions: equal shares, and the rest of smaller partitions goes to the others.

    >>> shared_out([5, 100, 100], 25), shared_out([5, 100], None)
    ([5, 10, 10], [5, 100])
    """
    shares = list(sizes)
    if most is None:
        return shares
    left = most
    waiting = sorted(range(len(sizes)), key=lambda at: (sizes[at], at))
    for done, at in enumerate(waiting):
        shares[at] = min(sizes[at], left // (len(waiting) - done))
        left -= shares[at]
    return shares


async def _span(reader: Reader, request: ScanRequest, span: Span, most: int) -> AsyncIterator[Part]:
    """The parts of a span, with at most so many records."""
    task: asyncio.Task[Fetched] | None = None

    def fetch(at: int, epoch: int | None) -> asyncio.Task[Fetched]:
        return asyncio.ensure_future(
            fetch_known(
                reader, request.topic, span.partition, at, epoch=epoch, records_max=min(most, PART_RECORDS),
                bytes_max=PART_BYTES, isolation=request.isolation, topic_id=span.topic_id, within_ms=request.timeout_ms,
            )
        )  # fmt: skip

    at = span.start
    try:
        task = fetch(at, span.epoch) if most else None
        while task is not None:
            try:
                fetched = await task
            except CorruptRecords as error:
                if request.on_corrupt == "raise":
                    raise
                log.warning("comet: %s", error)
                at = range_of(error)[1]
                task = fetch(at, None) if at < span.end else None
                continue
            if fetched.next_offset <= at:
                raise _cut_back(request.topic, span, fetched.log_end)
            at = fetched.next_offset
            part = [one for batch in fetched.batches if (one := _up_to(batch, span.end)) is not None]
            most -= sum(map(len, part))
            task = fetch(at, fetched.epoch) if at < span.end and most else None
            if part:
                yield part
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _up_to(batch: RecordBatch[bytes], end: int) -> RecordBatch[bytes] | None:
    return batch if batch.next_offset <= end else batch.before(end)


def _cut_back(topic: str, span: Span, log_end: int) -> DataLoss:
    return DataLoss(
        f"{topic}/{span.partition} ends at {log_end}, but ended at {span.end} when the scan began",
        details={"topic": topic, "partition": str(span.partition), "log_end": str(log_end)},
    )
