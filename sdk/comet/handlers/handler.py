"""Handlers of an App: their annotations, and their calls, timed to find those that block the event loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import coroutine
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from comet.errors import InvalidArgument
from comet.handlers.dependencies import Depends, Need, hints_of, need_of
from comet.handlers.message import Message
from comet.producer.transaction import Transaction
from comet.share.share_consumer import ShareRecord
from comet.values.record import Record, RecordBatch

T = TypeVar("T")

Handler = Callable[..., Awaitable[None] | None]


class HandlerShape(Enum):
    """The kind of a handler's argument."""

    MODEL = auto()  # the value
    RECORD = auto()  # comet.Record, the value with key, offset, timestamp and headers
    MODELS = auto()  # list[...]: the values of a batch
    BATCH = auto()  # comet.RecordBatch


@dataclass(frozen=True, slots=True)
class Signature:
    shape: HandlerShape
    type: Any  # the type that values are decoded to; None: bytes
    transaction: bool = False  # whether it takes a comet.Transaction as its second argument
    needs: tuple[Need, ...] = ()  # its other arguments


_SHAPES: Final = {
    Record: HandlerShape.RECORD,
    ShareRecord: HandlerShape.RECORD,
    RecordBatch: HandlerShape.BATCH,
    list: HandlerShape.MODELS,
}


def name_of(handler: Handler) -> str:
    """The handler's name, as in the code."""
    module = getattr(handler, "__module__", None)
    name = getattr(handler, "__qualname__", None) or repr(handler)
    return f"{module}.{name}" if module else name


def signature_of(handler: Handler, names: Mapping[str, Any], kind: Any = None) -> Signature:
    """Reads the annotations of a handler's parameters: that of the first one says what it gets. `names` are the
    caller's local names, `kind` overrides."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{handler!r} is not a handler: {error}") from None
    hints = _hints(handler, names)
    taken = [one for one in parameters if one.kind <= one.KEYWORD_ONLY and _is_given(one, hints.get(one.name))]
    if not taken or taken[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidArgument(
            f"{name_of(handler)} must take the value, record, list or batch as its first argument; after it a "
            "comet.Transaction, a comet.Message, and dependencies: Annotated[TYPE, comet.Depends(…)]"
        )
    first, *others = taken
    transaction = bool(others) and hints.get(others[0].name) is Transaction
    try:
        needs = tuple(need_of(one, hints.get(one.name), names) for one in others[transaction:])
    except InvalidArgument as error:
        raise InvalidArgument(f"{name_of(handler)}: {error.message}") from None
    annotation = hints.get(first.name)
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is None:
        return Signature(HandlerShape.MODEL, kind, transaction, needs)
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    inner = arguments[0] if arguments else None
    shape = _SHAPES.get(origin, HandlerShape.MODEL)
    if shape is HandlerShape.MODEL:
        inner = annotation
    elif shape is HandlerShape.MODELS and inner is None:
        raise InvalidArgument(f"{name_of(handler)}: the list has no item type; write e.g. list[Quote]")
    if kind is None:
        kind = None if inner is bytes or isinstance(inner, TypeVar) else inner
    return Signature(shape, kind, transaction, needs)


def _is_given(parameter: inspect.Parameter, annotation: Any) -> bool:
    """Whether a call has an argument for the parameter: one with a default of its own is left alone."""
    marked = annotation is Message or any(isinstance(one, Depends) for one in get_args(annotation)[1:])
    return parameter.default is parameter.empty or isinstance(parameter.default, Depends) or marked


def _hints(handler: Handler, names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return hints_of(handler, names)
    except NameError as error:
        raise InvalidArgument(
            f"{name_of(handler)}: an annotation cannot be evaluated: {error}; "
            "define the class where the handler can see it, or give type= to on()"
        ) from None


@coroutine
def watched(
    work: Awaitable[T], clock: Callable[[], float], limit_s: float, report: Callable[[float], None]
) -> Generator[Any, Any, T]:
    """Runs an awaitable and reports every stretch between two awaits that blocked the loop for too long."""
    steps = work.__await__()
    send: Any = None
    error: BaseException | None = None
    while True:
        began = clock()
        try:
            waits_for = next(steps) if error is None and send is None else _resume(steps, send, error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            took = clock() - began
            if took > limit_s:
                report(took)
        error = None
        try:
            send = yield waits_for
        except BaseException as caught:  # noqa: BLE001 - any exception goes to the handler
            error, send = caught, None


def _resume(steps: Any, send: Any, error: BaseException | None) -> Any:
    return steps.send(send) if error is None else steps.throw(error)
