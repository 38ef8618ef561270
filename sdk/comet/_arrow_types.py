"""What values are as Arrow columns: from a type of events, or from a pyarrow.Schema.

    class        its fields, by name; Optional ones may be null, nested classes are structs
    pa.Schema    its fields, of JSON objects; what is missing is null, what is more is left
    str, int, …  one column
    bytes, None  one column, the bytes as they are

Where Arrow's reader of JSON gives what the codec of the type gives, a shape is `direct`: then whole columns are read at
once. It is not where the codec does more than to read: constraints, enumerations, renamed fields, validators.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NoReturn

import msgspec
import pyarrow as pa
from msgspec import inspect

from comet.errors import InvalidArgument

_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
LONG_TEXT: Final = ("large_string", "string_view")  # as Polars has it; Arrow's reader of JSON has one kind of text
_ADVICE: Final = "give the columns as a pyarrow.Schema instead"


def _as_it_is(value: Any) -> Any:
    return value


def _attribute(value: Any, name: str) -> Any:
    return getattr(value, name)


def _item(value: Any, name: str) -> Any:
    return value.get(name)


@dataclass(frozen=True, slots=True)
class Shape:
    """A type. `plain` makes of a value what Arrow takes for it."""

    kind: pa.DataType
    plain: Callable[[Any], Any] = _as_it_is
    direct: bool = False
    nullable: bool = False
    null_is_sure: bool = False  # where nothing stands, the codec would give None as well
    fields: tuple[tuple[str, Shape], ...] = ()  # of a struct
    inner: Shape | None = None  # of a list
    by_fields: bool = False  # a struct, of which nothing but its fields decides what is one
    get: Callable[[Any, str], Any] = _attribute  # a struct's field of a value


def shape_of(kind: Any) -> Shape:
    """Raises InvalidArgument for what has no columns, naming the field."""
    if isinstance(kind, pa.Schema):
        return _of_arrow(pa.struct(list(kind)), "the schema")
    if kind is dict or kind is Any or kind is object:
        raise InvalidArgument(f"{kind!r} does not say which columns there are: give a class, or a pyarrow.Schema")
    return _of_hint(kind, getattr(kind, "__qualname__", str(kind)), ())


# ---- classes


def _of_hint(hint: Any, where: str, within: tuple[Any, ...]) -> Shape:
    try:
        return _of_info(inspect.type_info(hint), where, within)
    except (TypeError, NameError) as error:
        raise InvalidArgument(f"{where} has no columns: {error}") from None


def _of_info(info: inspect.Type, where: str, within: tuple[Any, ...]) -> Shape:
    free = all(getattr(info, name, None) is None for name in _CONSTRAINTS)
    simple = _SIMPLE.get(type(info))
    if simple is not None:
        return simple if free else replace(simple, direct=False)
    match info:
        case inspect.UnionType():
            return _of_union(info, where, within)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            inner = _of_info(info.item_type, f"{where}[]", within)
            direct = inner.direct and free and isinstance(info, inspect.ListType)
            make = inner.plain
            return Shape(pa.list_(inner.kind), lambda value: [make(one) for one in value], direct=direct, inner=inner)
        case inspect.DictType(key_type=inspect.StrType()):
            inner = _of_info(info.value_type, f"{where}{{}}", within)
            make = inner.plain
            return Shape(
                pa.map_(pa.string(), inner.kind), lambda value: [(name, make(one)) for name, one in value.items()]
            )
        case inspect.DataclassType() | inspect.StructType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _of_class(info, where, within)
        case inspect.CustomType() if hasattr(info.cls, "__pydantic_validator__"):
            return _of_pydantic(info.cls, where, within)
        case inspect.EnumType():
            return _of_choices([one.value for one in info.cls], where)
        case inspect.LiteralType():
            return _of_choices(info.values, where)
    return _refuse(where, type(info).__name__.removesuffix("Type"))


def _of_union(info: inspect.UnionType, where: str, within: tuple[Any, ...]) -> Shape:
    rest = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    nullable = len(rest) < len(info.types)
    if {type(one) for one in rest} == {inspect.IntType, inspect.FloatType}:
        return Shape(pa.float64(), nullable=nullable)
    if len(rest) != 1:
        _refuse(where, "a choice of several types")
    shape = _of_info(rest[0], where, within)
    make = shape.plain
    return replace(shape, plain=lambda value: None if value is None else make(value), nullable=True)


def _of_class(
    info: inspect.DataclassType | inspect.StructType | inspect.TypedDictType | inspect.NamedTupleType,
    where: str,
    within: tuple[Any, ...],
) -> Shape:
    cls = info.cls
    if cls in within:
        _refuse(where, "a class that contains itself")
    fields = tuple(
        (field.name, _with_default(_of_info(field.type, f"{where}.{field.name}", (*within, cls)), field))
        for field in info.fields
    )
    simple = not isinstance(info, inspect.NamedTupleType) and not hasattr(cls, "__post_init__")
    simple = simple and all(field.name == field.encode_name for field in info.fields)
    if isinstance(info, inspect.StructType):
        simple = simple and info.tag is None and not info.array_like and not info.forbid_unknown_fields
    get = _item if isinstance(info, inspect.TypedDictType) else _attribute
    return _struct(fields, where, by_fields=simple, get=get)


def _with_default(shape: Shape, field: inspect.Field) -> Shape:
    return replace(shape, null_is_sure=shape.nullable and field.default is None)


def _of_pydantic(cls: Any, where: str, within: tuple[Any, ...]) -> Shape:
    """Its validators may do anything, so that it is never direct."""
    if cls in within:
        _refuse(where, "a class that contains itself")
    fields = tuple(
        (name, _of_hint(field.annotation, f"{where}.{name}", (*within, cls)))
        for name, field in cls.__pydantic_fields__.items()
    )
    return _struct(fields, where, by_fields=False)


def _struct(
    fields: tuple[tuple[str, Shape], ...], where: str, *, by_fields: bool, get: Callable[[Any, str], Any] = _attribute
) -> Shape:
    if not fields:
        _refuse(where, "a class without fields")

    def plain(value: Any) -> dict[str, Any]:
        return {name: shape.plain(get(value, name)) for name, shape in fields}

    return Shape(
        pa.struct([pa.field(name, shape.kind) for name, shape in fields]),
        plain,
        direct=by_fields and all(shape.direct for _, shape in fields),
        fields=fields,
        by_fields=by_fields,
        get=get,
    )


def _of_choices(values: Iterable[Any], where: str) -> Shape:
    found = list(values)
    kinds = {type(value) for value in found} - {type(None)}
    nullable = None in found
    if kinds == {str}:
        return Shape(pa.string(), _chosen, nullable=nullable)
    if kinds == {int}:
        return Shape(pa.int64(), _chosen, nullable=nullable)
    return _refuse(where, "a choice of values that are neither all text nor all numbers")


def _chosen(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


_SIMPLE: Final[dict[type, Shape]] = {
    inspect.BoolType: Shape(pa.bool_(), direct=True),
    inspect.IntType: Shape(pa.int64(), direct=True),
    inspect.FloatType: Shape(pa.float64(), direct=True),
    inspect.StrType: Shape(pa.string(), direct=True),
    inspect.BytesType: Shape(pa.binary()),
    inspect.DateTimeType: Shape(pa.timestamp("us", tz="UTC"), _aware),
    inspect.DateType: Shape(pa.date32()),
    inspect.TimeType: Shape(pa.time64("us")),
    inspect.TimeDeltaType: Shape(pa.duration("us")),
    inspect.UUIDType: Shape(pa.string(), str),
}


def _refuse(where: str, what: str) -> NoReturn:
    raise InvalidArgument(f"{where} is {what}, for which there is no column; {_ADVICE}")


# ---- schemas


def _of_arrow(kind: pa.DataType, where: str) -> Shape:
    """Of JSON: what Arrow's reader does not take goes through Python."""
    if pa.types.is_struct(kind):
        return _of_arrow_struct(kind, where)
    if pa.types.is_map(kind):
        inner = _of_arrow(kind.item_type, where)
        return Shape(kind, lambda value: None if value is None else list(_object(value, inner).items()))
    if pa.types.is_list(kind):
        inner = _of_arrow(kind.value_type, where)
        make = inner.plain
        return Shape(
            kind, lambda value: None if value is None else [make(one) for one in _listed(value)],
            direct=inner.direct, inner=replace(inner, nullable=True, null_is_sure=True),
        )  # fmt: skip
    numbers = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if numbers or pa.types.is_boolean(kind) or kind == pa.string():
        return Shape(kind, _number if numbers else _as_it_is, direct=True)
    if pa.types.is_timestamp(kind):
        return Shape(kind, _timed, direct=True)
    if pa.types.is_date(kind):
        return Shape(kind, lambda value: None if value is None else date.fromisoformat(value))
    if pa.types.is_decimal(kind):
        return Shape(kind, lambda value: None if value is None else Decimal(str(value)))
    if str(kind) in LONG_TEXT:
        return Shape(kind, direct=True)
    raise InvalidArgument(f"{where}: JSON does not become {kind}; read it as another type, and cast the table")


def _of_arrow_struct(kind: pa.DataType, where: str) -> Shape:
    if not kind.num_fields:
        raise InvalidArgument(f"{where} has no fields")
    fields = tuple((field.name, _of_arrow_field(field, f"{where}, {field.name}")) for field in kind)
    if len({name for name, _ in fields}) < len(fields):
        raise InvalidArgument(f"{where} has two fields of one name")

    def plain(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        return {name: shape.plain(_item(_object(value), name)) for name, shape in fields}

    direct = all(shape.direct for _, shape in fields)
    return Shape(kind, plain, direct=direct, fields=fields, by_fields=True, get=_of_object)


def _of_arrow_field(field: pa.Field, where: str) -> Shape:
    shape = _of_arrow(field.type, where)
    if field.nullable:
        return replace(shape, nullable=True, null_is_sure=True)
    make = shape.plain

    def present(value: Any) -> Any:
        if value is None:
            raise ValueError(f"{field.name} is not there")
        return make(value)

    return replace(shape, plain=present)


def _object(value: Any, inner: Shape | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {value!r:.40}")
    return value if inner is None else {name: inner.plain(one) for name, one in value.items()}


def _of_object(value: Any, name: str) -> Any:
    return _item(_object(value), name)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected an array, got {value!r:.40}")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError(f"expected a number, got {value!r}")
    return value


def _timed(value: Any) -> datetime | None:
    return None if value is None else _aware(datetime.fromisoformat(value))


def decode_json(data: bytes) -> Any:
    """A value of which only the columns are known. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data)
