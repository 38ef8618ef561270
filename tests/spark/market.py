"""A made-up market of some thousand ticks, and what is to be computed of it, counted out tick by tick in Python.

Whoever may write to the topics may write anything: between the ticks are records that are none, or should not be.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, pairwise
from typing import Any, Final

import comet
from comet_demo.model import TOPIC, TRADES

START_US: Final = 1_700_000_000_000_000
PARTITIONS: Final = 2
SECOND: Final = 1_000_000
SYMBOLS: Final = ("A", "B", "C", "D", "QUIET", "UNTRADED")
ODD: Final = ("ODD", "\0", "\x7f" * 256)  # whose records are hostile, and what comes of them is left open

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tick:
    """What is written, and where: any symbol is in any partition, so that ties are between partitions, too."""

    ts: int
    partition: int
    offset: int
    values: Row

    @property
    def order(self) -> tuple[int, int, int]:
        return self.ts, self.partition, self.offset


def ticks(rows: Iterable[tuple[int, Row]]) -> list[Tick]:
    """Rows with their times, in the order in which they are written."""
    return [
        Tick(ts, number % PARTITIONS, number // PARTITIONS, {**values, "timestamp_us": ts})
        for number, (ts, values) in enumerate(rows)
    ]


def write(address: str, topic: str, written: Sequence[Tick]) -> None:
    """With something hostile after every twenty."""
    hostile = cycle(_hostile_quotes() if topic == TOPIC else _hostile_trades())
    with comet.sync.Producer(address) as producer:
        for partition in range(PARTITIONS):
            values: list[bytes | None] = []
            for number, tick in enumerate(tick for tick in written if tick.partition == partition):
                values += [json.dumps(tick.values).encode(), *([next(hostile)] if number % 20 == 19 else [])]
            producer.send_many(topic, values, partition=partition).result()


def _hostile_quotes() -> list[bytes | None]:
    quote = {"symbol": "A", "bid": 1.0, "ask": 2.0, "bid_size": 1, "ask_size": 1, "last": 1.0, "last_size": 1}
    numbers = (0.0, -0.0, -1.0, 5e-324, 1.7e308, -1.7e308)
    odd = [{"bid": bid, "ask": ask, "last": ask} for bid in numbers for ask in numbers]
    odd += [{"bid_size": size, "ask_size": size, "last_size": size} for size in (-(2**63), -1, 2**53, 2**63 - 1)]
    return _hostile(quote, odd)


def _hostile_trades() -> list[bytes | None]:
    trade = {"symbol": "A", "price": 1.0, "size": 1, "side": ""}
    odd: list[Row] = [{"price": price, "size": 2**53} for price in (5e-324, 1e-300, 1e15)]
    wrong: list[Row] = [{"price": price} for price in (0.0, -0.0, -1.0, 1.1e15, 1.7e308, -1.7e308)]
    wrong += [{"size": size} for size in (-(2**63), -1, 2**53 + 1, 2**62, 2**63 - 1)]
    return [*_hostile(trade, odd), *(_json({**trade, "timestamp_us": START_US, **change}) for change in wrong)]


def _hostile(row: Row, odd: Sequence[Row]) -> list[bytes | None]:
    """Of odd symbols what is odd, and of one that is not, what cannot be meant; and what is no JSON of these fields."""
    row = {**row, "timestamp_us": START_US}
    wrong: list[Row] = [{"timestamp_us": at} for at in (-(2**63), -1, 2**53 + 1, START_US * 1_000, 2**63 - 1, None)]
    wrong += [{"symbol": symbol} for symbol in ("", "A" * 257, "A" * 100_000, None, "\ud800")]
    unfit: list[Any] = [[], 10**30, {"a": 1}]
    odd = [*odd, {"timestamp_us": 0}, *({name: value} for name in row for value in unfit)]
    rows = [{**row, **change} for change in wrong]
    rows += [{**row, "symbol": symbol, **change} for symbol in ODD for change in odd]
    text = _json(row)
    broken = [text.replace(b"1.0", number) for number in (b"1e400", b"NaN", b"-Infinity")]
    return [*map(_json, rows), *broken, text[:-1], text * 2, b"\xff" + text, b"[" * 10_000, b"", b"null", None]


def _json(row: Row) -> bytes:
    return json.dumps(row).encode()


class Market:
    """A minute of quotes and trades with all that can be wrong with them, and one tick of a clock long after."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.quotes = ticks(_arrived(chance, _quotes(chance), "quote"))
        self.trades = ticks(_arrived(chance, _trades(chance), "trade"))
        self.plausible = [tick for tick in self.trades if outlier(tick) is None]  # whose prices count

    def write(self, address: str) -> None:
        write(address, TOPIC, self.quotes)
        write(address, TRADES, self.trades)


def _times(chance: random.Random, count: int) -> Iterator[int]:
    """On a coarse grid, so that several fall upon one microsecond."""
    return (START_US + chance.randrange(60 * SECOND // 500) * 500 for _ in range(count))


def _arrived(chance: random.Random, rows: Iterable[tuple[int, Row]], kind: str) -> list[tuple[int, Row]]:
    """In the order of their times, but for some hundred milliseconds."""
    late = sorted(rows, key=lambda row: row[0] + chance.randrange(300_000))
    clock = {"symbol": "CLOCK", "bid": 1.0, "ask": 2.0, "bid_size": 1, "ask_size": 1, "last": 1.0, "last_size": 0}
    if kind == "trade":
        clock = {"symbol": "CLOCK", "price": 1.0, "size": 1, "side": ""}
    return [*late, (START_US + 200 * SECOND, clock)]


def _quotes(chance: random.Random) -> Iterator[tuple[int, Row]]:
    for ts in _times(chance, 15_000):
        symbol = chance.choice(SYMBOLS)
        second = (ts - START_US) // SECOND
        if (symbol == "QUIET" and second not in {3, 4, 12, 40}) or (symbol == "D" and second == 20):
            continue
        bid = round(100 + chance.gauss(0, 0.1), 2)
        spread = 0.0 if chance.random() < 0.002 else -0.01 if chance.random() < 0.002 else 0.01 * chance.randint(1, 5)
        sizes = {"bid_size": chance.randint(1, 9), "ask_size": chance.randint(1, 9)}
        yield ts, {"symbol": symbol, "bid": bid, "ask": bid + spread, **sizes, "last": bid, "last_size": 0}


def _trades(chance: random.Random) -> Iterator[tuple[int, Row]]:
    for ts in _times(chance, 5_000):
        price = round((50 if chance.random() < 0.001 else 100) + chance.gauss(0, 0.1), 2)
        size, side = chance.randint(1, 500), chance.choice(["buy", "sell"])
        bid = round(100 + chance.gauss(0, 0.1), 2) if chance.random() < 0.8 else None
        ask = None if bid is None else bid + 0.01 * chance.randint(-1, 5)
        row = {"symbol": chance.choice(SYMBOLS[:4]), "price": price, "size": size, "side": side, "bid": bid, "ask": ask}
        yield ts, row


def outlier(tick: Tick) -> tuple[float, float] | None:
    """How far an outlier is from the quote before it, and how far it may be, in percent."""
    price, bid, ask = (tick.values.get(name) for name in ("price", "bid", "ask"))
    if bid is None:
        return None
    middle = (bid + ask) / 2
    far, limit = abs(price - middle), 0.01 * middle + 5 * abs(ask - bid)
    return (100 * far / middle, 100 * limit / middle) if far > limit else None


def by_symbol_and(key: Callable[[Tick], int], of: Iterable[Tick]) -> dict[tuple[str, int], list[Tick]]:
    def both(tick: Tick) -> tuple[str, int]:
        return tick.values["symbol"], key(tick)

    return {found: sorted(group, key=lambda t: t.order) for found, group in groupby(sorted(of, key=both), key=both)}


def bars(market: Market, length: int) -> dict[tuple[str, int], Row]:
    def start(tick: Tick) -> int:
        return tick.ts // length * length

    quoted, traded = by_symbol_and(start, market.quotes), by_symbol_and(start, market.plausible)
    return {key: _bar(*key, length, quoted.get(key, []), traded.get(key, [])) for key in quoted.keys() | traded.keys()}


def _bar(symbol: str, start: int, length: int, quotes: list[Tick], trades: list[Tick]) -> Row:
    prices, sizes = [tick.values["price"] for tick in trades], [tick.values["size"] for tick in trades]
    spreads = [tick.values["ask"] - tick.values["bid"] for tick in quotes]
    paid = math.fsum(price * size for price, size in zip(prices, sizes, strict=True))
    return {
        "symbol": symbol,
        "start_us": start,
        "end_us": start + length,
        "open": prices[0] if prices else None,
        "high": max(prices, default=None),
        "low": min(prices, default=None),
        "close": prices[-1] if prices else None,
        "volume": sum(sizes),
        "vwap": paid / sum(sizes) if sizes else None,
        "trades": len(prices),
        "quotes": len(quotes),
        "spread_mean": math.fsum(spreads) / len(spreads) if spreads else None,
        "spread_max": max(spreads, default=None),
    }


def stats(market: Market, length: int, slide: int, half_life: int) -> dict[tuple[str, int], Row]:
    found = {}
    for (symbol, _), trades in by_symbol_and(lambda _: 0, market.plausible).items():
        first = trades[0].ts // slide * slide - length + slide
        for start in range(first, trades[-1].ts + 1, slide):
            inside = [tick for tick in trades if start <= tick.ts < start + length]
            if inside:
                found[symbol, start] = _stats(symbol, start, start + length, inside, half_life)
    return found


def _stats(symbol: str, start: int, end: int, trades: list[Tick], half_life: int) -> Row:
    prices = [tick.values["price"] for tick in trades]
    weights = [0.5 ** ((end - tick.ts) / half_life) for tick in trades]
    weighted = math.fsum(price * weight for price, weight in zip(prices, weights, strict=True))
    return {
        "symbol": symbol,
        "start_us": start,
        "end_us": end,
        "mean": math.fsum(prices) / len(prices),
        "ema": weighted / math.fsum(weights),
        "return": prices[-1] / prices[0] - 1,
        "volatility": math.sqrt(math.fsum(math.log(after / before) ** 2 for before, after in pairwise(prices))),
        "volume": sum(tick.values["size"] for tick in trades),
        "trades": len(trades),
        "high": max(prices),
        "low": min(prices),
    }


def alerts(market: Market, limit: int) -> list[tuple[str, str, int, float]]:
    """Kind, symbol, time and value; of the clock's own silence nothing is known yet."""
    found = []
    for tick in market.quotes:
        distance = tick.values["ask"] - tick.values["bid"]
        if distance <= 0:
            found.append(("locked" if distance == 0 else "crossed", tick.values["symbol"], tick.ts, distance))
    for (symbol, _), quotes in by_symbol_and(lambda _: 0, market.quotes).items():
        times = [tick.ts for tick in quotes]
        pauses = [(before, after) for before, after in pairwise(times) if after - before >= limit]
        found += [("gap", symbol, after, (after - before) / 1e6) for before, after in pauses]
        silent = [before for before, _ in pauses] + ([] if symbol == "CLOCK" else times[-1:])
        found += [("stale", symbol, before + limit, limit / 1e6) for before in silent]
    for tick in market.trades:
        if (far := outlier(tick)) is not None:
            found.append(("outlier", tick.values["symbol"], tick.ts, far[0]))
    return found
