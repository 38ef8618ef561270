"""App: handlers for topics, each a function that is called with every record as it arrives.

@app.on("quotes") ──► Consumer, GroupConsumer or ShareConsumer ──► handler(record), in order per partition or key
app.run()         ──► all handlers at once, until SIGINT, SIGTERM, an error of a handler, or app.stop()

The serving loops, and when they commit, are in comet.handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from random import SystemRandom
from types import SimpleNamespace
from typing import Any, Unpack, cast

from comet.client.bootstrap import Addresses, Bootstrap
from comet.client.new_topic import Create
from comet.client.world import Seams, World
from comet.consumer.options import ClientKeywords
from comet.encryption.keyring import Keyring
from comet.errors import InvalidArgument
from comet.event_loop import run
from comet.handlers.app_test import AppTest
from comet.handlers.at_least_once import AtLeastOnce
from comet.handlers.at_most_once import AtMostOnce
from comet.handlers.binding import Binding, Caller, check_retry_topic, current_transaction
from comet.handlers.clients import AppClients
from comet.handlers.dependencies import Overrides
from comet.handlers.exactly_once import ExactlyOnce
from comet.handlers.keywords import HandlerKeywords
from comet.handlers.memory import MemoryTransaction
from comet.handlers.message import Middleware, check_middleware
from comet.handlers.metrics import prometheus
from comet.handlers.options import HandlerOptions, Reading
from comet.handlers.router import H, Router, included, registration
from comet.handlers.serving import GroupServing, PlainServing, RecordSource, Serving, current_serving
from comet.handlers.share_worker import ShareWorker
from comet.producer.delayed_record import Delay, refused_in_transaction
from comet.producer.delivery import Delivery
from comet.producer.producer import Producer
from comet.producer.transaction import Transaction, TransactionalProducer
from comet.tracing.options import Tracing
from comet.values.record import Headers, Key

log = logging.getLogger("comet")


class AppSeams(Seams, total=False):
    stopwatch: Callable[[], float]


Lifespan = Callable[["App"], AbstractAsyncContextManager[None]]


class App:
    """Handlers for topics. The annotation of a handler's parameter decides its argument:

        event: Quote                    the value, decoded (any model, dict, str, bytes …)
        record: comet.Record[Quote]     with key, offset, timestamp and headers
        quotes: list[Quote]             all values of a batch at once
        batch: comet.RecordBatch[Quote] a whole batch as columns

    An error of a handler is logged, and then `on_error` decides: "stop" ends the app with that error, "skip" goes on
    with the next record. A malformed record, one whose value cannot be decoded as the annotation says, goes to the
    topic `dead_letter`; without one it is logged, counted and skipped, or ends the app with `on_malformed="stop"`. A
    handler that blocks the event loop for more than `block_warning_ms` is logged by name.

    With `group`, apps of the same group share the topic's partitions and go on at the group's committed offsets;
    `delivery` sets the delivery guarantee; see `on`.

    With `encryption`, a Keyring, the values that handlers get are decrypted, and all that the app writes is encrypted,
    dead letters included. Of an error, dead letters then name only the type.

    `tracing` says which spans of OpenTelemetry its handlers and producers make, if any.

    >>> async def example(address: str) -> None:
    ...     app = comet.App(address)
    ...
    ...     @app.on("quotes", start="earliest")
    ...     async def show(quote: dict) -> None:
    ...         print(quote["symbol"])
    ...         app.stop()
    ...
    ...     await app.publish("quotes", {"symbol": "EURUSD"})
    ...     await app.serve()
    >>> run(example)
    EURUSD
    """

    def __init__(
        self,
        addresses: Addresses = None,
        *,
        name: str = "",
        block_warning_ms: float = 100,
        stop_timeout_ms: float = 10_000,
        encryption: Keyring | None = None,
        create: Create = False,
        tracing: Tracing | bool = True,
        lifespan: Lifespan | None = None,
        middleware: Iterable[Middleware] = (),
        **seams: Unpack[AppSeams],
    ) -> None:
        stopwatch = seams.pop("stopwatch", time.perf_counter)
        world = World.of(self, {**seams})
        Bootstrap.of(addresses)
        around = tuple(middleware)
        for one in around:
            check_middleware(one)
        self.caller = Caller(self, around, stopwatch, block_warning_ms / 1000)
        self.state = SimpleNamespace()
        self.random = world.random or SystemRandom()
        keywords = ClientKeywords(
            name=name, connect=world.connect, random=world.random, clock_us=world.clock_us
        )  # fmt: skip
        self.clients = AppClients(addresses, encryption, create, tracing, keywords)
        self._clock_us = world.clock_us
        self._lifespan = lifespan
        self._test: AppTest | None = None
        self._stop_timeout_s = stop_timeout_ms / 1000
        self._bindings: list[Binding] = []
        self._servings: list[Serving] = []
        self._transactional: dict[RecordSource | None, list[TransactionalProducer]] = {}  # idle ones
        self._stopping: asyncio.Event | None = None
        self._stop_requested = False
        self._serving = False

    def on(
        self,
        topic: str,
        *,
        group: str = "",
        type: Any = None,  # noqa: A002 - the name users expect
        options: HandlerOptions | None = None,
        consumer: Reading | None = None,
        **keywords: Unpack[HandlerKeywords],
    ) -> Callable[[H], H]:
        """Registers a handler for a topic, async or not. It gets records one at a time, in order per partition.

        With `group`, its members share the partitions, and the cluster keeps the committed offsets; a new group
        begins at `start`. `delivery` is the delivery guarantee:

            "at_most_once"     committed, 100 records at most, before the handler is called: no record comes twice
            "at_least_once"    committed after the handler's success: no record is missed
            "exactly_once"     records that the handler sends with `app.send`, `app.publish`, or a second parameter
                               that is a `comet.Transaction`, are committed together with the offset, or not at all

        A handler that raises is called again `retries` times, after `backoff_ms`, then twice that, and so on. With
        `retry_topic` and `retry_delays` the record is then written to that topic after each delay in turn, for another
        round of calls; meanwhile its partition goes on. After that it goes to the topic `dead_letter` unchanged, with
        its origin and the reason in headers; without one, `on_error` decides, and `on_malformed` about values that
        cannot be decoded. With `concurrency` several run at once, one at a time per key. With `shared`, members take
        single records, independent of the number of partitions, and acknowledge each on its own.

        Options are given by name: those of HandlerOptions, and those of its consumer, which are ConsumerOptions,
        GroupOptions with a `group`, or ShareOptions with `shared`. Or as objects, `options` and `consumer`, for several
        handlers; an option given by name replaces theirs. By default it reads from "latest".

        >>> app = comet.App("localhost:9092")
        >>> @app.on("quotes", group="engine", retries=3, dead_letter="quotes-failed")
        ... async def handle(record: comet.Record[dict]) -> None: ...
        """
        return registration(self._add, topic, group, type, options, consumer, keywords, sys._getframe(1).f_locals)

    def _add(self, binding: Binding) -> None:
        if self._serving or self._test is not None:
            raise InvalidArgument("register handlers before the app runs")
        check_retry_topic(binding, self._bindings)
        self._bindings.append(binding)
        if binding.options.retry_topic:
            self._bindings.append(binding.for_retries())

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Adds the handlers of a router, with `prefix` before the names of their topics. Their middleware runs inside
        that of the app.

        >>> orders = comet.Router(prefix="orders.")
        >>> @orders.on("placed", group="billing")
        ... async def bill(order: dict, message: comet.Message) -> None:
        ...     await message.app.publish("invoices", order, key=message.key)
        >>> app = comet.App()
        >>> app.include(orders, prefix="eu.")
        >>> app.statistics()[0]["topic"]
        'eu.orders.placed'
        """
        for binding in included(router, prefix):
            self._add(binding)

    # ---- running

    def run(self) -> None:
        """Runs until SIGINT or SIGTERM, then stops cleanly. Raises the error of a handler that failed."""
        run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, ValueError):  # not on Windows, and not in another thread
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        await self.serve()

    def stop(self) -> None:
        """Stops the app: every handler finishes its current record, and processed records are committed."""
        self._stop_requested = True
        if self._stopping is not None:
            self._stopping.set()
        for serving in self._servings:
            serving.stop()

    async def serve(self) -> None:
        """Runs the app on the running event loop. Returns after `stop`."""
        if not self._bindings:
            raise InvalidArgument("this app has no handlers: register one with @app.on(topic)")
        if self._serving:
            raise InvalidArgument("this app is running already")
        self._serving = True
        self._stopping = asyncio.Event()
        try:
            async with self._lifetime():
                await self._serve(self._stopping)
        finally:
            await self._close_producers()
            self._serving = self._stop_requested = False
            self._stopping = None

    @contextlib.asynccontextmanager
    async def _lifetime(self) -> AsyncIterator[None]:
        """Its `lifespan`, if it has one."""
        async with contextlib.nullcontext() if self._lifespan is None else self._lifespan(self):
            yield

    async def _serve(self, stop: asyncio.Event) -> None:
        await self.clients.create_dead_letter_topics(self._bindings)
        loop = asyncio.get_running_loop()
        self._servings = [self._serving_of(one) for one in self._bindings]
        if self._stop_requested:
            self.stop()
        tasks = [loop.create_task(one.run(), name=f"comet: {one.one.name}") for one in self._servings]
        stopping = loop.create_task(stop.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            await self._wind_up(tasks)
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.wait([*tasks, stopping])
            self._servings = []
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _serving_of(self, one: Binding) -> Serving:
        if not one.group:
            return PlainServing(self, one)
        if one.options.shared:
            return ShareWorker(self, one)
        match one.options.delivery:
            case "at_most_once":
                return AtMostOnce(self, one)
            case "at_least_once":
                return AtLeastOnce(self, one)
            case "exactly_once":
                return ExactlyOnce(self, one)

    async def _wind_up(self, tasks: list[asyncio.Task[None]]) -> None:
        """Lets every handler finish its current record."""
        self.stop()
        _, late = await asyncio.wait(tasks, timeout=self._stop_timeout_s)
        for task in late:
            log.warning("comet: cancelled %s: it did not end within %g s", task.get_name(), self._stop_timeout_s)

    async def _close_producers(self) -> None:
        idle = [producer for producers in self._transactional.values() for producer in producers]
        self._transactional.clear()
        for transactional in idle:
            await transactional.close()
        await self.clients.close()

    # ---- testing

    def test(self, *, raise_errors: bool = True, dependencies: Overrides | None = None) -> AppTest:
        """The app without a broker, for tests: `publish` calls its handlers, and returns when they are done with the
        record and with all that they published for each other.

        Records are decoded and checked, retried, skipped and dead-lettered as always, without waiting in between.
        `publish` raises an error of a handler, and SerdeError for a malformed record, after the handler's rules were
        applied. With `raise_errors=False` they are in `errors`, and only one that ends the app is raised.
        `dependencies` replaces functions of comet.Depends. Every topic has one partition, nothing is encrypted, and
        `lifespan` is entered.

        >>> app = comet.App()
        >>> @app.on("quotes")
        ... async def spread(quote: dict) -> None:
        ...     await app.publish("spreads", quote["ask"] - quote["bid"])
        >>> async def test_spread() -> None:
        ...     async with app.test() as test:
        ...         await test.publish("quotes", {"bid": 9.5, "ask": 9.75})
        ...         print(test.values("spreads", float))
        >>> comet.run(test_spread())
        [0.25]
        """
        return AppTest(self, self._clock_us, raise_errors=raise_errors, dependencies=dependencies or {})

    @contextlib.asynccontextmanager
    async def _enter_test(self, test: AppTest) -> AsyncIterator[None]:
        if self._serving or self._test is not None:
            raise InvalidArgument("this app is running already")
        self._test = test
        self.clients.write_to(test.producer)
        try:
            async with self._lifetime():
                yield
        finally:
            await self._close_producers()
            self._test, self._stop_requested = None, False

    @property
    def stopping(self) -> bool:
        """Whether the app was told to stop."""
        return self._stop_requested

    # ---- producing

    @property
    def producer(self) -> Producer:
        """The producer that handlers share, made at first use. Its records are in no transaction."""
        return self.clients.producer

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        delay: Delay | None = None,
        due: datetime | None = None,
        schedule_id: str | None = None,
    ) -> None:
        """Writes a record and waits until it is acknowledged. In a handler with delivery="exactly_once" the record goes
        into the transaction instead, which waits for all its records when it commits. With `delay` or `due` the cluster
        writes it later, as `Producer.send` describes; a transaction cannot hold it.

        >>> async def example(address: str) -> None:
        ...     app = comet.App(address)
        ...     await app.publish("quotes", {"symbol": "EURUSD"}, key="EURUSD")
        ...     await app.producer.close()
        >>> run(example)
        """
        transaction = current_transaction.get()
        if transaction is None:
            await self.producer.publish(
                topic, value, key=key, headers=headers, delay=delay, due=due, schedule_id=schedule_id
            )
        elif schedule_id is not None:
            raise refused_in_transaction()
        else:
            await transaction.send(topic, value, key=key, headers=headers, delay=delay, due=due)

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
    ) -> Delivery:
        """Buffers a record, as `Producer.send` does; in a handler with delivery="exactly_once", in its transaction.

        >>> async def example(address: str) -> None:
        ...     app = comet.App(address)
        ...     delivery = await app.send("quotes", {"symbol": "EURUSD"}, key="EURUSD")
        ...     print((await delivery).offset)
        ...     await app.producer.close()
        >>> run(example)
        0
        """
        writer: Producer | Transaction = current_transaction.get() or self.producer
        return await writer.send(
            topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition, ttl_ms=ttl_ms
        )

    @contextlib.asynccontextmanager
    async def transaction(self, messages: Any = None) -> AsyncIterator[Transaction]:
        """A transaction in a handler: the records it sends, and the offset after `messages` (a Record, a RecordBatch,
        or a list of them, as the handler got them), become visible together or not at all. Without messages, only the
        records it sends.

        For a handler of a group with delivery="at_least_once" and no concurrency; with "exactly_once" every handler
        runs in a transaction anyway, which is larger, and so much faster.

        >>> async def example(address: str) -> None:
        ...     app = comet.App(address)
        ...     @app.on("quotes", group="engine", start="earliest")
        ...     async def handle(quote: comet.Record[dict]) -> None:
        ...         async with app.transaction(quote) as tx:
        ...             await tx.send("signals", quote.value, key=quote.key)
        """
        if self._test is not None:
            async with MemoryTransaction(self._test.log) as simulated:
                yield cast("Transaction", simulated)
            return
        serving = current_serving.get()
        source = None if messages is None else self._source_of(serving)
        idle = self._transactional.setdefault(source, [])
        producer = idle.pop() if idle else self.clients.transactional_producer(source)
        tx = producer.transaction()
        try:
            async with tx:
                if source is not None:
                    await tx.commit_offsets(source, messages)
                yield tx
        finally:
            if tx.state in {"committed", "aborted"} and self._serving:
                idle.append(producer)
            else:
                await producer.close()
            if tx.state == "unknown" and isinstance(serving, GroupServing):
                serving.restart = True

    def _source_of(self, serving: Serving | None) -> RecordSource:
        if not isinstance(serving, AtLeastOnce) or serving.source is None:
            raise InvalidArgument(
                "app.transaction(messages) commits an offset of the group: use it in a handler registered "
                'with group= and delivery="at_least_once"'
            )
        if serving.policy.concurrency > 1:
            raise InvalidArgument(
                "app.transaction(messages) commits the offset after them, and with concurrency records before it "
                'may not be processed: use delivery="exactly_once"'
            )
        return serving.source

    def statistics(self) -> list[dict[str, Any]]:
        """Counters per handler, and the longest time it blocked the event loop.

        >>> app = comet.App("localhost:9092")
        >>> app.statistics()
        []
        """
        ready = {id(one.one) for one in self._servings if one.ready}
        return [
            {
                "handler": one.name,
                "topic": one.topic,
                "handled": one.handled,
                "failed": one.failed,
                "retried": one.retried,
                "delayed": one.delayed,
                "dead_lettered": one.dead_lettered,
                "skipped": one.skipped,
                "blocked_ms": round(one.blocked_s * 1000, 3),
                "ready": id(one) in ready,
            }
            for one in self._bindings
        ]

    def healthy(self) -> bool:
        """Whether the app runs and all its handlers read: what a readiness probe asks. `statistics` names those that do
        not, such as one whose topic is missing.

        >>> app = comet.App()
        >>> app.healthy()
        False
        """
        servings = self._servings
        return bool(servings) and not self._stop_requested and all(one.ready for one in servings)

    def asyncapi(self, *, title: str = "", version: str = "1.0.0", description: str = "") -> dict[str, Any]:
        """The app as an AsyncAPI 3 document: its topics as channels, its handlers as operations, their models as JSON
        schemas. `title` is the app's `name` unless given.

        >>> app = comet.App("localhost:9092", name="prices")
        >>> @app.on("quotes", group="engine")
        ... async def handle(quotes: list[float]) -> None: ...
        >>> document = app.asyncapi()
        >>> document["asyncapi"], document["info"]["title"], document["channels"]["quotes"]["address"]
        ('3.0.0', 'prices', 'quotes')
        """
        from comet.handlers.asyncapi import document

        return document(
            self._bindings, self.clients.addresses, title=title or self.clients.name or "comet app",
            version=version, description=description,
        )  # fmt: skip

    def metrics(self) -> str:
        """The counters of `statistics` in the text format of Prometheus, for an endpoint of yours.

        >>> app = comet.App()
        >>> print(app.metrics().splitlines()[2])
        comet_app_up 0
        """
        return prometheus(self.statistics(), up=self.healthy())
