"""Deliveries: the results of `send`, which give acknowledgements. One future per awaited batch, none per record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comet.errors import CometError
from comet.producer.accumulator import ProducerBatch
from comet.producer.delayed_record import DelayedRecord
from comet.types import Receipt, ReceiptRange, ScheduledReceipt

if TYPE_CHECKING:
    from comet.tracing.spans import SendSpan


def wait(batch: ProducerBatch | DelayedRecord) -> asyncio.Future[None]:
    """A future that is done when the batch is. Each caller has its own, so cancelling one affects no other."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if batch.waiters is None:
        batch.waiters = [future]
    else:
        batch.waiters.append(future)
    return future


def wake(batch: ProducerBatch | DelayedRecord) -> None:
    """Wakes all waiters of a batch that is done."""
    waiters, batch.waiters = batch.waiters, None
    for future in waiters or ():
        if not future.done():
            future.set_result(None)


def check(batch: ProducerBatch | DelayedRecord) -> None:
    """Raises the batch's error, if any."""
    error = batch.error
    if error is not None:
        batch.seen = True
        raise error.with_traceback(None)


@dataclass(frozen=True, slots=True)
class FailedRange:
    """A run of records that failed; without an error, they are still in flight.

    >>> failed = FailedRange(2, comet.Timeout("no acknowledgement came in time"))
    >>> failed.count, failed.error.outcome_unknown
    (2, True)
    """

    count: int
    error: CometError | None


class Delivery:
    """The result of sending a record. Awaiting it gives the Receipt, or raises the record's error.

    It need not be awaited: `flush` and `close` raise failures that no caller has read.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         delivery = await producer.send("quotes", b"EURUSD 1.08")
    ...         receipt = await delivery
    ...         print(receipt.topic, receipt.partition, receipt.offset, delivery.done())
    >>> run(example)
    quotes 0 0 True
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Receipt]:
        if not self._batch.done:
            yield from wait(self._batch).__await__()
        return self.result()

    def done(self) -> bool:
        """Whether the record is acknowledged or failed."""
        return self._batch.done

    def result(self) -> Receipt:
        """The receipt. Raises the record's error; InvalidStateError while it is in flight."""
        batch = self._batch
        if not batch.done:
            raise asyncio.InvalidStateError("the record is still in flight; await the delivery")
        check(batch)
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        return Receipt(batch.accumulator.topic, batch.accumulator.partition, offset, batch.append_time_us)

    def exception(self) -> CometError | None:
        """The record's error; None if there is none, or none yet."""
        self._batch.seen = True
        return self._batch.error


class ScheduledDelivery:
    """The result of sending a delayed record. Awaiting it gives the ScheduledReceipt once the cluster has stored the
    record, or raises the record's error.

    It need not be awaited: `flush` and `close` raise failures that no caller has read.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer, comet.Admin(address) as admin:
    ...         delivery = await producer.send("quotes", b"EURUSD 1.08", delay="5m")
    ...         receipt = await delivery
    ...         await admin.schedules.cancel_schedule(receipt.topic, receipt.id)
    """

    __slots__ = ("_record",)

    def __init__(self, record: DelayedRecord) -> None:
        self._record = record

    def __await__(self) -> Generator[Any, None, ScheduledReceipt]:
        if not self._record.done:
            yield from wait(self._record).__await__()
        return self.result()

    def done(self) -> bool:
        """Whether the record is stored or failed."""
        return self._record.done

    def result(self) -> ScheduledReceipt:
        """The receipt. Raises the record's error; InvalidStateError while it is in flight."""
        if not self._record.done:
            raise asyncio.InvalidStateError("the record is still in flight; await the delivery")
        check(self._record)
        assert self._record.receipt is not None
        return self._record.receipt

    def exception(self) -> CometError | None:
        """The record's error; None if there is none, or none yet."""
        self._record.seen = True
        return self._record.error


class BulkDelivery:
    """The result of sending many records. Awaiting it gives a list of ReceiptRange, or raises the first error.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         bulk = await producer.send_many("quotes", [b"1", b"2", b"3"])
    ...         print([(receipt.first, receipt.count) for receipt in await bulk])
    >>> run(example)
    [(0, 3)]
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Sequence[ProducerBatch]) -> None:
        self._batches = batches

    def __await__(self) -> Generator[Any, None, list[ReceiptRange]]:
        for batch in self._batches:
            if not batch.done:
                yield from wait(batch).__await__()
        for batch in self._batches:
            check(batch)
        return [
            ReceiptRange(
                batch.accumulator.topic,
                batch.accumulator.partition,
                batch.base_offset,
                batch.count,
                batch.append_time_us,
            )
            for batch in self._batches
        ]

    def done(self) -> bool:
        """Whether every record is acknowledged or failed."""
        return all(batch.done for batch in self._batches)

    async def outcomes(self) -> list[ReceiptRange | FailedRange]:
        """Waits until every record is acknowledged or failed; returns the outcome of each run of records, in order.

        >>> async def example(address: str) -> None:
        ...     async with comet.Producer(address) as producer:
        ...         bulk = await producer.send_many("quotes", [b"1", b"2", b"3"])
        ...         print([(outcome.first, outcome.count) for outcome in await bulk.outcomes()])
        >>> run(example)
        [(0, 3)]
        """
        for batch in self._batches:
            if not batch.done:
                await wait(batch)
        return self.known()

    def known(self) -> list[ReceiptRange | FailedRange]:
        """The outcomes so far: records in flight are a FailedRange without an error. `flush` does not raise failures of
        this delivery afterwards."""
        return [_outcome(batch) for batch in self._batches]


def _outcome(batch: ProducerBatch) -> ReceiptRange | FailedRange:
    batch.seen = True
    if batch.error is not None or not batch.done:
        return FailedRange(batch.count if batch.done else len(batch), batch.error)
    return ReceiptRange(
        batch.accumulator.topic, batch.accumulator.partition, batch.base_offset, batch.count, batch.append_time_us
    )


def end_span(span: SendSpan, delivery: Delivery | ScheduledDelivery | BulkDelivery) -> None:
    """Ends the span of records once each of them is acknowledged, stored or failed."""
    if not span.recording:
        return
    if isinstance(delivery, ScheduledDelivery):
        _when_done([delivery._record], span.finished)
    elif isinstance(delivery, BulkDelivery):
        _when_done(delivery._batches, span.finished)
    else:
        batch, index = delivery._batch, delivery._index
        topic, partition = batch.accumulator.topic, batch.accumulator.partition

        def end(error: CometError | None) -> None:
            offset = batch.base_offset + index if error is None and batch.base_offset >= 0 else None
            span.finished(error, (topic, partition, offset))

        _when_done([batch], end)


def _when_done(batches: Sequence[ProducerBatch | DelayedRecord], call: Callable[[CometError | None], None]) -> None:
    """Calls a function once all batches are done, with their first error."""
    left = [wait(batch) for batch in batches if not batch.done]

    def one_done(future: object) -> None:
        left.remove(future)  # type: ignore[arg-type]  # a future is one of them
        if not left:
            end()

    def end() -> None:
        call(next((batch.error for batch in batches if batch.error is not None), None))

    for future in tuple(left):
        future.add_done_callback(one_done)
    if not left:
        end()
