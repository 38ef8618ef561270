"""Converts the columns of a frame to arguments of a producer. The columns are those of Spark's Kafka sink:

value        string or binary       required; null is a tombstone
key          string or binary
topic        string                 required without the option `topic`
partition    int                    null: by the key
headers      array<struct<key: string, value: binary>>
timestamp    timestamp              null: the time of writing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from comet.errors import InvalidArgument


class Part(NamedTuple):
    """Rows of one topic, for one partition or by their keys, in order."""

    topic: str
    partition: int | None
    columns: dict[str, Any]  # values, and the other arguments of `send_many`


def check(schema: StructType, topic: str) -> None:
    """Raises InvalidArgument for a frame that cannot be written."""
    for field in schema.fields:
        if field.name not in _KINDS:
            raise InvalidArgument(
                f"unknown column {field.name!r}; a topic takes {', '.join(_KINDS)}: drop it, or put it into the value, "
                "as in select('key', to_json(struct('*')).alias('value'))"
            )
        expected, fits = _KINDS[field.name]
        if not fits(field.dataType):
            raise InvalidArgument(f"the column {field.name} is {expected}, not {field.dataType.simpleString()}")
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidArgument("the column value is missing: add it, as string or binary")
    if not topic and "topic" not in names:
        raise InvalidArgument("no topic given: set the option topic, or add a column topic")
    twice = sorted(name for name in set(names) if names.count(name) > 1)
    if twice:
        raise InvalidArgument(f"duplicate column {twice[0]!r}")


def parts(batch: pa.RecordBatch, topic: str) -> Iterator[Part]:
    """Groups rows by topic and partition; the rows of each keep their order."""
    by = [name for name in ("topic", "partition") if name in batch.schema.names and not (topic and name == "topic")]
    if not by:
        yield Part(topic, None, _columns(batch))
        return
    order = pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in by])  # stable
    batch = batch.take(order)
    keys = [batch.column(name).to_pylist() for name in by]
    at = 0
    for key, same in groupby(zip(*keys, strict=True)):
        count = sum(1 for _ in same)
        named: dict[str, Any] = dict(zip(by, key, strict=True))
        to = topic or named["topic"]
        if to is None:
            raise InvalidArgument("a row has no topic: the column topic is null")
        yield Part(to, named.get("partition"), _columns(batch.slice(at, count)))
        at += count


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return {
        _ARGUMENTS[field.name]: _TAKEN[field.name](batch.column(index))
        for index, field in enumerate(batch.schema)
        if field.name in _ARGUMENTS
    }


def _octets(column: pa.Array) -> list[bytes | None]:
    """Text is UTF-8 already: the same memory is read as bytes."""
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    kind = kinds.get(column.type)
    return (column if kind is None else column.cast(kind)).to_pylist()  # type: ignore[no-any-return]


def _times(column: pa.Array) -> list[int | None]:
    return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _headers(column: pa.Array) -> list[list[tuple[str, bytes]] | None]:
    rows = column.to_pylist()
    if any(row and None in row for row in rows):
        raise InvalidArgument("a header is null: leave it out of the column headers")
    return [row and [(one["key"], one["value"]) for one in row] for row in rows]


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return [(field.name, type(field.dataType)) for field in fields] == [("key", StringType), ("value", BinaryType)]


def _is_octets(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


_KINDS: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "value": ("string or binary", _is_octets),
    "key": ("string or binary", _is_octets),
    "topic": ("string", lambda kind: isinstance(kind, StringType)),
    "partition": ("int", lambda kind: isinstance(kind, IntegerType)),
    "headers": ("array<struct<key: string, value: binary>>", _is_headers),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
}
_ARGUMENTS: Final = {"value": "values", "key": "keys", "headers": "headers", "timestamp": "timestamps_us"}
_TAKEN: Final[dict[str, Callable[[pa.Array], list[Any]]]] = {
    "value": _octets,
    "key": _octets,
    "headers": _headers,
    "timestamp": _times,
}
