"""A handler with its topic and options, and its calls: arguments, errors, and time that it blocked the loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comet.errors import DecryptionError, InvalidArgument, SerdeError
from comet.groups.options import GroupOptions
from comet.handlers.dependencies import Overrides, Resolver
from comet.handlers.handler import Handler, HandlerShape, Signature, watched
from comet.handlers.message import CallNext, Message, Middleware, RunningApp
from comet.handlers.options import HandlerOptions, Reading
from comet.share.share_consumer import ShareRecord
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
    if options.retry_topic and signature.shape not in {HandlerShape.MODEL, HandlerShape.RECORD}:
        raise InvalidArgument("handlers with a retry_topic take single records, not lists or batches")


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
    middleware: tuple[Middleware, ...] = ()  # of its routers, the outermost first
    handled: int = 0
    failed: int = 0
    retried: int = 0
    delayed: int = 0  # records written to the retry topic
    dead_lettered: int = 0
    skipped: int = 0  # malformed records
    _reported_s: float = float("-inf")  # when a skipped record was last logged, on the loop's clock
    blocked_s: float = 0.0  # the longest time that it blocked the loop
    tps: list[TopicPartition] = field(default_factory=list)  # the partitions that it reads for its group now

    @property
    def whole(self) -> bool:
        """Whether the handler takes batches, or lists of a batch's values."""
        return self.signature.shape in {HandlerShape.BATCH, HandlerShape.MODELS}

    @property
    def reads_retries(self) -> bool:
        """Whether it reads the retry topic of another binding."""
        return self.topic == self.options.retry_topic

    def for_retries(self) -> Binding:
        """The same handler, for the records of its retry topic: all of them, from the earliest, in the same group."""
        assert isinstance(self.reading, GroupOptions)
        instance = f"{self.reading.instance}-retries" if self.reading.instance else ""
        reading = replace(self.reading, start="earliest", filter="", instance=instance)
        return replace(self, topic=self.options.retry_topic, reading=reading, tps=[])

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


def check_retry_topic(one: Binding, others: Iterable[Binding]) -> None:
    """Raises InvalidArgument if the retry topic of a handler has another use for its group."""
    topic = one.options.retry_topic
    if not topic:
        return
    if one.topic == topic:
        raise InvalidArgument(f"{one.name} reads its retry_topic {topic!r} anyway: give it another topic for retries")
    for other in others:
        if other.group == one.group and other.topic == topic:
            raise InvalidArgument(
                f"{other.name} reads {topic!r} for group {one.group!r} already: give {one.name} its own retry_topic"
            )


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


def message_of(
    app: RunningApp, handler: str, argument: Any, origin: Item | ShareRecord[Any], *, whole: bool
) -> Message:
    """The message of a call; `origin` is where the argument comes from."""
    if isinstance(origin, ShareRecord):
        return Message(
            app, handler, origin.topic, origin.partition, origin.offset, origin.key, origin.headers,
            origin.timestamp_us, argument,
        )  # fmt: skip
    batch = origin.batch
    index = bisect_left(batch.offsets, origin.first)
    key, headers = (None, []) if whole else (batch.keys[index], batch.headers[index])
    return Message(
        app, handler, batch.topic, batch.partition, origin.first, key, headers, batch.timestamps[index], argument
    )


class Caller:
    """Calls handlers with their middleware and dependencies, and logs those that block the event loop. Owned by the
    app."""

    def __init__(
        self, app: RunningApp, middleware: tuple[Middleware, ...], stopwatch: Callable[[], float], limit_s: float
    ) -> None:
        self.overrides: Overrides = {}  # of dependencies, in tests
        self._app = app
        self._middleware = middleware
        self._stopwatch = stopwatch
        self._limit_s = limit_s

    async def call(self, one: Binding, argument: Any, origin: Item | ShareRecord[Any]) -> None:
        """Calls the handler. Raises the handler's exception."""
        began = self._stopwatch()
        outcome: Awaitable[Any] | None
        if self._middleware or one.middleware or one.signature.needs:
            outcome = self._call_within(one, message_of(self._app, one.name, argument, origin, whole=one.whole))
        elif one.signature.transaction:
            outcome = one.handler(argument, current_transaction.get())
        else:
            outcome = one.handler(argument)
        took = self._stopwatch() - began
        if took > self._limit_s:
            self._blocked(one, took)
        if inspect.isawaitable(outcome):
            await watched(outcome, self._stopwatch, self._limit_s, lambda took: self._blocked(one, took))

    async def _call_within(self, one: Binding, message: Message) -> None:
        """Calls the handler inside its middleware, with its dependencies."""

        async def handler(message: Message) -> Any:
            arguments = [message.value, current_transaction.get()] if one.signature.transaction else [message.value]
            async with AsyncExitStack() as stack:
                named = await Resolver(message, stack, self.overrides).arguments(one.signature.needs)
                outcome = one.handler(*arguments, **named)
                return await outcome if inspect.isawaitable(outcome) else outcome

        call: CallNext = handler
        for middleware in reversed(self._middleware + one.middleware):
            call = partial(_through, middleware, call)
        await call(message)

    def _blocked(self, one: Binding, took_s: float) -> None:
        one.blocked_s = max(one.blocked_s, took_s)
        log.warning(
            "comet: handler %s of topic %r blocked the event loop for %.0f ms; "
            "await slow calls, or move them to a thread with asyncio.to_thread",
            one.name, one.topic, took_s * 1000,
        )  # fmt: skip


async def _through(middleware: Middleware, call_next: CallNext, message: Message) -> Any:
    return await middleware(message, call_next)
