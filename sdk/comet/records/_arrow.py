"""A decoded batch as a pyarrow.RecordBatch over the same memory.

    offset     int64                                     computed, unless it is a column
    timestamp  timestamp[us, UTC]
    key        binary, null where there is none
    value      binary, null for a tombstone
    headers    list<struct<name: string, value: binary>>

Arrow trusts the offsets it is handed, so every wrapped array is fully validated before it leaves this module, by
Arrow's own code, which takes a fraction of the time ours would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from comet.errors import CorruptBatch, InvalidArgument, pip_install
from comet.records._check import check_nulls
from comet.records._columns import Binary, Columns

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ImportError(f"to_arrow() needs pyarrow: {pip_install('arrow')}") from error

_ONE = pa.scalar(1, pa.int64())
_PAIR = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
_HEADERS = pa.list_(pa.field("item", _PAIR, nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS, nullable=False),
    ]
)


COUNT = pa.array(range(1 << 14), pa.int64())  # what offsets are made of: to count up in Arrow takes ten times as long


def to_arrow(batch: Columns, columns: Iterable[str] | None = None) -> pa.RecordBatch:
    body = _aligned(batch.body)
    schema = SCHEMA if columns is None else chosen(columns)
    arrays = [_MAKERS[name](batch, body) for name in schema.names]
    try:
        for array in arrays:
            array.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise CorruptBatch(f"the columns do not add up: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def chosen(columns: Iterable[str]) -> pa.Schema:
    """Some of the columns. Raises InvalidArgument for an unknown one."""
    names = list(columns)
    for name in names:
        if name not in _MAKERS:
            raise InvalidArgument(f"unknown column: {name!r}; use {', '.join(_MAKERS)}")
    return pa.schema([SCHEMA.field(name) for name in names])


def _aligned(body: memoryview) -> pa.Buffer:
    """The body as an Arrow buffer; copied only where its memory does not start 8-aligned."""
    buffer = pa.py_buffer(body)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(body.tobytes())


def _offsets(batch: Columns, _: pa.Buffer) -> Any:
    first, count = batch.header.base_offset, len(batch)
    if batch.deltas_at >= 0:
        return pa.array(batch.offsets, pa.int64())
    if count <= len(COUNT):
        return pc.add(COUNT.slice(0, count), pa.scalar(first, pa.int64()))
    return pc.cumulative_sum(pa.repeat(_ONE, count), start=pa.scalar(first - 1, pa.int64()))


def _timestamps(batch: Columns, body: pa.Buffer) -> Any:
    kind, count = SCHEMA.field("timestamp").type, len(batch)
    low, high = batch.header.min_timestamp_us, batch.header.max_timestamp_us
    if batch.timestamps_at < 0:
        return pa.repeat(pa.scalar(low, pa.int64()), count).view(kind)
    times = pa.Array.from_buffers(pa.int64(), count, [None, body.slice(batch.timestamps_at, 8 * count)])
    if pc.min_max(times).as_py() != {"min": low, "max": high}:
        raise CorruptBatch("the timestamps differ from those of the header")
    return times.view(kind)


def _keys(batch: Columns, body: pa.Buffer) -> Any:
    if batch.keys_column is None:
        return pa.nulls(len(batch), pa.binary())
    return _nullable(batch, body, batch.keys_column, "keys")


def _values(batch: Columns, body: pa.Buffer) -> Any:
    return _nullable(batch, body, batch.values_column, "values")


def _nullable(batch: Columns, body: pa.Buffer, column: Binary, name: str) -> Any:
    if column.bitmap >= 0:
        check_nulls(batch.body, column, len(batch), name)  # Arrow does not check that nulls have no bytes
    return _binary(body, column, len(batch), pa.binary())


def _binary(body: pa.Buffer, column: Binary, count: int, kind: Any) -> Any:
    _starts_at_zero(body, column.offsets)
    bitmap = None if column.bitmap < 0 else body.slice(column.bitmap, (count + 7) // 8)
    offsets = body.slice(column.offsets, 4 * count + 4)
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, body.slice(column.data, column.size)])


def _starts_at_zero(body: pa.Buffer, at: int) -> None:
    """Arrow allows a column to begin later; this format does not."""
    if body.slice(at, 4).to_pybytes() != bytes(4):
        raise CorruptBatch("an offsets column does not start at 0")


def _headers(batch: Columns, body: pa.Buffer) -> Any:
    count = len(batch)
    if batch.header_columns is None:
        none = pa.StructArray.from_arrays([pa.array([], pa.string()), pa.array([], pa.binary())], fields=list(_PAIR))
        return pa.Array.from_buffers(_HEADERS, count, [None, pa.py_buffer(bytes(4 * count + 4))], children=[none])
    lists_at, names, values, total = batch.header_columns
    _starts_at_zero(body, lists_at)
    arrays = [_binary(body, names, total, pa.string()), _binary(body, values, total, pa.binary())]
    pairs = pa.StructArray.from_arrays(arrays, fields=list(_PAIR))
    return pa.Array.from_buffers(_HEADERS, count, [None, body.slice(lists_at, 4 * count + 4)], children=[pairs])


_MAKERS: Final[dict[str, Callable[[Columns, pa.Buffer], Any]]] = {
    "offset": _offsets, "timestamp": _timestamps, "key": _keys, "value": _values, "headers": _headers,
}  # fmt: skip
