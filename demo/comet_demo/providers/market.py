"""A simulated market. The same seed gives the same market, at any speed.

Time goes in frames of ten milliseconds. In each the walks move once, and then all quotes of the frame are drawn from
columns of random numbers, so that a quote costs little more than the objects it is made of.

    log price       a weighted sum of a market walk, a walk of the sector and one of its own: instruments move together,
                    those of a sector more so
    activity        Poisson, high at the opening and the close of a (short) trading day, low at noon; now and then a
                    burst makes quotes several times as frequent and prices as volatile, for a second or two
    volatility      of the year, times that of the hour, of the burst, and of news about it, which cool down
    spread          widens with all of these
    trades          a quarter of the quotes come with one, at the bid or the ask, more often in the direction prices go
    halts           an instrument stops for some seconds, then reopens elsewhere, with a wide spread that narrows
    faults          a small share of the data is wrong: crossed or locked quotes, outliers among trades; and now and
                    then an instrument's data is lost for some seconds

    >>> from comet_demo.model import INSTRUMENTS
    >>> from random import Random
    >>> market = Market(INSTRUMENTS, Random(1), rate=1000, start_us=0)
    >>> events = market.advance(1_000_000)
    >>> len(events) > 500, events == Market(INSTRUMENTS, Random(1), rate=1000, start_us=0).advance(1_000_000)
    (True, True)
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from random import Random
from typing import Final

from comet_demo.model import Instrument, Quote, Trade
from comet_demo.providers import Event

FRAME_US: Final = 10_000
YEAR_US: Final = 252 * 6.5 * 3600 * 1e6  # of trading hours
# A real market barely moves during a demo of a minute: this one moves faster.
TIME_LAPSE: Final = 40.0
MARKET_SHARE: Final = 0.6  # of an instrument's variance
SECTOR_SHARE: Final = 0.2
SPREAD_BASIS_POINTS: Final = 8.0  # of an instrument whose volatility is 1
TRADE_SHARE: Final = 0.25
LOT: Final = 100
BURST_EVERY_US: Final = 12e6  # on average, as are those below
BURST_LASTS_US: Final = 1.5e6
BURST_RATE: Final = 4.0
BURST_VOLATILITY: Final = 3.0
NEWS_EVERY_US: Final = 20e6
NEWS_VOLATILITY: Final = 4.0
HALT_EVERY_US: Final = 120e6
HALT_LASTS_US: Final = (4e6, 12e6)  # from, to
REOPENING_JUMP: Final = 0.01
REOPENING_SPREAD: Final = 8.0
COOLING: Final = 0.5 ** (FRAME_US / 2e6)  # a frame's share of a half-life of two seconds
NOON: Final = 0.8  # activity at noon, compared with the mean of the day
FAULTS: Final = 0.0002
FAULT_KINDS: Final = ("crossed", "locked", "outlier")
LOSS_EVERY_US: Final = 90e6
LOSS_LASTS_US: Final = (3e6, 6e6)

_COLUMNS: Final = 6  # of 16 random bits for every quote
_FULL: Final = 1 << 16
_TABLE: Final = 4096
# 256 quantiles of a distribution with a long tail, so that a size costs one look-up.
_SIZES: Final = [LOT * max(round(math.exp(0.5 + 0.45 * math.log((n + 0.5) / (255.5 - n)))), 1) for n in range(256)]
_DEPTHS: Final = [LOT * max(round(math.exp(1.8 + 0.4 * math.log((n + 0.5) / (255.5 - n)))), 1) for n in range(256)]


class MarketInstrument:
    """One instrument in motion. Prices are in ticks."""

    __slots__ = (
        "buys", "half", "heat", "instrument", "last", "middle", "own", "per", "quiet_until_us", "sector", "step",
        "symbol", "wide",
    )  # fmt: skip

    def __init__(self, instrument: Instrument, sector: int) -> None:
        self.instrument = instrument
        self.symbol = instrument.symbol
        self.sector = sector
        self.per = round(1 / instrument.tick)
        self.own = 0.0  # its own walk
        self.middle = instrument.price * self.per  # where the frame begins,
        self.step = 0.0  # and how far it goes
        self.last = round(self.middle)
        self.half = 0.0  # of the spread
        self.heat = self.wide = 1.0  # of news, of a reopening; both cool down to 1
        self.buys = 0  # threshold in the trade's 16 bits: below it the trade is a purchase
        self.quiet_until_us = 0  # halted, or its data is lost

    def move(self, shared: float, excited: float, own: float) -> None:
        """Moves the price to the start of the next frame. `shared` is what market and sector add to its logarithm."""
        instrument = self.instrument
        self.own += own * self.heat
        self.middle += self.step
        goal = instrument.price * self.per * math.exp(instrument.volatility * (shared + self.own))
        self.step = goal - self.middle
        stretch = SPREAD_BASIS_POINTS / 2e4 * instrument.volatility * excited * self.heat * self.wide
        self.half = self.middle * stretch
        lean = max(min(self.step / (self.half + 1.0), 0.4), -0.4)
        self.buys = int(_FULL * TRADE_SHARE * (0.5 + lean))
        self.heat = 1.0 + (self.heat - 1.0) * COOLING
        self.wide = 1.0 + (self.wide - 1.0) * COOLING


class Market:
    """All instruments. Pure but for the random numbers it is given."""

    def __init__(
        self,
        instruments: Sequence[Instrument],
        random: Random,
        *,
        rate: float,
        start_us: int,
        day_s: float = 900.0,
        faults: float = 0.0,
    ) -> None:
        assert instruments and rate > 0 and day_s > 0 and 0 <= faults < 1
        self._random = random
        self._per_frame = rate * FRAME_US / 1e6
        self._day_us = day_s * 1e6
        self._faults = faults
        self._start_us = start_us
        self._now_us = 0  # since the start: where the next frame begins
        self._ahead: list[Event] = []  # events of the last frame that are later than the time asked for
        sectors = sorted({instrument.sector for instrument in instruments})
        self._market = 0.0
        self._sectors = [0.0] * len(sectors)
        self.lines = [MarketInstrument(instrument, sectors.index(instrument.sector)) for instrument in instruments]
        self._table = _shares(self.lines)
        self._burst_from_us = random.expovariate(1 / BURST_EVERY_US)
        self._burst_until_us = self._burst_from_us + random.expovariate(1 / BURST_LASTS_US)
        self._halted: MarketInstrument | None = None
        self._next_news_us = random.expovariate(1 / NEWS_EVERY_US)
        self._next_halt_us = random.expovariate(1 / HALT_EVERY_US)
        self._next_loss_us = random.expovariate(1 / LOSS_EVERY_US) if faults else math.inf

    @property
    def at_us(self) -> int:
        """The time up to which events are generated."""
        return self._start_us + self._now_us

    def advance(self, now_us: int) -> list[Event]:
        """The events since the last call, in order of time."""
        events, self._ahead = self._ahead, []
        while self.at_us <= now_us:
            events += self._frame()
        known = bisect_right(events, now_us, key=attrgetter("timestamp_us"))
        self._ahead = events[known:]
        return events[:known]

    def skip_to(self, now_us: int) -> None:
        """Skips the time before `now_us` without events: the same market continues from there."""
        if self.at_us < now_us:
            self._start_us += now_us - self.at_us
            self._ahead = []

    # ---- one frame

    def _frame(self) -> list[Event]:
        burst = self._in_burst()
        day = 2 * (self._now_us % self._day_us) / self._day_us - 1  # from -1, the opening, to 1, the close
        activity = NOON + 3 * (1 - NOON) * day * day
        self._happen()
        self._move(math.sqrt(activity) * (BURST_VOLATILITY if burst else 1.0))
        count = poisson(self._random, self._per_frame * activity * (BURST_RATE if burst else 1.0))
        events = self._quotes(count) if count else []
        for _ in range(poisson(self._random, count * self._faults) if self._faults else 0):
            self._spoil(events)
        self._now_us += FRAME_US
        return events

    def _in_burst(self) -> bool:
        if self._now_us >= self._burst_until_us:
            self._burst_from_us = self._now_us + self._random.expovariate(1 / BURST_EVERY_US)
            self._burst_until_us = self._burst_from_us + self._random.expovariate(1 / BURST_LASTS_US)
        return self._now_us >= self._burst_from_us

    def _happen(self) -> None:
        """Draws news, halts and reopenings, and losses of data."""
        random, now_us = self._random, self._now_us
        if now_us >= self._next_news_us:
            self._next_news_us = now_us + random.expovariate(1 / NEWS_EVERY_US)
            random.choice(self.lines).heat = NEWS_VOLATILITY
        if self._halted is not None and now_us >= self._halted.quiet_until_us:
            self._halted.own += random.gauss(0.0, REOPENING_JUMP) / self._halted.instrument.volatility
            self._halted.wide = REOPENING_SPREAD
            self._halted = None
        if now_us >= self._next_halt_us and self._halted is None:
            self._next_halt_us = now_us + random.expovariate(1 / HALT_EVERY_US)
            self._halted = random.choice(self.lines)
            self._halted.quiet_until_us = now_us + int(random.uniform(*HALT_LASTS_US))
        if now_us >= self._next_loss_us:
            self._next_loss_us = now_us + random.expovariate(1 / LOSS_EVERY_US)
            line = random.choice(self.lines)
            line.quiet_until_us = max(line.quiet_until_us, now_us + int(random.uniform(*LOSS_LASTS_US)))

    def _move(self, excited: float) -> None:
        gauss = self._random.gauss
        # The walks are of unit volatility a year; the instrument's own scales their sum.
        deviation = excited * math.sqrt(FRAME_US * TIME_LAPSE / YEAR_US)
        self._market += gauss(0.0, deviation * math.sqrt(MARKET_SHARE))
        sector_deviation = deviation * math.sqrt(SECTOR_SHARE)
        sectors = self._sectors = [walk + gauss(0.0, sector_deviation) for walk in self._sectors]
        own_deviation = deviation * math.sqrt(1 - MARKET_SHARE - SECTOR_SHARE)
        for line in self.lines:
            line.move(self._market + sectors[line.sector], excited, gauss(0.0, own_deviation))

    def _quotes(self, count: int) -> list[Event]:
        """The quotes of this frame, and the trades that come with them."""
        drawn = array("H", self._random.randbytes(2 * _COLUMNS * count))
        if sys.byteorder == "big":
            drawn.byteswap()
        moments, picks, spreads, sizes, chances, amounts = (
            drawn[column * count : (column + 1) * count] for column in range(_COLUMNS)
        )
        table, depths, begin_us, now_us = self._table, _DEPTHS, self.at_us, self._now_us
        traded, part = int(_FULL * TRADE_SHARE), 1 / _FULL
        events: list[Event] = []
        add = events.append
        for moment, pick, spread, size, chance, amount in zip(
            sorted(moments), picks, spreads, sizes, chances, amounts, strict=True
        ):
            line = table[pick & 4095]
            if line.quiet_until_us > now_us:
                continue
            middle = line.middle + line.step * moment * part
            half = line.half * (0.5 + spread * part)
            bid = int(middle - half) or 1
            ask = int(middle + half) + 1
            per = line.per
            at_us = begin_us + (moment * FRAME_US >> 16)
            volume = 0
            if chance < traded:
                buys = chance < line.buys
                line.last, volume = ask if buys else bid, _SIZES[amount & 255]
            price = line.last / per
            add(
                Quote(line.symbol, bid / per, ask / per, depths[size & 255], depths[size >> 8], price, volume, at_us)
            )  # fmt: skip
            if volume:
                add(Trade(line.symbol, price, volume, "buy" if buys else "sell", at_us, bid / per, ask / per))
        return events

    def _spoil(self, events: list[Event]) -> None:
        """Adds a fault to one event."""
        random = self._random
        kind = random.choice(FAULT_KINDS)
        chosen = [n for n, event in enumerate(events) if isinstance(event, Trade) == (kind == "outlier")]
        if not chosen:
            return
        at = random.choice(chosen)
        event = events[at]
        if isinstance(event, Trade):
            factor = 1 + random.choice((-1, 1)) * random.uniform(0.05, 0.2)
            events[at] = replace(event, price=max(round(event.price * factor, 2), 0.01))
        else:
            bid = event.ask if kind == "locked" else round(event.ask * 1.001 + 0.01, 2)
            events[at] = replace(event, bid=bid)


def poisson(random: Random, mean: float) -> int:
    """A Poisson-distributed number with this mean."""
    if mean > 50:
        return max(round(random.gauss(mean, math.sqrt(mean))), 0)
    limit, product, count = math.exp(-mean), random.random(), 0
    while product > limit:
        product *= random.random()
        count += 1
    return count


def _shares(lines: Sequence[MarketInstrument]) -> list[MarketInstrument]:
    """A table in which each instrument's share of the entries is as large as its activity."""
    total = sum(line.instrument.activity for line in lines)
    table: list[MarketInstrument] = []
    so_far = 0.0
    for line in lines:
        so_far += line.instrument.activity
        table += [line] * (round(_TABLE * so_far / total) - len(table))
    return table
