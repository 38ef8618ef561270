"""The Spark type of values: DDL as given, or derived from a model.

Columns have the names of the class's fields; other names in JSON (`rename` of msgspec, aliases of pydantic) are kept
beside them.
"""

from __future__ import annotations

import datetime
import importlib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from comet.errors import InvalidArgument

_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PLAIN: Final = {
    str: "string",
    int: "bigint",
    float: "double",
    bool: "boolean",
    datetime.datetime: "timestamp",
    datetime.date: "date",
}


class Named(NamedTuple):
    """The JSON name of a field, and the fields within it."""

    in_json: str
    fields: Names


Names = Mapping[str, Named]  # by column; without fields with equal names, at all levels


class _Kind(NamedTuple):
    ddl: str
    fields: Names


class _Field(NamedTuple):
    name: str
    kind: _Kind
    in_json: str


def ddl(event: str) -> str:
    """The fields of values, from the option `schema`: DDL, or module:Class. Raises InvalidArgument."""
    return fields(_class(event)) if _CLASS.fullmatch(event) else event


def names(event: str) -> Names:
    """The JSON names of fields that differ. Raises InvalidArgument."""
    return _names(_fields(_class(event))) if _CLASS.fullmatch(event) else {}


def fields(event: Any) -> str:
    """The fields of a model, in its order. Raises InvalidArgument."""
    return ", ".join(f"`{field.name}` {field.kind.ddl}" for field in _fields(event))


def _class(event: str) -> Any:
    module, _, name = event.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"the option schema names {event!r}, which cannot be imported: {error}") from None
    return found


def _names(fields: list[_Field]) -> Names:
    return {
        field.name: Named(field.in_json, field.kind.fields)
        for field in fields
        if field.in_json != field.name or field.kind.fields
    }


def _fields(event: Any) -> list[_Field]:
    try:
        hints = typing.get_type_hints(event)
    except (NameError, TypeError) as error:
        raise InvalidArgument(f"{event!r} is not a model: {error}") from None
    found = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}
    if not found:
        raise InvalidArgument(f"{event!r} is not a model: it has no annotated fields")
    return [
        _Field(name, _type(hint, f"{event.__qualname__}.{name}"), _in_json(event, name)) for name, hint in found.items()
    ]


def _in_json(event: Any, name: str) -> str:
    """The name of a field in JSON, as the class's serde reads it."""
    if name in getattr(event, "__struct_fields__", ()):
        return str(event.__struct_encode_fields__[event.__struct_fields__.index(name)])
    field = getattr(event, "__pydantic_fields__", {}).get(name)
    alias = None if field is None else field.validation_alias
    config = getattr(event, "model_config", None) or getattr(event, "__pydantic_config__", None) or {}
    if alias is None or alias == name or not config.get("validate_by_alias", True):
        return name
    if not isinstance(alias, str) or config.get("populate_by_name") or config.get("validate_by_name"):
        raise InvalidArgument(
            f"{event.__qualname__}.{name} may have several names in JSON: give the option schema as DDL, with one"
        )
    return alias


def _type(hint: Any, where: str) -> _Kind:
    if hint in _PLAIN:
        return _Kind(_PLAIN[hint], {})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(arguments[0], where)
    if origin in {typing.Union, types.UnionType}:
        rest = [one for one in arguments if one is not type(None)]
        if len(rest) == 1:
            return _type(rest[0], where)
    if origin in {list, tuple, set, frozenset} and arguments and set(arguments[1:]) <= {...}:
        inner = _type(arguments[0], where)
        return _Kind(f"array<{inner.ddl}>", inner.fields)
    if origin is dict and arguments[0] is str:
        inner = _type(arguments[1], where)
        return _Kind(f"map<string, {inner.ddl}>", inner.fields)
    if isinstance(hint, type) and hint is not bytes and getattr(hint, "__annotations__", None):
        inside = _fields(hint)
        return _Kind("struct<" + ", ".join(f"`{one.name}`: {one.kind.ddl}" for one in inside) + ">", _names(inside))
    raise InvalidArgument(f"{where}: unsupported type {hint!r}; give the option schema as DDL")
