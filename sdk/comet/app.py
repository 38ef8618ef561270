"""An application made of handlers: one function per topic, called with each event as it comes.

@app.on("quotes") ──► Consumer ──► handler(event), one at a time, in order per partition
app.run()         ──► all of them at once, until SIGINT or SIGTERM, a handler that fails, or app.stop()
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeVar

from comet import _limits as limits
from comet._client import Addresses, parse_addresses
from comet._consumer import Consumer
from comet._handlers import Handler, Shape, Signature, name_of, signature_of, watched
from comet._intake import OutOfRange
from comet._producer import Producer, wall_clock_us
from comet._record import RecordBatch
from comet._replicas import ReadFrom
from comet._run import run
from comet._transport import Connect
from comet.errors import Closed, InvalidArgument, SerdeError
from comet.types import Gap, StartLike, check_topic_name

log = logging.getLogger("comet")

H = TypeVar("H", bound=Callable[[Any], Awaitable[None] | None])
OnError = Literal["stop", "skip"]


@dataclass(slots=True)
class Binding:
    """One handler and what it is called for."""

    topic: str
    handler: Handler
    signature: Signature
    on_error: OnError
    options: dict[str, Any]
    name: str
    handled: int = 0
    failed: int = 0
    blocked_s: float = 0.0  # the longest that it held up the loop
    consumer: Consumer[Any] | None = field(default=None)


class App:
    """Handlers for topics. The annotation of a handler's parameter says what it gets:

        event: Quote                    the value, decoded (any event type, dict, str, bytes …)
        record: comet.Record[Quote]     with key, offset, timestamp and headers
        quotes: list[Quote]             all values of a batch at once
        batch: comet.RecordBatch[Quote] a whole batch as columns

    A handler that raises is logged, and then `on_error` decides: "stop" ends the app with that error, "skip" goes on
    with the next event. A handler that holds up the event loop for more than `block_warning_ms` is logged by name.

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
        addresses: Addresses,
        *,
        name: str = "",
        block_warning_ms: float = 100,
        stop_timeout_ms: float = 10_000,
        connect: Connect | None = None,
        random: Random | None = None,
        clock_us: Callable[[], int] = wall_clock_us,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        parse_addresses(addresses)
        self._addresses = addresses
        self._name = name
        self._world: dict[str, Any] = {"connect": connect, "random": random, "clock_us": clock_us}
        self._block_warning_s = block_warning_ms / 1000
        self._stop_timeout_s = stop_timeout_ms / 1000
        self._stopwatch = stopwatch
        self._bindings: list[Binding] = []
        self._producer: Producer | None = None
        self._stopping: asyncio.Event | None = None
        self._stop_asked = False
        self._serving = False

    def on(
        self,
        topic: str,
        *,
        start: StartLike = "latest",
        type: Any = None,  # noqa: A002 - the name users expect
        partitions: Iterable[int] | None = None,
        on_error: OnError = "stop",
        on_out_of_range: OutOfRange = "raise",
        on_gap: Callable[[Gap], None] | None = None,
        read_from: ReadFrom = "leader",
        rack: str = "",
        buffer_bytes: int = limits.CONSUMER_BUFFER_BYTES,
    ) -> Callable[[H], H]:
        """Registers a handler for a topic; it may be async or not. Events come one at a time, in order per partition.

        >>> app = comet.App("localhost:9092")
        >>> @app.on("quotes")
        ... async def handle(record: comet.Record[dict]) -> None: ...
        """
        check_topic_name(topic)
        if on_error not in {"stop", "skip"}:
            raise InvalidArgument(f'on_error is "stop" or "skip", not {on_error!r}')
        names = sys._getframe(1).f_locals  # a class defined beside the handler, inside a function, is found here
        options = {
            "start": start,
            "partitions": None if partitions is None else list(partitions),
            "on_out_of_range": on_out_of_range,
            "on_gap": on_gap,
            "read_from": read_from,
            "rack": rack,
            "buffer_bytes": buffer_bytes,
        }

        def register(handler: H) -> H:
            if self._serving:
                raise InvalidArgument("register handlers before the app runs")
            signature = signature_of(handler, names, type)
            self._bindings.append(Binding(topic, handler, signature, on_error, options, name_of(handler)))
            return handler

        return register

    # ---- running

    def run(self) -> None:
        """Runs until SIGINT or SIGTERM, then stops in good order. Raises what a handler failed with."""
        run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, ValueError):  # not on Windows, and not in another thread
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        await self.serve()

    def stop(self) -> None:
        """Asks the app to end: every handler finishes what it is at."""
        self._stop_asked = True
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self) -> None:
        """What `run` runs, for a program that has an event loop already. Returns after `stop`."""
        if not self._bindings:
            raise InvalidArgument("this app has no handlers: register one with @app.on(topic)")
        if self._serving:
            raise InvalidArgument("this app is running already")
        self._serving = True
        self._stopping = asyncio.Event()
        if self._stop_asked:
            self._stopping.set()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._consume(one), name=f"comet: {one.name}") for one in self._bindings]
        stopping = loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            await self._wind_up(tasks)
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.wait([*tasks, stopping])
            await self._close_producer()
            self._serving = self._stop_asked = False
            self._stopping = None
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _wind_up(self, tasks: list[asyncio.Task[None]]) -> None:
        """Lets every handler finish the event it is at."""
        self.stop()
        for one in self._bindings:
            if one.consumer is not None:
                await one.consumer.close()
        _, late = await asyncio.wait(tasks, timeout=self._stop_timeout_s)
        for task in late:
            log.warning("comet: %s did not end within %g s and is cancelled", task.get_name(), self._stop_timeout_s)

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def _consume(self, one: Binding) -> None:
        """Feeds one handler until the app stops."""
        options: dict[str, Any] = {**one.options, **self._world, "name": self._name, "type": one.signature.type}
        consumer: Consumer[Any] = Consumer(self._addresses, one.topic, **options)
        try:
            await consumer.start()
            one.consumer = consumer
            whole = one.signature.shape in {Shape.BATCH, Shape.EVENTS}
            while not self._stop_asked:
                try:
                    item = await (consumer.batches() if whole else consumer).__anext__()
                    argument = self._argument(one, item)
                except SerdeError as error:
                    self._failed(one, error)
                    continue
                except Closed:
                    return
                await self._handle(one, argument)
        finally:
            one.consumer = None
            await consumer.close()

    async def _handle(self, one: Binding, argument: Any) -> None:
        try:
            began = self._stopwatch()
            outcome = one.handler(argument)
            took = self._stopwatch() - began
            if took > self._block_warning_s:
                self._blocked(one, took)
            if inspect.isawaitable(outcome):
                await watched(outcome, self._stopwatch, self._block_warning_s, lambda took: self._blocked(one, took))
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its policy's business
            self._failed(one, error)
        else:
            one.handled += 1

    def _blocked(self, one: Binding, took_s: float) -> None:
        one.blocked_s = max(one.blocked_s, took_s)
        log.warning(
            "comet: handler %s of topic %r blocked the event loop for %.0f ms: nothing else could run; "
            "await what takes long, or move it to a thread with asyncio.to_thread",
            one.name, one.topic, took_s * 1000,
        )  # fmt: skip

    def _failed(self, one: Binding, error: Exception) -> None:
        one.failed += 1
        log.error("comet: handler %s of topic %r failed: %r", one.name, one.topic, error, exc_info=error)
        if one.on_error == "stop":
            raise error

    def _argument(self, one: Binding, item: Any) -> Any:
        """What the handler is called with for a record or batch."""
        match one.signature.shape:
            case Shape.EVENT:
                return item.value
            case Shape.EVENTS:
                return self._events(one, item)
            case _:
                return item

    def _events(self, one: Binding, batch: RecordBatch[Any]) -> list[Any]:
        """The events of a batch, but for those that cannot be decoded, where the handler's policy is to skip them."""
        events: list[Any] = []
        rest: RecordBatch[Any] | None = batch
        while rest is not None:
            try:
                events.extend(record.value for record in rest.records())
                return events
            except SerdeError as error:
                self._failed(one, error)
                rest = rest.after(int(error.details["offset"]) + 1)
        return events

    # ---- producing

    @property
    def producer(self) -> Producer:
        """A producer for the handlers to share, made when it is first used."""
        if self._producer is None:
            self._producer = Producer(self._addresses, name=self._name, **self._world)
        return self._producer

    async def publish(self, topic: str, value: Any, *, key: bytes | str | None = None) -> None:
        """Writes an event and waits until it is acknowledged.

        >>> async def example(address: str) -> None:
        ...     app = comet.App(address)
        ...     await app.publish("quotes", {"symbol": "EURUSD"}, key="EURUSD")
        ...     await app.producer.close()
        >>> run(example)
        """
        await self.producer.publish(topic, value, key=key)

    def statistics(self) -> list[dict[str, Any]]:
        """Per handler what it has done, and the longest it held up the loop.

        >>> app = comet.App("localhost:9092")
        >>> app.statistics()
        []
        """
        return [
            {
                "handler": one.name,
                "topic": one.topic,
                "handled": one.handled,
                "failed": one.failed,
                "blocked_ms": round(one.blocked_s * 1000, 3),
            }
            for one in self._bindings
        ]
