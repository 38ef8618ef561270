"""The ranges of a scan: parts of partitions, whose ends are fixed when it begins.

    positions ─► an offset per partition, start and end ─► shares of records_max ─► parts, each requested ahead

Every visible record of a range comes once, in order, one partition after the other; or an error is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from comet.client.bootstrap import Addresses
from comet.consumer.options import Isolation, filter_of_brokers
from comet.consumer.range_reader import Reader
from comet.consumer.ranges import RangeReader, RangeSpec, locate, read_ahead
from comet.encryption.keyring import Keyring
from comet.errors import CorruptRecords, InvalidArgument, PartitionNotFound
from comet.filters import Filter
from comet.types import Gap, Position, StartLike, position, wall_clock_us
from comet.values.record import RecordBatch
from comet.wire.corrupt import OnCorrupt

log = logging.getLogger("comet")

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
    encryption: Keyring | None = None
    filter: Filter | None = None


async def parts(addresses: Addresses, request: ScanRequest) -> AsyncIterator[Part]:
    """The parts, which are never empty. Bound to the loop of the first request."""
    async with Reader(addresses, timeout_ms=request.timeout_ms, encryption=request.encryption, name="scan") as reader:
        found = await ranges_of(reader, request)
        shares = shared_out([spec.size for spec in found], request.records_max)
        left = 0  # unused of earlier shares: not all their offsets were records
        hint = filter_of_brokers(request.filter)
        for spec, share in zip(found, shares, strict=True):
            left += share
            reading = RangeReader(reader, replace(spec, records_max=left, filter_hint=hint))
            async for each in read_ahead(reading):
                part: Part = []
                for one in each:
                    if isinstance(one, Gap):
                        _raise_or_log(one, request.on_corrupt)
                        continue
                    left -= len(one)
                    matching = one if request.filter is None else one.pick(request.filter.rows(one))
                    if matching is not None:
                        part.append(matching)
                if part:
                    yield part
            left -= reading.left_out


async def ranges_of(reader: Reader, request: ScanRequest) -> list[RangeSpec]:
    """The ranges by partition, without empty ones."""
    now_us = wall_clock_us()
    topic = await reader._client.topic(request.topic)
    chosen = partitions_of(request, len(topic.partitions))
    starts, ends = (_positions(where, chosen, now_us) for where in (request.start, request.end))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def find(partition: int) -> RangeSpec:
        async with gate:
            found = await locate(
                reader, request.topic, partition, starts[partition], ends[partition],
                isolation=request.isolation, topic_id=topic.id,
            )  # fmt: skip
        return RangeSpec(
            request.topic, partition, found.start, found.end, topic_id=topic.id, epoch=found.epoch,
            end_epoch=found.end_epoch, isolation=request.isolation, wait_ms=request.timeout_ms,
        )  # fmt: skip

    return [one for one in await asyncio.gather(*map(find, chosen)) if one.size]


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


def _raise_or_log(gap: Gap, on_corrupt: OnCorrupt) -> None:
    """Raises the error of a gap, or logs that of a corrupt batch."""
    assert gap.error is not None
    if on_corrupt == "raise" or not isinstance(gap.error, CorruptRecords):
        raise gap.error
    log.warning("comet: %s", gap.error)
