"""A handler with its topic and options, and its calls: arguments, errors, and time that it blocked the loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comet.errors import DecryptionError, InvalidArgument, SerdeError
from comet.handlers.handler import Handler, HandlerShape, Signature, watched
from comet.handlers.options import HandlerOptions, Reading
from comet.types import TopicPartition
from comet.values.record import RecordBatch

if TYPE_CHECKING:
    from comet.producer.transaction import Transaction

log = logging.getLogger("comet")

REPORT_S: Final = 1.0  # between two log lines of skipped records

# The transaction that a handler runs in; records that the app sends there go into it.
current_transaction: ContextVar[Transaction | None] = ContextVar("comet_transaction", default=None)


def check_signature(signature: Signature, group: str, options: HandlerOptions) -> None:
    """Raises InvalidArgument if the handler cannot be called as its options say."""
    if signature.transaction and not group:
        raise InvalidArgument('a handler that takes a comet.Transaction needs group= and delivery="exactly_once"')
    if signature.transaction and options.delivery != "exactly_once":
        raise InvalidArgument('a handler that takes a comet.Transaction needs delivery="exactly_once"')
    if options.shared and signature.shape not in {HandlerShape.MODEL, HandlerShape.RECORD}:
        raise InvalidArgument("handlers of a share group take single records, not lists or batches")


@dataclass(slots=True)
class Binding:
    """A handler with its topic, group and options."""

    topic: str
    handler: Handler
    signature: Signature
    name: str
    group: str  # empty: none
    options: HandlerOptions
    reading: Reading  # the options of its consumer
    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    skipped: int = 0  # malformed records
    _reported_s: float = float("-inf")  # when a skipped record was last logged, on the loop's clock
    blocked_s: float = 0.0  # the longest time that it blocked the loop
    tps: list[TopicPartition] = field(default_factory=list)  # the partitions that it reads for its group now

    @property
    def whole(self) -> bool:
        """Whether the handler takes batches, or lists of a batch's values."""
        return self.signature.shape in {HandlerShape.BATCH, HandlerShape.MODELS}

    def failure(self, error: Exception) -> None:
        """Records a final failure of the handler; raises the error if on_error is "stop"."""
        self._failed(error, ends=self.options.on_error == "stop")

    def _failed(self, error: Exception, *, ends: bool) -> None:
        self.failed += 1
        log.error("comet: handler %s of topic %r failed: %r", self.name, self.topic, error, exc_info=error)
        if ends:
            raise error

    def ends_app(self, error: SerdeError) -> bool:
        """Whether a record that cannot be decoded ends the app. One that cannot be decrypted is not malformed: its
        key is missing."""
        policy = self.options.on_error if isinstance(error, DecryptionError) else self.options.on_malformed
        return policy == "stop"

    def malformed(self, error: SerdeError) -> None:
        """Skips a record that cannot be decoded, counts and logs it, at most once a second; raises the error if it ends
        the app."""
        if isinstance(error, DecryptionError) or self.ends_app(error):
            self._failed(error, ends=self.ends_app(error))
            return
        self.skipped += 1
        now_s = asyncio.get_running_loop().time()
        if now_s < self._reported_s + REPORT_S:
            return
        self._reported_s = now_s
        keep = f'keep such records with dead_letter="{self.topic}-failed", or ' if self.group else ""
        log.error(
            "comet: handler %s of topic %r skipped malformed records, %d so far: %s; "
            '%send the app with on_malformed="stop"',
            self.name, self.topic, self.skipped, error, keep,
        )  # fmt: skip


class Item(NamedTuple):
    """The argument of one call of a handler, and the records in it."""

    batch: RecordBatch[Any]
    first: int
    end: int  # the offset after it
    key: object
    argument: Any
    errors: tuple[SerdeError, ...] = ()  # errors of records that cannot be decoded

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.batch.topic, self.batch.partition)


def items_of(binding: Binding, batch: RecordBatch[Any]) -> Iterator[Item]:
    """The items of a batch for its handler. A record that cannot be decoded is an item without an argument."""
    if binding.whole:
        # The same key for all batches keeps those of a partition in order.
        if binding.signature.shape is HandlerShape.BATCH:
            yield Item(batch, batch.first_offset, batch.next_offset, b"", batch)
            return
        events, errors = decoded(batch)
        yield Item(batch, batch.first_offset, batch.next_offset, b"", events, tuple(errors))
        return
    event = binding.signature.shape is HandlerShape.MODEL
    rest: RecordBatch[Any] | None = batch
    while rest is not None:
        try:
            for record in rest.records():
                offset = record.offset
                yield Item(batch, offset, offset + 1, record.key, record.value if event else record)
            return
        except SerdeError as error:
            offset = int(error.details["offset"])
            yield Item(batch, offset, offset + 1, None, None, (error,))
            rest = rest.after(offset + 1)


def decoded(batch: RecordBatch[Any]) -> tuple[list[Any], list[SerdeError]]:
    """The values of a batch, and the errors of those that cannot be decoded."""
    events: list[Any] = []
    errors: list[SerdeError] = []
    rest: RecordBatch[Any] | None = batch
    while rest is not None:
        try:
            events.extend(record.value for record in rest.records())
            break
        except SerdeError as error:
            errors.append(error)
            rest = rest.after(int(error.details["offset"]) + 1)
    return events, errors


class Caller:
    """Calls handlers, and logs those that block the event loop. Owned by the app."""

    def __init__(self, stopwatch: Callable[[], float], block_warning_s: float) -> None:
        self._stopwatch = stopwatch
        self._limit_s = block_warning_s

    async def call(self, one: Binding, argument: Any) -> None:
        """Calls the handler. Raises the handler's exception."""
        began = self._stopwatch()
        if one.signature.transaction:
            outcome = one.handler(argument, current_transaction.get())
        else:
            outcome = one.handler(argument)
        took = self._stopwatch() - began
        if took > self._limit_s:
            self._blocked(one, took)
        if inspect.isawaitable(outcome):
            await watched(outcome, self._stopwatch, self._limit_s, lambda took: self._blocked(one, took))

    def _blocked(self, one: Binding, took_s: float) -> None:
        one.blocked_s = max(one.blocked_s, took_s)
        log.warning(
            "comet: handler %s of topic %r blocked the event loop for %.0f ms; "
            "await slow calls, or move them to a thread with asyncio.to_thread",
            one.name, one.topic, took_s * 1000,
        )  # fmt: skip
