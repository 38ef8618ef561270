"""A made-up market that looks like one: correlated random walks, spreads, bursts. Seeded, so it can be replayed.

The log price of an instrument is a weighted sum of a market walk, a walk of its sector and one of its own, so
that instruments move together and those of a sector more so. Quotes come at random moments; now and then a
burst makes them several times as frequent, as volatile, and as wide, for a second or two.

    >>> from comet_demo.model import INSTRUMENTS
    >>> from random import Random
    >>> market = Market(INSTRUMENTS, Random(1), rate=1000, start_us=0)
    >>> quotes = market.advance(1_000_000)
    >>> len(quotes) > 500 and all(quote.bid < quote.ask for quote in quotes)
    True
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Final

from comet_demo.model import Instrument, Quote

YEAR_US: Final = 252 * 6.5 * 3600 * 1e6  # of trading hours
# A real market barely moves within the minute that a demo is watched: ours lives faster.
TIME_LAPSE: Final = 40.0
MARKET_SHARE: Final = 0.6  # of an instrument's variance
SECTOR_SHARE: Final = 0.2
SPREAD_BASIS_POINTS: Final = 2.0
TRADE_PROBABILITY: Final = 0.25
LOT: Final = 100
BURST_EVERY_US: Final = 12e6  # on average
BURST_LASTS_US: Final = 1.5e6
BURST_RATE: Final = 5.0
BURST_VOLATILITY: Final = 3.0
STEP_S: Final = 0.01
# However long the program slept, one step makes up for no more than this.
CATCH_UP_US: Final = 1_000_000


class Walk:
    """A Brownian walk that is only looked at when something happens."""

    def __init__(self, random: Random, now_us: float) -> None:
        self.value = 0.0
        self._random = random
        self._at_us = now_us

    def move(self, now_us: float, volatility: float) -> float:
        """Walks on to `now_us`. `volatility` is that of a year."""
        elapsed = max(now_us - self._at_us, 0.0) * TIME_LAPSE / YEAR_US
        self.value += self._random.gauss(0.0, volatility * math.sqrt(elapsed))
        self._at_us = now_us
        return self.value


class Market:
    """All instruments. Pure but for the random numbers it is given: the same seed and times give the same quotes."""

    def __init__(self, instruments: Sequence[Instrument], random: Random, *, rate: float, start_us: int) -> None:
        assert instruments and rate > 0
        self._instruments = instruments
        self._random = random
        self._rate_us = rate / 1e6
        self._next_us = start_us + random.expovariate(self._rate_us)
        self._burst_from_us = start_us + random.expovariate(1 / BURST_EVERY_US)
        self._burst_until_us = self._burst_from_us + random.expovariate(1 / BURST_LASTS_US)
        self._weights = list(accumulate(instrument.activity for instrument in instruments))
        self._market = Walk(random, start_us)
        self._sectors = {
            sector: Walk(random, start_us) for sector in sorted({instrument.sector for instrument in instruments})
        }
        self._own = [Walk(random, start_us) for _ in instruments]
        self._last = [instrument.price for instrument in instruments]

    def advance(self, now_us: int) -> list[Quote]:
        """Everything that happened since the last call, in order of time."""
        quotes = []
        while self._next_us <= now_us:
            quotes.append(self._quote(self._next_us))
            burst = self._in_burst(self._next_us)
            self._next_us += self._random.expovariate(self._rate_us * (BURST_RATE if burst else 1.0))
        return quotes

    def skip_to(self, now_us: int) -> None:
        """Leaves out what would have happened before `now_us`; prices go on where they were."""
        self._next_us = max(self._next_us, now_us)

    def _in_burst(self, now_us: float) -> bool:
        if now_us >= self._burst_until_us:
            self._burst_from_us = now_us + self._random.expovariate(1 / BURST_EVERY_US)
            self._burst_until_us = self._burst_from_us + self._random.expovariate(1 / BURST_LASTS_US)
        return now_us >= self._burst_from_us

    def _quote(self, now_us: float) -> Quote:
        random = self._random
        at = random.choices(range(len(self._instruments)), cum_weights=self._weights)[0]
        instrument = self._instruments[at]
        excited = BURST_VOLATILITY if self._in_burst(now_us) else 1.0
        middle = instrument.price * math.exp(self._log_return(at, now_us, excited))
        half = middle * SPREAD_BASIS_POINTS / 2e4 * excited * random.uniform(0.5, 1.5)
        bid = max(math.floor((middle - half) / instrument.tick), 1)
        ask = max(math.ceil((middle + half) / instrument.tick), bid + 1)
        traded = random.random() < TRADE_PROBABILITY
        if traded:
            self._last[at] = random.choice((bid, ask)) * instrument.tick
        return Quote(
            symbol=instrument.symbol,
            bid=round(bid * instrument.tick, 4),
            ask=round(ask * instrument.tick, 4),
            bid_size=LOT * random.randint(1, 20),
            ask_size=LOT * random.randint(1, 20),
            last=round(self._last[at], 4),
            last_size=LOT * max(round(random.lognormvariate(0.5, 0.8)), 1) if traded else 0,
            timestamp_us=int(now_us),
        )

    def _log_return(self, at: int, now_us: float, excited: float) -> float:
        instrument = self._instruments[at]
        unit = excited  # the walks are of unit volatility; the instrument's own scales their sum
        shared = math.sqrt(MARKET_SHARE) * self._market.move(now_us, unit)
        sector = math.sqrt(SECTOR_SHARE) * self._sectors[instrument.sector].move(now_us, unit)
        own = math.sqrt(1 - MARKET_SHARE - SECTOR_SHARE) * self._own[at].move(now_us, unit)
        return instrument.volatility * (shared + sector + own)


class SyntheticProvider:
    """A Market in real time. `now_us` is the wall clock."""

    name = "synthetic"

    def __init__(
        self,
        instruments: Sequence[Instrument],
        random: Random,
        *,
        rate: float,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._instruments = instruments
        self._random = random
        self._rate = rate
        self._now_us = now_us

    async def stream(self) -> AsyncIterator[Sequence[Quote]]:
        """The quotes of every hundredth of a second, for ever."""
        market = Market(self._instruments, self._random, rate=self._rate, start_us=self._now_us())
        while True:
            await asyncio.sleep(STEP_S)
            now_us = self._now_us()
            market.skip_to(now_us - CATCH_UP_US)  # a laptop that slept would owe hours of quotes at once
            if quotes := market.advance(now_us):
                yield quotes
