"""The demo's records (quotes, trades, fills, orders), its instruments, and the names of all topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import comet

TOPIC: Final = "quotes"
TRADES: Final = "trades"
FILLS: Final = "paper.fills"
BARS: Final = {"1s": "quotes.bars.1s", "1m": "quotes.bars.1m", "5m": "quotes.bars.5m"}
STATS: Final = "quotes.stats"
ALERTS: Final = "quotes.alerts"
JOB: Final = "quotes.job"
RESULTS: Final = (*BARS.values(), STATS, ALERTS, JOB)  # the topics that the analytics write
ORDERS: Final = "orders"
DEAD_ORDERS: Final = "orders.dead"
EARLY_US: Final = 5_000_000  # records from further in the future are dropped: they would make all others late


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


@comet.model
class Trade:
    """A trade. `side` is the aggressor's; empty if unknown."""

    symbol: str
    price: float
    size: int
    side: str  # "buy", "sell", ""
    timestamp_us: int


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
