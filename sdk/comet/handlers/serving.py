"""The serving loops of handlers: one for each delivery guarantee, from taking records to committing offsets.

    without a group    Consumer ─► handler
    at most once       take ─► commit, confirmed ─► handler                     see at_most_once
    at least once      take ─► handler ─► (retries ─► retry topic ─► dead letter) ─► commit    see at_least_once
    exactly once       take ─► handlers, in a transaction with the commit       see exactly_once
    shared             lock ─► handler ─► acknowledge                          see share_worker

Of a revoked partition no more records are handled; running handlers may finish, their records are committed, and only
then the partition is released. Records that were taken and not begun are dropped: the next member begins with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from comet import limits
from comet.consumer.consumer import Consumer
from comet.errors import Closed, CorruptRecords
from comet.handlers.binding import Binding, Caller, Item, items_of
from comet.handlers.dead_letters import DeadLetters
from comet.handlers.delayed_retries import DelayedRetries, of_another_group
from comet.records.expiry import has_expired
from comet.types import TopicPartition, wall_clock_us
from comet.values.record import RecordBatch

if TYPE_CHECKING:
    from random import Random

    from comet.encryption.keyring import Keyring
    from comet.producer.transaction import TransactionalProducer
    from comet.share.share_consumer import ShareConsumer
    from comet.tracing.spans import ProcessSpans
    from comet.v1 import groups_pb2 as groups_pb

log = logging.getLogger("comet")

# The serving that runs the current handler, so that app.transaction() finds the consumer of its messages.
current_serving: ContextVar[Serving | None] = ContextVar("comet_serving", default=None)


class RecordSource(Protocol):
    """The part of a group consumer that a serving uses."""

    @property
    def group(self) -> str: ...
    @property
    def member(self) -> str: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[Any] | None: ...
    async def commit(self, positions: Mapping[TopicPartition, int]) -> object: ...
    def positions(self) -> Mapping[Any, int]: ...
    def _topics_found(self) -> bool: ...
    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit: ...
    def were_committed(self, offsets: groups_pb.Commit) -> None: ...


class Clients(Protocol):
    """The clients of the app."""

    encryption: Keyring | None
    dead_letters: DeadLetters
    delayed_retries: DelayedRetries

    def consumer(self, one: Binding) -> Consumer[Any]: ...
    def group_consumer(self, one: Binding, **hooks: Any) -> RecordSource: ...
    def shared_consumer(self, one: Binding) -> ShareConsumer[Any]: ...
    def transactional_producer(self, source: RecordSource | None) -> TransactionalProducer: ...
    def process_spans(self, one: Binding) -> ProcessSpans | None: ...


class Host(Protocol):
    """The part of the app that a serving uses."""

    caller: Caller
    random: Random

    @property
    def clients(self) -> Clients: ...


class Stopped(Exception):
    """The app stops, or the partition is revoked: the current record is left to the next member."""


class Restart(Exception):
    """The outcome of a commit is unknown: the handler has to restart at the group's committed offsets."""


class Serving:
    """Runs one handler for as long as the app does. Owned by the app; one task runs it."""

    def __init__(self, host: Host, one: Binding) -> None:
        self.host = host
        self.one = one
        self.spans = host.clients.process_spans(one)  # None: it makes none
        self.stopping = False
        self.started = False  # whether its consumer is
        self._task: asyncio.Task[Any] | None = None
        self._consuming = False

    @property
    def ready(self) -> bool:
        """Whether its consumer reads: it waits neither for a broker nor for a topic."""
        return self.started

    async def run(self) -> None:
        """Runs until `stop`, or until a handler fails, whose error is raised."""
        self._task = asyncio.current_task()
        current_serving.set(self)
        await self._run()

    async def _run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stops taking records; running handlers finish."""
        self.stopping = True
        self._interrupt()

    def _interrupt(self) -> None:
        """Interrupts the wait for the next batch."""
        if self._consuming and self._task is not None:
            self._consuming = False
            self._task.cancel()

    async def _waiting(self, what: Awaitable[Any]) -> Any:
        """Waits for the next batch; None if interrupted."""
        if self.stopping:
            if hasattr(what, "close"):
                what.close()
            return None
        self._consuming = True
        try:
            return await what
        except asyncio.CancelledError:
            if self._consuming:
                raise  # not cancelled by this App
            assert self._task is not None
            self._task.uncancel()
            return None
        finally:
            self._consuming = False

    def committing(self) -> AbstractContextManager[Any]:
        """The span of a commit, as a block."""
        return contextlib.nullcontext() if self.spans is None else self.spans.settle("commit", self.one.topic)

    async def handle(self, item: Item) -> None:
        """Calls the handler once; its policy decides about failed records."""
        one = self.one
        for error in item.errors:
            one.malformed(error)
        if item.argument is None and item.errors:
            return
        try:
            await self.host.caller.call(one, item.argument, item)
        except Exception as error:  # noqa: BLE001 - the handler's error policy decides about any exception
            if self.spans is not None:
                self.spans.give_up(error)
            one.failure(error)
        else:
            one.handled += 1


class PlainServing(Serving):
    """Serves a handler without a group."""

    async def _run(self) -> None:
        one = self.one
        consumer = self.host.clients.consumer(one)
        try:
            if await self._waiting(self._started(consumer)) is None:
                return
            while (batch := await self._next(consumer)) is not None:
                spans = None if self.spans is None or not self.spans.concern(batch) else self.spans
                for item in items_of(one, batch):
                    if spans is None:
                        await self.handle(item)
                    else:
                        with span_of(spans, one, item):
                            await self.handle(item)
                    if self.stopping:
                        return
        except Closed:
            return
        finally:
            await consumer.close()

    async def _next(self, consumer: Consumer[Any]) -> RecordBatch[Any] | None:
        while True:
            try:
                batch: RecordBatch[Any] | None = await self._waiting(consumer.get_batch())
            except CorruptRecords as error:  # like a record that cannot be decoded: on_error decides
                self.one.failure(error)
            else:
                return batch

    async def _started(self, consumer: Consumer[Any]) -> bool:
        await consumer.start()
        self.started = True
        return True


class GroupServing(Serving):
    """Serves a handler with records of a group's partitions."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self.policy = one.options
        self.source: RecordSource | None = None
        self.clock_us = wall_clock_us
        self.restart = False  # set when the outcome of a commit is unknown
        self._lives: dict[TopicPartition, int] = {}  # rises with each release: records taken before are void
        self._taken: dict[TopicPartition, int] = {}  # the life in which a partition was last taken from
        self._given_up = asyncio.Event()  # set for a moment with each change of the above, and when the app stops

    @property
    def ready(self) -> bool:
        return self.started and self.source is not None and self.source._topics_found()

    def stop(self) -> None:
        super().stop()
        self._nudge()

    def _nudge(self) -> None:
        given_up, self._given_up = self._given_up, asyncio.Event()
        given_up.set()

    async def _run(self) -> None:
        while True:
            self.source = self.host.clients.group_consumer(self.one, on_revoked=self._revoked, on_lost=self._lost)
            self.restart = False
            try:
                if await self._waiting(self._started()) is None:
                    return
                await self._serve()
                return
            except Restart as restart:
                log.warning("comet: handler %s restarts at the group's committed offsets: %s", self.one.name, restart)
                self.started = False
                self._void(list(self._lives))
            except Closed:
                return
            finally:
                await self._end()
                await self.source.close()

    async def _started(self) -> bool:
        assert self.source is not None
        await self.source.start()
        self.started = True
        return True

    async def _serve(self) -> None:
        """Runs until there are no more records to take."""
        raise NotImplementedError

    async def _end(self) -> None:
        """Called before the group is left, also after an error."""

    async def take(self, timeout_s: float | None = None) -> RecordBatch[Any] | None:
        assert self.source is not None
        while True:
            try:
                batch: RecordBatch[Any] | None = await self._waiting(self.source.get_batch(timeout_s))
                break
            except CorruptRecords as error:
                await self._set_aside_corrupt(error)
        if batch is not None:
            tp = TopicPartition(batch.topic, batch.partition)
            self._taken[tp] = self._lives.setdefault(tp, 0)
        return batch

    async def _set_aside_corrupt(self, error: CorruptRecords) -> None:
        """Handles a corrupt batch, like a record that cannot be decoded: a note of it goes to the dead-letter topic, or
        on_error decides. The group's next commit is after it."""
        one, topic = self.one, self.policy.dead_letter
        tp = TopicPartition(error.details["topic"], int(error.details["partition"]))
        life = self._lives.setdefault(tp, 0)
        if topic:
            one.failed += 1
            log.error("comet: handler %s: corrupt batch, noted in %r: %s", one.name, topic, error)
            await self.host.clients.dead_letters.note(topic, error, self.one.group)
            one.dead_lettered += 1
        else:
            one.failure(error)
        self._taken[tp] = life

    def passed_over(self) -> dict[TopicPartition, int]:
        """Offsets after control records, such as transaction markers, which no handler commits. For use only while the
        serving waits for records and all that it has taken are processed."""
        assert self.source is not None
        return {
            tp: position
            for tp, position in self.source.positions().items()
            if self._taken.get(tp) == self.life(tp)  # of a released one, some records may not be processed
        }

    # ---- revoked and lost partitions

    async def _revoked(self, tps: Iterable[TopicPartition]) -> None:
        """Waits until no handler of these partitions runs and their processed records are committed."""
        tps = list(tps)
        self._void(tps)
        try:
            async with asyncio.timeout(limits.REVOKED_GRACE_MS / 1000):
                await self._finish(tps)
        except TimeoutError:
            log.warning(
                "comet: handler %s did not finish with %s within %d ms: the next member gets the current records again",
                self.one.name, _text(tps), limits.REVOKED_GRACE_MS,
            )  # fmt: skip
        await self._commit_done()
        self._forget(tps)

    def _lost(self, tps: Iterable[TopicPartition]) -> None:
        """Handles lost partitions: they are assigned to others, so their offsets cannot be committed."""
        tps = list(tps)
        log.warning(
            "comet: handler %s lost %s: other members process its current records again", self.one.name, _text(tps)
        )
        self._void(tps)
        self._forget(tps)

    def _void(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            self._lives[tp] = self._lives.get(tp, 0) + 1
        self._nudge()

    async def _finish(self, tps: list[TopicPartition]) -> None:
        """Waits until no handler of these partitions runs."""
        raise NotImplementedError

    async def _commit_done(self) -> None:
        """Commits processed offsets that are not committed yet."""

    def _forget(self, tps: list[TopicPartition]) -> None:
        """Drops the results of running handlers of these partitions."""

    def life(self, tp: TopicPartition) -> int:
        return self._lives.get(tp, 0)

    # ---- one item, with its policy

    async def settle(self, item: Item, life: int) -> None:
        """Calls the handler until it succeeds, or the item is skipped, dead-lettered, or stored for a later retry.
        Raises the error that ends the app, and Stopped if the item is left undone."""
        if of_another_group(self.one, item):
            return
        if item.errors:
            await self._set_aside_undecodable(item)
            if item.argument is None:
                return
        if self._expired(item):
            return
        attempts = 0
        while True:
            attempts += 1
            try:
                await self.call(item)
            except Exception as error:
                if self.restart:
                    raise Restart(str(error)) from error
                if attempts <= self.policy.retries:
                    if self.spans is not None:
                        self.spans.event("retry", error, attempts)
                    await self.pause(item, life, attempts, error)
                    continue
                if not await self._retry_later(item, attempts, error):
                    await self.give_up(item, attempts, error)
                return
            self.one.handled += 1
            return

    def _expired(self, item: Item) -> bool:
        """Whether a single record has expired since its batch was taken."""
        expiry = item.batch.expiry
        if expiry is None or self.one.whole:
            return False
        return has_expired(expiry[bisect_left(item.batch.offsets, item.first)], self.clock_us())

    async def call(self, item: Item) -> None:
        """Calls the handler once. Raises its exception."""
        await self.host.caller.call(self.one, item.argument, item)

    async def _set_aside_undecodable(self, item: Item) -> None:
        for error in item.errors:
            if not self.policy.dead_letter:
                self.one.malformed(error)
                continue
            offset = int(error.details["offset"])
            await self.give_up(item._replace(first=offset, end=offset + 1), 1, error)

    async def pause(self, item: Item, life: int, attempts: int, error: Exception) -> None:
        """Waits before the next attempt. Raises Stopped if there is no next attempt."""
        self.one.retried += 1
        ceiling_ms = min(self.policy.backoff_ms * 2 ** min(attempts - 1, 30), limits.RETRY_BACKOFF_MS_MAX)
        delay_s = ceiling_ms * (0.5 + self.host.random.random() / 2) / 1000
        log.warning(
            "comet: handler %s failed on %s/%d at %d, attempt %d, retry in %.0f ms: %r",
            self.one.name, item.batch.topic, item.batch.partition, item.first, attempts, delay_s * 1000, error,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        until = loop.time() + delay_s
        while not self.stopping and self.life(item.tp) == life and loop.time() < until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._given_up.wait()
        if self.stopping or self.life(item.tp) != life:
            raise Stopped

    async def _retry_later(self, item: Item, attempts: int, error: Exception) -> bool:
        """Stores the record for the next of its delayed retries, if there is one. Returns whether there is."""
        one = self.one
        if not one.options.retry_topic:
            return False
        delay = await self.host.clients.delayed_retries.write(one, item, attempts, error, self.clock_us())
        if delay is None:
            return False
        one.delayed += 1
        if self.spans is not None:
            self.spans.event("retry_later", error, attempts, one.options.retry_topic)
        log.warning(
            "comet: handler %s failed on %s/%d at %d after %d attempts, retry by way of %r in %s: %r",
            one.name, item.batch.topic, item.batch.partition, item.first, attempts, one.options.retry_topic,
            delay if isinstance(delay, str) else f"{delay} s", error,
        )  # fmt: skip
        return True

    async def give_up(self, item: Item, attempts: int, error: Exception) -> None:
        """Writes the item to the dead-letter topic, or lets on_error decide."""
        one, topic = self.one, self.policy.dead_letter
        if self.spans is not None:
            self.spans.give_up(error)
        if not topic:
            one.failure(error)
            return
        one.failed += 1
        log.error(
            "comet: handler %s failed on %s/%d at %d after %d attempts, dead-lettered to %r: %r",
            one.name, item.batch.topic, item.batch.partition, item.first, attempts, topic, error, exc_info=error,
        )  # fmt: skip
        one.dead_lettered += await self.host.clients.dead_letters.write(
            topic, item, one.group, attempts, error, retried=one.reads_retries
        )
        if self.spans is not None:
            self.spans.event("dead_letter", error, attempts, topic)


def settling(serving: GroupServing, batch: RecordBatch[Any]) -> Callable[[Item, int], Awaitable[None]]:
    """The function that settles the items of a batch: within spans if it may have traced records."""
    if serving.spans is None or not serving.spans.concern(batch):
        return serving.settle
    return partial(_settle_in_span, serving)


async def _settle_in_span(serving: GroupServing, item: Item, life: int) -> None:
    assert serving.spans is not None
    if of_another_group(serving.one, item):
        return
    with span_of(serving.spans, serving.one, item):
        await serving.settle(item, life)


def span_of(spans: ProcessSpans, one: Binding, item: Item) -> AbstractContextManager[Any]:
    """The span of a handler's call with an item, as a block."""
    batch = item.batch
    if one.whole:
        return spans.process(batch.topic, batch.partition, item.first, batch.headers, len(batch))
    headers = batch.headers[bisect_left(batch.offsets, item.first)]
    return spans.process(batch.topic, batch.partition, item.first, [headers])


def _text(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in tps)
