"""What the table shows: the latest quote of every symbol, and how fast and how late they come. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from comet_demo.model import Quote
from comet_demo.status import Analytics

LAGS_KEPT: Final = 10_000


@dataclass(slots=True)
class Line:
    """One symbol."""

    quote: Quote
    first_price: float  # what `change` is counted from
    events: int = 0
    trades: int = 0
    volume: int = 0
    direction: int = 0  # of the last change of price: 1, 0 or -1
    events_per_s: float = 0.0
    trades_per_s: float = 0.0
    _events_before: int = 0
    _trades_before: int = 0

    @property
    def change(self) -> float:
        """As a share of the first price seen."""
        return self.quote.last / self.first_price - 1

    def apply(self, quote: Quote) -> None:
        self.direction = (quote.last > self.quote.last) - (quote.last < self.quote.last) or self.direction
        self.quote = quote
        self.events += 1
        if quote.last_size:
            self.trades += 1
            self.volume += quote.last_size

    def measure(self, seconds: float) -> None:
        self.events_per_s = (self.events - self._events_before) / seconds
        self.trades_per_s = (self.trades - self._trades_before) / seconds
        self._events_before, self._trades_before = self.events, self.trades


class Board:
    """Owned by one consumer; fed quote by quote, measured once a second."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.events = 0
        self.events_per_s = 0.0
        self.lag_p50_us = 0
        self.lag_p99_us = 0
        self.newest_us = 0  # when the newest quote was made
        self.analytics = Analytics()
        self._lags_us: deque[int] = deque(maxlen=LAGS_KEPT)
        self._events_before = 0

    def apply(self, quote: Quote, now_us: int) -> None:
        line = self.lines.get(quote.symbol)
        if line is None:
            line = self.lines[quote.symbol] = Line(quote, first_price=quote.last)
        line.apply(quote)
        self.events += 1
        self.newest_us = max(self.newest_us, quote.timestamp_us)
        self._lags_us.append(now_us - quote.timestamp_us)

    def measure(self, seconds: float) -> None:
        """Rates and lags of the time since the last call."""
        assert seconds > 0
        for line in self.lines.values():
            line.measure(seconds)
        self.events_per_s = (self.events - self._events_before) / seconds
        self._events_before = self.events
        if self._lags_us:
            lags = sorted(self._lags_us)
            self.lag_p50_us = lags[len(lags) // 2]
            self.lag_p99_us = lags[min(len(lags) * 99 // 100, len(lags) - 1)]
            self._lags_us.clear()

    def summary(self, now_us: int) -> str:
        analytics = self.analytics.summary(self.newest_us, now_us)
        return (
            f"{self.events:,} events, {self.events_per_s:,.0f}/s, {len(self.lines)} symbols, "
            f"lag p50 {self.lag_p50_us / 1e3:.1f} ms, p99 {self.lag_p99_us / 1e3:.1f} ms"
            + (f"; {analytics}" if analytics else "")
        )
