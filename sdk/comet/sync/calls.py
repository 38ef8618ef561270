"""The calls of the synchronous classes that take more than a turn of the background loop."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from comet.consumer.iteration import RecordIterator
from comet.errors import SerdeError
from comet.event_loop import awaited, call, computed
from comet.values.record import Record

T = TypeVar("T")
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


def next_record(consumer: RecordIterator[T]) -> Record[T]:
    """The consumer's next record. Those of the batch at hand need no turn of the loop."""
    return _at_hand(consumer) or call(consumer.__anext__())


def get_record(consumer: RecordIterator[T], timeout_s: float | None) -> Record[T] | None:
    """The consumer's next record; None if none came in time."""
    return _at_hand(consumer) or call(consumer.get(timeout_s))


def _at_hand(consumer: RecordIterator[T]) -> Record[T] | None:
    """The next record of the batch that the consumer is reading."""
    records = consumer._records
    if records is None:
        return None
    try:
        record = next(records, None)
    except SerdeError as error:
        behind = int(error.details["offset"]) + 1
        call(computed(lambda: consumer._skip_to(behind)))
        raise
    if record is not None:
        consumer._last = record
    return record


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
