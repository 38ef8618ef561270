"""A bounded scan of a topic in order of timestamps, which returns matching records.

    partition 0   ░░░░░░░▣░░░▣ ░ ░ ░      each is a source: its matches that are not yet returned (▣), and the scanned
    partition 1   ░░░░▣░░░░░░░░░░ ░       part. The source that is furthest back is read next; a match is returned
                              ▲           once no source can have an earlier one.
                           cursor

As in `records.merge`, a partition's records keep their order, and a timestamp that goes back counts as the one before
it; but only matches become objects, so that most of the log costs little. A scan ends at its limit, at the end of its
range, or when its budget is used up; its cursor is the position to continue from, before matches not yet returned.

One scan belongs to one request. It works in turns of a few milliseconds, between which other tasks run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Final, Literal, NamedTuple

import comet
from comet.errors import OffsetOutOfRange
from comet.types import AtOffset
from comet_gateway.config import KIB, MIB
from comet_gateway.http.problems import Problem
from comet_gateway.records.cursor import CursorPosition
from comet_gateway.records.merge import Corrupt, Isolation, Order, problem_of
from comet_gateway.search.filters import Filters

Batch = comet.RecordBatch[bytes]
Reason = Literal["", "limit", "end", "budget"]

AT_ONCE: Final = 4  # reads of one scan
CHUNK_LEAST: Final = 64  # records of the first read of a partition; each next one is twice as large
CHUNK_MOST: Final = 4096
READ_BYTES: Final = 4 * MIB  # of the reads of all sources together
READ_BYTES_LEAST: Final = 64 * KIB
CHECK_RECORDS: Final = 128  # records between two checks of the clock
TURN_S: Final = 0.004  # then other tasks get a turn


class Hit(NamedTuple):
    """A matching record."""

    time: int  # never decreases in a source
    batch: Batch
    number: int  # in it
    offset: int

    @property
    def record(self) -> comet.Record[bytes]:
        batch, at = self.batch, self.number
        return comet.Record(
            batch.topic, batch.partition, self.offset, batch.keys[at], batch.values[at],  # type: ignore[arg-type]
            batch.timestamps[at], batch.headers[at],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """The range to scan: offsets [low, high) of each partition."""

    topic: str
    order: Order
    parts: Mapping[int, tuple[int, int]]
    epochs: Mapping[int, int | None] = field(default_factory=dict)  # of the record before low, if known
    filters: Filters = field(default_factory=Filters)
    isolation: Isolation = "committed"
    topic_id: bytes = b""  # a later topic with the same name is not scanned


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of a scan; `limit`: records returned."""

    limit: int
    records: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class ScanPartition:
    """One partition of a scan: [low, high) is left."""

    partition: int
    low: int
    high: int
    epoch: int | None
    chunk: int
    sign: int  # 1: forward from low; -1: back from high
    found: deque[Hit] = field(default_factory=deque)
    time: int | None = None  # scanned up to this timestamp

    @property
    def open(self) -> bool:
        """Whether there is more to read."""
        return self.low < self.high

    def key(self) -> tuple[bool, int, int]:
        """Sort key of its next record; unread sources come first."""
        time = self.found[0].time if self.found else self.time
        return time is not None, self.sign * (time or 0), self.sign * self.partition

    def advance(self, time: int) -> int:
        """Sets the scanned timestamp, which never goes back, and returns it."""
        if self.time is None or self.sign * time > self.sign * self.time:
            self.time = time
        return self.time


class Scan:
    """One scan. `run` yields matches in order; the properties can be read at any time.

    async for hits in scan.run():       # empty ones, too, for progress
        ...
    scan.reason, scan.cursor()
    """

    def __init__(
        self, reader: comet.Reader, wanted: Wanted, budget: Budget, clock: Callable[[], float] = perf_counter,
        *, skip_corrupt: bool = True,
    ) -> None:  # fmt: skip
        self.scanned = 0  # records
        self.bytes = 0
        self.matched = 0  # records returned
        self.reason: Reason = ""
        self.of = sum(max(high - low, 0) for low, high in wanted.parts.values())  # offsets, an estimate of the records
        self._skip_corrupt = skip_corrupt  # otherwise a corrupt batch is a Problem
        self._corrupt: dict[tuple[int, int], int] = {}  # skipped batches: (partition, end offset) -> first offset
        self._reader = reader
        self._wanted = wanted
        self._budget = budget
        self._clock = clock
        self._began = clock()
        self._turn = self._began
        self._reads = 0
        self._back = wanted.order is Order.NEWEST
        first = CHUNK_MOST if wanted.filters else min(max(CHUNK_LEAST, budget.limit // max(len(wanted.parts), 1)), 1024)
        sign = -1 if self._back else 1
        self._sources = {
            index: ScanPartition(index, low, high, wanted.epochs.get(index), first, sign)
            for index, (low, high) in wanted.parts.items()
        }
        self._bytes_max = max(READ_BYTES // max(len(self._sources), 1), READ_BYTES_LEAST)
        self._heap = [(source.key(), source) for source in self._sources.values() if source.open]
        self._from = self._offsets()
        heapify(self._heap)  # keys are unique, so sources are never compared

    async def run(self) -> AsyncIterator[Sequence[Hit]]:
        """Scans. Raises Problem, with its partition."""
        while True:
            hits = self._ready()
            if self._reads:  # an error before the first part can still set the status
                yield hits
            if self.matched >= self._budget.limit:
                self.reason = "end" if self._nothing_left() else "limit"
                return
            if not self._heap:
                self.reason = "end"
                return
            if self._used_up() and self._went_on():
                self.reason = "budget"
                return
            await self._read_on()

    def cursor(self) -> dict[int, CursorPosition]:
        """The positions to continue from, by partition."""
        return {source.partition: self._position(source) for source in self._sources.values()}

    @property
    def through_us(self) -> int | None:
        """All records before this timestamp were scanned; newest first: all after it. None: not started."""
        sources = [source for source in self._sources.values() if source.open or source.time is not None]
        times = [source.time for source in sources if source.open] or [source.time for source in sources]
        known = [time for time in times if time is not None]
        furthest = not any(source.open for source in sources)
        return (max if self._back is not furthest else min)(known) if known and len(known) == len(times) else None

    @property
    def unreadable(self) -> int:
        """Offsets that were skipped as their batch is corrupt."""
        return sum(end - first for (_, end), first in self._corrupt.items())

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def left(self) -> int:
        """Offsets that are not scanned yet."""
        return sum(source.high - source.low for source in self._sources.values() if source.open)

    # ---- returning matches

    def _ready(self) -> list[Hit]:
        """Matches that no other match can precede."""
        heap, found = self._heap, list[Hit]()
        most = self._budget.limit - self.matched
        while heap and heap[0][1].found and len(found) < most:
            source = heappop(heap)[1]
            # Up to the next source's position, so that matches of a single source are returned at once.
            bound = heap[0][0] if heap else None
            while source.found and len(found) < most and (bound is None or source.key() < bound):
                found.append(source.found.popleft())
            self._back_in(source)
        self.matched += len(found)
        return found

    def _back_in(self, source: ScanPartition) -> None:
        if source.found or source.open:
            heappush(self._heap, (source.key(), source))

    def _nothing_left(self) -> bool:
        return not self._heap

    def _used_up(self) -> bool:
        budget = self._budget
        return self.scanned >= budget.records or self.bytes >= budget.bytes or self.seconds >= budget.seconds

    def _went_on(self) -> bool:
        """Whether the cursor has moved since the start: otherwise a client would repeat the same scan for ever."""
        return self.matched > 0 or self._offsets() != self._from

    def _offsets(self) -> list[int]:
        return [self._position(source).offset for source in self._sources.values()]

    def _position(self, source: ScanPartition) -> CursorPosition:
        if self._back:
            return CursorPosition(source.found[0].offset + 1 if source.found else source.high)
        if source.found:
            return CursorPosition(source.found[0].offset)
        return CursorPosition(source.low, source.epoch)

    # ---- reading

    async def _read_on(self) -> None:
        """Reads the sources that block the others, some at once."""
        sources: list[ScanPartition] = []
        while self._heap and not self._heap[0][1].found and len(sources) < AT_ONCE:
            sources.append(heappop(self._heap)[1])
        assert sources, "matches are returned before more is read"
        self._reads += len(sources)
        read = self._read_back if self._back else self._read
        if len(sources) == 1:
            await read(sources[0])
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    for source in sources:
                        group.create_task(read(source))
            except* Problem as problems:
                raise _first(problems) from None
        for source in sources:
            self._back_in(source)

    async def _read(self, source: ScanPartition) -> None:
        try:
            got = await self._fetch(source, source.low, min(source.chunk, source.high - source.low), source.epoch)
        except _Moved as moved:
            source.low, source.epoch = moved.log_start, None
            return
        except Corrupt as corrupt:
            source.low, source.epoch = corrupt.end, None
            return
        for batch in got.batches:
            offsets = batch.offsets
            end = len(batch) if offsets[-1] < source.high else sum(offset < source.high for offset in offsets)
            await self._filter(source, batch, end)
        source.low, source.epoch = max(got.next_offset, source.low), got.epoch
        if got.next_offset >= got.log_end:
            source.high = source.low  # the readable part ends there
        source.chunk = min(2 * source.chunk, CHUNK_MOST)

    async def _read_back(self, source: ScanPartition) -> None:
        start = max(source.high - source.chunk, source.low)
        try:
            got = await self._fetch(source, start, source.high - start)
        except _Moved as moved:
            source.low = max(source.low, moved.log_start)
            return
        except Corrupt as corrupt:
            if corrupt.end < source.high:
                source.chunk = source.high - corrupt.end  # the records behind it come first
            else:
                source.high = start
                source.chunk = min(2 * source.chunk, CHUNK_MOST)
            return
        if got.next_offset < source.high and got.next_offset < got.log_end and start < source.high - 1:
            # Records are larger than expected: these are not the last before the end, but show how many fit.
            source.chunk = max(min(source.chunk // 2, sum(map(len, got.batches))), 1)
            return
        for batch in reversed(got.batches):
            offsets = batch.offsets
            end = len(batch) if offsets[-1] < source.high else sum(offset < source.high for offset in offsets)
            await self._filter(source, batch, end)
        source.high = start
        source.chunk = min(2 * source.chunk, CHUNK_MOST)

    async def _fetch(self, source: ScanPartition, start: int, most: int, epoch: int | None = None) -> comet.Fetched:
        try:
            return await self._reader.fetch(
                self._wanted.topic, source.partition, AtOffset(start), epoch=epoch, records_max=most,
                bytes_max=self._bytes_max, isolation=self._wanted.isolation, topic_id=self._wanted.topic_id,
            )  # fmt: skip
        except OffsetOutOfRange as error:
            log_start = int(error.details.get("log_start", -1))
            if log_start <= start:
                raise problem_of(error, source.partition) from error
            raise _Moved(log_start) from None  # retention has deleted records
        except comet.CorruptRecords as error:
            if not self._skip_corrupt:
                raise problem_of(error, source.partition) from error
            position, first = (source.partition, int(error.details["end"])), int(error.details["first"])
            self._corrupt[position] = min(first, self._corrupt.get(position, first))
            raise Corrupt(position[1]) from error
        except comet.CometError as error:
            raise problem_of(error, source.partition) from error

    async def _filter(self, source: ScanPartition, batch: Batch, end: int) -> None:
        """Filters the first records of a batch, in turns."""
        if not end:
            return
        filters, offsets, timestamps = self._wanted.filters, batch.offsets, batch.timestamps
        parts = [(at, min(at + CHECK_RECORDS, end)) for at in range(0, end, CHECK_RECORDS)]
        for first, behind in reversed(parts) if self._back else parts:
            found = filters.found(batch, first, behind) if filters else range(first, behind)
            for index in reversed(found) if self._back else found:
                source.found.append(Hit(source.advance(timestamps[index]), batch, index, offsets[index]))
            if self._clock() - self._turn > TURN_S:
                await asyncio.sleep(0)
                self._turn = self._clock()
        source.advance(min(timestamps[:end]) if self._back else max(timestamps[:end]))
        self.scanned += end
        self.bytes += batch.size


class _Moved(Exception):
    """The log start offset is behind the requested offset."""

    def __init__(self, log_start: int) -> None:
        super().__init__(log_start)
        self.log_start = log_start


def _first(problems: BaseExceptionGroup[Problem]) -> Problem:
    found: BaseException = problems
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Problem)
    return found
