"""The history of a topic of quotes: read backwards from the first new record, one stretch of time at a time.

Bounded in records and in time; `Reach` tells how far it goes, and why not further. A stretch counts only when it was
read completely, so that no figure is based on half of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import comet
from comet.consumer.ranges import Part, RangeSpec
from comet.errors import PartitionNotFound
from comet.types import AtTime
from comet_gateway.dashboard.candles import CandleSymbol, Tick
from comet_gateway.dashboard.price_check import PriceCheck
from comet_gateway.dashboard.trade_tape import TradeTape
from comet_gateway.records.cursor import Cursor

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend
    from comet_gateway.config import Limits

FILL_RECORDS: Final = 4_000
FILL_BYTES: Final = 256 * 1024  # per read: blocks the loop for a few milliseconds
FILL_SHARE: Final = 0.5  # of the loop's time
# Before the start. Short ones first: a stretch that runs out of time is lost.
STRETCHES_S: Final = (
    15, 30, 60, 120, 180, 240, 300, 420, 540, 720, 900, 1_200, 1_800, 2_700, 3_600, 7_200,
    14_400, 28_800, 57_600, 86_400,
)  # fmt: skip
STRETCH_S_MIN: Final = 10


class BackfillRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_us: int
    expires_us: int  # 0: never


@dataclass(frozen=True, slots=True)
class Reach:
    """The start of the complete history."""

    since_us: int
    bounded: str = ""
    whole: bool = False  # the log starts there


class Stretch:
    """The sums of one stretch by symbol, added once it was read completely."""

    def __init__(self) -> None:
        self.first_us: int | None = None
        self._found: dict[str, list[Any]] = {}  # volume, records, time and price of the first
        self._checks: dict[str, PriceCheck] = {}
        self._tapes: dict[str, TradeTape] = {}

    def outlier(self, tick: Tick) -> bool:
        """Whether to leave its price out."""
        check = self._checks.get(tick.symbol)
        if check is None:
            check = self._checks[tick.symbol] = PriceCheck()
        return check.outlier(tick)

    def tape(self, symbol: str) -> TradeTape:
        return self._tapes.setdefault(symbol, TradeTape())

    def add(self, tick: Tick) -> None:
        if self.first_us is None or tick.time_us < self.first_us:
            self.first_us = tick.time_us
        one = self._found.get(tick.symbol)
        if one is None:
            self._found[tick.symbol] = [tick.size, 1, tick.time_us, tick.price]
            return
        one[0] += tick.size
        one[1] += 1
        if tick.time_us < one[2]:
            one[2], one[3] = tick.time_us, tick.price

    def settle(self, symbols: Mapping[str, CandleSymbol]) -> None:
        for name, (volume, records, time_us, price) in self._found.items():
            symbol = symbols[name]
            symbol.tape.put_before(self.tape(name))
            symbol.volume += volume
            symbol.records += records
            if time_us < symbol.first_us:
                symbol.first, symbol.first_us = price, time_us


Add = Callable[[int, int, BackfillRecord, Stretch], None]  # partition, offset, record, its stretch


class Past:
    """The history of one topic, before the offsets from which it is followed. Used once."""

    def __init__(self, topic: str, backend: Backend, limits: Limits, cursor: Cursor, start_us: int) -> None:
        self.reach = Reach(start_us)
        self._topic = topic
        self._backend = backend
        self._limits = limits
        self._topic_id = cursor.topic_id
        self._ends = {index: at.offset for index, at in cursor.positions.items()}
        self._start_us = start_us

    def bound(self, why: str) -> None:
        self.reach = Reach(self.reach.since_us, why)

    async def stretches(self, add: Add) -> AsyncIterator[Stretch]:
        """Yields each stretch once it was read; `reach` then includes it. Raises CometError."""
        until_s = asyncio.get_running_loop().time() + self._limits.quote_scan_s
        most = self._limits.quote_scan_records_max
        admin, back_s, left = self._backend.admin, 0, most
        starts = await admin.offsets(self._topic, "earliest")
        wanted = list(STRETCHES_S)
        while wanted:
            next_s = wanted[0]
            since_us = self._start_us - next_s * 1_000_000
            found = await admin.offsets(self._topic, AtTime(since_us))
            begins = {index: min(found.get(index, end), end) for index, end in self._ends.items()}
            records = sum(end - begins[index] for index, end in self._ends.items())
            if records > left:
                if next_s - back_s < 2 * STRETCH_S_MIN:
                    self.bound(f"the limit of {most:,} records is reached")
                    return
                wanted.insert(0, back_s + (next_s - back_s) // 2)
                continue
            stretch = Stretch()
            try:
                async with asyncio.timeout_at(until_s):
                    await self._read(begins, stretch, add)
            except TimeoutError:
                self.bound(f"the time limit of {self._limits.quote_scan_s:.0f} s")
                return
            left, self._ends, back_s = left - records, begins, next_s
            wanted.pop(0)
            over = all(begins[index] <= starts.get(index, 0) for index in begins)
            if over:
                first_us = stretch.first_us if stretch.first_us is not None else self.reach.since_us
                self.reach = Reach(
                    max(since_us, min(first_us, self.reach.since_us)), "the log begins there", whole=True
                )
            else:
                self.reach = Reach(since_us)
            yield stretch
            if over:
                return

    async def _read(self, begins: Mapping[int, int], stretch: Stretch, add: Add) -> None:
        for partition, end in self._ends.items():
            spec = RangeSpec(
                self._topic, partition, begins[partition], end, topic_id=self._topic_id,
                step_records_first=FILL_RECORDS, step_records=FILL_RECORDS, step_bytes=FILL_BYTES,
            )  # fmt: skip
            reading = comet.RangeReader(self._backend.reader, spec)
            try:
                while not reading.stopped:
                    await self._take(partition, await reading.step(), stretch, add)
            except PartitionNotFound:
                continue

    async def _take(self, partition: int, parts: Sequence[Part], stretch: Stretch, add: Add) -> None:
        began_s = time.perf_counter()
        for part in parts:
            if isinstance(part, comet.Gap):
                if part.error is not None and part.reason == "damaged":
                    raise part.error
                continue  # deleted or truncated meanwhile
            columns = map(BackfillRecord, part.keys, part.values, part.timestamps, part.expiry or repeat(0))
            for at, record in zip(part.offsets, columns, strict=True):
                add(partition, at, record, stretch)
        await asyncio.sleep((time.perf_counter() - began_s) * (1 / FILL_SHARE - 1))
