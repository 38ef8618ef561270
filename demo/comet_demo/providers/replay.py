"""Replays quotes and trades of a file at its own speed, a multiple of it, or as fast as possible.

A row with a bid and an ask is a quote, one with a price a trade, one with all three both. Columns are found by their
names, in any case:

    symbol                          symbol, sym, ticker, product_id; not needed for a single requested symbol
    time                            timestamp_us, timestamp, time, ts, date: ISO, or seconds, milliseconds, micro- or
                                    nanoseconds since 1970, as large as they are
    bid, ask, bid_size, ask_size    bid, bid_price, bid_px, best_bid …; sizes may be missing
    price, size, side               price, last, trade_price …; size, volume, qty …; side may be missing

Rows keep the order of the file, which is read a chunk at a time. Malformed rows are counted and skipped; sizes are
rounded to whole numbers. With a pace, times are moved to now: the first row gets the time at which it is read, and the
others keep their distance from it, divided by the pace. With pace 0, or with `keep_times`, times stay as they are.
"""

from __future__ import annotations

import asyncio
import csv
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import comet
from comet_demo.model import Quote, Trade, now_us
from comet_demo.providers import Event
from comet_demo.providers.normal import Tape, known, moment, moments, price, size

CHUNK_ROWS: Final = 4_096
NEAR_US: Final = 20_000  # events within it go out together
SYMBOL_CHARS_MAX: Final = 256
LINE_CHARS_MAX: Final = 1 << 16
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
# Seconds, milliseconds, microseconds and nanoseconds of our time are this far apart.
_UNITS: Final = ((10**11, 1_000_000.0), (10**14, 1_000.0), (10**17, 1.0), (1 << 63, 0.001))
_TIME_US_MAX: Final = 1 << 53  # the year 2255

Row = Mapping[str, Any]
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


def time_of(value: Any, now_us: int) -> int:
    """Microseconds since 1970, from a time as files have it.

    >>> time_of("2024-03-01 09:30:00.5", 2**60), time_of("1709285400.5", 2**60), time_of(1709285400500, 2**60)
    (1709285400500000, 1709285400500000, 1709285400500000)
    """
    if hasattr(value, "isoformat"):
        value = value.isoformat()
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return moment(value.strip(), now_us)
    unit = next((unit for limit, unit in _UNITS if abs(value) < limit), 0.0)
    # A float cannot hold whole microseconds and nanoseconds.
    return known(int(value if unit == 1.0 else value // 1000 if unit == 0.001 else round(value * unit)), now_us)


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
        self._path = Path(file)
        if not self._path.is_file():
            raise comet.InvalidArgument(f"the file {str(file)!r} does not exist")
        if pace < 0:
            raise comet.InvalidArgument(
                f"invalid pace {pace:g}: use a multiple of the file's speed, or 0 for as fast as possible"
            )
        self._pace = pace
        self._move = pace > 0 and not keep_times
        self._given = dict(columns or {})
        self._symbols = frozenset(symbols)
        self._now_us = now_us
        self._tape = Tape()
        self._rows = self._bad = 0

    def statistics(self) -> Mapping[str, int]:
        return {"rows": self._rows, "malformed rows": self._bad}

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        begin_us = first_us = -1
        chunks = self._chunks()
        while chunk := await asyncio.to_thread(next, chunks, None):
            if self._pace == 0:
                yield chunk
                continue
            for events in moments(chunk, NEAR_US):
                at_us = events[0].timestamp_us
                if first_us < 0:
                    first_us, begin_us = at_us, self._now_us()
                due_us = begin_us + (at_us - first_us) / self._pace
                if (ahead_us := due_us - self._now_us()) > 0:
                    await asyncio.sleep(ahead_us / 1e6)
                if self._move:
                    for event in events:
                        event.timestamp_us = begin_us + round((event.timestamp_us - first_us) / self._pace)
                yield events

    def _chunks(self) -> Iterator[list[Event]]:
        """Chunks of events, made in a thread; never empty, so that an empty list means the end."""
        read = _parquet if self._path.suffix.lower() in {".parquet", ".pq"} else _csv
        events: list[Event] = []
        for names, rows in read(self._path):
            columns = find_columns(names, self._given, one_symbol=len(self._symbols) == 1)
            for row in rows:
                self._rows += 1
                try:
                    events += self._events(row, columns)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                    self._bad += 1
                if len(events) >= CHUNK_ROWS:
                    yield events
                    events = []
        if events:
            yield events

    def _events(self, row: Row, columns: Columns) -> list[Event]:
        given = {meaning: _given(row, column) for meaning, column in columns.items()}
        symbol = _text(given["symbol"]) if columns["symbol"] else next(iter(self._symbols))
        if not symbol or len(symbol) > SYMBOL_CHARS_MAX:
            raise ValueError("a row needs a symbol")
        if self._symbols and symbol not in self._symbols:
            return []
        at_us = time_of(given["time"], self._now_us())
        quoted, traded = None not in (given["bid"], given["ask"]), given["price"] is not None
        if not quoted and not traded:
            raise ValueError("a row needs bid and ask, or a price")
        if quoted:
            low, high = price(given["bid"]), price(given["ask"])
            low_size, high_size = size(given["bid_size"] or 0), size(given["ask_size"] or 0)
        events: list[Event] = []
        if traded:
            side = SIDES.get(_text(given["side"]).lower(), "")
            trade = Trade(symbol, price(given["price"]), size(given["size"] or 0), side, at_us)
            self._tape.trade(symbol, trade.price, trade.size)  # after all checks of the row
            if trade.size or not quoted:
                events.append(trade)
        if quoted:
            last, last_size = self._tape.quote(symbol, (low + high) / 2)
            events.insert(0, Quote(symbol, low, high, low_size, high_size, last, last_size, at_us))
        return events


def _given(row: Row, column: str) -> Any:
    """The row's value in the column; None if it is empty, which some files write as NaN."""
    value = row.get(column) if column else None
    nothing = (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and math.isnan(value))
    return None if nothing else value


def _text(value: Any) -> str:
    """The value as text; Parquet may hold text as bytes."""
    return ("" if value is None else value.decode() if isinstance(value, bytes) else str(value)).strip()


def _csv(path: Path) -> Iterator[tuple[Sequence[str], Iterator[Row]]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = csv.DictReader(iter(lambda: file.readline(LINE_CHARS_MAX), ""))
        names = [name for name in lines.fieldnames or () if name]
        if not names:
            raise comet.InvalidArgument(f"{str(path)!r} is empty: the first line must name the columns")
        yield names, _readable(lines)


def _readable(lines: Iterator[Row]) -> Iterator[Row]:
    """The rows; an unreadable line is an empty row."""
    while True:
        try:
            yield next(lines)
        except StopIteration:
            return
        except csv.Error:
            yield {}


def _parquet(path: Path) -> Iterator[tuple[Sequence[str], Iterator[Row]]]:
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError:
        raise comet.InvalidArgument('reading Parquet needs pyarrow: pip install "comet-stream[arrow]"') from None

    def times(column: Any) -> Any:
        """Timestamps that Python can hold: no nanoseconds, and not after the year 9999."""
        whole = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
        number = whole.cast(pyarrow.int64())
        known = compute.and_(compute.greater(number, 0), compute.less(number, _TIME_US_MAX))
        return compute.if_else(known, whole, pyarrow.scalar(None, whole.type))

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=CHUNK_ROWS):
                columns = [times(one) if pyarrow.types.is_timestamp(one.type) else one for one in batch.columns]
                names = batch.schema.names
                yield names, iter(pyarrow.RecordBatch.from_arrays(columns, names).to_pylist())
    except pyarrow.ArrowException as error:
        raise comet.InvalidArgument(f"{str(path)!r} is not a Parquet file: {error}") from error
