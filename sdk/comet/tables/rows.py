"""The rows of a table as the values, keys and times of records. Pure.

schema ─► plan: the columns, with checked types ─► chunk of rows ─► arguments of send_many
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from comet.errors import InvalidArgument, SerdeError
from comet.serde import serde_for

_TEXTS: Final = {"string", "large_string", "string_view", "binary", "large_binary", "binary_view"}


class RecordColumns(NamedTuple):
    """A chunk, as columns of records."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps_us: list[int | None] | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan by which rows become records."""

    key: str | None
    timestamp: str | None
    plain: str | None  # a column that is the value, else
    fields: Sequence[str]  # the fields of the JSON object
    encode: Callable[[dict[str, Any]], bytes]

    def rows(self, chunk: pa.RecordBatch, first: int) -> RecordColumns:
        """The columns of a chunk; `first` is the number of its first row. Raises SerdeError for an invalid row."""
        values = self._objects(chunk, first) if self.plain is None else _bytes(chunk.column(self.plain))
        keys = None if self.key is None else _bytes(chunk.column(self.key))
        times = None if self.timestamp is None else _times(chunk.column(self.timestamp), self.timestamp)
        return RecordColumns(values, keys, times)

    def _objects(self, chunk: pa.RecordBatch, first: int) -> list[bytes | None]:
        lists = [_list(chunk, name, first) for name in self.fields]
        values: list[bytes | None] = []
        try:
            values.extend(self.encode(dict(zip(self.fields, row, strict=True))) for row in zip(*lists, strict=True))
        except (SerdeError, ValueError, TypeError, OverflowError) as error:
            at = first + len(values)
            raise SerdeError(f"row {at}: {error}", details={"row": str(at)}) from error
        return values


def plan_of(
    schema: pa.Schema, *, key: str | None, value: str | Iterable[str] | None, kind: Any, timestamp: str | None
) -> Plan:
    """Makes the plan. Raises InvalidArgument for unknown columns, or columns of the wrong type."""
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise InvalidArgument(f"two columns are named {repeated[0]!r}; rename one")
    if key is not None:
        _check_text(schema, "key", key, "cast it")
    if timestamp is not None:
        _check_times(schema, timestamp)
    if not isinstance(value, str):
        fields = list(schema.names) if value is None else list(value)
        encode = _encode if kind is None else _encoder_of(kind)
        return Plan(key, timestamp, None, _checked(schema, fields, kind, chosen=value is not None), encode)
    if kind is not None:
        raise InvalidArgument(f"column {value!r} is the whole value and cannot have a type: leave out value or type")
    _check_text(schema, "value", value, f"for JSON objects with this field use value=[{value!r}]")
    return Plan(key, timestamp, value, (), _encode)


# ---- types of columns


def _check_there(schema: pa.Schema, role: str, name: str) -> None:
    if name not in schema.names:
        raise InvalidArgument(f"{role}: unknown column {name!r}; use one of {', '.join(schema.names)}")


def _check_text(schema: pa.Schema, role: str, name: str, advice: str) -> None:
    _check_there(schema, role, name)
    kind = schema.field(name).type
    if str(kind.value_type if pa.types.is_dictionary(kind) else kind) not in _TEXTS:
        raise InvalidArgument(f"{role}: column {name!r} must be text or bytes, not {kind}; {advice}")


def _check_times(schema: pa.Schema, name: str) -> None:
    _check_there(schema, "timestamp", name)
    kind = schema.field(name).type
    if not (pa.types.is_timestamp(kind) or kind == pa.int64()):
        raise InvalidArgument(f"timestamp: column {name!r} must be times, or microseconds since 1970, not {kind}")


def _checked(schema: pa.Schema, columns: list[str], kind: Any, *, chosen: bool) -> list[str]:
    """The columns of a value."""
    for name in columns:
        _check_there(schema, "value", name)
    fields = columns if kind is None else _fields_of(kind, columns, chosen=chosen)
    if not fields:
        raise InvalidArgument("a value needs at least one column")
    for name in fields:
        _check_json(name, schema.field(name).type)
    return fields


def _check_json(name: str, kind: pa.DataType) -> None:
    """Checks that JSON has the type, with all types inside it."""
    if pa.types.is_map(kind) and str(kind.key_type) not in {"string", "large_string", "string_view"}:
        raise InvalidArgument(f"column {name!r}: keys in JSON are text, those of {kind} are not")
    if pa.types.is_union(kind) or pa.types.is_interval(kind):
        raise InvalidArgument(f"column {name!r}: {kind} has no JSON form; cast it")
    if pa.types.is_dictionary(kind):
        _check_json(name, kind.value_type)
    for at in range(kind.num_fields):
        _check_json(name, kind.field(at).type)


def _fields_of(kind: Any, columns: list[str], *, chosen: bool) -> list[str]:
    """The columns that are fields of the class; checks that no required field is missing."""
    codec = serde_for(kind)
    if hasattr(kind, "__pydantic_fields__"):
        known = {name: field.is_required() for name, field in kind.__pydantic_fields__.items()}
    else:
        fields = getattr(msgspec.inspect.type_info(kind), "fields", ())
        known = {field.encode_name: field.required for field in fields}
    if not known:
        raise InvalidArgument(f"{codec.name} has no fields to fill from columns")
    missing = [name for name, required in known.items() if required and name not in columns]
    if missing:
        raise InvalidArgument(f"{codec.name} needs a field {missing[0]!r}, but no column has this name")
    strange = [name for name in columns if name not in known]
    if strange and chosen:
        raise InvalidArgument(f"{codec.name} has no field {strange[0]!r}")
    return [name for name in columns if name in known]


# ---- values


def _encode(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(row)


def _encoder_of(kind: Any) -> Callable[[dict[str, Any]], bytes]:
    """Converts through the class, so that an invalid row is found."""
    codec = serde_for(kind)
    if hasattr(kind, "__pydantic_validator__"):
        validate = kind.__pydantic_validator__.validate_python
        return lambda row: codec.encode(validate(row))
    return lambda row: codec.encode(msgspec.convert(row, kind))


def _bytes(column: pa.Array) -> list[bytes | None]:
    return [one.encode() if isinstance(one, str) else one for one in column.to_pylist()]


def _times(column: pa.Array, name: str) -> list[int | None]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    least = pc.min(column).as_py()
    if least is not None and least < 0:
        raise InvalidArgument(f"timestamp: column {name!r} has times before 1970, which records cannot have")
    found: list[int | None] = column.to_pylist()
    return found


def _list(chunk: pa.RecordBatch, name: str, first: int) -> list[Any]:
    """The values of a column. Raises SerdeError for values that Python lacks, such as a time after the year 9999."""
    try:
        return _python(chunk.column(name))
    except (ArithmeticError, ValueError) as error:
        last = first + chunk.num_rows - 1
        raise SerdeError(f"column {name!r}, in rows {first} to {last}: {error}") from error


def _python(column: pa.Array) -> list[Any]:
    """Converts a column for JSON: times to the microsecond, maps to objects, NaN to null."""
    kind = _to_microseconds(column.type)
    if kind != column.type:
        column = column.cast(kind, safe=False)
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
    values: list[Any] = column.to_pylist()
    return [_with_objects(value, kind) for value in values] if "map<" in str(kind) else values


def _to_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with times in microseconds: Python has no finer ones."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_to_microseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_to_microseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_to_microseconds(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_to_microseconds(kind.value_type)), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_to_microseconds(kind.item_type)))
    if pa.types.is_dictionary(kind) and (inner := _to_microseconds(kind.value_type)) != kind.value_type:
        return inner
    return kind


def _with_objects(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {name: _with_objects(one, kind.item_type) for name, one in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_objects(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_with_objects(one, kind.value_type) for one in value]
    return value
