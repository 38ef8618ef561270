"""Values of options and arguments, converted without pydantic where that is simple.

Typer converts every value with pydantic, whose import takes as long as a short command. Texts, switches, whole numbers
and words of an enumeration are converted here; any other value, and each that is wrong, goes to Typer. A Typer that
does not convert this way is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import typer.core

_BUILDS: Final = "build_runtime_param"  # of typer.core: makes the converter of a parameter
_PLAIN: Final = (str, int, float, bool)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


class DeferredConverter:
    """The converter of one parameter. Makes Typer's own for the first value that needs it."""

    def __init__(self, descriptor: Any, build: Callable[[Any], Any]) -> None:
        self._descriptor = descriptor
        self._build = build
        self._built: Any = None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if value is param.default and type(value) in _PLAIN:
            return value
        found = converted(value, self._descriptor.annotation, self._descriptor.parameter_info)
        if found is not None:
            return found
        if self._built is None:
            self._built = self._build(self._descriptor)
        return self._built.coerce(value, param=param, ctx=ctx)


def defer_conversion() -> None:
    """Makes Typer defer it, in this process."""
    build = getattr(typer.core, _BUILDS, None)
    if build is not None:
        setattr(typer.core, _BUILDS, lambda descriptor: DeferredConverter(descriptor, build))


def converted(value: Any, annotation: Any, about: Any) -> Any:
    """The value of this type; None: Typer has to convert it, or to refuse it.

    >>> converted("7", int, typer.Option(min=1)), converted("0", int | None, typer.Option(min=1))
    (7, None)
    """
    kind = _without_none(annotation)
    if about.parser is not None:
        return None
    if type(value) is tuple and kind == list[str]:
        return list(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((word for word in kind if value in (word, word.value)), None)
    if type(value) is bool:
        return value if kind is bool else None
    if type(value) is not str:
        return None
    if kind is str:
        return value
    if kind is int and _WHOLE.fullmatch(value):
        number = int(value)
        return number if _at_least(about.min, number) and _at_least(number, about.max) else None
    return None


def _at_least(low: float | None, high: float | None) -> bool:
    return low is None or high is None or low <= high


def _without_none(annotation: Any) -> Any:
    """The type of a value that may be None."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation
