"""Replays quotes and trades of a file at its own speed, a multiple of it, or as fast as possible.

A row with a bid and an ask is a quote, one with a price a trade, one with all three both. Columns are found by their
names, in any case:

    symbol                          symbol, sym, ticker, product_id; not needed for a single requested symbol
    time                            timestamp_us, timestamp, time, ts, date: ISO, or seconds, milliseconds, micro- or
                                    nanoseconds since 1970, as large as they are
    bid, ask, bid_size, ask_size    bid, bid_price, bid_px, best_bid …; sizes may be missing
    price, size, side               price, last, trade_price …; size, volume, qty …; side may be missing

`comet.replay` reads the file and keeps the pace. Malformed rows are counted and skipped; sizes are rounded to whole
numbers. With a pace, times are moved to now: the first row gets the time at which it is read, and the others keep their
distance from it, divided by the pace. With pace 0, or with `keep_times`, times stay as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import comet
from comet.sources.files import Row, opened
from comet_demo.model import Quote, Trade, now_us
from comet_demo.providers import Event
from comet_demo.providers.normal import Tape, known, price, size

SYMBOL_CHARS_MAX: Final = 256
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "symbol": ("symbol", "sym", "ticker", "product_id", "instrument"),
    "time": ("timestamp_us", "timestamp", "time", "ts", "datetime", "date", "t"),
    "bid": ("bid", "bid_price", "bid_px", "best_bid", "bp"),
    "ask": ("ask", "ask_price", "ask_px", "best_ask", "ap"),
    "bid_size": ("bid_size", "bid_sz", "bid_qty", "best_bid_size", "bs"),
    "ask_size": ("ask_size", "ask_sz", "ask_qty", "best_ask_size", "as"),
    "price": ("price", "trade_price", "last", "px", "p"),
    "size": ("size", "last_size", "volume", "quantity", "qty", "trade_size", "s"),
    "side": ("side", "taker_side"),
}
SIDES: Final = {"buy": "buy", "b": "buy", "sell": "sell", "s": "sell"}

Columns = Mapping[str, str]  # the names of the file's columns by meaning; "" for one that the file lacks


def find_columns(there: Sequence[str], given: Mapping[str, str], *, one_symbol: bool) -> Columns:
    """Finds columns by the given names, else by their usual ones. Raises InvalidArgument if a needed one is missing.

    >>> find_columns(["Time", "Symbol", "Price"], {"size": "n"}, one_symbol=False)
    Traceback (most recent call last):
    ...
    comet.errors.InvalidArgument: the file has no column 'n' for size; it has Time, Symbol, Price
    """
    unknown = set(given) - set(NAMES)
    if unknown:
        raise comet.InvalidArgument(f"unknown columns {', '.join(sorted(unknown))}; use {', '.join(NAMES)}")
    lower = {name.strip().lower(): name for name in reversed(there)}
    has = f"it has {', '.join(there)}"
    columns = {}
    for meaning, usual in NAMES.items():
        columns[meaning] = given.get(meaning) or next((lower[one] for one in usual if one in lower), "")
        if columns[meaning] not in ("", *there):
            raise comet.InvalidArgument(f"the file has no column {columns[meaning]!r} for {meaning}; {has}")
    if not columns["time"] or not (columns["symbol"] or one_symbol):
        raise comet.InvalidArgument(f"the file needs a column for the time and one for the symbol; {has}")
    if not (columns["bid"] and columns["ask"]) and not columns["price"]:
        raise comet.InvalidArgument(f"the file needs bid and ask, or a price; {has}")
    return columns


class ReplayProvider:
    """Replays one file once. `pace` is how many times as fast; `columns` gives unusual column names."""

    name = "replay"
    live = False

    def __init__(
        self,
        file: str | Path,
        *,
        pace: float = 1.0,
        keep_times: bool = False,
        columns: Mapping[str, str] | None = None,
        symbols: Sequence[str] = (),
        now_us: Callable[[], int] = now_us,
    ) -> None:
        self._symbols = frozenset(symbols)
        self._now_us = now_us
        self._tape = Tape()
        self._move = pace > 0 and not keep_times
        with opened(Path(file)) as (names, _):
            self._columns = find_columns(names, columns or {}, one_symbol=len(symbols) == 1)
        self._replay = comet.replay(
            file, time=self._columns["time"], pace=pace, parse=self._events, on_error="skip", now_us=now_us
        )

    def statistics(self) -> Mapping[str, int]:
        return {"rows": self._replay.rows, "malformed rows": self._replay.skipped}

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        async with aclosing(self._replay.batches()) as batches:
            async for rows in batches:
                if self._move:
                    for row in rows:
                        for event in row.value:
                            event.timestamp_us = row.due_us
                yield [event for row in rows for event in row.value]

    def _events(self, row: Row, at_us: int) -> list[Event]:
        """The quote and the trade of a row. Raises ValueError or TypeError for implausible values."""
        given = {meaning: row.get(column) for meaning, column in self._columns.items()}
        symbol = _text(given["symbol"]) if self._columns["symbol"] else next(iter(self._symbols))
        if not symbol or len(symbol) > SYMBOL_CHARS_MAX:
            raise ValueError("a row needs a symbol")
        if self._symbols and symbol not in self._symbols:
            return []
        known(at_us, self._now_us())
        quoted, traded = None not in (given["bid"], given["ask"]), given["price"] is not None
        if not quoted and not traded:
            raise ValueError("a row needs bid and ask, or a price")
        if quoted:
            low, high = price(given["bid"]), price(given["ask"])
            low_size, high_size = size(given["bid_size"] or 0), size(given["ask_size"] or 0)
        events: list[Event] = []
        if traded:
            side = SIDES.get(_text(given["side"]).lower(), "")
            market = (low, high) if quoted else self._tape.market(symbol, at_us)
            trade = Trade(symbol, price(given["price"]), size(given["size"] or 0), side, at_us, *market)
            self._tape.trade(symbol, trade.price, trade.size)  # after all checks of the row
            if trade.size or not quoted:
                events.append(trade)
        if quoted:
            last, last_size = self._tape.quote(symbol, low, high, at_us)
            events.insert(0, Quote(symbol, low, high, low_size, high_size, last, last_size, at_us))
        return events


def _text(value: Any) -> str:
    """The value as text; Parquet may hold text as bytes."""
    return ("" if value is None else value.decode() if isinstance(value, bytes) else str(value)).strip()
