"""Export of matches as a file: NDJSON, a JSON array, CSV, Parquet.

Written during the scan; a writer holds only its last input, or for Parquet the rows of one group.

    ndjson    one record a line, in the API's form
    json      the same in one array
    csv       partition, offset, timestamp, key, value, headers (as JSON); bytes that are not UTF-8 are base64:…
    parquet   the columns of `arrow`; needs pyarrow
"""

from __future__ import annotations

import asyncio
import csv
import io
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from importlib.util import find_spec
from typing import Any, Final, Protocol

import msgspec

from comet.errors import pip_install
from comet_gateway.config import MIB
from comet_gateway.http.problems import Problem
from comet_gateway.records.csv import safe
from comet_gateway.records.record_json import Values, each
from comet_gateway.search.scan import Batch, Hit, Scan

GROUP_ROWS: Final = 100_000
GROUP_BYTES: Final = 16 * MIB
AT_ONCE: Final = 500  # records that are written before other tasks get a turn


class Format(Enum):
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"


CONTENT_TYPES: Final = {
    Format.JSON: b"application/json",
    Format.NDJSON: b"application/x-ndjson",
    Format.CSV: b"text/csv; charset=utf-8",
    Format.PARQUET: b"application/vnd.apache.parquet",
}


class Writer(Protocol):
    def begin(self) -> bytes: ...
    async def add(self, hits: Sequence[Hit]) -> bytes: ...
    async def end(self) -> bytes: ...


def writer(form: Format, values: Values) -> Writer:
    """Creates the writer of a format. Raises NOT_ACCEPTABLE if pyarrow is missing."""
    match form:
        case Format.PARQUET:
            if find_spec("pyarrow") is None:
                hint = f"On the gateway: {pip_install('arrow')}."
                raise Problem("NOT_ACCEPTABLE", "this gateway cannot write Parquet without pyarrow", hint=hint)
            return _Parquet()
        case Format.CSV:
            return _Csv()
        case Format.JSON:
            return _Array(values)
        case Format.NDJSON:
            return _Lines(values)


async def exported(scan: Scan, into: Writer) -> AsyncGenerator[bytes]:
    """The file, part by part. Raises Problem; TIMEOUT if the scan does not end in time."""
    head = into.begin()
    async for hits in scan.run():
        yield head  # after the first read, which may still set the status
        head = b""
        for at in range(0, len(hits), AT_ONCE):
            yield await into.add(hits[at : at + AT_ONCE])
            await asyncio.sleep(0)
    if scan.reason == "budget":
        raise Problem("TIMEOUT", f"the export was not complete after {scan.seconds:.0f} s: export less at once")
    yield head + await into.end()


class _Lines:
    def __init__(self, values: Values) -> None:
        self._values = values

    def begin(self) -> bytes:
        return b""

    async def add(self, hits: Sequence[Hit]) -> bytes:
        return b"".join([text + b"\n" for text in each((hit.record for hit in hits), self._values)])

    async def end(self) -> bytes:
        return b""


class _Array:
    def __init__(self, values: Values) -> None:
        self._values = values
        self._between = b""

    def begin(self) -> bytes:
        return b"["

    async def add(self, hits: Sequence[Hit]) -> bytes:
        texts = each((hit.record for hit in hits), self._values)
        if not texts:
            return b""
        found = self._between + b",\n".join(texts)
        self._between = b",\n"
        return found

    async def end(self) -> bytes:
        return b"]\n"


class _Csv:
    """Writes CSV. Text that looks like a formula to a spreadsheet gets an apostrophe before it."""

    COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")

    def begin(self) -> bytes:
        return _row(self.COLUMNS)

    async def add(self, hits: Sequence[Hit]) -> bytes:
        return b"".join(map(self._row, hits))

    def _row(self, hit: Hit) -> bytes:
        record = hit.record
        time = _time(record.timestamp_us)
        headers = [[name, _text(value)] for name, value in record.headers]
        header_text = msgspec.json.encode(headers).decode() if headers else ""
        cells = (safe(_text(record.key)), safe(_text(record.value)), header_text)
        return _row((record.partition, record.offset, time, *cells))

    async def end(self) -> bytes:
        return b""


def _row(cells: Sequence[object]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue().encode()


def _time(timestamp_us: int) -> str:
    """ISO 8601; a time beyond the calendar stays a number."""
    try:
        return datetime.fromtimestamp(timestamp_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_us)


def _text(value: bytes | None) -> str:
    if value is None:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + b64encode(value).decode()


class _Parquet:
    """Writes Parquet. Rows are collected into groups, which a thread writes."""

    def __init__(self) -> None:
        import pyarrow.parquet as pq

        from comet_gateway.records import arrow

        self._arrow = arrow
        self._sink = _Sink()
        self._writer: Any = pq.ParquetWriter(self._sink, arrow.SCHEMA, compression="zstd")
        self._tables: list[Any] = []
        self._rows = 0
        self._bytes = 0

    def begin(self) -> bytes:
        return self._sink.take()

    async def add(self, hits: Sequence[Hit]) -> bytes:
        if not hits:
            return b""
        table = self._arrow.table(_runs(hits))
        self._tables.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        return await self._group() if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES else b""

    async def _group(self) -> bytes:
        tables, self._tables, self._rows, self._bytes = self._tables, [], 0, 0
        await asyncio.to_thread(self._write, tables)
        return self._sink.take()

    def _write(self, tables: list[Any]) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.concat_tables(tables))

    async def end(self) -> bytes:
        rest = await self._group() if self._tables else b""
        await asyncio.to_thread(self._writer.close)
        return rest + self._sink.take()


class _Sink(io.RawIOBase):
    """A file object in memory, for the Parquet writer; `take` empties it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _runs(hits: Sequence[Hit]) -> Iterator[tuple[Batch, list[int]]]:
    """Consecutive matches of one batch, together."""
    batch, indexes = hits[0].batch, list[int]()
    for hit in hits:
        if hit.batch is not batch:
            yield batch, indexes
            batch, indexes = hit.batch, []
        indexes.append(hit.number)
    yield batch, indexes
