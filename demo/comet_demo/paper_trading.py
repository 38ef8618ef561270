"""Paper trading: follows momentum with simulated money.

    python -m comet_demo.paper_trading --bootstrap HOST:PORT

    quotes ─► group "paper": a rule per symbol ─► paper.fills      keyed by symbol; the last fill has the position

Run it twice, and the members share the symbols. A member reads its positions from the fills when it gets a partition,
after a restart or a rebalance, so that nothing is bought twice. Quotes that were handled but not committed are
delivered again; those up to a symbol's last fill are ignored.

The rule: prices have a fast and a slow average. A lot is bought at the ask when the fast one is well above, and sold at
the bid when it is well below; the position is closed when they cross again. It is an example of a service, not of a
profitable strategy: it pays the spread each time.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import comet
from comet.processes.program import run
from comet_demo.model import EARLY_US, FILLS, TOPIC, Fill, Quote, decoded, ensure_topics, now_us, quotes_of

GROUP: Final = "paper"
LOT: Final = 100
FAST_US: Final = 1e6  # time constants of the averages
SLOW_US: Final = 8e6
EDGE: Final = 0.0015  # fast over slow, or below it, for a position to be opened
SPREAD_MAX: Final = 0.001  # that is paid for opening one
JUMP: Final = 0.03  # between two quotes, after a halt or an error in the data; the averages restart
SYMBOLS_MAX: Final = 10_000


@dataclass(slots=True)
class Holding:
    """One symbol: its position and the averages of its price."""

    partition: int = -1  # of the quotes; -1 before the first: it may be another member's
    cash: float = 0.0
    position: int = 0
    filled_us: int = -1  # the quote that the last fill came from
    middle: float = 0.0
    fast: float = 0.0
    slow: float = 0.0
    since_us: int = -1  # when the averages began
    seen_us: int = -1

    @property
    def worth(self) -> float:
        """Cash plus the position at the middle price."""
        return self.cash + self.position * self.middle

    def see(self, quote: Quote) -> None:
        """Moves the averages; time is that of the quotes."""
        middle = (quote.bid + quote.ask) / 2
        if self.seen_us < 0 or abs(middle / self.middle - 1) > JUMP:
            self.fast = self.slow = middle
            self.since_us = quote.timestamp_us
        else:
            elapsed_us = quote.timestamp_us - self.seen_us
            self.fast += (middle - self.fast) * -math.expm1(-elapsed_us / FAST_US)
            self.slow += (middle - self.slow) * -math.expm1(-elapsed_us / SLOW_US)
        self.middle, self.seen_us = middle, quote.timestamp_us

    def aim(self, quote: Quote) -> int:
        """The position to have after this quote."""
        lead = self.fast / self.slow - 1
        if quote.timestamp_us - self.since_us < SLOW_US:
            return self.position  # the averages are not meaningful yet
        if self.position:
            return self.position if lead * self.position > 0 else 0
        cheap = quote.ask - quote.bid <= self.middle * SPREAD_MAX
        return LOT * ((lead > EDGE) - (lead < -EDGE)) if cheap else 0


class Book:
    """All symbols of one member. Pure: `decide` makes fills of quotes, which count once `apply` gets them.

    >>> book = Book()
    >>> book.decide(Quote("A", 9.99, 10.01, 100, 100, 10.0, 0, 0), partition=0) is None
    True
    """

    def __init__(self) -> None:
        self.holdings: dict[str, Holding] = {}

    def decide(self, quote: Quote, partition: int) -> Fill | None:
        """The fill that this quote leads to, if any; positions change only in `apply`."""
        holding = self.holdings.get(quote.symbol)
        if holding is None:
            if len(self.holdings) >= SYMBOLS_MAX:
                return None
            holding = self.holdings[quote.symbol] = Holding()
        holding.partition = partition
        if not 0 < quote.bid < quote.ask or quote.timestamp_us < holding.seen_us:
            return None  # crossed, locked, or old
        holding.see(quote)
        change = holding.aim(quote) - holding.position
        if not change or quote.timestamp_us <= holding.filled_us:
            return None
        price = quote.ask if change > 0 else quote.bid
        return Fill(
            symbol=quote.symbol,
            side="buy" if change > 0 else "sell",
            size=abs(change),
            price=price,
            cash=round(holding.cash - change * price, 4),
            position=holding.position + change,
            timestamp_us=quote.timestamp_us,
        )

    def apply(self, fill: Fill) -> None:
        holding = self.holdings.setdefault(fill.symbol, Holding())
        holding.cash, holding.position, holding.filled_us = fill.cash, fill.position, fill.timestamp_us

    def restore(self, fills: dict[str, Fill], partition: int) -> None:
        """Sets positions to the last fills, except for symbols of another partition of this member."""
        for symbol in [name for name, holding in self.holdings.items() if holding.partition in {partition, -1}]:
            del self.holdings[symbol]
        for fill in fills.values():
            if fill.symbol not in self.holdings:
                self.apply(fill)

    def __str__(self) -> str:
        ours = [holding for holding in self.holdings.values() if holding.middle]
        held = sum(1 for holding in ours if holding.position)
        return f"{held} of {len(ours)} symbols held, profit {sum(holding.worth for holding in ours):+,.2f}"


class Paper:
    """One member: its book, and the handler that feeds it."""

    def __init__(self, bootstrap: str, *, print_line: Callable[[str], None] | None = None) -> None:
        self.book = Book()
        self.fills = 0  # of this run
        self._bootstrap = bootstrap
        self._print_line = print_line
        self._next: dict[int, int] = {}  # next offset by partition, if no other member had it meanwhile
        self.app = comet.App(bootstrap, name=GROUP)

        @self.app.on(TOPIC, group=GROUP, start="latest", on_out_of_range="latest", retries=3, on_error="skip")
        async def trade(batch: comet.RecordBatch[Quote]) -> None:
            await self.take(batch)

    async def take(self, batch: comet.RecordBatch[Quote]) -> None:
        """Handles a batch. If the topic of the fills was deleted, creates it before the batch is retried."""
        try:
            await self._take(batch)
        except comet.TopicNotFound:
            await ensure_topics(self._bootstrap, [FILLS])
            raise

    async def _take(self, batch: comet.RecordBatch[Quote]) -> None:
        partition = batch.partition
        if self._next.pop(partition, None) != batch.first_offset:
            self.book.restore(await last_fills(self._bootstrap), partition)
        for quote in quotes_of(batch):
            if quote is None or quote.timestamp_us > now_us() + EARLY_US:
                continue
            fill = self.book.decide(quote, partition)
            if fill is not None:
                await self.app.publish(FILLS, fill, key=fill.symbol)
                self.book.apply(fill)
                self.fills += 1
                if self._print_line is not None:
                    self._print_line(f"{fill.symbol} {fill.side} {fill.size} at {fill.price:,.2f}, {self.book}")
        self._next[partition] = batch.next_offset  # not set after an error: the fills are read again then


async def last_fills(bootstrap: str) -> dict[str, Fill]:
    """The last fill of every symbol, without implausible ones: any client may write to the topic."""
    found: dict[str, Fill] = {}
    async with comet.Reader(bootstrap) as reader:
        async for record in await reader.read_merged(FILLS):
            fill = None if isinstance(record, comet.Gap) else decoded(Fill, record.value)
            if fill is not None and abs(fill.position) <= LOT and fill.timestamp_us <= now_us() + EARLY_US:
                found[fill.symbol] = fill
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="comet_demo.paper_trading", description="Trades the feed's quotes with simulated money."
    )
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--print", action="store_true", dest="prints", help="print each fill")
    options = parser.parse_args()

    def print_line(line: str) -> None:
        print(line, flush=True)  # noqa: T201 - what a terminal program does

    comet.run(ensure_topics(options.bootstrap))
    paper = Paper(options.bootstrap, print_line=print_line if options.prints else None)
    paper.app.run()
    print_line(f"{paper.fills:,} fills; {paper.book}")


if __name__ == "__main__":
    run("comet_demo.paper_trading", main)
