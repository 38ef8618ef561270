"""Records as an Arrow IPC stream, built from the columns of their batches without an object per record.

    partition  int32
    offset     int64
    timestamp  timestamp[us, UTC]
    key        binary, null if there is none
    value      binary, null for a tombstone
    headers    list<struct<name: string, value: binary>>

Imported at the first use: pyarrow is optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

import comet

Batch = comet.RecordBatch[bytes]

_PAIR = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("item", _PAIR, nullable=False)), nullable=False),
    ]
)


def stream(batches: Iterable[Batch]) -> bytes:
    """Encodes batches one after the other."""
    return _written(_columns(batch) for batch in batches)


def merged(runs: Iterable[tuple[Batch, Sequence[int]]]) -> bytes:
    """Encodes single records of batches, in the given order."""
    return _written(table(runs).combine_chunks().to_batches())


def table(runs: Iterable[tuple[Batch, Sequence[int]]]) -> pa.Table:
    """Single records as a table, which does not reference the batches."""
    parts: list[Any] = []
    begins: dict[int, int] = {}
    chosen: list[int] = []
    total = 0
    for batch, indexes in runs:
        if id(batch) not in begins:
            begins[id(batch)] = total
            parts.append(_columns(batch))
            total += len(batch)
        begin = begins[id(batch)]
        chosen.extend(begin + index for index in indexes)
    return pa.Table.from_batches(parts, schema=SCHEMA).take(pa.array(chosen, pa.int64()))


def _columns(batch: Batch) -> Any:
    columns = batch.to_arrow()
    partition = pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch))
    return pa.RecordBatch.from_arrays([partition, *columns.columns], schema=SCHEMA)


def _written(batches: Iterable[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found
