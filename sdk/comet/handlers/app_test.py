"""app.test(): the handlers of an app without a broker.

publish ─► topic in memory ─► each handler of it: decode, call, retry, dead letter ─► what they publish ─► …
   └─ returns when no record is left to handle; raises the first error
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, cast

from comet.consumer.consumer import serde_of
from comet.consumer.options import parsed_filter
from comet.errors import LimitExceeded
from comet.handlers.binding import Binding, Item, current_transaction, items_of
from comet.handlers.dead_letters import PREFIX
from comet.handlers.dependencies import Overrides
from comet.handlers.handler import HandlerShape
from comet.handlers.memory import MemoryLog, MemoryProducer, MemoryTransaction
from comet.handlers.serving import GroupServing, Host, current_serving, settling
from comet.records import Batch
from comet.share.share_consumer import ShareRecord
from comet.types import Receipt
from comet.values.record import Headers, Key, Record, RecordBatch, unexpired

if TYPE_CHECKING:
    from comet.producer.transaction import Transaction

# Calls of handlers that one publish leads to: more come from handlers that feed each other.
CALLS_MAX: Final = 10_000


class DeadLetter(NamedTuple):
    """A record that a handler's rules gave up, with the reason: see App.test.

    >>> letter = DeadLetter(Record("failed", 0, 0, None, b"?", 0, []), "quotes", "SerdeError: …", 1)
    >>> letter.record.value, letter.origin
    (b'?', 'quotes')
    """

    record: Record[bytes]
    origin: str  # the topic that it was read from
    reason: str
    attempts: int


class _Lot:
    """Takes the acknowledgements of a share group's record."""

    def acknowledge(self, *_: Any) -> _Done:
        return _Done()


class _Done:
    def __await__(self) -> Iterator[None]:
        return iter(())


class MemoryServing(GroupServing):
    """Serves one handler in a test: its policy, without waiting."""

    def __init__(self, host: Host, one: Binding, log: MemoryLog, errors: list[Exception]) -> None:
        super().__init__(host, one)
        self._log = log
        self.clock_us = log.clock_us
        self._errors = errors
        self._attempt = 1
        self._serde = serde_of(one.signature.type)
        self._filter = parsed_filter(getattr(one.reading, "filter", ""), now_us=log.clock_us())
        self.calls = 0

    async def deliver(self, topic: str, batch: Batch) -> None:
        """Calls the handler with the records of a batch. Raises the error that ends the app."""
        current_serving.set(self)
        whole = RecordBatch(topic, 0, batch, serde=self._serde)
        chosen = unexpired(whole, self._log.clock_us())
        if chosen is not None and self._filter is not None:
            chosen = chosen.pick(self._filter.rows(chosen))
        for item in () if chosen is None else items_of(self.one, chosen):
            self._attempt = 1
            await settling(self, item.batch)(item, 0)

    async def call(self, item: Item) -> None:
        self.calls += 1
        if self.one.options.shared and self.one.signature.shape is HandlerShape.RECORD:
            record: Record[Any] = item.argument
            item = item._replace(argument=ShareRecord(*record, self._attempt, cast("Any", _Lot())))
        if self.one.options.delivery != "exactly_once":
            await super().call(item)
            return
        async with MemoryTransaction(self._log) as transaction:
            token = current_transaction.set(cast("Transaction", transaction))
            try:
                await super().call(item)
            finally:
                current_transaction.reset(token)

    async def pause(self, item: Item, life: int, attempts: int, error: Exception) -> None:  # noqa: ARG002
        self.one.retried += 1
        self._attempt = attempts + 1

    async def give_up(self, item: Item, attempts: int, error: Exception) -> None:
        if error not in item.errors:
            self._errors.append(error)
        await super().give_up(item, attempts, error)

    async def _set_aside_undecodable(self, item: Item) -> None:
        self._errors.extend(item.errors)
        await super()._set_aside_undecodable(item)


class TestedApp(Host, Protocol):
    """The part of the app that a test uses."""

    _bindings: list[Binding]

    @property
    def stopping(self) -> bool: ...

    def _enter_test(self, test: AppTest) -> AbstractAsyncContextManager[None]: ...


class AppTest:
    """Handlers of an app without a broker, while its `async with` block runs: see App.test.

    >>> app = comet.App()
    >>> @app.on("quotes", group="engine", dead_letter="quotes-failed")
    ... async def handle(quote: dict) -> None:
    ...     print(1 / quote["bid"])
    >>> async def test_handle() -> None:
    ...     async with app.test(raise_errors=False) as test:
    ...         await test.publish("quotes", {"bid": 2})
    ...         await test.publish("quotes", {"bid": 0})
    ...         print(test.dead_letters()[0].reason, len(test.records("quotes")))
    >>> comet.run(test_handle())
    0.5
    ZeroDivisionError: division by zero 2
    """

    def __init__(
        self, app: TestedApp, clock_us: Callable[[], int], *, raise_errors: bool, dependencies: Overrides
    ) -> None:
        self.log = MemoryLog(clock_us)
        self.producer = MemoryProducer(self.log)
        self.errors: list[Exception] = []  # of handlers and of records that could not be decoded
        self._app = app
        self._raise_errors = raise_errors
        self._dependencies = dependencies
        self._servings: list[MemoryServing] = []
        self._stack = AsyncExitStack()

    # ---- life

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._app._enter_test(self))
        self._app.caller.overrides = self._dependencies
        self._servings = [MemoryServing(self._app, one, self.log, self.errors) for one in self._app._bindings]
        for one in self._app._bindings:
            one.handled = one.failed = one.retried = one.delayed = one.dead_lettered = one.skipped = 0
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)
        self._app.caller.overrides = {}

    # ---- records

    async def publish(
        self, topic: str, value: Any, *, key: Key = None, headers: Headers | None = None,
        timestamp_us: int | None = None, ttl_ms: int | None = None,
    ) -> Receipt:  # fmt: skip
        """Writes a record, and returns when all handlers are done with it and with all that follows from it. Raises the
        first error of a handler, and SerdeError for a record that a handler could not decode."""
        receipt: Receipt = await self.producer.publish(
            topic, value, key=key, headers=headers, timestamp_us=timestamp_us, ttl_ms=ttl_ms
        )
        await self.settle()
        return receipt

    async def publish_many(self, topic: str, values: Sequence[Any], *, keys: Sequence[Key] | None = None) -> None:
        """Writes records as one batch, for handlers of lists and batches. As `publish` otherwise."""
        await self.producer.send_many(topic, values, keys=keys)
        await self.settle()

    async def fire_delayed(self) -> None:
        """Writes the delayed records so far, by the times when they are due, and returns when handlers are done with
        them. Before it no handler gets them. As `publish` otherwise.

        >>> app = comet.App()
        >>> async def test_reminder() -> None:
        ...     async with app.test() as test:
        ...         await app.publish("reminders", "tea", delay="5m")
        ...         print(test.values("reminders"))
        ...         await test.fire_delayed()
        ...         print(test.values("reminders"))
        >>> comet.run(test_reminder())
        []
        [b'tea']
        """
        await self.producer.fire_delayed()
        await self.settle()

    async def settle(self) -> None:
        """Handles what was written elsewhere, such as in `lifespan`; `publish` does this."""
        known = len(self.errors)
        calls = sum(one.calls for one in self._servings)
        while self.log.arrived and not self._app.stopping:
            topic, batch = self.log.arrived.popleft()
            for serving in self._readers(topic):
                await serving.deliver(topic, batch)
            if sum(one.calls for one in self._servings) - calls > CALLS_MAX:
                raise LimitExceeded(f"over {CALLS_MAX} calls of handlers for one record: do handlers feed each other?")
        if self._raise_errors and len(self.errors) > known:
            raise self.errors[known]

    def _readers(self, topic: str) -> list[MemoryServing]:
        """The handlers of a topic; of a group, one: its topic has one partition."""
        found: dict[object, MemoryServing] = {}
        for serving in self._servings:
            if serving.one.topic == topic:
                found.setdefault(serving.one.group or serving, serving)
        return list(found.values())

    def records(self, topic: str, type: Any = None) -> list[Record[Any]]:  # noqa: A002 - as a consumer's
        """The records of a topic so far: those of the test, and those that handlers published."""
        return self.log.read(topic, serde_of(type))

    def values(self, topic: str, type: Any = None) -> list[Any]:  # noqa: A002 - as a consumer's
        """The values of a topic so far, of the given type; without one, bytes."""
        return [record.value for record in self.records(topic, type)]

    def dead_letters(self) -> list[DeadLetter]:
        """The dead letters so far, by topic."""
        found = []
        for topic in self.log.topics:
            for record in self.log.read(topic):
                details = {name: value.decode(errors="replace") for name, value in record.headers}
                if PREFIX + "topic" in details:
                    attempts = int(details[PREFIX + "attempts"])
                    found.append(DeadLetter(record, details[PREFIX + "topic"], details[PREFIX + "reason"], attempts))
        return found
