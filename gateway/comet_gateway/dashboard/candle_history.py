"""The channel `candles`: candles of one symbol from before those of the page, for a chart that is panned into the past.

    {"topic": "quotes", "symbol": "AAPL", "step": "1s", "before_us": "1795326337000000", "count": "240"}

    {"step_s": 1, "start_us": …, "end_us": …, "open": […], "high": […], "low": […], "close": […], "volume": […],
     "spread": […], "begins": ""}

One event, then the channel ends. The lists have a value for each step from `start_us` to `end_us`, which is `before_us`
rounded down to a step; null without a quote. `begins` is empty, or says why no candle is older. A page is shorter than
requested where it has more than RECORDS_MAX records. Closing the channel stops the reading.

Candles that the feed has in memory are taken from there, others are computed from the log, as the feed does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import comet
from comet.consumer.ranges import Part, RangeSpec
from comet.errors import PartitionNotFound
from comet.types import AtTime
from comet_gateway.dashboard.backfill import FILL_BYTES, FILL_RECORDS, FILL_SHARE
from comet_gateway.dashboard.candles import (
    MINUTES,
    SECONDS,
    Candle,
    CandleSeries,
    CandleSymbol,
    SumOfSecond,
    tick_of,
)
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.price_check import PriceCheck
from comet_gateway.dashboard.quotes import QuoteFeed, QuoteFeeds
from comet_gateway.dashboard.topic_records import texts
from comet_gateway.http.problems import Problem
from comet_web.facts import STEPS_S

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend

STEPS_MAX: Final = 500  # of a page
RECORDS_MAX: Final = 200_000  # read for a page
READ_S: Final = 20.0
LATE_US: Final = 2_000_000  # that a record may be written after its time
DIGITS: Final = 10
LOG_BEGINS: Final = "the log begins there"
TOO_MANY: Final = f"one step has more than {RECORDS_MAX:,} records; choose a shorter one"


@dataclass(frozen=True, slots=True)
class Page:
    """The steps from `first` to before `end`, numbered since 1970."""

    first: int
    end: int
    step_s: int

    @property
    def start_us(self) -> int:
        return self.first * self.step_s * 1_000_000

    @property
    def end_us(self) -> int:
        return self.end * self.step_s * 1_000_000


async def candles(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """The event of the channel. Raises Problem, CometError."""
    query = texts(params)
    feeds = session.sources.part(QuoteFeeds)
    feed = feeds.feed(query.get("topic") or session.sources.config.quotes_topic)
    step_s = STEPS_S.get(query.get("step", ""))
    symbol = feed.symbols.get(query.get("symbol", ""))
    if step_s is None:
        raise Problem("VALIDATION", f"step must be one of {', '.join(STEPS_S)}")
    if symbol is None:
        raise Problem("VALIDATION", "no quote of this symbol is known; the page of quotes lists those that are")
    end = _number(query, "before_us") // (step_s * 1_000_000)
    count = min(STEPS_MAX, max(1, _number(query, "count")))
    page = Page(max(0, end - count), end, step_s)
    known = known_from(feed, step_s, time.time_ns() // 1_000_000_000)
    if page.first < known < page.end:
        page = Page(known, end, step_s)
    if page.first >= known:
        found, begins = symbol.between(page.step_s, page.first, page.end), ""
        if page.first == known and feed.reach is not None and feed.reach.whole:
            begins = LOG_BEGINS
    else:
        async with feeds.reading:
            page, found, begins = await LogCandles(feed.topic, session.sources.backend, symbol).read(page)
    yield _event(page, found, begins)


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise Problem("VALIDATION", f"{name} must be a whole number", more={"parameter": name})
    return int(text)


def known_from(feed: QuoteFeed, step_s: int, now_s: int) -> int:
    """The first whole step that the feed has in memory."""
    since_s = now_s if feed.reach is None else -(-feed.reach.since_us // 1_000_000)
    if feed.reach is not None and feed.reach.whole:
        since_s = feed.reach.since_us // 1_000_000
        return max(since_s // step_s, -(-(now_s - _span_s(step_s)) // step_s))
    return -(-max(since_s, now_s - _span_s(step_s)) // step_s)


def _span_s(step_s: int) -> int:
    return SECONDS if step_s == 1 else MINUTES * 60


def _event(page: Page, found: Sequence[Candle | None], begins: str) -> dict[str, Any]:
    names = ("open", "high", "low", "close", "volume", "spread")
    columns = {
        name: [None if one is None else _short(one[at]) for one in found] for at, name in enumerate(names)
    }  # fmt: skip
    return {
        "step_s": page.step_s, "start_us": page.start_us, "end_us": page.end_us, **columns, "begins": begins,
    }  # fmt: skip


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


class LogCandles:
    """Computes the candles of one symbol from the log. Used once."""

    def __init__(self, topic: str, backend: Backend, symbol: CandleSymbol) -> None:
        self._topic = topic
        self._backend = backend
        self._name = symbol.latest.tick.symbol
        self._partitions = sorted(symbol.tape.partitions)
        # Other symbols' records are left out before they are decoded, where JSON writes the name as it is.
        self._needle = self._name.encode() if self._name.isascii() and self._name.isalnum() else b""
        self._check = PriceCheck()

    async def read(self, page: Page) -> tuple[Page, list[Candle | None], str]:
        """The page as far as it can be read, its candles, and why no candle is older: empty if the log goes on."""
        admin = self._backend.admin
        starts, latest = await admin.offsets(self._topic, "earliest"), await admin.offsets(self._topic, "latest")
        ends = await admin.offsets(self._topic, AtTime(page.end_us + LATE_US))
        while True:
            begins = await admin.offsets(self._topic, AtTime(page.start_us))
            ranges = {
                index: (begin := begins.get(index, latest[index]), max(begin, ends.get(index, latest[index])))
                for index in self._partitions
                if index in latest
            }
            if sum(end - begin for begin, end in ranges.values()) <= RECORDS_MAX:
                break
            if page.end - page.first == 1:
                return Page(page.end, page.end, page.step_s), [], TOO_MANY
            page = Page(page.first + (page.end - page.first + 1) // 2, page.end, page.step_s)
        series = CandleSeries(page.step_s, page.end - page.first)
        try:
            async with asyncio.timeout(READ_S):
                for index, (begin, end) in ranges.items():
                    await self._read(index, begin, end, page, series)
        except TimeoutError:
            text = f"{page.end - page.first} candles could not be read within {READ_S:.0f} s; retry later"
            raise Problem("TIMEOUT", text) from None
        found = list(series.candles(page.end, page.end - page.first, 0))
        if all(begin <= starts.get(index, 0) for index, (begin, _) in ranges.items()):
            known = next((at for at, one in enumerate(found) if one is not None), len(found))
            return Page(page.first + known, page.end, page.step_s), found[known:], LOG_BEGINS
        return page, found, ""

    async def _read(self, index: int, begin: int, end: int, page: Page, series: CandleSeries) -> None:
        spec = RangeSpec(
            self._topic, index, begin, end,
            step_records_first=FILL_RECORDS, step_records=FILL_RECORDS, step_bytes=FILL_BYTES,
        )  # fmt: skip
        reading = comet.RangeReader(self._backend.reader, spec)
        summed = SumOfSecond(series.put)
        while not reading.stopped:
            try:
                parts = await reading.step()
            except PartitionNotFound:
                break
            began_s = time.perf_counter()
            self._take(parts, page, summed)
            await asyncio.sleep((time.perf_counter() - began_s) * (1 / FILL_SHARE - 1))
        summed.flush()

    def _take(self, parts: Sequence[Part], page: Page, summed: SumOfSecond) -> None:
        start_us, end_us, needle = page.start_us, page.end_us, self._needle
        for part in parts:
            if isinstance(part, comet.Gap):
                if part.error is not None and part.reason == "damaged":
                    raise part.error
                continue  # deleted or truncated meanwhile
            for key, value, timestamp_us in zip(part.keys, part.values, part.timestamps, strict=True):
                if needle and key != needle and (value is None or needle not in value):
                    continue
                tick = tick_of(key, value, timestamp_us)
                if isinstance(tick, str) or tick.symbol != self._name or self._check.outlier(tick):
                    continue
                if start_us <= tick.time_us < end_us:
                    summed.add(tick)
