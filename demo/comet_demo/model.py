"""The demo's records (quotes, trades, fills, orders), its instruments, and its topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import comet
from comet.serde import serde_for

T = TypeVar("T")

TOPIC: Final = "quotes"
TRADES: Final = "trades"
LATEST: Final = "quotes.latest"  # the last quote of each symbol, while it is current
MARKET_STATE: Final = "quotes.market"  # whether the market is open
FILLS: Final = "paper.fills"
BARS: Final = {"1s": "quotes.bars.1s", "1m": "quotes.bars.1m", "5m": "quotes.bars.5m"}
STATS: Final = "quotes.stats"
ALERTS: Final = "quotes.alerts"
JOB: Final = "quotes.job"
RESULTS: Final = (*BARS.values(), STATS, ALERTS, JOB)  # the topics that the analytics write
ORDERS: Final = "orders"
DEAD_ORDERS: Final = "orders.dead"
EARLY_US: Final = 5_000_000  # records from further in the future are dropped: they would make all others late
_HOUR_MS: Final = 3_600_000
_LIVE: Final = {"partitions": 4, "consistency": "available", "retention_ms": _HOUR_MS}
LATEST_TTL_MS: Final = 15_000  # a symbol that has not been quoted for so long has no current price
_TABLE: Final = {  # small segments: only full ones are compacted
    "partitions": 1, "consistency": "consistent", "cleanup_policy": "compact", "record_ttl_ms": LATEST_TTL_MS,
    "segment_bytes": 1 << 20,
}  # fmt: skip
_RESULT: Final = {"partitions": 1, "consistency": "consistent", "retention_ms": _HOUR_MS}
LAYOUT: Final[dict[str, dict[str, Any]]] = (
    {TOPIC: _LIVE, TRADES: _LIVE, LATEST: _TABLE}
    | {MARKET_STATE: {"partitions": 1, "consistency": "consistent", "cleanup_policy": "compact"}}
    | {name: _RESULT | ({"partitions": 2} if ".bars." in name else {}) for name in RESULTS}
    | {FILLS: _RESULT | {"partitions": 4, "retention_ms": 24 * _HOUR_MS}}  # the positions of paper trading
    | {ORDERS: {"partitions": 3, "retention_ms": _HOUR_MS}, DEAD_ORDERS: {"partitions": 1, "retention_ms": _HOUR_MS}}
)
MARKET: Final = (TOPIC, TRADES, LATEST, *RESULTS, FILLS)

SYMBOL_CHARACTERS_MAX: Final = 40
PRICE_MAX: Final = 1e15
SIZE_MAX: Final = 1 << 53  # above it JSON parsers differ


async def ensure_topics(bootstrap: str, topics: Iterable[str] = MARKET) -> None:
    """Creates those of the topics that do not exist: by default those of the feed, the analytics and paper trading."""
    async with comet.Admin(bootstrap) as admin:
        there = {topic.name for topic in await admin.list_topics()}
        for topic in topics:
            if topic not in there:
                with suppress(comet.TopicExists):
                    await admin.create_topic(topic, **LAYOUT[topic])


def now_us() -> int:
    """The wall clock."""
    return time.time_ns() // 1000


@comet.model
class Quote:
    """The best bid and ask at one moment. `last` is the price of the last trade, or the middle before the first;
    `last_size` the size traded since the symbol's previous quote, so that their sum is the volume."""

    symbol: str
    bid: float
    ask: float
    bid_size: int
    ask_size: int
    last: float
    last_size: int
    timestamp_us: int


def quotes_of(batch: comet.RecordBatch[Quote]) -> list[Quote | None]:
    """A quote for each record; None for a record that is not a plausible one."""
    quotes: Sequence[Quote | None]
    try:
        quotes = batch.models()
    except comet.SerdeError:
        quotes = [decoded(Quote, value) for value in batch.values]
    return [quote if quote is not None and plausible(quote) else None for quote in quotes]


def decoded(kind: type[T], value: bytes | None) -> T | None:
    """The value as a record of this kind; None if it is another."""
    with suppress(comet.SerdeError):
        return None if value is None else serde_for(kind).decode(value)
    return None


def plausible(quote: Quote) -> bool:
    """Whether the quote can be shown: any client may write to the topic, and any values.

    >>> plausible(Quote("A", 9.9, 10.1, 100, 100, 10.0, 0, 0)), plausible(Quote("A", 0.0, 0.0, 0, 0, 0.0, 0, 0))
    (True, False)
    """
    return (
        0 < quote.bid <= PRICE_MAX
        and 0 < quote.ask <= PRICE_MAX
        and 0 < quote.last <= PRICE_MAX
        and 0 <= quote.last_size <= SIZE_MAX
        and 0 <= quote.timestamp_us <= SIZE_MAX
        and 0 < len(quote.symbol) <= SYMBOL_CHARACTERS_MAX
        and quote.symbol.isprintable()
    )


@comet.model
class Trade:
    """A trade. `side` is the aggressor's; empty if unknown. `bid` and `ask` are of the quote before it, None without a
    recent one: a price far from them is an outlier."""

    symbol: str
    price: float
    size: int
    side: str  # "buy", "sell", ""
    timestamp_us: int
    bid: float | None = None
    ask: float | None = None


@comet.model
class Fill:
    """A simulated trade of paper trading. `cash` and `position` are the symbol's after it."""

    symbol: str
    side: str  # "buy", "sell"
    size: int
    price: float
    cash: float  # proceeds less costs of all fills of the symbol
    position: int
    timestamp_us: int  # of the quote that it came from


@comet.model
class Order:
    """An order of a trader, with the highest price to buy at or the lowest to sell at."""

    id: int
    symbol: str
    side: str  # "buy", "sell"
    quantity: int
    limit: float
    trader: str
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class Instrument:
    """A quoted instrument, and its first synthetic price."""

    symbol: str
    sector: str
    price: float
    volatility: float  # of a year, as a share of the price
    activity: float  # how often it is quoted, compared with the others
    tick: float = 0.01


# Well-known names; all prices are synthetic.
INSTRUMENTS: Final = (
    Instrument("AAPL", "tech", 228.0, 0.24, 3.0),
    Instrument("MSFT", "tech", 425.0, 0.22, 2.5),
    Instrument("NVDA", "tech", 132.0, 0.48, 4.0),
    Instrument("AMZN", "tech", 198.0, 0.29, 2.0),
    Instrument("GOOG", "tech", 174.0, 0.27, 2.0),
    Instrument("TSLA", "auto", 251.0, 0.55, 3.0),
    Instrument("F", "auto", 11.2, 0.36, 1.0),
    Instrument("GM", "auto", 52.4, 0.34, 0.8),
    Instrument("JPM", "bank", 224.0, 0.21, 1.2),
    Instrument("BAC", "bank", 42.1, 0.25, 1.2),
    Instrument("GS", "bank", 518.0, 0.25, 0.7),
    Instrument("XOM", "energy", 119.0, 0.23, 1.0),
    Instrument("CVX", "energy", 151.0, 0.22, 0.8),
    Instrument("PFE", "health", 28.3, 0.24, 0.9),
    Instrument("JNJ", "health", 161.0, 0.15, 0.7),
    Instrument("KO", "food", 69.8, 0.13, 0.7),
)
