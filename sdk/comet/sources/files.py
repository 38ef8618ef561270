"""The rows of CSV and Parquet files, read a chunk at a time, and times as files have them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias

from comet.errors import InvalidArgument, pip_install
from comet.types import timestamp_us

CHUNK_ROWS: Final = 4_096
LINE_CHARS_MAX: Final = 1 << 16  # a longer line counts as several
TIME_US_MAX: Final = 1 << 53  # the year 2255
# Seconds, milliseconds, microseconds and nanoseconds of our time are this far apart.
_UNITS: Final = ((10**11, 1_000_000.0), (10**14, 1_000.0), (10**17, 1.0), (1 << 63, 0.001))

Row: TypeAlias = Mapping[str, Any]  # by column, without empty cells


@contextmanager
def opened(path: Path) -> Iterator[tuple[list[str], Iterator[Row]]]:
    """The names of a file's columns, and its rows. Its ending tells Parquet (.parquet, .pq) from CSV.

    Raises InvalidArgument for a file that cannot be read, also while rows are read. An unreadable line of CSV is an
    empty row.
    """
    if not path.is_file():
        raise InvalidArgument(f"the file {str(path)!r} does not exist")
    read = _parquet if path.suffix.lower() in {".parquet", ".pq"} else _csv
    with read(path) as (names, rows):
        yield names, map(_without_empty, rows)


def _without_empty(row: Row) -> Row:
    return {name: value for name, value in row.items() if name and not _empty(value)}


def _empty(value: Any) -> bool:
    """Whether a cell has no value, which some files write as NaN."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


@contextmanager
def _csv(path: Path) -> Iterator[tuple[list[str], Iterator[Row]]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = csv.DictReader(iter(lambda: file.readline(LINE_CHARS_MAX), ""))
        names = [name for name in lines.fieldnames or () if name]
        if not names:
            raise InvalidArgument(f"{str(path)!r} is empty: the first line must name the columns")
        yield names, _readable(lines)


def _readable(lines: Iterator[Row]) -> Iterator[Row]:
    while True:
        try:
            yield next(lines)
        except StopIteration:
            return
        except csv.Error:
            yield {}


@contextmanager
def _parquet(path: Path) -> Iterator[tuple[list[str], Iterator[Row]]]:
    try:
        import pyarrow
        from pyarrow import compute, parquet
    except ImportError:
        raise InvalidArgument(f"reading Parquet needs pyarrow: {pip_install('arrow')}") from None

    def times(column: Any) -> Any:
        """Timestamps that Python can hold: no nanoseconds, and not after the year 9999."""
        whole = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
        number = whole.cast(pyarrow.int64())
        known = compute.and_(compute.greater(number, 0), compute.less(number, TIME_US_MAX))
        return compute.if_else(known, whole, pyarrow.scalar(None, whole.type))

    def rows(file: Any) -> Iterator[Row]:
        for batch in file.iter_batches(batch_size=CHUNK_ROWS):
            columns = [times(one) if pyarrow.types.is_timestamp(one.type) else one for one in batch.columns]
            yield from pyarrow.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()

    try:
        with parquet.ParquetFile(path) as file:
            yield file.schema_arrow.names, rows(file)
    except pyarrow.ArrowException as error:
        raise InvalidArgument(f"{str(path)!r} is not a Parquet file: {error}") from error


def time_us(value: Any) -> int:
    """Microseconds since 1970, from a time as files have it: ISO, where UTC is the default, a datetime, or a number of
    seconds, milli-, micro- or nanoseconds, as large as it is. Raises ValueError or TypeError for any other value.

    >>> time_us("2024-03-01 09:30:00.5"), time_us("1709285400.5"), time_us(1709285400500)
    (1709285400500000, 1709285400500000, 1709285400500000)
    """
    if hasattr(value, "isoformat"):  # a date has no time zone
        value = value.isoformat()
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    at_us = _of_text(value.strip()) if isinstance(value, str) else _of_number(value)
    if not 0 < at_us < TIME_US_MAX:
        raise ValueError(f"{value!r} is too early or too late for a time")
    return at_us


def _of_text(text: str) -> int:
    for kind in (int, float):
        try:
            return _of_number(kind(text))
        except ValueError:
            pass
    when = datetime.fromisoformat(text)
    return timestamp_us(when if when.tzinfo is not None else when.replace(tzinfo=UTC))


def _of_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a time")
    unit = next((unit for limit, unit in _UNITS if abs(value) < limit), 0.0)
    # A float cannot hold whole microseconds and nanoseconds.
    return int(value if unit == 1.0 else value // 1000 if unit == 0.001 else round(value * unit))
