"""A bounded walk through a topic in the order of time, that keeps what is asked for.

    partition 0   ░░░░░░░▣░░░▣ ░ ░ ░      each is a lane: what of it was found and not yet given (▣), and how far it
    partition 1   ░░░░▣░░░░░░░░░░ ░       was looked at. The lane that lies furthest back is read on; what was found
                              ▲           is given once no lane can have anything before it.
                           cursor

As in `merging`, a partition's records keep their order, and a time that goes back counts as the one before it; but only
what was found is made an object, so that most of the log costs little. A walk ends at its limit, at the end of what was
asked for, or when its budget is used up; its cursor says where to go on, and holds what was found and not given.

One walk belongs to one request. It looks at records in turns of a few milliseconds, then others have the loop.
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
from comet_gateway.records.cursor import CursorPlace
from comet_gateway.records.merge import Corrupt, Isolation, Order, problem_of
from comet_gateway.search.filters import Filters

Batch = comet.RecordBatch[bytes]
Reason = Literal["", "limit", "end", "budget"]

AT_ONCE: Final = 4  # reads of one walk
CHUNK_LEAST: Final = 64  # records of the first read of a partition; each next one is twice as large
CHUNK_MOST: Final = 4096
READ_BYTES: Final = 4 * MIB  # of one read in all lanes together
READ_BYTES_LEAST: Final = 64 * KIB
LOOK: Final = 128  # records between two looks at the clock
TURN_S: Final = 0.004  # then somebody else has the loop


class Hit(NamedTuple):
    """A record that answers."""

    time: int  # never back in a lane
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
    """Which part of a topic: of each partition the offsets [low, high)."""

    topic: str
    order: Order
    parts: Mapping[int, tuple[int, int]]
    epochs: Mapping[int, int | None] = field(default_factory=dict)  # of the record before low, where it is known
    filters: Filters = field(default_factory=Filters)
    isolation: Isolation = "committed"
    topic_id: bytes = b""  # another that has the name by then is none of it


@dataclass(frozen=True, slots=True)
class Budget:
    """What a walk may take; `limit`: records that it gives."""

    limit: int
    records: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class ScanPartition:
    """One partition of a walk: what is left of it is [low, high)."""

    partition: int
    low: int
    high: int
    epoch: int | None
    chunk: int
    sign: int  # 1: from low on; -1: back from high
    found: deque[Hit] = field(default_factory=deque)
    time: int | None = None  # how far it was looked at

    @property
    def open(self) -> bool:
        """There is more to be read."""
        return self.low < self.high

    def key(self) -> tuple[bool, int, int]:
        """Of what comes next of it; what was never looked at comes first."""
        time = self.found[0].time if self.found else self.time
        return time is not None, self.sign * (time or 0), self.sign * self.partition

    def advance(self, time: int) -> int:
        """It was looked at up to a time; returns that, which never goes back."""
        if self.time is None or self.sign * time > self.sign * self.time:
            self.time = time
        return self.time


class Scan:
    """`run` gives what is found, in order; the rest may be looked at at any time.

    async for hits in scan.run():       # empty ones, too: that it goes on
        ...
    scan.reason, scan.cursor()
    """

    def __init__(
        self, reader: comet.Reader, wanted: Wanted, budget: Budget, clock: Callable[[], float] = perf_counter,
        *, skip_corrupt: bool = True,
    ) -> None:  # fmt: skip
        self.scanned = 0  # records that were looked at
        self.bytes = 0
        self.matched = 0  # that were given
        self.reason: Reason = ""
        self.of = sum(max(high - low, 0) for low, high in wanted.parts.values())  # offsets, about so many records
        self._skip_corrupt = skip_corrupt  # else a batch that cannot be read is a Problem
        self._corrupt: dict[tuple[int, int], int] = {}  # of those that were passed: partition and end, first offset
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
        self._lanes = {
            index: ScanPartition(index, low, high, wanted.epochs.get(index), first, sign)
            for index, (low, high) in wanted.parts.items()
        }
        self._bytes_max = max(READ_BYTES // max(len(self._lanes), 1), READ_BYTES_LEAST)
        self._heap = [(lane.key(), lane) for lane in self._lanes.values() if lane.open]
        self._from = self._offsets()
        heapify(self._heap)  # no two keys are the same, so that lanes are never compared

    async def run(self) -> AsyncIterator[Sequence[Hit]]:
        """Raises Problem, with the partition that it is about."""
        while True:
            hits = self._ready()
            if self._reads:  # what goes wrong before anything is told can still be the answer as a whole
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

    def cursor(self) -> dict[int, CursorPlace]:
        """By partition, where to go on."""
        return {lane.partition: self._place(lane) for lane in self._lanes.values()}

    @property
    def through_us(self) -> int | None:
        """Every record before this time was looked at; newest first: every one after it. None: not even begun."""
        lanes = [lane for lane in self._lanes.values() if lane.open or lane.time is not None]
        times = [lane.time for lane in lanes if lane.open] or [lane.time for lane in lanes]
        known = [time for time in times if time is not None]
        furthest = not any(lane.open for lane in lanes)
        return (max if self._back is not furthest else min)(known) if known and len(known) == len(times) else None

    @property
    def unreadable(self) -> int:
        """Offsets that were passed over because their batch is corrupt."""
        return sum(end - first for (_, end), first in self._corrupt.items())

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def left(self) -> int:
        """Offsets that were not looked at yet."""
        return sum(lane.high - lane.low for lane in self._lanes.values() if lane.open)

    # ---- giving

    def _ready(self) -> list[Hit]:
        """What nothing can come before."""
        heap, found = self._heap, list[Hit]()
        most = self._budget.limit - self.matched
        while heap and heap[0][1].found and len(found) < most:
            lane = heappop(heap)[1]
            # Up to where the next lane stands, so that a lane that is alone is given as it is.
            bound = heap[0][0] if heap else None
            while lane.found and len(found) < most and (bound is None or lane.key() < bound):
                found.append(lane.found.popleft())
            self._back_in(lane)
        self.matched += len(found)
        return found

    def _back_in(self, lane: ScanPartition) -> None:
        if lane.found or lane.open:
            heappush(self._heap, (lane.key(), lane))

    def _nothing_left(self) -> bool:
        return not self._heap

    def _used_up(self) -> bool:
        budget = self._budget
        return self.scanned >= budget.records or self.bytes >= budget.bytes or self.seconds >= budget.seconds

    def _went_on(self) -> bool:
        """Its cursor is another than where it began: else who goes on from there would see the same again, for ever."""
        return self.matched > 0 or self._offsets() != self._from

    def _offsets(self) -> list[int]:
        return [self._place(lane).offset for lane in self._lanes.values()]

    def _place(self, lane: ScanPartition) -> CursorPlace:
        if self._back:
            return CursorPlace(lane.found[0].offset + 1 if lane.found else lane.high)
        if lane.found:
            return CursorPlace(lane.found[0].offset)
        return CursorPlace(lane.low, lane.epoch)

    # ---- reading

    async def _read_on(self) -> None:
        """The lanes that keep the others from giving anything, some at once."""
        lanes: list[ScanPartition] = []
        while self._heap and not self._heap[0][1].found and len(lanes) < AT_ONCE:
            lanes.append(heappop(self._heap)[1])
        assert lanes, "what was found is given before more is read"
        self._reads += len(lanes)
        read = self._read_back if self._back else self._read
        if len(lanes) == 1:
            await read(lanes[0])
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    for lane in lanes:
                        group.create_task(read(lane))
            except* Problem as problems:
                raise _first(problems) from None
        for lane in lanes:
            self._back_in(lane)

    async def _read(self, lane: ScanPartition) -> None:
        try:
            got = await self._fetch(lane, lane.low, min(lane.chunk, lane.high - lane.low), lane.epoch)
        except _Moved as moved:
            lane.low, lane.epoch = moved.log_start, None
            return
        except Corrupt as corrupt:
            lane.low, lane.epoch = corrupt.end, None
            return
        for batch in got.batches:
            offsets = batch.offsets
            end = len(batch) if offsets[-1] < lane.high else sum(offset < lane.high for offset in offsets)
            await self._look(lane, batch, end)
        lane.low, lane.epoch = max(got.next_offset, lane.low), got.epoch
        if got.next_offset >= got.log_end:
            lane.high = lane.low  # what there is to be read ends there
        lane.chunk = min(2 * lane.chunk, CHUNK_MOST)

    async def _read_back(self, lane: ScanPartition) -> None:
        start = max(lane.high - lane.chunk, lane.low)
        try:
            got = await self._fetch(lane, start, lane.high - start)
        except _Moved as moved:
            lane.low = max(lane.low, moved.log_start)
            return
        except Corrupt as corrupt:
            if corrupt.end < lane.high:
                lane.chunk = lane.high - corrupt.end  # what lies behind it comes first
            else:
                lane.high = start
                lane.chunk = min(2 * lane.chunk, CHUNK_MOST)
            return
        if got.next_offset < lane.high and got.next_offset < got.log_end and start < lane.high - 1:
            # They are larger than was thought. What came is not what lies before the end, but tells how many fit.
            lane.chunk = max(min(lane.chunk // 2, sum(map(len, got.batches))), 1)
            return
        for batch in reversed(got.batches):
            offsets = batch.offsets
            end = len(batch) if offsets[-1] < lane.high else sum(offset < lane.high for offset in offsets)
            await self._look(lane, batch, end)
        lane.high = start
        lane.chunk = min(2 * lane.chunk, CHUNK_MOST)

    async def _fetch(self, lane: ScanPartition, start: int, most: int, epoch: int | None = None) -> comet.Fetched:
        try:
            return await self._reader.fetch(
                self._wanted.topic, lane.partition, AtOffset(start), epoch=epoch, records_max=most,
                bytes_max=self._bytes_max, isolation=self._wanted.isolation, topic_id=self._wanted.topic_id,
            )  # fmt: skip
        except OffsetOutOfRange as error:
            log_start = int(error.details.get("log_start", -1))
            if log_start <= start:
                raise problem_of(error, lane.partition) from error
            raise _Moved(log_start) from None  # retention was here
        except comet.CorruptRecords as error:
            if not self._skip_corrupt:
                raise problem_of(error, lane.partition) from error
            place, first = (lane.partition, int(error.details["end"])), int(error.details["first"])
            self._corrupt[place] = min(first, self._corrupt.get(place, first))
            raise Corrupt(place[1]) from error
        except comet.CometError as error:
            raise problem_of(error, lane.partition) from error

    async def _look(self, lane: ScanPartition, batch: Batch, end: int) -> None:
        """Finds what answers among the first records of a batch, in turns."""
        if not end:
            return
        filters, offsets, timestamps = self._wanted.filters, batch.offsets, batch.timestamps
        parts = [(at, min(at + LOOK, end)) for at in range(0, end, LOOK)]
        for first, behind in reversed(parts) if self._back else parts:
            found = filters.found(batch, first, behind) if filters else range(first, behind)
            for index in reversed(found) if self._back else found:
                lane.found.append(Hit(lane.advance(timestamps[index]), batch, index, offsets[index]))
            if self._clock() - self._turn > TURN_S:
                await asyncio.sleep(0)
                self._turn = self._clock()
        lane.advance(min(timestamps[:end]) if self._back else max(timestamps[:end]))
        self.scanned += end
        self.bytes += batch.size


class _Moved(Exception):
    """The log begins behind what was asked for."""

    def __init__(self, log_start: int) -> None:
        super().__init__(log_start)
        self.log_start = log_start


def _first(problems: BaseExceptionGroup[Problem]) -> Problem:
    found: BaseException = problems
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Problem)
    return found
