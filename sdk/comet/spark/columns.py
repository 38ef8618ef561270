"""Converts the columns of the log to those of a frame. No record is touched: arrays are wrapped, repeated or cast.

    key, value   binary                 value is a struct with the option `schema`
    topic        string
    partition    int
    offset       bigint
    timestamp    timestamp
    headers      array<struct<key: string, value: binary>>, with includeHeaders
    append_time  timestamp              with includeAppendTime

A frame may have fewer columns, in any order: `.schema("offset bigint, value binary")`; other columns are not built. If
`value` is a struct, values are JSON objects; fields that it lacks are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from comet.encryption.envelope import key_id_of
from comet.errors import InvalidArgument, SerdeError
from comet.records._arrow import SCHEMA
from comet.spark import value_types
from comet.spark.coalesce import Columnar, append_times
from comet.spark.decoder import Decoder, Undecodable
from comet.spark.options import SourceOptions

Maker = Callable[[Columnar, pa.RecordBatch], pa.Array]

PLAIN: Final = "key binary, value {value}, topic string, partition int, offset bigint, timestamp timestamp"
HEADERS: Final = ", headers array<struct<key: string, value: binary>>"
APPEND_TIME: Final = ", append_time timestamp"
_AS: Final = {  # the types that each column can have
    "key": ("binary", "string"),
    "value": ("binary", "string", "struct"),
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "append_time": ("timestamp", "timestamp_ntz"),
}
MAYBE_NULL: Final = ("key", "value")
OF_PARTITION: Final = ("topic", "partition")  # the same for all records of a partition
_SHOWN: Final = 40  # bytes of an invalid value in an error


def ddl(options: SourceOptions) -> str:
    """The columns of a frame by default."""
    value = f"struct<{value_types.ddl(options.event)}>" if options.event else "binary"
    more = (HEADERS if options.headers else "") + (APPEND_TIME if options.append_time else "")
    return PLAIN.format(value=value) + more


def check(schema: StructType) -> None:
    """Raises InvalidArgument for unknown columns and for columns of another type."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in _AS:
            raise InvalidArgument(
                f"unknown column {field.name!r}; a topic has {', '.join(_AS)}. The fields of values are in `value`: "
                ".option('schema', …), then select('value.*')"
            )
        if names.count(field.name) > 1:
            raise InvalidArgument(f"duplicate column {field.name!r}")
        kind = field.dataType.typeName() if isinstance(field.dataType, StructType) else field.dataType.simpleString()
        if kind not in _AS[field.name]:
            raise InvalidArgument(f"the column {field.name} is {' or '.join(_AS[field.name])}, not {kind}: cast it")
        if field.name in MAYBE_NULL and not field.nullable:
            raise InvalidArgument(f"the column {field.name} is null for records without one: remove 'not null'")


class SparkColumns:
    """Builds the batches of one frame. Cheap; created in each task. `names` are the JSON names of fields."""

    def __init__(self, schema: StructType, options: SourceOptions, names: value_types.Names | None = None) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._makers = [_maker(field, options, names) for field in self.schema]
        self._of_log = [field.name for field in self.schema if field.name in SCHEMA.names]

    def of(self, batch: Columnar) -> pa.RecordBatch:
        arrow = batch.to_arrow(self._of_log)
        return pa.RecordBatch.from_arrays([maker(batch, arrow) for maker in self._makers], schema=self.schema)


def _maker(field: pa.Field, options: SourceOptions, names: value_types.Names | None) -> Maker:
    name, kind = field.name, field.type
    if name in OF_PARTITION:
        return lambda batch, _: pa.repeat(pa.scalar(getattr(batch, name), kind), len(batch))
    if name == "value" and pa.types.is_struct(kind):
        return _decoded(kind, options, names)
    if pa.types.is_string(kind):
        return _text(name, kind, secret=name == "value" and bool(options.keyring))
    if name in {"key", "value", "offset", "timestamp"}:
        return lambda _, arrow: _as(arrow.column(name), kind)
    if name == "headers":
        return lambda _, arrow: _headers(arrow.column(name), kind)
    assert name == "append_time", name
    return lambda batch, _: append_times(batch).view(kind)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _text(name: str, kind: pa.DataType, *, secret: bool) -> Maker:
    def text(batch: Columnar, arrow: pa.RecordBatch) -> pa.Array:
        try:
            return arrow.column(name).cast(kind)
        except pa.ArrowInvalid:
            at, found = next(
                (at, found) for at, found in enumerate(arrow.column(name).to_pylist()) if not _is_text(found)
            )
            hint = "Read it as binary"
            raise _wrong(batch, at, f"a {name} that is not UTF-8", found, hint, secret=secret) from None

    return text


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _wrong(batch: Columnar, at: int, what: str, value: bytes, hint: str, *, secret: bool = False) -> SerdeError:
    offset = batch.offsets[at]
    key_id = key_id_of(value)
    if key_id is not None:
        shown = f". It is encrypted with key {key_id!r}. The option keyring names the file of its key"
    else:
        shown = f". {hint}" if secret else f"; it begins with {value[:_SHOWN]!r}. {hint}"
    return SerdeError(
        f"record {offset} of {batch.topic}/{batch.partition} has {what}{shown}",
        details={"topic": batch.topic, "partition": str(batch.partition), "offset": str(offset)},
    )


def _headers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same memory, with Spark's field names."""
    struct, pairs = kind.value_type, array.values
    renamed = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=[struct.field(0), struct.field(1)])
    return pa.ListArray.from_arrays(array.offsets, renamed, type=kind)


def _decoded(kind: pa.DataType, options: SourceOptions, names: value_types.Names | None) -> Maker:
    decoder = Decoder(kind, names)

    def decode(batch: Columnar, arrow: pa.RecordBatch) -> pa.Array:
        try:
            return decoder.decode(arrow.column("value"), permissive=options.permissive)
        except Undecodable as error:
            value = batch.values[error.at] or b""
            hint = "With the option mode=permissive it is null"
            # A value that was decrypted is not quoted: the error goes to Spark's logs and pages.
            secret = bool(options.keyring)
            reason = "" if secret else f": {error}"
            raise _wrong(batch, error.at, f"a value that is not a {kind}{reason}", value, hint, secret=secret) from None

    return decode
