"""From the columns of the log to those of a frame. No record is touched: arrays are wrapped, repeated or cast.

    key, value   binary                 value is a struct where the option `schema` says what values are
    topic        string
    partition    int
    offset       bigint
    timestamp    timestamp
    headers      array<struct<key: string, value: binary>>, with includeHeaders

A frame may have fewer of them, in any order: `.schema("offset bigint, value binary")`; what is not asked for is not
made. Where `value` is a struct, values are JSON objects, of which its fields are taken and others left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from comet import RecordBatch
from comet.errors import InvalidArgument, SerdeError
from comet.spark import events
from comet.spark.options import SourceOptions

Maker = Callable[[RecordBatch[bytes], pa.RecordBatch], pa.Array]

PLAIN: Final = "key binary, value {value}, topic string, partition int, offset bigint, timestamp timestamp"
HEADERS: Final = ", headers array<struct<key: string, value: binary>>"
_ANOTHER: Final = r"\}\s*\{"  # an object ends and the next begins, within one value
_BLOCK_BYTES_MAX: Final = (1 << 31) - 1
_SHOWN: Final = 40  # bytes of a value that is wrong


def ddl(options: SourceOptions) -> str:
    """The columns of a frame, unless fewer are asked for."""
    value = f"struct<{events.ddl(options.event)}>" if options.event else "binary"
    return PLAIN.format(value=value) + (HEADERS if options.headers else "")


class Columns:
    """Makes the batches of one frame. Cheap; made anew in each task."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._makers = [_maker(field, options) for field in self.schema]

    def of(self, batch: RecordBatch[bytes]) -> pa.RecordBatch:
        arrow = batch.to_arrow()
        return pa.RecordBatch.from_arrays([maker(batch, arrow) for maker in self._makers], schema=self.schema)


def _maker(field: pa.Field, options: SourceOptions) -> Maker:
    name, kind = field.name, field.type
    if name in {"topic", "partition"}:
        return lambda batch, arrow: pa.repeat(pa.scalar(getattr(batch, name), kind), len(arrow))
    if name == "value" and pa.types.is_struct(kind):
        return Decoder(kind, permissive=options.permissive).decode
    if name in {"key", "value", "offset", "timestamp"}:
        return lambda _, arrow: _as(arrow.column(name), kind)
    if name == "headers":
        return lambda _, arrow: _headers(arrow.column(name), kind)
    raise InvalidArgument(
        "a frame of a topic has the columns key, value, topic, partition, offset, timestamp and headers, and no "
        f"{name!r}; the fields of values are below `value`: .option('schema', …), then select('value.*')"
    )


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _headers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same memory, under Spark's names."""
    struct, pairs = kind.value_type, array.values
    renamed = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=[struct.field(0), struct.field(1)])
    return pa.ListArray.from_arrays(array.offsets, renamed, type=kind)


class Decoder:
    """Values that are JSON objects, into the columns of a struct: by Arrow's reader, a batch at a time."""

    def __init__(self, kind: pa.DataType, *, permissive: bool) -> None:
        self._kind = kind
        self._permissive = permissive
        self._parse = pa_json.ParseOptions(
            explicit_schema=pa.schema(list(kind)), newlines_in_values=False, unexpected_field_behavior="ignore"
        )

    def decode(self, batch: RecordBatch[bytes], arrow: pa.RecordBatch) -> pa.Array:
        values = arrow.column("value")
        found = None if values.null_count else self._whole(values)
        return self._one_by_one(batch, values) if found is None else found

    def _whole(self, values: pa.Array) -> pa.Array | None:
        """All of a column at once; None where it is not one object per value."""
        # Objects that follow each other in the column's memory are read from there, without anything between them.
        # With as many objects as values, and no value in which one ends and another begins, each value is one of them.
        if len(values) != 1 and pc.any(pc.match_substring_regex(values, _ANOTHER), min_count=0).as_py():
            return None
        text = _bytes_of(values)
        options = pa_json.ReadOptions(use_threads=False, block_size=min(max(text.size, 1), _BLOCK_BYTES_MAX))
        try:
            table = pa_json.read_json(pa.BufferReader(text), read_options=options, parse_options=self._parse)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(values):
            return None
        columns = [pa.concat_arrays(table.column(field.name).chunks) for field in self._kind]
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))

    def _one_by_one(self, batch: RecordBatch[bytes], values: pa.Array) -> pa.Array:
        """Finds what is wrong, and says so, or makes nulls of it. A tombstone is null."""
        rows: list[Any] = []
        for offset, value in zip(batch.offsets, values.to_pylist(), strict=True):
            row = None if value is None else self._whole(pa.array([value], pa.binary()))
            if row is None and value is not None and not self._permissive:
                raise SerdeError(
                    f"record {offset} of {batch.topic}/{batch.partition} is no {self._kind}: its value begins with "
                    f"{value[:_SHOWN]!r}. With the option mode=permissive it would be null",
                    details={"topic": batch.topic, "partition": str(batch.partition), "offset": str(offset)},
                )
            rows.append(pa.nulls(1, self._kind) if row is None else row)
        return pa.concat_arrays(rows)


def _bytes_of(values: pa.Array) -> pa.Buffer:
    """All of a binary column, one value after the other."""
    _, offsets, data = values.buffers()
    ends = (values.offset, values.offset + len(values))
    first, last = (int.from_bytes(offsets.slice(4 * at, 4).to_pybytes(), "little") for at in ends)
    return data.slice(first, last - first)
