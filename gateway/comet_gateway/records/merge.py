"""Reads records of several partitions in order of timestamps, from the brokers, for one request.

The partitions are ranges of the SDK, merged by time. One call is bounded by records and bytes returned, and by calls to
brokers. The next call continues with the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

import comet
from comet.consumer.options import filter_of_brokers
from comet.consumer.ranges import RangeSpec
from comet.filters import Filter
from comet.types import AtOffset, Latest, Position
from comet_gateway.config import KIB
from comet_gateway.http.problems import Problem
from comet_gateway.records.cursor import CursorPosition

Batch = comet.RecordBatch[bytes]
Isolation = Literal["committed", "uncommitted"]

AT_ONCE: Final = 16  # calls to brokers
LEAST: Final = 16  # records of the first read
MOST: Final = 1 << 20  # records of one read after many
BYTES_LEAST: Final = 64 * KIB
FURTHER_CALLS: Final = 64  # to brokers by one request, beside two for each partition


class Order(Enum):
    """The order of records."""

    OLDEST = "oldest"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Range:
    """The records to read."""

    topic: str
    topic_id: bytes
    positions: Mapping[int, Position | CursorPosition]  # by partition: start; newest first: exclusive end
    bounds: Mapping[int, int]  # by partition: exclusive end; newest first: start. None: no bound
    records_max: int
    bytes_max: int
    isolation: Isolation = "committed"
    filter: Filter | None = None
    scan_records_max: int = 0  # with a filter: records, and bytes of them, that are looked at
    scan_bytes_max: int = 0


def problem_of(error: comet.CometError, partition: int) -> Problem:
    """The problem of a failed read. Data that is damaged at every try is not a fault of the request."""
    problem = Problem("DATA_LOSS", error.message) if isinstance(error, comet.CorruptBatch) else Problem.of(error)
    problem.more["partition"] = partition
    return problem


def merge_problem(error: comet.CometError) -> Problem:
    """The problem of a failed merge, whose error names the partition."""
    return problem_of(error, int(error.details["partition"]))


@dataclass(frozen=True, slots=True)
class MergePartition:
    """The part of the answer that says how far one partition was read."""

    partition: int
    position: CursorPosition
    log_start: int
    log_end: int
    skipped: Sequence[tuple[int, int]]  # offsets whose batches are corrupt: first, and end


@dataclass(slots=True)
class Merged:
    """The result: records in order, and the positions behind them."""

    records: list[comet.MergedRecord] = field(default_factory=list)
    sources: Sequence[MergePartition] = ()
    more: bool = False  # there was more to return

    @property
    def positions(self) -> dict[int, CursorPosition]:
        return {source.partition: source.position for source in self.sources}

    def runs(self) -> Iterator[tuple[Batch, list[int]]]:
        """The records, with consecutive ones of one batch together."""
        batch: Batch | None = None
        numbers: list[int] = []
        for record in self.records:
            if record.batch is not batch:
                if batch is not None:
                    yield batch, numbers
                batch, numbers = record.batch, []
            numbers.append(record.number)
        if batch is not None:
            yield batch, numbers


async def merge(reader: comet.Reader, order: Order, wanted: Range) -> Merged:
    """Reads and merges. Raises Problem, with its partition."""
    count = max(len(wanted.positions), 1)
    records_max = wanted.records_max if wanted.filter is None else wanted.scan_records_max
    share = max(min(2 * records_max // count, records_max), LEAST)
    bytes_max = max(2 * wanted.bytes_max // count, BYTES_LEAST)
    ranges = [
        comet.RangeReader(reader, _spec(wanted, order, partition, share, bytes_max)) for partition in wanted.positions
    ]
    merged = comet.MergedReader(ranges, select=selection(wanted.filter), at_once=AT_ONCE)
    calls_max = 2 * len(ranges) + FURTHER_CALLS
    found = Merged()
    skipped: dict[int, list[tuple[int, int]]] = {}
    size = 0
    try:
        while len(found.records) < wanted.records_max:
            head = merged.head()
            if head is None:
                if merged.steps >= calls_max or _looked_at_enough(wanted, merged) or not await merged.fill():
                    break
                continue
            if found.records and isinstance(head, comet.MergedRecord) and size + head.size > wanted.bytes_max:
                break
            for item in merged.ready(wanted.records_max - len(found.records), wanted.bytes_max - size):
                if not isinstance(item, comet.Gap):
                    found.records.append(item)
                    size += item.size
                elif isinstance(item.error, comet.CorruptRecords):
                    skipped.setdefault(item.partition, []).append((item.first, item.end))
                elif order is Order.OLDEST or item.reason != "deleted":
                    assert item.error is not None
                    raise problem_of(item.error, item.partition)
    except comet.CometError as error:
        raise merge_problem(error) from error
    found.more = not merged.done
    found.sources = [
        MergePartition(
            partition, CursorPosition(*(source.position() or (0, None))), source.range.log_start, source.range.log_end,
            sorted(skipped.get(partition, ())),
        )
        for partition, source in merged.sources.items()
    ]  # fmt: skip
    return found


def selection(chosen: Filter | None) -> Callable[[Batch, int, int], Sequence[int]] | None:
    """What a merge keeps of a batch under a filter; None: all of it."""
    return None if chosen is None else lambda batch, begin, end: chosen.rows(batch, range(begin, end))


def _looked_at_enough(wanted: Range, merged: comet.MergedReader) -> bool:
    """Whether a filter has looked at as many records as one request may. The client continues with the cursor."""
    if wanted.filter is None:
        return False
    return merged.records >= wanted.scan_records_max or merged.bytes >= wanted.scan_bytes_max


def _spec(wanted: Range, order: Order, partition: int, records: int, bytes_max: int) -> RangeSpec:
    """The range of one partition. Its end is what the first answer tells: a request of its own would cost as much."""
    at, bound, epoch = wanted.positions[partition], wanted.bounds.get(partition), None
    start: int | Position | None
    if order is Order.OLDEST:
        start = at.offset if isinstance(at, CursorPosition | AtOffset) else at
        epoch = at.epoch if isinstance(at, CursorPosition) else None
        end_max = bound
    else:
        assert isinstance(at, CursorPosition | AtOffset | Latest)
        start = bound
        end_max = None if isinstance(at, Latest) else at.offset
    return RangeSpec(
        wanted.topic, partition, start, None, order is Order.NEWEST, wanted.topic_id, epoch, end_max=end_max,
        isolation=wanted.isolation, step_records_first=records, step_records=MOST, step_bytes=bytes_max,
        filter_hint=filter_of_brokers(wanted.filter),
    )  # fmt: skip
