"""Prices of one symbol over time, and parsing of quotes. Pure: no I/O, no clock.

A series is a ring of steps in arrays: the slot of a step is its number modulo the length, so old steps are overwritten
and records may come in any order. Records of one second are summed first; only the sum goes into the rings.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from comet.records.expiry import has_expired
from comet_gateway.dashboard.trade_tape import TRADE_BYTES, TRADES_MAX, TradeTape
from comet_web.facts import TapeTrade

SECONDS: Final = 900  # 15 minutes of 1 s candles
MINUTES: Final = 1_440  # a day of 1 min candles
# Additional steps. Records of the forming candle (up to 15 minutes) or a few seconds ahead of our clock would otherwise
# overwrite the oldest candles shown.
MORE: Final = 30
COLUMNS: Final = 10  # of eight bytes per step
# Of a symbol.
SERIES_BYTES: Final = (SECONDS + MINUTES + 2 * MORE) * COLUMNS * 8 + TRADES_MAX * TRADE_BYTES
SYMBOL_CHARACTERS_MAX: Final = 64
EARLY_US: Final = 5_000_000  # records further in the future are invalid
NEVER: Final = -1


class Tick(NamedTuple):
    """One quote or trade. Times in microseconds."""

    symbol: str
    price: float
    bid: float | None
    ask: float | None
    size: float  # traded
    time_us: int


class _Wire(msgspec.Struct, gc=False):
    symbol: str | None = None
    bid: float | None = None
    ask: float | None = None
    last: float | None = None
    price: float | None = None
    last_size: float | None = None
    size: float | None = None
    timestamp_us: int | None = None


_decode = msgspec.json.Decoder(_Wire, strict=False).decode
_TIME_OFF_US: Final = 86_400_000_000  # a time in the value further from the record's is ignored


def tick_of(key: bytes | None, value: bytes | None, timestamp_us: int) -> Tick | str:
    """A record as a quote, or why it is invalid."""
    if value is None:
        return "no value"
    try:
        wire = _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "not JSON with numbers as prices"
    symbol = wire.symbol or ("" if key is None else key.decode("utf-8", "replace"))
    if not symbol:
        return "neither a symbol nor a key"
    bid, ask = wire.bid, wire.ask
    price = wire.last if wire.last is not None else wire.price
    if price is None:
        if bid is None or ask is None:
            return "no price: neither last, nor price, nor bid and ask"
        price = (bid + ask) / 2
    time_us = wire.timestamp_us
    if time_us is None or abs(time_us - timestamp_us) > _TIME_OFF_US:
        time_us = timestamp_us
    size = (wire.last_size if wire.last_size is not None else wire.size) or 0.0
    if not math.isfinite(price + abs(bid or 0.0) + abs(ask or 0.0) + size):  # covers the mean of bid and ask
        return "a price that is not a number"
    return Tick(symbol[:SYMBOL_CHARACTERS_MAX], price, bid, ask, size, time_us)


def trade_of(tick: Tick, partition: int, offset: int, *, outlier: bool) -> TapeTrade:
    """The trade of a quote: its side is the aggressor's, if the price is at the bid or the ask."""
    buys = tick.ask is not None and tick.price >= tick.ask
    sells = tick.bid is not None and tick.price <= tick.bid
    side = "buy" if buys and not sells else "sell" if sells and not buys else ""
    return TapeTrade(tick.time_us, tick.price, tick.size, side, partition, offset, outlier)


class Candle(NamedTuple):
    open: float
    high: float
    low: float
    close: float
    volume: float
    spread: float | None  # average


class Sum:
    """The sum of the records of one symbol within one second."""

    __slots__ = ("close", "first_us", "high", "last_us", "low", "open", "second", "spread", "spreads", "volume")

    def __init__(self, second: int, tick: Tick) -> None:
        self.second = second
        self.open = self.high = self.low = self.close = tick.price
        self.first_us = self.last_us = tick.time_us
        self.volume = self.spread = 0.0
        self.spreads = 0

    def add(self, tick: Tick) -> None:
        price, time_us = tick.price, tick.time_us
        if price > self.high:
            self.high = price
        elif price < self.low:
            self.low = price
        if time_us >= self.last_us:
            self.close, self.last_us = price, time_us
        elif time_us < self.first_us:
            self.open, self.first_us = price, time_us
        self.volume += tick.size
        if tick.bid is not None and tick.ask is not None:
            self.spread += tick.ask - tick.bid
            self.spreads += 1


class SumOfSecond:
    """Sums up the prices of one second, and puts the sum where candles are made of it."""

    __slots__ = ("_put", "_sum")

    def __init__(self, put: Callable[[Sum], None]) -> None:
        self._put = put
        self._sum: Sum | None = None

    def add(self, tick: Tick) -> None:
        second = tick.time_us // 1_000_000
        found = self._sum
        if found is None or found.second != second:
            if found is not None:
                self._put(found)
            found = self._sum = Sum(second, tick)
        found.add(tick)

    def flush(self) -> None:
        """Puts the pending sum."""
        if self._sum is not None:
            self._put(self._sum)
            self._sum = None


class CandleSeries:
    """A ring of steps."""

    def __init__(self, step_s: int, length: int) -> None:
        self.step_s = step_s
        self.length = length
        self._step = array("q", [NEVER]) * length
        self._open, self._high, self._low, self._close, self._volume, self._spread = (
            array("d", [0.0]) * length for _ in range(6)
        )
        self._spreads, self._first_us, self._last_us = (array("q", [0]) * length for _ in range(3))

    def put(self, one: Sum) -> None:
        step = one.second // self.step_s
        at = step % self.length
        known = self._step[at]
        if known > step:
            return  # older than the ring
        if known < step:
            self._step[at] = step
            self._open[at], self._high[at], self._low[at], self._close[at] = one.open, one.high, one.low, one.close
            self._volume[at], self._spread[at], self._spreads[at] = one.volume, one.spread, one.spreads
            self._first_us[at], self._last_us[at] = one.first_us, one.last_us
            return
        self._high[at] = max(self._high[at], one.high)
        self._low[at] = min(self._low[at], one.low)
        if one.first_us < self._first_us[at]:
            self._open[at], self._first_us[at] = one.open, one.first_us
        if one.last_us >= self._last_us[at]:
            self._close[at], self._last_us[at] = one.close, one.last_us
        self._volume[at] += one.volume
        self._spread[at] += one.spread
        self._spreads[at] += one.spreads

    def candle(self, step: int) -> Candle | None:
        at = step % self.length
        if self._step[at] != step:
            return None
        count = self._spreads[at]
        spread = self._spread[at] / count if count else None
        return Candle(self._open[at], self._high[at], self._low[at], self._close[at], self._volume[at], spread)

    def candles(self, end: int, count: int, since_s: int) -> Iterator[Candle | None]:
        """The candles of the `count` steps before step `end`, oldest first; None before `since_s`."""
        for step in range(end - count, end):
            yield self.candle(step) if step * self.step_s >= since_s else None


def joined(candles: Sequence[Candle | None]) -> Candle | None:
    """Several candles as one."""
    known = [one for one in candles if one is not None]
    if not known:
        return None
    spreads = [one.spread for one in known if one.spread is not None]
    return Candle(
        known[0].open,
        max(one.high for one in known),
        min(one.low for one in known),
        known[-1].close,
        sum(one.volume for one in known),
        sum(spreads) / len(spreads) if spreads else None,
    )


class LatestQuote:
    """The latest quote of one symbol: its price, the bid and the ask, and until when it counts."""

    __slots__ = ("ask", "bid", "expires_us", "heard_us", "position", "tick")

    def __init__(self, tick: Tick, heard_us: int) -> None:
        self.tick = tick
        self.bid, self.ask = tick.bid, tick.ask
        self.heard_us = heard_us
        self.expires_us = 0  # never
        self.position = NEVER, NEVER  # partition and offset; latest quotes have no partition

    def put(self, tick: Tick, heard_us: int, expires_us: int, position: tuple[int, int]) -> None:
        self.tick = tick
        self.position = position
        self.put_offer(tick, heard_us, expires_us)

    def put_offer(self, tick: Tick, heard_us: int, expires_us: int) -> None:
        """Sets the bid and the ask alone: the price is an outlier."""
        self.heard_us = heard_us
        self.expires_us = expires_us
        if tick.bid is not None:
            self.bid = tick.bid
        if tick.ask is not None:
            self.ask = tick.ask

    def has_expired(self, now_us: int) -> bool:
        return has_expired(self.expires_us, now_us)


class CandleSymbol:
    """The prices of one symbol. Owned by a `QuoteFeed`."""

    def __init__(self, tick: Tick, heard_us: int) -> None:
        self.latest = LatestQuote(tick, heard_us)
        self.volume = 0.0
        self.first, self.first_us = tick.price, tick.time_us
        self.records = 0
        self.seconds = CandleSeries(1, SECONDS + MORE)
        self.minutes = CandleSeries(60, MINUTES + MORE)
        self.tape = TradeTape()
        self.trend: tuple[float | None, ...] = ()
        self._trend_of = (NEVER, NEVER)
        self._sum = SumOfSecond(self._put)

    def add(self, tick: Tick) -> None:
        """Adds a price at its time."""
        self._sum.add(tick)

    def flush(self) -> None:
        """Puts the pending sum into the rings."""
        self._sum.flush()

    def _put(self, one: Sum) -> None:
        self.seconds.put(one)
        self.minutes.put(one)

    def candles(self, step_s: int, end_s: int, count: int, since_s: int) -> tuple[list[Candle | None], Candle | None]:
        """The candles of the `count` whole steps before `end_s`, and the forming one."""
        end = end_s // step_s
        found = self.between(step_s, end - count, end, since_s)
        if step_s == 1:
            return found, self.seconds.candle(end)
        per = step_s // 60
        return found, joined([self.minutes.candle(end * per + more) for more in range(per)])

    def between(self, step_s: int, first: int, end: int, since_s: int = 0) -> list[Candle | None]:
        """The candles of the steps from `first` to before `end`; None before `since_s`."""
        self.flush()
        if step_s == 1:
            return list(self.seconds.candles(end, end - first, since_s))
        per = step_s // 60
        minutes = list(self.minutes.candles(end * per, (end - first) * per, since_s))
        return [joined(minutes[at : at + per]) for at in range(0, len(minutes), per)]

    def trended(self, end_s: int, since_s: int, *, step_s: int = 15, points: int = 60) -> tuple[float | None, ...]:
        """The price every 15 s over 15 min, recomputed once per step."""
        end = end_s // step_s
        if self._trend_of != (end, since_s):
            self.flush()
            closes = [
                None if one is None else one.close
                for one in self.seconds.candles(end * step_s, points * step_s, since_s)
            ]
            chunks = (closes[at : at + step_s] for at in range(0, len(closes), step_s))
            self.trend = tuple(next((one for one in reversed(chunk) if one is not None), None) for chunk in chunks)
            self._trend_of = (end, since_s)
        return self.trend
