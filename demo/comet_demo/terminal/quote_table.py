"""The state that the table shows: the latest quote of every symbol, rates and delay of the quotes. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from comet.spark.query_reports import QueryReports, plain
from comet_demo.model import Quote

DELAYS_MAX: Final = 10_000
SYMBOLS_MAX: Final = 10_000
SPARK_S: Final = "30 to 60"  # seconds until the first bars, on two cores
SILENT_US: Final = 5_000_000  # time without a quote after which the summary reports it, with the feed's last line


@dataclass(slots=True)
class QuoteRow:
    """One symbol's line of the table."""

    quote: Quote
    first_price: float  # the base of `change`
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


class QuoteTable:
    """Owned by one consumer; fed quote by quote, measured once a second."""

    def __init__(self) -> None:
        self.lines: dict[str, QuoteRow] = {}
        self.events = 0
        self.events_per_s = 0.0
        self.left_out = 0  # records that were not quotes
        self.delay_p50_us: int | None = None  # None: no quote arrived
        self.delay_p99_us: int | None = None
        self.newest_us = 0  # timestamp of the newest quote
        self.heard_us = 0  # when the last quote arrived, or the wait for quotes began; 0: not waiting
        self.feed_line = ""  # the feed's last line, while no quotes arrive
        self.notes: dict[str, str] = {}  # problems, by process or task
        self.analytics = QueryReports("analytics", first="bars.1s")
        self.spark_began_us = 0  # when Spark was started; 0: it was not
        self.without_spark = ""  # while the demo's own job does not run: what it waits for, or lacks
        self._delays_us: deque[int] = deque(maxlen=DELAYS_MAX)
        self._events_before = 0

    def apply(self, quote: Quote | None, now_us: int) -> None:
        """Updates the symbol's line. A record that is not a quote is counted and left out."""
        line = None if quote is None else self.lines.get(quote.symbol)
        if quote is None or (line is None and len(self.lines) >= SYMBOLS_MAX):
            self.left_out += 1
            return
        if line is None:
            line = self.lines[quote.symbol] = QuoteRow(quote, first_price=quote.last)
        line.apply(quote)
        self.events += 1
        self.heard_us = now_us
        self.newest_us = max(self.newest_us, min(quote.timestamp_us, now_us))
        self._delays_us.append(now_us - quote.timestamp_us)

    def measure(self, seconds: float) -> None:
        """Rates and delays of the time since the last call."""
        assert seconds > 0
        for line in self.lines.values():
            line.measure(seconds)
        self.events_per_s = (self.events - self._events_before) / seconds
        self._events_before = self.events
        delays = sorted(self._delays_us)
        self.delay_p50_us = delays[len(delays) // 2] if delays else None
        self.delay_p99_us = delays[min(len(delays) * 99 // 100, len(delays) - 1)] if delays else None
        self._delays_us.clear()

    def silent_us(self, now_us: int) -> int:
        """The time since the last quote, if it exceeds SILENT_US; else 0."""
        silent_us = now_us - self.heard_us if self.heard_us else 0
        return silent_us if silent_us >= SILENT_US else 0

    def summary(self, now_us: int) -> str:
        delay = f"delay p50 {_ms(self.delay_p50_us)}, p99 {_ms(self.delay_p99_us)}"
        parts = [f"{self.events:,} events, {self.events_per_s:,.0f}/s, {len(self.lines)} symbols, {delay}"]
        if self.left_out:
            parts.append(f"{self.left_out:,} records skipped: not quotes")
        if silent_us := self.silent_us(now_us):
            feed = f"; last line of the feed: {plain(self.feed_line)}" if self.feed_line else ""
            parts.append(f"no quotes for {silent_us / 1e6:.0f} s{feed}")
        parts += self.notes.values()
        if analytics := self._analytics(now_us):
            parts.append(analytics)
        return "; ".join(parts)

    def _analytics(self, now_us: int) -> str:
        if self.without_spark:
            return self.without_spark
        text = self.analytics.summary(self.newest_us, now_us)
        if not self.spark_began_us or self.analytics.delay_us(self.newest_us) is not None:
            return text
        seconds = (now_us - self.spark_began_us) / 1e6
        return f"{text or 'Spark: starting'} ({seconds:.0f} s; the first bars take {SPARK_S} s)"


def _ms(delay_us: int | None) -> str:
    return "-" if delay_us is None else f"{delay_us / 1e3:.1f} ms"
