"""Replaying the rows of a file as records, at the pace of their times: comet.replay.

file ─► chunks of rows, in a thread ─► records with their times ─► wait until they are due
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from time import sleep
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, overload

from comet.errors import InvalidArgument, SerdeError
from comet.serde import converter_for
from comet.sources import clock
from comet.sources.files import CHUNK_ROWS, Row, opened, time_us

T = TypeVar("T")

TOGETHER_US: Final = 20_000  # rows within it are due together: shorter waits are not worth their wake-ups
OnError = Literal["raise", "skip"]
# Errors of a row that has unexpected values.
INVALID: Final = (SerdeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class ReplayedRow(NamedTuple, Generic[T]):
    """A row of a replayed file. `due_us` is its time moved to now, by the pace; with pace 0 it is `time_us`.

    >>> comet.ReplayedRow({"price": "1.5"}, row=1, time_us=1709285400000000, due_us=1709285400000000).value
    {'price': '1.5'}
    """

    value: T
    row: int  # its number in the file, from 1, without the line of names
    time_us: int
    due_us: int


@overload
def replay(
    path: str | Path, *, time: str, pace: float = ..., on_error: OnError = ..., now_us: Callable[[], int] = ...
) -> Replay[dict[str, Any]]: ...
@overload
def replay(
    path: str | Path,
    *,
    time: str,
    pace: float = ...,
    parse: Callable[[Row, int], T],
    on_error: OnError = ...,
    now_us: Callable[[], int] = ...,
) -> Replay[T]: ...
@overload
def replay(
    path: str | Path,
    type: type[T],
    *,
    time: str,
    pace: float = ...,
    on_error: OnError = ...,
    now_us: Callable[[], int] = ...,
) -> Replay[T]: ...
def replay(
    path: str | Path,
    type: Any = dict,  # noqa: A002 - the name users expect
    *,
    time: str,
    pace: float = 1.0,
    parse: Callable[[Row, int], Any] | None = None,
    on_error: OnError = "raise",
    now_us: Callable[[], int] = clock.now_us,
) -> Replay[Any]:
    r"""Replays the rows of a CSV or Parquet file as records, each when it is due by the column `time`.

    `pace` is a multiple of the file's own speed; 0 is as fast as possible. Rows keep the order of the file, so it
    should be sorted by time; it is read a chunk at a time, however large it is. Parquet needs pyarrow.

    Times are ISO, or seconds, milli-, micro- or nanoseconds since 1970. `type` is a class with a field for each needed
    column, or dict; empty cells are left out, so that fields have their defaults. `parse` makes a record of a row and
    its time instead, in a thread. The first row that is invalid raises SerdeError, which names file, row and column;
    with on_error="skip" such rows are counted and left out. Raises InvalidArgument for a file that cannot be read.

    >>> import tempfile, pathlib
    >>> @comet.model
    ... class Trade:
    ...     symbol: str
    ...     price: float
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trades.csv"
    >>> _ = path.write_text("ts,symbol,price\n2024-03-01T09:30:00Z,EURUSD,1.08\n2024-03-01T09:30:01Z,USDJPY,155.2\n")
    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         async for row in comet.replay(path, Trade, time="ts", pace=100):
    ...             await producer.send("quotes", row.value, key=row.value.symbol, timestamp_us=row.due_us)
    ...             print(row.row, row.value)
    >>> run(example)
    1 Trade(symbol='EURUSD', price=1.08)
    2 Trade(symbol='USDJPY', price=155.2)
    """
    if pace < 0:
        raise InvalidArgument(
            f"invalid pace {pace:g}: use a multiple of the file's speed, or 0 for as fast as possible"
        )
    if on_error not in {"raise", "skip"}:
        raise InvalidArgument(f'on_error must be "raise" or "skip", not {on_error!r}')
    convert = converter_for(type)
    return Replay(Path(path), time, pace, parse or (lambda row, _: convert(row)), on_error, now_us)


class Replay(Generic[T]):
    r"""The result of comet.replay. Each iteration replays the file from its start, with `async for`, or with `for` in
    synchronous code; `batches()` gives rows that are due together. `rows` counts the rows read,
    `skipped` the invalid ones.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "bids.csv"
    >>> _ = path.write_text("ms,bid\n1709285400000,1.1\nnever,1.2\n1709285400001,1.3\n")
    >>> async def example() -> None:
    ...     bids = comet.replay(path, time="ms", pace=0, on_error="skip")
    ...     async for batch in bids.batches():
    ...         print([row.value["bid"] for row in batch], bids.rows, bids.skipped)
    >>> comet.run(example())
    ['1.1', '1.3'] 3 1
    """

    def __init__(
        self,
        path: Path,
        time: str,
        pace: float,
        parse: Callable[[Row, int], T],
        on_error: OnError,
        now_us: Callable[[], int],
    ) -> None:
        self.rows = self.skipped = 0
        self._path = path
        self._time = time
        self._pace = pace
        self._parse = parse
        self._on_error = on_error
        self._now_us = now_us

    def __iter__(self) -> Iterator[ReplayedRow[T]]:
        """The same for synchronous code: the wait is in its thread."""
        timetable = _Timetable(self._pace, self._now_us)
        for chunk in self._chunks():
            for rows in timetable.batches(chunk):
                if (ahead_s := timetable.ahead_s(rows[0])) > 0:
                    sleep(ahead_s)
                yield from rows

    async def __aiter__(self) -> AsyncGenerator[ReplayedRow[T], None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for row in batch:
                    yield row

    async def batches(self) -> AsyncGenerator[list[ReplayedRow[T]], None]:
        """Rows that are due together, as soon as they are; with pace 0, a few thousand at once."""
        timetable = _Timetable(self._pace, self._now_us)
        chunks = self._chunks()
        while chunk := await asyncio.to_thread(next, chunks, None):
            for rows in timetable.batches(chunk):
                if (ahead_s := timetable.ahead_s(rows[0])) > 0:
                    await asyncio.sleep(ahead_s)
                yield rows

    def _chunks(self) -> Iterator[list[ReplayedRow[T]]]:
        """Chunks of rows, made in a thread; never empty, so that an empty list means the end."""
        chunk: list[ReplayedRow[T]] = []
        with opened(self._path) as (names, rows):
            if self._time not in names:
                raise InvalidArgument(f"the file has no column {self._time!r} for the time; it has {', '.join(names)}")
            for number, row in enumerate(rows, 1):
                self.rows += 1
                try:
                    chunk.append(self._row(row, number))
                except SerdeError:
                    if self._on_error == "raise":
                        raise
                    self.skipped += 1
                if len(chunk) >= CHUNK_ROWS:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk

    def _row(self, row: Row, number: int) -> ReplayedRow[T]:
        column = self._time
        try:
            at_us = time_us(row.get(column))
            column = ""
            return ReplayedRow(self._parse(row, at_us), number, at_us, at_us)
        except INVALID as error:
            column = error.details.get("field", "") if isinstance(error, SerdeError) else column
            where = f"{self._path.name}, row {number}" + (f", column {column!r}" if column else "")
            details = {"file": str(self._path), "row": str(number), "column": column}
            raise SerdeError(f"{where}: {error}", details=details) from error


class _Timetable:
    """When the rows of one replay are due: from its first row on, at the pace."""

    def __init__(self, pace: float, now_us: Callable[[], int]) -> None:
        self._pace = pace
        self._now_us = now_us
        self._first_us = self._begin_us = -1

    def batches(self, chunk: list[ReplayedRow[T]]) -> Iterator[list[ReplayedRow[T]]]:
        """The rows with their `due_us`, split into those that are due together."""
        if self._pace == 0:
            yield chunk
            return
        if self._first_us < 0:
            self._first_us, self._begin_us = chunk[0].time_us, self._now_us()
        for rows in spans(chunk, TOGETHER_US, lambda row: row.time_us):
            yield [row._replace(due_us=self._due_us(row.time_us)) for row in rows]

    def _due_us(self, time_us: int) -> int:
        return self._begin_us + round((time_us - self._first_us) / self._pace)

    def ahead_s(self, row: ReplayedRow[Any]) -> float:
        """The time until the row is due."""
        return (row.due_us - self._now_us()) / 1e6 if self._pace else 0.0


def spans(items: Iterable[T], span_us: int, time_us: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits items into parts, in order, each of which spans less than `span_us`.

    >>> list(spans([1, 5, 3, 12, 13], 10, lambda at: at))
    [[1, 5, 3], [12, 13]]
    """
    part: list[T] = []
    low = high = 0
    for item in items:
        at_us = time_us(item)
        if part and not high - span_us < at_us < low + span_us:
            yield part
            part = []
        low, high = (min(low, at_us), max(high, at_us)) if part else (at_us, at_us)
        part.append(item)
    if part:
        yield part
