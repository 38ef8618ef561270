"""The calls of the synchronous classes that take more than a turn of the background loop."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from comet.event_loop import awaited, call

R_co = TypeVar("R_co", covariant=True)


class Outcome(Protocol[R_co]):
    """A delivery."""

    def done(self) -> bool: ...
    def __await__(self) -> Generator[Any, None, R_co]: ...


def outcome(delivery: Outcome[R_co], timeout_s: float | None) -> R_co:
    """The result of a delivery; that of one that is done needs no turn of the loop."""
    if delivery.done():
        try:
            next(delivery.__await__())
        except StopIteration as result:
            value: R_co = result.value
            return value
    return call(awaited(lambda: delivery), timeout_s)


class EndingIterator(Protocol[R_co]):
    """An iterator that ends."""

    def _take_ready(self) -> R_co | None: ...
    async def __anext__(self) -> R_co: ...


def next_part(parts: EndingIterator[R_co]) -> R_co:
    """The next part of a read. What was read needs no turn of the loop."""
    part = parts._take_ready()
    if part is None:
        part = call(_next_part(parts))
    if part is None:
        raise StopIteration
    return part


async def _next_part(parts: EndingIterator[R_co]) -> R_co | None:
    try:
        return await parts.__anext__()
    except StopAsyncIteration:
        return None


def asynchronous(twin: Any) -> Any:
    """The asynchronous object of a twin; any other object stays as it is."""
    return getattr(twin, "_async", twin)
