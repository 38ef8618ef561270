"""Feeds of quotes: one for each topic that pages show, shared by all, closed a while after the last.

    hub ──► new records ──┐
                          ├─► symbols: candles of 1 s and 1 min, trades
    log ──► history  ─────┘
    keys of NAME.latest ────► symbols: the latest quote, and when it expires
    keys of NAME.market ────► whether the market is open

Where no topic NAME.latest exists, a symbol's latest quote is the newest of its records. How far the history reaches,
and why not further: see `backfill`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Final

from comet.errors import CometError, TopicNotFound
from comet_gateway.dashboard.analytics import Analytics
from comet_gateway.dashboard.backfill import BackfillRecord, Past, Reach, Stretch
from comet_gateway.dashboard.candles import (
    EARLY_US,
    MINUTES,
    NEVER,
    SECONDS,
    SERIES_BYTES,
    CandleSymbol,
    Tick,
    tick_of,
    trade_of,
)
from comet_gateway.dashboard.key_watcher import Entry, KeyWatcher
from comet_gateway.dashboard.market_states import MarketStates
from comet_gateway.dashboard.price_check import PriceCheck
from comet_gateway.dashboard.schedules import opening
from comet_gateway.dashboard.trade_tape import TradeTape
from comet_gateway.http.problems import Problem
from comet_gateway.push import subscribe_request as push
from comet_gateway.push.chunk import Slice
from comet_gateway.push.events import Begun, Failed, Lost
from comet_gateway.records.cursor import Cursor
from comet_web import facts
from comet_web.page_request import PageRequest

if TYPE_CHECKING:
    from comet_gateway.brokers.backend import Backend
    from comet_gateway.config import Limits
    from comet_gateway.dashboard.sources import Sources
    from comet_gateway.push.hub import Hub

log = logging.getLogger("comet.gateway")

LEFT_OUT_MAX: Final = 10_000  # symbols beyond the limit that are counted
IDLE_S: Final = 900.0  # until an unused feed closes: a visitor who comes back finds it filled
AGAIN_S: Final = 2.0  # between two attempts to follow a topic
BUFFER: Final = 100_000  # records that a feed may lag before it skips some
SETTLED_US: Final = 400_000  # after its end, until a candle counts as final
READERS_MAX: Final = 2
RATE_S: Final = 10
PANES: Final = ("2", "4")  # charts side by side, if more than one
COUNTS: Final = {"1s": 240, "1m": 240, "5m": 288, "15m": 96}  # of candles on a page


class QuoteFeed:
    """The quotes of one topic. Lives on one event loop; owned by `QuoteFeeds`."""

    def __init__(self, topic: str, hub: Hub, backend: Backend, limits: Limits, clock_us: Callable[[], int]) -> None:
        self.topic = topic
        self.state = "filling"
        self.reason = ""
        self.symbols: dict[str, CandleSymbol] = {}
        self.records = self.unread = self.lost = 0
        self.unread_reason = ""
        self.outliers = 0
        self._checks: dict[str, PriceCheck] = {}  # by symbol, of new records
        self.reach: Reach | None = None
        self.delay_ms: float | None = None
        self.last_us: int | None = None
        self.viewed_s = asyncio.get_running_loop().time()
        self._hub = hub
        self._backend = backend
        self._limits = limits
        self._clock_us = clock_us
        self._left_out: set[int] = set()
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_S + 1)  # records received in each
        self._began_us = 0
        self._cursor = ""  # start of the subscription
        self._newest: Slice | None = None  # the last slice since
        self._latest_checks: dict[str, PriceCheck] = {}  # of the latest quotes, by symbol
        self.latest = KeyWatcher(f"{topic}.latest", backend.key_tables, self._take_latest, self._know_latest)
        self.market = MarketStates(topic, backend.key_tables, clock_us)
        self.analytics = Analytics(topic, hub, backend, limits, clock_us)
        self._task = asyncio.create_task(self._run(), name=f"gateway: quotes of {topic}")
        self._filling: asyncio.Task[None] | None = None  # once: the history stays after a resubscription
        self.begun = asyncio.Event()  # a first state is known

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        await self.latest.close()
        await self.market.watcher.close()
        await self.analytics.close()

    # ---- following

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except TopicNotFound as error:
                self._fail("absent", error.message)
            except CometError as error:
                self._fail("failed", error.message)
            except Problem as problem:
                self._fail("failed", problem.detail)
            except Exception:
                log.exception("gateway: the quote feed of %s failed", self.topic, extra={"topic": self.topic})
                self._fail("failed", "unexpected error; see the gateway's log")
            await asyncio.sleep(AGAIN_S)

    def _fail(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        self.begun.set()

    async def _follow(self) -> None:
        cursor = self._cursor if self._newest is None else self._newest.cursor
        wanted = push.SubscribeRequest(
            topics=(self.topic,),
            policy=push.Policy.DROP_OLDEST,
            buffer=BUFFER,
            cursors={self.topic: Cursor.parse(cursor)} if cursor else {},
        )
        subscription = await self._hub.subscribe(wanted)
        try:
            while True:
                event = await subscription.next()
                if isinstance(event, Slice):
                    self._take(event)
                    await asyncio.sleep(0)  # lets other tasks run
                elif isinstance(event, Begun):
                    self._cursor = event.cursor
                    if self._filling is None:
                        self._filling = self._fill_before(event.cursor)
                    self.state, self.reason = "live" if self._filling.done() else "filling", ""
                elif isinstance(event, Lost):
                    self.lost += event.count
                elif isinstance(event, Failed):
                    gone = event.code == "TOPIC_NOT_FOUND"
                    self._fail("absent" if gone else "failed", event.detail)
                    return
        finally:
            subscription.close()

    def _take(self, part: Slice) -> None:
        now_us = self._clock_us()
        last: Tick | None = None
        batch, begin, end = part.columns
        columns = (batch.keys, batch.values, batch.timestamps, batch.offsets)
        expiry = repeat(0) if batch.expiry is None else batch.expiry[begin:end]
        for key, value, timestamp_us, offset, expires_us in zip(
            *(column[begin:end] for column in columns), expiry, strict=False
        ):
            tick = self._tick(key, value, timestamp_us, now_us)
            if tick is None:
                continue
            last = tick
            symbol = self._symbol(tick, now_us)
            if symbol is None:
                continue
            symbol.records += 1
            check = self._checks.get(tick.symbol)
            if check is None:
                check = self._checks[tick.symbol] = PriceCheck(symbol.latest.tick.price)
            outlier = check.outlier(tick)
            _note(symbol.tape, tick, part.partition, offset, outlier=outlier)
            if outlier:
                self.outliers += 1
                if not self.latest.followed:
                    symbol.latest.put_offer(tick, now_us, expires_us)
                continue
            symbol.add(tick)
            symbol.volume += tick.size
            if tick.time_us >= symbol.latest.tick.time_us:
                self._show(symbol, tick, now_us, expires_us, (part.partition, offset))
        self._newest = part
        self.records += part.count
        self.last_us = now_us
        second = now_us // 1_000_000
        before = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, before + part.count))
        if last is not None:
            self.delay_ms = (now_us - last.time_us) / 1000

    def _show(
        self, symbol: CandleSymbol, tick: Tick, heard_us: int, expires_us: int, position: tuple[int, int]
    ) -> None:
        """Shows a record of the topic as the latest quote; where NAME.latest is followed, as the last one before there
        was none."""
        if self.latest.followed:
            if not symbol.latest.has_expired(self._clock_us()):
                return
            expires_us = symbol.latest.expires_us
        symbol.latest.put(tick, heard_us, expires_us, position)

    def _take_latest(self, entry: Entry, changed: bool) -> str | None:
        """Takes an entry of the latest quotes; returns its symbol, unless it has none or is left out."""
        now_us = self._clock_us()
        if entry.value is None:
            deleted = self.symbols.get(entry.key.decode("utf-8", "replace"))
            if deleted is not None:
                deleted.latest.expires_us = now_us
            return None
        tick = self._tick(entry.key, entry.value, entry.timestamp_us, now_us)
        heard_us = now_us if changed else min(now_us, entry.timestamp_us)
        symbol = None if tick is None else self._symbol(tick, heard_us)
        if tick is None or symbol is None:
            return None
        check = self._latest_checks.get(tick.symbol)
        if check is None:
            check = self._latest_checks[tick.symbol] = PriceCheck(symbol.latest.tick.price)
        if check.outlier(tick):
            symbol.latest.put_offer(tick, heard_us, entry.expires_us)
        else:
            symbol.latest.put(tick, heard_us, entry.expires_us, (NEVER, entry.revision))
        return tick.symbol

    def _know_latest(self, symbols: Collection[str]) -> None:
        """The symbols that have a latest quote are known: those of others have expired or were deleted."""
        now_us = self._clock_us()
        for name, symbol in self.symbols.items():
            if name not in symbols:
                symbol.latest.expires_us = now_us

    def _tick(self, key: bytes | None, value: bytes | None, timestamp_us: int, now_us: int) -> Tick | None:
        found = tick_of(key, value, timestamp_us)
        if isinstance(found, Tick):
            if found.time_us <= now_us + EARLY_US:
                return found
            found = "a time in the future"
        self.unread += 1
        self.unread_reason = found
        return None

    def _symbol(self, tick: Tick, heard_us: int) -> CandleSymbol | None:
        found = self.symbols.get(tick.symbol)
        if found is None:
            if len(self.symbols) >= self._limits.quote_symbols_max:
                if len(self._left_out) < LEFT_OUT_MAX:
                    self._left_out.add(hash(tick.symbol))
                return None
            found = self.symbols[tick.symbol] = CandleSymbol(tick, heard_us)
            if self.latest.followed:
                found.latest.expires_us = heard_us  # unless it is among the latest quotes, which then say so
        return found

    # ---- history

    def _fill_before(self, cursor: str) -> asyncio.Task[None]:
        self._began_us = self._clock_us()
        return asyncio.create_task(self._fill(Cursor.parse(cursor)), name=f"gateway: history of quotes of {self.topic}")

    async def _fill(self, before: Cursor) -> None:
        past = Past(self.topic, self._backend, self._limits, before, self._began_us)
        try:
            async for stretch in past.stretches(self._add_past):
                stretch.settle(self.symbols)
                self.reach = past.reach
                self.begun.set()
        except CometError as error:
            past.bound(error.message)
        except Exception:
            log.exception("gateway: the history of %s cannot be read", self.topic, extra={"topic": self.topic})
            past.bound("history cannot be read; see the gateway's log")
        self.reach = past.reach
        if self.state == "filling":
            self.state = "live"
        self.begun.set()

    def _add_past(self, partition: int, offset: int, record: BackfillRecord, stretch: Stretch) -> None:
        tick = self._tick(record.key, record.value, record.timestamp_us, self._began_us)
        symbol = None if tick is None else self._symbol(tick, self._began_us)
        if tick is None or symbol is None:
            return
        outlier = stretch.outlier(tick)
        _note(stretch.tape(tick.symbol), tick, partition, offset, outlier=outlier)
        if outlier:
            self.outliers += 1
            return
        symbol.add(tick)
        stretch.add(tick)
        if symbol.latest.position == (NEVER, NEVER) or tick.time_us > symbol.latest.tick.time_us:
            self._show(symbol, tick, tick.time_us, record.expires_us, (partition, offset))

    # ---- facts

    def snapshot(self, request: PageRequest, now_us: int) -> facts.Quotes:
        reach = self.reach
        since_us = None if reach is None else reach.since_us
        # A partly read step would give half a candle.
        since_s = 0 if reach is None or reach.whole else -(-reach.since_us // 1_000_000)
        end_s = (now_us - SETTLED_US) // 1_000_000
        quotes = {name: self._quote(symbol, end_s, since_s) for name, symbol in self.symbols.items()}
        chosen = request.query.get("symbol", "")
        if chosen not in quotes:
            chosen = min(quotes, default="")
        others = _others(request, chosen, self.symbols)
        shown = self.symbols.get(chosen)
        position = (NEVER, NEVER) if shown is None else shown.latest.position
        partition, offset = (None if at == NEVER else at for at in position)
        quoted_us = max((symbol.latest.tick.time_us for symbol in self.symbols.values()), default=None)
        return facts.Quotes(
            now_us,
            self.topic,
            self.state,
            self.reason,
            quotes,
            symbol=chosen,
            candles=None if shown is None else _candles(shown, request, end_s, since_s),
            others=[(name, _candles(self.symbols[name], request, end_s, since_s)) for name in others],
            tape=() if shown is None else tuple(reversed(shown.tape.trades)),
            partition=partition,
            offset=offset,
            latest_topic=self.latest.topic if self.latest.followed else "",
            latest_failed=self.latest.failed,
            market=self.market.state(now_us),
            market_failed=self.market.watcher.failed,
            since_us=since_us,
            bounded="" if reach is None else reach.bounded,
            records=self.records,
            rate=self._rate(now_us),
            unread=self.unread,
            unread_reason=self.unread_reason,
            outliers=self.outliers,
            symbols_left_out=len(self._left_out),
            lost=self.lost,
            bytes=len(self.symbols) * SERIES_BYTES + self.analytics.bytes,
            delay_ms=self.delay_ms,
            last_us=max((symbol.latest.heard_us for symbol in self.symbols.values()), default=self.last_us),
            topics=self.analytics.topics,
            analytics=self.analytics.snapshot(chosen, (*_extent(request), end_s), now_us, quoted_us),
        )

    def _quote(self, symbol: CandleSymbol, end_s: int, since_s: int) -> facts.Quote:
        latest = symbol.latest
        first = symbol.first if self._filling is not None and self._filling.done() else None  # an earlier one may come
        return facts.Quote(
            latest.tick.symbol, latest.tick.price, latest.bid, latest.ask, symbol.volume, first, latest.tick.time_us,
            latest.heard_us, symbol.records, symbol.trended(end_s, since_s), latest.expires_us,
        )  # fmt: skip

    def _rate(self, now_us: int) -> float | None:
        """Records per second, over the last whole seconds."""
        second = now_us // 1_000_000
        known = min(RATE_S, second - self._began_us // 1_000_000 - 1)
        if not self._began_us or known < 1:
            return None
        return sum(count for at, count in self._seconds if second - known <= at < second) / known


def _others(request: PageRequest, chosen: str, symbols: Collection[str]) -> list[str]:
    """The symbols of the charts beside the first: those that the address names, then the first others."""
    panes = request.query.get("panes", "")
    count = int(panes) - 1 if panes in PANES else 0
    named = [name for name in request.query.get("also", "").split(",", count) if name in symbols]
    others = sorted(name for name in symbols if name != chosen) if len(named) < count else ()
    return list(dict.fromkeys([*named, *others]))[:count]


def _note(tape: TradeTape, tick: Tick, partition: int, offset: int, *, outlier: bool) -> None:
    tape.partitions.add(partition)
    if tick.size:
        tape.trades.append(trade_of(tick, partition, offset, outlier=outlier))


def _extent(request: PageRequest) -> tuple[int, int]:
    """The step and number of candles: as many as fit, for a line as many as exist."""
    step = request.query.get("step", "")
    step = step if step in COUNTS else "1s"
    step_s = facts.STEPS_S[step]
    as_line = request.query.get("draw") == "line"
    return step_s, (SECONDS if step_s == 1 else MINUTES * 60 // step_s) if as_line else COUNTS[step]


def _candles(symbol: CandleSymbol, request: PageRequest, end_s: int, since_s: int) -> facts.Candles:
    step_s, count = _extent(request)
    whole, forming = symbol.candles(step_s, end_s, count, since_s)
    return facts.Candles(
        step_s,
        end_s // step_s * step_s * 1_000_000,
        open=[None if one is None else one.open for one in whole],
        high=[None if one is None else one.high for one in whole],
        low=[None if one is None else one.low for one in whole],
        close=[None if one is None else one.close for one in whole],
        volume=[None if one is None else one.volume for one in whole],
        spread=[None if one is None else one.spread for one in whole],
        forming=forming,
    )


class QuoteFeeds:
    """All quote feeds. Created by `Sources.part`, closed with them."""

    def __init__(self, sources: Sources, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._hub = sources.hub
        self._backend = sources.backend
        self._limits = sources.config.limits
        self._clock_us = clock_us
        self.reading = asyncio.Semaphore(READERS_MAX)  # pages of history that charts request
        self._feeds: dict[str, QuoteFeed] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def feed(self, topic: str) -> QuoteFeed:
        """The feed of a topic. Raises Problem if all allowed feeds are in use."""
        loop = asyncio.get_running_loop()
        found = self._feeds.get(topic)
        if found is None:
            most = self._limits.quote_topics_max
            if len(self._feeds) >= most:
                oldest = min(self._feeds.values(), key=lambda one: one.viewed_s)
                if loop.time() - oldest.viewed_s < AGAIN_S:
                    raise Problem(
                        "TOO_MANY_REQUESTS", f"the gateway follows quotes of {most} topics, the limit; retry later"
                    )
                self._end(oldest)
            found = self._feeds[topic] = QuoteFeed(topic, self._hub, self._backend, self._limits, self._clock_us)
        found.viewed_s = loop.time()
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_S, self._swept)
        return found

    def _swept(self) -> None:
        self._sweep = None
        loop = asyncio.get_running_loop()
        for one in list(self._feeds.values()):
            if loop.time() - one.viewed_s >= IDLE_S:
                self._end(one)
        if self._feeds:
            oldest_s = min(one.viewed_s for one in self._feeds.values())
            self._sweep = loop.call_at(oldest_s + IDLE_S, self._swept)

    def _end(self, feed: QuoteFeed) -> None:
        del self._feeds[feed.topic]
        task = asyncio.create_task(feed.close(), name=f"gateway: end quotes of {feed.topic}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for one in list(self._feeds.values()):
            self._end(one)
        await asyncio.gather(*self._closing)


FIRST_WAIT_S: Final = 1.0  # of the first request for a first state


async def quotes(sources: Sources, request: PageRequest) -> facts.Quotes:
    """The loader of the page."""
    feeds = sources.part(QuoteFeeds)
    feed = feeds.feed(request.query.get("topic") or sources.config.quotes_topic)
    try:
        async with asyncio.timeout(FIRST_WAIT_S):
            await feed.begun.wait()
            await feed.latest.begun.wait()
            await feed.market.watcher.begun.wait()
            if request.first:  # without scripts no update would come
                await feed.analytics.begun.wait()
    except TimeoutError:
        pass  # the page shows that history is loading
    found = feed.snapshot(request, request.now_us or time.time_ns() // 1000)
    if found.market is None or found.market.open:
        return found
    return replace(found, opening=await opening(sources, feed.market.watcher.topic))
