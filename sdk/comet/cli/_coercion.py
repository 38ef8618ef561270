"""Values of options and arguments, converted without pydantic where no conversion is needed.

Typer converts every value with pydantic, whose import takes longer than most commands. A text, or a default, has its
type already. A Typer that does not convert this way is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import typer.core

_BUILDS: Final = "build_runtime_param"  # of typer.core: makes the converter of a parameter
_PLAIN: Final = (str, int, float, bool)


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
        is_default = value is param.default and type(value) in _PLAIN
        is_text = type(value) is str and not several and _is_text(self._descriptor.annotation)
        if is_default or is_text:
            return value
        if self._built is None:
            self._built = self._build(self._descriptor)
        return self._built.coerce(value, param=param, ctx=ctx)


def defer_conversion() -> None:
    """Makes Typer defer it, in this process."""
    build = getattr(typer.core, _BUILDS, None)
    if build is not None:
        setattr(typer.core, _BUILDS, lambda descriptor: DeferredConverter(descriptor, build))


def _is_text(annotation: Any) -> bool:
    """Whether the type is str, or str | None."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for kind in get_args(annotation) if kind is not type(None)] == [str]
    return annotation is str
