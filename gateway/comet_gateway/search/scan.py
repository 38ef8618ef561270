"""A bounded scan of a topic in order of timestamps, which returns matching records.

The partitions are ranges of the SDK, merged by time; only matches become objects, so that most of the log costs little.
A scan ends at its limit, at the end of its range, or when its budget is used up; its cursor is the position to continue
from, before matches not yet returned.

One scan belongs to one request. It works in turns of a few milliseconds, between which other tasks run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal

import comet
from comet.consumer.options import filter_of_brokers
from comet.consumer.ranges import RangeSpec
from comet.filters.search_filters import Filters
from comet_gateway.config import KIB, MIB, READ_WAIT_MS
from comet_gateway.records.cursor import CursorPosition
from comet_gateway.records.merge import Isolation, Order, merge_problem, problem_of

Batch = comet.RecordBatch[bytes]
Hit = comet.MergedRecord
Reason = Literal["", "limit", "end", "budget"]

AT_ONCE: Final = 4  # reads of one scan
CHUNK_LEAST: Final = 64  # records of the first read of a partition; each next one is twice as large
CHUNK_MOST: Final = 4096
READ_BYTES: Final = 4 * MIB  # of the reads of all partitions together
READ_BYTES_LEAST: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Wanted:
    """The range to scan: offsets [low, high) of each partition."""

    topic: str
    order: Order
    parts: Mapping[int, tuple[int, int]]
    epochs: Mapping[int, int | None] = field(default_factory=dict)  # of the record before low, if known
    end_epochs: Mapping[int, int | None] = field(default_factory=dict)  # none of the range is later, if known
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
        self.matched = 0  # records returned
        self.unreadable = 0  # offsets that were skipped as their batch is corrupt
        self.reason: Reason = ""
        self.of = sum(max(high - low, 0) for low, high in wanted.parts.values())  # offsets, an estimate of the records
        self._skip_corrupt = skip_corrupt  # otherwise a corrupt batch is a Problem
        self._budget = budget
        self._clock = clock
        self._began = clock()
        self._back = wanted.order is Order.NEWEST
        count = max(len(wanted.parts), 1)
        first = CHUNK_MOST if wanted.filters else min(max(CHUNK_LEAST, budget.limit // count), 1024)
        ranges = [
            comet.RangeReader(reader, RangeSpec(
                wanted.topic, partition, low, max(low, high), self._back, wanted.topic_id,
                wanted.epochs.get(partition), wanted.end_epochs.get(partition),
                isolation=wanted.isolation, step_records_first=first, step_records=CHUNK_MOST,
                step_bytes=max(READ_BYTES // count, READ_BYTES_LEAST), wait_ms=READ_WAIT_MS,
                filter_hint=filter_of_brokers(wanted.filters.filter), hint_first=False,
            ))
            for partition, (low, high) in wanted.parts.items()
        ]  # fmt: skip
        select = wanted.filters.found if wanted.filters else None
        self._merged = comet.MergedReader(ranges, select=select, at_once=AT_ONCE, clock=clock)
        self._from = self._offsets()

    async def run(self) -> AsyncIterator[Sequence[Hit]]:
        """Scans. Raises Problem, with its partition."""
        merged = self._merged
        while True:
            hits = self._ready()
            if merged.steps:  # an error before the first part can still set the status
                yield hits
            if self.matched >= self._budget.limit:
                self.reason = "end" if merged.done else "limit"
                return
            if merged.done:
                self.reason = "end"
                return
            if self._used_up() and self._went_on():
                self.reason = "budget"
                return
            try:
                await merged.fill()
            except comet.CometError as error:
                raise merge_problem(error) from error

    def cursor(self) -> dict[int, CursorPosition]:
        """The positions to continue from, by partition."""
        found = self._merged.positions
        return {partition: CursorPosition(*at) for partition, at in found.items() if at is not None}

    @property
    def scanned(self) -> int:
        """Records scanned; with a filter, offsets."""
        return self._merged.records

    @property
    def bytes(self) -> int:
        """Bytes of the records that came from brokers."""
        return self._merged.bytes

    @property
    def through_us(self) -> int | None:
        """All records before this timestamp were scanned; newest first: all after it. None: not started."""
        sources = [one for one in self._merged.sources.values() if one.open or one.time_us is not None]
        times = [one.time_us for one in sources if one.open] or [one.time_us for one in sources]
        known = [time for time in times if time is not None]
        furthest = not any(one.open for one in sources)
        return (max if self._back is not furthest else min)(known) if known and len(known) == len(times) else None

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def left(self) -> int:
        """Offsets that are not scanned yet."""
        return sum(one.range.left for one in self._merged.sources.values())

    def _ready(self) -> list[Hit]:
        """Matches that no other match can precede."""
        found: list[Hit] = []
        while items := self._merged.ready(self._budget.limit - self.matched):
            hits = [item for item in items if not isinstance(item, comet.Gap)]
            if len(hits) < len(items):
                for item in items:
                    if isinstance(item, comet.Gap):
                        self._pass_over(item)
            found += hits
            self.matched += len(hits)
        return found

    def _pass_over(self, gap: comet.Gap) -> None:
        """Goes on behind records that retention has deleted, and corrupt batches. Raises Problem for other gaps."""
        assert gap.error is not None
        if isinstance(gap.error, comet.CorruptRecords) and self._skip_corrupt:
            self.unreadable += gap.end - gap.first
        elif gap.reason != "deleted":
            raise problem_of(gap.error, gap.partition)

    def _used_up(self) -> bool:
        budget = self._budget
        return self.scanned >= budget.records or self.bytes >= budget.bytes or self.seconds >= budget.seconds

    def _went_on(self) -> bool:
        """Whether the cursor has moved since the start: otherwise a client would repeat the same scan for ever."""
        return self.matched > 0 or self._offsets() != self._from

    def _offsets(self) -> list[int]:
        return [at.offset for at in self.cursor().values()]
