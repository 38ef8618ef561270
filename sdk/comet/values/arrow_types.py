"""Maps the type of values to Arrow columns: a class, or a pyarrow.Schema.

    class        its fields, by name; Optional ones may be null, nested classes are structs
    pa.Schema    its fields, of JSON objects; missing ones are null, others are ignored
    str, int, …  one column

If a class has only fields and no validators, only the requested fields are decoded: into a class that is made for
them, with the same types, constraints and defaults. Else the serde of the class decodes the whole value.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter, methodcaller
from types import GenericAlias
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import pyarrow as pa
from msgspec import NODEFAULT, inspect

from comet.errors import InvalidArgument

_ADVICE: Final = "give the columns as a pyarrow.Schema instead"
Plain = Callable[[Any], Any]
Columns = list[tuple[Plain, pa.DataType]]  # a getter of the column's value, and its type


class Field(NamedTuple):
    """A field of a class or schema."""

    name: str
    shape: ArrowShape
    in_json: str
    hint: Any = None
    default: Any = NODEFAULT
    default_factory: Any = NODEFAULT


@dataclass(frozen=True, slots=True)
class ArrowShape:
    """An Arrow type. `plain` converts a value to one that Arrow takes; None: no conversion."""

    kind: pa.DataType
    plain: Plain | None = None
    fields: tuple[Field, ...] = ()
    by_fields: bool = False
    get: Callable[[str], Plain] = attrgetter  # makes a getter of a field

    def reader(self, chosen: Sequence[Field]) -> tuple[Callable[[bytes], Any], Columns]:
        """A decoder of some fields of a JSON object."""
        made, names = struct_of(chosen)
        columns = [
            (_then(attrgetter(name), field.shape.plain), field.shape.kind)
            for name, field in zip(names, chosen, strict=True)
        ]
        return msgspec.json.Decoder(made).decode, columns

    def getters(self, chosen: Sequence[Field]) -> Columns:
        """Getters for values as the serde decodes them; without fields the value itself."""
        if not self.fields:
            return [(self.plain or _as_it_is, self.kind)]
        return [(_then(self.get(field.name), field.shape.plain), field.shape.kind) for field in chosen]


def struct_of(fields: Sequence[Field]) -> tuple[type, list[str]]:
    """A class of these fields, and its names for them: theirs need not be valid in Python."""
    names = [f"f{number}" for number in range(len(fields))]
    made: list[Any] = []
    for name, field in zip(names, fields, strict=True):
        given = {"default": field.default, "default_factory": field.default_factory}
        given = {key: value for key, value in given.items() if value is not NODEFAULT}
        made.append((name, field.hint, msgspec.field(**given)) if given else (name, field.hint))
    renamed = {name: field.in_json for name, field in zip(names, fields, strict=True)}
    try:
        # Values from JSON have no cycles: the garbage collector can skip them.
        return msgspec.defstruct("Value", made, rename=renamed, gc=False, kw_only=True), names
    except ValueError as error:  # quotes, backslashes and control characters
        raise InvalidArgument(f"invalid field name for a column: {error}") from None


def _then(get: Plain, plain: Plain | None) -> Plain:
    return get if plain is None else lambda value: plain(get(value))


def _as_it_is(value: Any) -> Any:
    return value


def shape_of(kind: Any) -> ArrowShape:
    """The fields of a type. Raises InvalidArgument for a type without columns, naming the field."""
    if isinstance(kind, pa.Schema):
        return _of_arrow_struct(pa.struct(list(kind)), "the schema")[0]
    if kind is dict or kind is Any or kind is object:
        raise InvalidArgument(f"{kind!r} has no columns: give a class, or a pyarrow.Schema")
    return _of_hint(kind, getattr(kind, "__qualname__", str(kind)), ())


# ---- classes


def _of_hint(hint: Any, where: str, within: tuple[Any, ...]) -> ArrowShape:
    try:
        return _of_info(inspect.type_info(hint), where, within)
    except (TypeError, NameError) as error:
        raise InvalidArgument(f"{where} has no columns: {error}") from None


def _of_info(info: inspect.Type, where: str, within: tuple[Any, ...]) -> ArrowShape:
    simple = _SIMPLE.get(type(info))
    if simple is not None:
        return simple
    match info:
        case inspect.UnionType():
            return _of_union(info, where, within)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            inner = _of_info(info.item_type, f"{where}[]", within)
            return ArrowShape(pa.list_(inner.kind), _each(inner.plain))
        case inspect.DictType(key_type=inspect.StrType()):
            inner = _of_info(info.value_type, f"{where}{{}}", within)
            return ArrowShape(pa.map_(pa.string(), inner.kind), _pairs(inner.plain))
        case inspect.CustomType() | inspect.DataclassType() if hasattr(info.cls, "__pydantic_validator__"):
            return _of_pydantic(info.cls, where, within)
        case inspect.DataclassType() | inspect.StructType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _of_class(info, where, within)
        case inspect.EnumType():
            return _of_choices([one.value for one in info.cls], where)
        case inspect.LiteralType():
            return _of_choices(info.values, where)
    return _refuse(where, type(info).__name__.removesuffix("Type"))


def _each(plain: Plain | None) -> Plain:
    return list if plain is None else lambda values: [plain(one) for one in values]


def _pairs(plain: Plain | None) -> Plain:
    if plain is None:
        return lambda values: list(values.items())
    return lambda values: [(name, plain(one)) for name, one in values.items()]


def _unless_none(plain: Plain | None) -> Plain | None:
    return None if plain is None else lambda value: None if value is None else plain(value)


def _of_union(info: inspect.UnionType, where: str, within: tuple[Any, ...]) -> ArrowShape:
    rest = [one for one in info.types if not isinstance(one, inspect.NoneType)]
    if {type(one) for one in rest} == {inspect.IntType, inspect.FloatType}:
        return ArrowShape(pa.float64())
    if len(rest) != 1:
        _refuse(where, "a choice of several types")
    shape = _of_info(rest[0], where, within)
    return replace(shape, plain=_unless_none(shape.plain))


def _of_class(
    info: inspect.DataclassType | inspect.StructType | inspect.TypedDictType | inspect.NamedTupleType,
    where: str,
    within: tuple[Any, ...],
) -> ArrowShape:
    cls = info.cls
    if cls in within:
        _refuse(where, "a class that contains itself")
    plain_class = typing.get_origin(cls) or cls
    hints = typing.get_type_hints(plain_class, include_extras=True)
    typed_dict = isinstance(info, inspect.TypedDictType)
    fields = []
    for field in info.fields:
        shape = _of_info(field.type, f"{where}.{field.name}", (*within, cls))
        default = None if typed_dict and not field.required else field.default
        fields.append(
            Field(field.name, shape, field.encode_name, hints.get(field.name), default, field.default_factory)
        )
    simple = not isinstance(info, inspect.NamedTupleType) and not hasattr(cls, "__post_init__")
    simple = (
        simple and all(field.name in hints for field in info.fields) and not getattr(plain_class, "__parameters__", ())
    )
    if isinstance(info, inspect.StructType):
        simple = simple and info.tag is None and not info.array_like and not info.forbid_unknown_fields
    get = (lambda name: methodcaller("get", name)) if typed_dict else attrgetter
    return _struct(tuple(fields), where, by_fields=simple, get=get)


def _of_pydantic(cls: Any, where: str, within: tuple[Any, ...]) -> ArrowShape:
    """A pydantic model: its validators may do anything, so its serde decodes the whole value."""
    if cls in within:
        _refuse(where, "a class that contains itself")
    fields = tuple(
        Field(name, _of_hint(field.annotation, f"{where}.{name}", (*within, cls)), name)
        for name, field in cls.__pydantic_fields__.items()
    )
    return _struct(fields, where, by_fields=False)


def _struct(
    fields: tuple[Field, ...], where: str, *, by_fields: bool, get: Callable[[str], Plain] = attrgetter
) -> ArrowShape:  # fmt: skip
    if not fields:
        _refuse(where, "a class without fields")
    kind = pa.struct([pa.field(field.name, field.shape.kind) for field in fields])
    plain = _dict_of({field.name: _then(get(field.name), field.shape.plain) for field in fields})
    return ArrowShape(kind, plain, fields, by_fields, get)


def _dict_of(getters: dict[str, Plain]) -> Plain:
    pairs = list(getters.items())
    return lambda value: {name: get(value) for name, get in pairs}


def _of_choices(values: Iterable[Any], where: str) -> ArrowShape:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {str}:
        return ArrowShape(pa.string(), _chosen)
    if kinds == {int}:
        return ArrowShape(pa.int64(), _chosen)
    return _refuse(where, "a choice of values that are neither all text nor all numbers")


def _chosen(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


_SIMPLE: Final[dict[type, ArrowShape]] = {
    inspect.BoolType: ArrowShape(pa.bool_()),
    inspect.IntType: ArrowShape(pa.int64()),
    inspect.FloatType: ArrowShape(pa.float64()),
    inspect.StrType: ArrowShape(pa.string()),
    inspect.BytesType: ArrowShape(pa.binary()),
    inspect.DateTimeType: ArrowShape(pa.timestamp("us", tz="UTC"), _aware),
    inspect.DateType: ArrowShape(pa.date32()),
    inspect.TimeType: ArrowShape(pa.time64("us")),
    inspect.TimeDeltaType: ArrowShape(pa.duration("us")),
    inspect.UUIDType: ArrowShape(pa.string(), str),
}


def _refuse(where: str, what: str) -> NoReturn:
    raise InvalidArgument(f"{where} is {what}, which cannot be a column; {_ADVICE}")


# ---- schemas

_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], Any, Plain | None], ...]] = (
    (pa.types.is_boolean, bool, None),
    (pa.types.is_integer, int, None),
    (pa.types.is_float32, float, None),
    (pa.types.is_float64, float, None),
    (pa.types.is_timestamp, datetime, _aware),
    (pa.types.is_date, date, None),
    (pa.types.is_time, time, None),
    (pa.types.is_duration, timedelta, None),
    (pa.types.is_decimal, Decimal, None),
    (lambda kind: str(kind) in {"string", "large_string", "string_view"}, str, None),
    (lambda kind: str(kind) in {"binary", "large_binary", "binary_view"}, bytes, None),  # in base64
)


def _of_arrow(kind: pa.DataType, where: str) -> tuple[ArrowShape, Any]:
    """The shape of an Arrow type, and the type that msgspec decodes."""
    for is_, hint, plain in _PLAIN:
        if is_(kind):
            return ArrowShape(kind, _unless_none(plain)), hint
    if pa.types.is_struct(kind):
        return _of_arrow_struct(kind, where)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        inner, hint = _of_arrow(kind.item_type, where)
        return ArrowShape(kind, _unless_none(_pairs(inner.plain))), GenericAlias(dict, (str, hint | None))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner, hint = _of_arrow(kind.value_type, where)
        return ArrowShape(kind, _unless_none(_each(inner.plain))), GenericAlias(list, (hint | None,))
    raise InvalidArgument(f"{where}: JSON cannot be decoded to {kind}; read it as another type, and cast the table")


def _of_arrow_struct(kind: pa.DataType, where: str) -> tuple[ArrowShape, Any]:
    fields = []
    for field in kind:
        shape, hint = _of_arrow(field.type, f"{where}, {field.name}")
        given = {"hint": hint | None, "default": None} if field.nullable else {"hint": hint}
        fields.append(Field(field.name, shape, field.name, **given))
    if not fields or len({field.name for field in fields}) < len(fields):
        raise InvalidArgument(f"{where} has two fields of the same name" if fields else f"{where} has no fields")
    made, names = struct_of(fields)
    getters = {
        field.name: _then(attrgetter(name), field.shape.plain) for name, field in zip(names, fields, strict=True)
    }
    return ArrowShape(kind, _unless_none(_dict_of(getters)), tuple(fields), by_fields=True), made
