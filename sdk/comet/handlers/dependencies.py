"""Dependencies of handlers: functions whose results are arguments, called once for a message.

handler(quote, session: Annotated[Session, Depends(open_session)])

    resolve ─► open_session(…its own dependencies, the message) ─► handler ─► generators end, the last one first

A dependency is a function, async or not, or a generator that yields once: the code behind its `yield` runs when the
handler has returned or raised, and gets the error.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from comet.errors import InvalidArgument
from comet.handlers.message import Message


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a parameter of a handler, or of a dependency, as the result of a function; within one message a function is
    called once, unless it is not `cached`.

    >>> from typing import Annotated
    >>> def scale() -> int:
    ...     return 2
    >>> app = comet.App()
    >>> @app.on("quotes")
    ... async def handle(quote: dict, factor: Annotated[int, comet.Depends(scale)]) -> None:
    ...     print(quote["bid"] * factor)
    """

    function: Callable[..., Any]
    cached: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """A parameter that gets the message, or the result of a dependency."""

    parameter: str
    depends: Depends | None = None  # None: the message
    needs: tuple[Need, ...] = ()  # of the function


def need_of(
    parameter: inspect.Parameter, annotation: Any, names: Mapping[str, Any], path: tuple[Any, ...] = ()
) -> Need:
    """What a parameter besides the first one gets. Raises InvalidArgument if that cannot be told."""
    if annotation is Message:
        return Need(parameter.name)
    if isinstance(parameter.default, Depends):
        raise InvalidArgument(
            f"parameter {parameter.name!r}: write {parameter.name}: Annotated[TYPE, Depends(…)], not … = Depends(…)"
        )
    marks = [one for one in get_args(annotation)[1:] if isinstance(one, Depends)]
    if get_origin(annotation) is not Annotated or not marks:
        raise InvalidArgument(
            f"parameter {parameter.name!r} is neither a comet.Message nor Annotated[TYPE, comet.Depends(…)]"
        )
    return Need(parameter.name, marks[0], needs_of(marks[0].function, names, path))


def needs_of(function: Callable[..., Any], names: Mapping[str, Any], path: tuple[Any, ...] = ()) -> tuple[Need, ...]:
    """The parameters of a dependency. Raises InvalidArgument for one that needs itself."""
    if not callable(function):
        raise InvalidArgument(f"comet.Depends takes a function, not {function!r}")
    if function in path:
        raise InvalidArgument(f"dependency {_name(function)} needs itself: {' → '.join(map(_name, (*path, function)))}")
    try:
        hints = hints_of(function, names)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise InvalidArgument(f"dependency {_name(function)} cannot be read: {error}") from None
    found = []
    for parameter in parameters:
        annotation = hints.get(parameter.name)
        marked = annotation is Message or get_origin(annotation) is Annotated or isinstance(parameter.default, Depends)
        if marked or parameter.default is parameter.empty:
            found.append(need_of(parameter, annotation, names, (*path, function)))
    return tuple(found)


def hints_of(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a function, or of an object's call, with what Annotated adds."""
    if inspect.isclass(function):
        function = function.__init__
    elif not inspect.isroutine(function):
        function = type(function).__call__
    return typing.get_type_hints(function, localns=dict(names), include_extras=True)


Overrides = Mapping[Callable[..., Any], Callable[..., Any]]  # by the function that is replaced


class Resolver:
    """Resolves the dependencies of one message."""

    def __init__(self, message: Message, stack: AsyncExitStack, overrides: Overrides) -> None:
        self._message = message
        self._stack = stack
        self._overrides = overrides
        self._results: dict[Callable[..., Any], Any] = {}

    async def arguments(self, needs: tuple[Need, ...]) -> dict[str, Any]:
        """The arguments of a function, by name."""
        return {one.parameter: self._message if one.depends is None else await self._result(one) for one in needs}

    async def _result(self, need: Need) -> Any:
        assert need.depends is not None
        function, needs = need.depends.function, need.needs
        if need.depends.cached and function in self._results:
            return self._results[function]
        if function in self._overrides:
            replaced = self._overrides[function]
            result = await self._call(replaced, await self.arguments(needs_of(replaced, {})))
        else:
            result = await self._call(function, await self.arguments(needs))
        self._results[function] = result
        return result

    async def _call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if inspect.isasyncgenfunction(function):
            return await self._stack.enter_async_context(asynccontextmanager(function)(**arguments))
        if inspect.isgeneratorfunction(function):
            return self._stack.enter_context(contextmanager(function)(**arguments))
        outcome = function(**arguments)
        return await outcome if inspect.isawaitable(outcome) else outcome


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
