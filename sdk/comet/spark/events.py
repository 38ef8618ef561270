"""The type of values, as Spark says it: DDL as it is, or what a class of events comes to."""

from __future__ import annotations

import datetime
import importlib
import re
import types
import typing
from typing import Any, Final

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


def ddl(event: str) -> str:
    """The fields of values, from the option `schema`: DDL, or module:Class. Raises InvalidArgument."""
    if not _CLASS.fullmatch(event):
        return event
    module, _, name = event.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"the option schema names {event!r}, which cannot be imported: {error}") from None
    return fields(found)


def fields(event: Any) -> str:
    """The fields of a class of events, in its order. Raises InvalidArgument."""
    return ", ".join(f"`{name}` {kind}" for name, kind in _fields(event))


def _fields(event: Any) -> list[tuple[str, str]]:
    try:
        hints = typing.get_type_hints(event)
    except (NameError, TypeError) as error:
        raise InvalidArgument(f"{event!r} is no class of events: {error}") from None
    found = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}
    if not found:
        raise InvalidArgument(f"{event!r} is no class of events: it has no annotated fields")
    return [(name, _type(hint, f"{event.__qualname__}.{name}")) for name, hint in found.items()]


def _type(hint: Any, where: str) -> str:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(arguments[0], where)
    if origin in {typing.Union, types.UnionType}:
        rest = [one for one in arguments if one is not type(None)]
        if len(rest) == 1:
            return _type(rest[0], where)
    if origin in {list, tuple, set, frozenset} and arguments and set(arguments[1:]) <= {...}:
        return f"array<{_type(arguments[0], where)}>"
    if origin is dict and arguments[0] is str:
        return f"map<string, {_type(arguments[1], where)}>"
    if isinstance(hint, type) and hint is not bytes and getattr(hint, "__annotations__", None):
        return "struct<" + ", ".join(f"`{name}`: {kind}" for name, kind in _fields(hint)) + ">"
    raise InvalidArgument(f"{where} is {hint!r}, for which there is no column; give the option schema as DDL")
