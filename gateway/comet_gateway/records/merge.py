"""Merges records of several partitions by timestamp, read from the brokers a part at a time.

    partition 0   ··10 12 | 15 17 ··     each is a source: records read but not returned, and its next offset
    partition 1   ··11    | 16 ··        the source with the oldest head is next; an empty one is read further
                          ▲
                       cursor            the position of each source when enough was returned

Within a partition records keep their order: a timestamp that goes back counts as the one before it. Of equal
timestamps, the lower partition comes first. Newest first is the same, backwards: a source is read in windows that end
where the last one began.

One call is bounded by records and bytes returned, and by calls to brokers. The next call continues with the cursor.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heapreplace
from typing import Final, Literal, NamedTuple

import comet
from comet.errors import OffsetOutOfRange
from comet.types import AtOffset, Position
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


_BEGINNING: Final = CursorPosition(0)


class Row(NamedTuple):
    """One record: its batch, and its index in it."""

    time: int  # never decreases in a source
    batch: Batch
    number: int  # in it
    offset: int
    size: int  # bytes of key and value


@dataclass(frozen=True, slots=True)
class Range:
    """The records to read."""

    topic: str
    positions: Mapping[int, Position | CursorPosition]  # by partition: start; newest first: exclusive end
    bounds: Mapping[int, int]  # by partition: exclusive end; newest first: start. None: no bound
    records_max: int
    bytes_max: int
    isolation: Isolation = "committed"


def problem_of(error: comet.CometError, partition: int) -> Problem:
    """The problem of a failed read. Data that is damaged at every try is not a fault of the request."""
    problem = Problem("DATA_LOSS", error.message) if isinstance(error, comet.CorruptBatch) else Problem.of(error)
    problem.more["partition"] = partition
    return problem


class Corrupt(Exception):
    """A corrupt batch is at a source's next offset."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


@dataclass(slots=True)
class MergePartition(ABC):
    """A source: one partition of a request."""

    wanted: Range
    partition: int
    bytes_max: int  # of one call
    position: CursorPosition = _BEGINNING
    log_start: int = 0
    log_end: int = 0
    rows: deque[Row] = field(default_factory=deque)
    done: bool = False  # nothing more to read for now
    chunk: int = LEAST  # records of the next read
    last: int | None = None  # timestamp of the last row read
    unreadable: dict[int, int] = field(default_factory=dict)  # corrupt batches: end offset -> first offset

    @abstractmethod
    async def begin(self, reader: comet.Reader) -> None:
        """Finds the start offset."""

    @abstractmethod
    async def read(self, reader: comet.Reader) -> None:
        """Reads a part, which may have no row."""

    @abstractmethod
    def took(self, row: Row) -> None:
        """Moves the position behind a returned row."""

    @abstractmethod
    def skipped(self) -> list[tuple[int, int]]:
        """Offsets that were skipped as their batches are corrupt: first, and end."""

    @abstractmethod
    def key(self) -> tuple[int, int]:
        """Sort key of the next row; the least comes first."""

    async def fetch(
        self, reader: comet.Reader, start: Position, records_max: int, epoch: int | None = None
    ) -> comet.Fetched:
        """Reads from the broker. Raises Problem; Corrupt at a corrupt batch."""
        wanted = self.wanted
        try:
            found = await reader.fetch(
                wanted.topic, self.partition, start, epoch=epoch, records_max=records_max,
                bytes_max=self.bytes_max, isolation=wanted.isolation,
            )  # fmt: skip
        except comet.CorruptRecords as error:
            first, end = int(error.details["first"]), int(error.details["end"])
            self.unreadable[end] = min(first, self.unreadable.get(end, first))
            raise Corrupt(end) from error
        except comet.CometError as error:
            raise problem_of(error, self.partition) from error
        self.log_start, self.log_end = found.log_start, found.log_end
        return found


class OldestFirst(MergePartition):
    """Reads towards the end of the log."""

    async def begin(self, reader: comet.Reader) -> None:
        at = self.wanted.positions[self.partition]
        if isinstance(at, CursorPosition):
            self.position = at
            await self.read(reader)
        else:
            try:
                self._keep(await self.fetch(reader, at, self.chunk), first=True)
            except Corrupt as corrupt:
                self._pass(corrupt.end)

    async def read(self, reader: comet.Reader) -> None:
        try:
            self._keep(await self.fetch(reader, AtOffset(self.position.offset), self.chunk, self.position.epoch))
        except Corrupt as corrupt:
            self._pass(corrupt.end)

    def _pass(self, end: int) -> None:
        bound = self.wanted.bounds.get(self.partition)
        self.position = CursorPosition(end)
        self.done = bound is not None and end >= bound

    def skipped(self) -> list[tuple[int, int]]:
        return sorted((first, end) for end, first in self.unreadable.items() if first < self.position.offset)

    def _keep(self, found: comet.Fetched, *, first: bool = False) -> None:
        bound = self.wanted.bounds.get(self.partition)
        if first:
            self.position = CursorPosition(found.first_offset)
        for batch in found.batches:
            for row in _rows(batch):
                if bound is not None and row.offset >= bound:
                    break
                if self.last is None or row.time > self.last:
                    self.last = row.time
                self.rows.append(row._replace(time=self.last))
        ended = found.next_offset >= found.log_end
        self.done = ended or (bound is not None and found.next_offset >= bound)
        if not self.rows:
            self.position = CursorPosition(found.next_offset, found.epoch)
        self.chunk = min(2 * self.chunk, MOST)

    def took(self, row: Row) -> None:
        self.position = CursorPosition(row.offset + 1, row.batch.epoch)

    def key(self) -> tuple[int, int]:
        return self.rows[0].time, self.partition


class NewestFirst(MergePartition):
    """Reads back towards the log start offset. Its position is the exclusive end of the next window."""

    async def begin(self, reader: comet.Reader) -> None:
        at = self.wanted.positions[self.partition]
        found = await self.fetch(reader, comet.Latest(), 1)
        end = at.offset if isinstance(at, CursorPosition | AtOffset) else found.log_end
        self.position = CursorPosition(min(end, found.log_end))
        self.done = self.position.offset <= self._floor()

    def _floor(self) -> int:
        return max(self.log_start, self.wanted.bounds.get(self.partition, 0))

    async def read(self, reader: comet.Reader) -> None:
        end = self.position.offset
        start = max(end - self.chunk, self._floor())
        if start >= end:
            self.done = True
            return
        try:
            found = await self.fetch(reader, AtOffset(start), end - start)
        except Problem as problem:
            if problem.code != OffsetOutOfRange.code or int(problem.more["log_start"]) <= start:
                raise
            self.log_start = int(problem.more["log_start"])  # retention has deleted records
            return
        except Corrupt as corrupt:
            if corrupt.end < end:
                self.chunk = end - corrupt.end  # the records behind it come first
                return
            self.position = CursorPosition(start)
            self.done = start <= self._floor()
            self.chunk = min(2 * self.chunk, MOST)
            return
        if found.next_offset < end and start < end - 1:
            # Records are larger than expected: these are not the last before the end, but show how many fit.
            self.chunk = max(min(self.chunk // 2, sum(map(len, found.batches))), 1)
            return
        self._keep(found, end)
        # Empty: markers and aborted transactions only.
        self.position = CursorPosition(end if self.rows else start)
        self.done = start <= self._floor()
        self.chunk = min(2 * self.chunk, MOST)

    def _keep(self, found: comet.Fetched, end: int) -> None:
        for batch in reversed(found.batches):
            for row in reversed(_rows(batch)):
                if row.offset < end:
                    if self.last is None or row.time < self.last:
                        self.last = row.time
                    self.rows.append(row._replace(time=self.last))

    def skipped(self) -> list[tuple[int, int]]:
        return sorted((first, end) for end, first in self.unreadable.items() if end > self.position.offset)

    def took(self, row: Row) -> None:
        self.position = CursorPosition(row.offset)

    def key(self) -> tuple[int, int]:
        return -self.rows[0].time, -self.partition


_LANES: Final[Mapping[Order, type[MergePartition]]] = {Order.OLDEST: OldestFirst, Order.NEWEST: NewestFirst}


@dataclass(frozen=True, slots=True)
class Merged:
    """The result: rows in order, and the sources with their positions behind them."""

    rows: list[Row]
    sources: Sequence[MergePartition]

    @property
    def more(self) -> bool:
        """Whether there was more to return."""
        return any(source.rows or not source.done for source in self.sources)

    @property
    def positions(self) -> dict[int, CursorPosition]:
        return {source.partition: source.position for source in self.sources}

    def runs(self) -> Iterator[tuple[Batch, list[int]]]:
        """The rows, with consecutive ones of one batch together."""
        batch: Batch | None = None
        indexes: list[int] = []
        for row in self.rows:
            if row.batch is not batch:
                if batch is not None:
                    yield batch, indexes
                batch, indexes = row.batch, []
            indexes.append(row.number)
        if batch is not None:
            yield batch, indexes


async def merge(reader: comet.Reader, order: Order, wanted: Range) -> Merged:
    """Reads and merges. Raises Problem, with its partition."""
    share = min(2 * wanted.records_max // max(len(wanted.positions), 1), wanted.records_max)
    bytes_max = max(2 * wanted.bytes_max // max(len(wanted.positions), 1), BYTES_LEAST)
    make = _LANES[order]
    sources = [make(wanted, partition, bytes_max, chunk=max(share, LEAST)) for partition in wanted.positions]
    gate = asyncio.Semaphore(AT_ONCE)
    await _all(sources, gate, reader, first=True)
    if order is Order.NEWEST:
        await _all([source for source in sources if not source.done], gate, reader)
    rows = await _Merge(reader, sources, wanted).run()
    return Merged(rows, sources)


async def _all(
    sources: Sequence[MergePartition], gate: asyncio.Semaphore, reader: comet.Reader, *, first: bool = False
) -> None:
    async def one(source: MergePartition) -> None:
        async with gate:
            await (source.begin(reader) if first else source.read(reader))

    try:
        async with asyncio.TaskGroup() as group:
            for source in sources:
                group.create_task(one(source))
    except* Problem as problems:
        raise _first(problems) from None


def _first(problems: BaseExceptionGroup[Problem]) -> Problem:
    found: BaseException = problems
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Problem)
    return found


class _Merge:
    """One merge over sources that have begun."""

    def __init__(self, reader: comet.Reader, sources: Sequence[MergePartition], wanted: Range) -> None:
        self._reader = reader
        self._sources = sources
        self._wanted = wanted
        self._calls = len(sources) + FURTHER_CALLS  # left

    async def run(self) -> list[Row]:
        rows: list[Row] = []
        size = 0
        heap: list[tuple[tuple[int, int], MergePartition]] = []
        for source in self._sources:
            if not await self._filled(source):
                return rows
            if source.rows:
                heap.append((source.key(), source))
        heapify(heap)  # keys are unique, so sources are never compared
        while heap and len(rows) < self._wanted.records_max:
            source = heap[0][1]
            row = source.rows[0]
            size += row.size
            if size > self._wanted.bytes_max and rows:
                break
            source.rows.popleft()
            source.took(row)
            rows.append(row)
            if not await self._filled(source):
                break
            if source.rows:
                heapreplace(heap, (source.key(), source))
            else:
                heappop(heap)
        return rows

    async def _filled(self, source: MergePartition) -> bool:
        """Reads until the source has a row or is done. False: the request has no calls left."""
        while not source.rows and not source.done:
            if self._calls == 0:
                return False
            self._calls -= 1
            await source.read(self._reader)
        return True


def _rows(batch: Batch) -> list[Row]:
    columns = zip(batch.timestamps, batch.offsets, batch.keys, batch.values, strict=True)
    return [
        Row(time, batch, number, offset, len(key or b"") + len(value or b""))
        for number, (time, offset, key, value) in enumerate(columns)
    ]
