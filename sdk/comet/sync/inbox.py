"""Records on their way from the background loop to a synchronous program.

    next, on the program's thread: the batch at hand ─► what was opened ahead ─► a call on the loop
                                                                 ▲                   │
                                                                 └── all that has come

So the next record costs a turn of the loop only when no record is left, however few records a batch has. It counts as
handed out when the program takes it, not when it was opened. What is to be decided, such as an error, is left to the
call that comes after the records before it. See comet.consumer.look_ahead for how the two threads keep apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any, Final, TypeVar

from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.contents import Opened
from comet.consumer.iteration import BatchIterator, RecordIterator, unexpired_records
from comet.consumer.look_ahead import LookAhead
from comet.errors import CometError, SerdeError
from comet.event_loop import call
from comet.values.record import Record, RecordBatch, unexpired

T = TypeVar("T")
R = TypeVar("R")

# What is opened before its turn, besides `buffer_bytes`; a batch counts with its objects.
_AHEAD_BYTES_MAX: Final = 256 << 10
_OPENED_BATCH_BYTES: Final = 1 << 10


def attach(consumer: RecordIterator[T]) -> None:
    """Makes a consumer one that looks ahead."""
    consumer._ahead = LookAhead[T]()


def exclusive(consumer: RecordIterator[T], work: Coroutine[Any, Any, R]) -> R:
    """Runs a coroutine on the loop, while no thread of the program takes records without it."""
    ahead = _ahead(consumer)
    with ahead.lock:
        ahead.calls += 1
    return _counted(ahead, work)


def _counted(ahead: LookAhead[T], work: Coroutine[Any, Any, R]) -> R:
    try:
        return call(work)
    finally:
        with ahead.lock:
            ahead.calls -= 1


def next_record(consumer: RecordIterator[T]) -> Record[T]:
    """The consumer's next record."""
    return _record_at_hand(consumer) or exclusive(consumer, _reading(consumer, consumer.__anext__))


def get_record(consumer: RecordIterator[T], timeout_s: float | None) -> Record[T] | None:
    """The consumer's next record; None if none came in time."""
    return _record_at_hand(consumer) or exclusive(consumer, _reading(consumer, lambda: consumer.get(timeout_s)))


def next_batch(consumer: RecordIterator[T]) -> RecordBatch[T]:
    """The consumer's next batch."""
    return _batch_at_hand(consumer) or exclusive(consumer, _reading(consumer, consumer._take_batch))


def next_of(batches: BatchIterator[T]) -> RecordBatch[T]:
    """The next batch of an iterator, with its span if it traces."""
    batch = next_batch(batches._consumer)
    if batches._spans is not None:
        batches._spans.received(batch)
    return batch


def get_batch(consumer: RecordIterator[T], timeout_s: float | None) -> RecordBatch[T] | None:
    """The consumer's next batch; None if none came in time."""
    return _batch_at_hand(consumer) or exclusive(consumer, _reading(consumer, lambda: consumer.get_batch(timeout_s)))


def _ahead(consumer: RecordIterator[T]) -> LookAhead[T]:
    assert consumer._ahead is not None, "made by a synchronous twin"
    return consumer._ahead


# ---- on the program's thread


def _record_at_hand(consumer: RecordIterator[T]) -> Record[T] | None:
    """The next record, if it was opened; None if it takes a call."""
    if not consumer._rebalances and (records := consumer._records) is not None:
        # Without rebalances no record of the batch is recalled: without the lock it costs 0.1 µs less.
        try:
            for record in records:
                consumer._last = record
                return record
        except SerdeError as error:
            return exclusive(consumer, _pass(consumer, error))
    ahead = _ahead(consumer)
    with ahead.lock:
        if ahead.calls:
            return None
        while True:
            records, before = consumer._records, consumer._last
            if records is not None:
                try:
                    for record in records:
                        consumer._last = record
                        if not ahead.recalled:
                            return record
                        if consumer._records is records:  # else a signal handler has closed the consumer meanwhile
                            consumer._records = chain((record,), records)
                        consumer._last = before
                        return None
                except SerdeError as error:
                    failed = error
                    ahead.calls += 1
                    break
            opened = ahead.opened
            found = _next_opened(consumer, ahead, opened)
            if found is None:
                return None
            consumer._reader, batch = found
            consumer._batch, consumer._records = batch, unexpired_records(batch, consumer._clock_us)
            opened.popleft()
    return _counted(ahead, _pass(consumer, failed))


def _batch_at_hand(consumer: RecordIterator[T]) -> RecordBatch[T] | None:
    """The next batch, if it was opened; None if it takes a call."""
    ahead = _ahead(consumer)
    with ahead.lock:
        opened = ahead.opened
        # What is left of a batch that was read record by record takes a call.
        found = None if ahead.calls or consumer._batch is not None else _next_opened(consumer, ahead, opened)
        if found is None:
            return None
        reader, batch = found
        before, counted = reader.position, consumer._received_records
        consumer._reader, consumer._whole_from = reader, (reader, batch.first_offset)
        consumer._handed_out(batch)
        if ahead.recalled:
            reader.position, consumer._received_records, consumer._whole_from = before, counted, None
            return None
        opened.popleft()
        return batch


def _next_opened(
    consumer: RecordIterator[T], ahead: LookAhead[T], opened: deque[Opened[T]]
) -> tuple[PartitionSubscription, RecordBatch[T]] | None:
    """The next batch that was opened, still there, and what was before it marked as processed; None if it takes a
    call."""
    if ahead.recalled or not opened:
        return None
    if consumer._batch is not None:
        consumer._finish_records()
    RecordIterator._handed_back(consumer)  # a group's also wakes a task of the loop, but only if `recalled` is raised
    while opened:
        reader, found = opened[0]
        if isinstance(found, int):
            reader.position = found
        elif isinstance(found, CometError) or found.encrypted is not None:
            return None
        elif found.expiry is not None and unexpired(found, consumer._clock_us()) is not found:
            return None  # some have expired since
        elif found.next_offset > reader.position:  # else Ctrl-C came between taking and removing it
            return reader, found
        opened.popleft()
    return None


# ---- on the background loop


async def _reading(consumer: RecordIterator[T], read: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """What a read gives, with all that has come opened ahead."""
    _attend(consumer)
    found = await read()
    _look_ahead(consumer)
    return found


async def _pass(consumer: RecordIterator[T], error: SerdeError) -> Record[T]:
    """Raises the error of a record that cannot be decoded, unless its partition was revoked meanwhile."""
    _attend(consumer)
    if consumer._batch is None:
        return await _reading(consumer, consumer.__anext__)
    consumer._skip_to(int(error.details["offset"]) + 1)
    raise error


def _attend(consumer: RecordIterator[T]) -> None:
    """Does what a rebalance has asked for. The program asks for more, so what it had is processed."""
    if _ahead(consumer).recalled:
        consumer._handed_back()
        consumer._drop_recalled()


def _look_ahead(consumer: RecordIterator[T]) -> None:
    """Opens deliveries that have arrived before their turn, up to an error, which is raised in its turn."""
    ahead, left = _ahead(consumer), _AHEAD_BYTES_MAX
    if ahead.opened or ahead.recalled or consumer._undecrypted is not None:
        return
    while left > 0:
        if consumer._delivery is None and not (consumer._fetcher.queue.has_delivery() and consumer._next_delivery()):
            return
        assert consumer._delivery is not None
        opened = next(consumer._delivery[1], None)
        if opened is None:
            consumer._delivery = None
            continue
        ahead.opened.append(opened)
        if isinstance(opened[1], CometError):
            return
        left -= _OPENED_BATCH_BYTES if isinstance(opened[1], int) else _OPENED_BATCH_BYTES + opened[1].size
