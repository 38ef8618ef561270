"""The serving loops of handlers: one for each delivery guarantee, from taking records to committing positions.

    without a group    Consumer ─► handler
    at most once       take ─► commit, confirmed ─► handler                     see _at_most_once
    at least once      take ─► handler ─► (retries ─► dead letter) ─► commit    see _at_least_once
    exactly once       take ─► handlers, in a transaction with the commit       see _exactly_once
    shared             lock ─► handler ─► acknowledge                          see share_worker

A partition that is to be given up gets nothing new to do; what runs may finish, is committed, and only then the
partition is released. What was taken and not begun is forgotten: the next owner of the partition begins with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from comet import limits
from comet.consumer.consumer import Consumer
from comet.consumer.record import RecordBatch
from comet.errors import Closed, CorruptRecords
from comet.handlers.binding import Binding, Caller, Item, Policy, items_of
from comet.handlers.dead_letters import DeadLetters
from comet.handlers.dispatch import Place

if TYPE_CHECKING:
    from random import Random

    from comet.v1 import groups_pb2 as groups_pb

log = logging.getLogger("comet")

# What runs the handler that asks, so that app.transaction() finds the consumer of its messages.
current_serving: ContextVar[Serving | None] = ContextVar("comet_serving", default=None)


class RecordSource(Protocol):
    """A consumer of a group, as far as a serving needs it."""

    @property
    def group(self) -> str: ...
    @property
    def member(self) -> str: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[Any] | None: ...
    async def commit(self, positions: Mapping[Place, int]) -> object: ...
    def positions(self) -> Mapping[Any, int]: ...
    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit: ...
    def were_committed(self, offsets: groups_pb.Commit) -> None: ...


class Host(Protocol):
    """The app, as far as a serving needs it."""

    caller: Caller
    dead_letters: DeadLetters
    random: Random

    def _consumer_for(self, one: Binding) -> Consumer[Any]: ...
    def _group_consumer_for(self, one: Binding, **hooks: Any) -> RecordSource: ...


class Stopped(Exception):
    """The app stops, or the partition is revoked: the record that was tried is left to the next owner."""


class Restart(Exception):
    """What became of a commit is not known: only the positions that the group has can tell where to go on."""


class Serving:
    """Runs one handler for as long as the app does. Owned by the app; one task runs it."""

    def __init__(self, host: Host, one: Binding) -> None:
        self.host = host
        self.one = one
        self.stopping = False
        self._task: asyncio.Task[Any] | None = None
        self._consuming = False

    async def run(self) -> None:
        """Until `stop`, or a handler's failure, which is raised."""
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
        """Ends the waiting for the next batch."""
        if self._consuming and self._task is not None:
            self._consuming = False
            self._task.cancel()

    async def _waiting(self, what: Awaitable[Any]) -> Any:
        """Waits for something to take; None when that was interrupted."""
        if self.stopping:
            if hasattr(what, "close"):
                what.close()
            return None
        self._consuming = True
        try:
            return await what
        except asyncio.CancelledError:
            if self._consuming:
                raise  # not of this App
            assert self._task is not None
            self._task.uncancel()
            return None
        finally:
            self._consuming = False

    async def handle(self, item: Item) -> None:
        """Calls the handler once; its policy decides about failed records."""
        one = self.one
        for error in item.errors:
            one.failure(error)
        if item.argument is None and item.errors:
            return
        try:
            await self.host.caller.call(one, item.argument)
        except Exception as error:  # noqa: BLE001 - the handler's error policy decides about any exception
            one.failure(error)
        else:
            one.handled += 1


class PlainServing(Serving):
    """A handler without a group."""

    async def _run(self) -> None:
        one = self.one
        consumer = self.host._consumer_for(one)
        try:
            if await self._waiting(self._started(consumer)) is None:
                return
            while (batch := await self._next(consumer)) is not None:
                for item in items_of(one, batch):
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
            except CorruptRecords as error:  # as a record that cannot be decoded: on_error decides
                self.one.failure(error)
            else:
                return batch

    async def _started(self, consumer: Consumer[Any]) -> bool:
        await consumer.start()
        return True


class GroupServing(Serving):
    """A handler whose records come from a group's partitions."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        assert one.policy is not None
        self.policy: Policy = one.policy
        self.source: RecordSource | None = None
        self.restart = False  # what became of a commit is not known
        self._lives: dict[Place, int] = {}  # rises each time a partition is given up: what was taken before is void
        self._taken: dict[Place, int] = {}  # the life in which a partition was last taken from
        self._given_up = asyncio.Event()  # set for a moment with each change of the above, and when the app stops

    def stop(self) -> None:
        super().stop()
        self._nudge()

    def _nudge(self) -> None:
        given_up, self._given_up = self._given_up, asyncio.Event()
        given_up.set()

    async def _run(self) -> None:
        while True:
            self.source = self.host._group_consumer_for(self.one, on_revoked=self._revoked, on_lost=self._lost)
            self.restart = False
            try:
                if await self._waiting(self._started()) is None:
                    return
                await self._serve()
                return
            except Restart as restart:
                log.warning(
                    "comet: handler %s starts again at the group's committed offsets: %s", self.one.name, restart
                )
                self._void(list(self._lives))
            except Closed:
                return
            finally:
                await self._end()
                await self.source.close()

    async def _started(self) -> bool:
        assert self.source is not None
        await self.source.start()
        return True

    async def _serve(self) -> None:
        """Until there is nothing to take any more."""
        raise NotImplementedError

    async def _end(self) -> None:
        """Called before the group is left, in every case."""

    async def take(self, timeout_s: float | None = None) -> RecordBatch[Any] | None:
        assert self.source is not None
        while True:
            try:
                batch: RecordBatch[Any] | None = await self._waiting(self.source.get_batch(timeout_s))
                break
            except CorruptRecords as error:
                await self._set_aside_corrupt(error)
        if batch is not None:
            place = (batch.topic, batch.partition)
            self._taken[place] = self._lives.setdefault(place, 0)
        return batch

    async def _set_aside_corrupt(self, error: CorruptRecords) -> None:
        """As a record that cannot be decoded: a note of it goes to the dead-letter topic, or on_error decides. What the
        group commits next lies behind it."""
        one, topic = self.one, self.policy.dead_letter
        place = (error.details["topic"], int(error.details["partition"]))
        life = self._lives.setdefault(place, 0)
        if topic:
            one.failed += 1
            log.error("comet: handler %s: a note of it goes to %r: %s", one.name, topic, error)
            await self.host.dead_letters.note(topic, error, self.policy.group)
            one.dead_lettered += 1
        else:
            one.failure(error)
        self._taken[place] = life

    def passed_over(self) -> dict[Place, int]:
        """Offsets behind control records, such as the ends of transactions, which no handler would commit. To
        be asked only while it waits for records, and all that it has taken is done."""
        assert self.source is not None
        return {
            place: position
            for place, position in self.source.positions().items()
            if self._taken.get(place) == self.life(place)  # of one that was given up, something may not be done
        }

    # ---- partitions that go

    async def _revoked(self, places: Iterable[Place]) -> None:
        """Returns when nothing of these runs any more, and all that was done is committed."""
        places = [(topic, partition) for topic, partition in places]
        self._void(places)
        try:
            async with asyncio.timeout(limits.REVOKED_GRACE_MS / 1000):
                await self._finish(places)
        except TimeoutError:
            log.warning(
                "comet: handler %s did not finish with %s within %d ms: the next owner gets the current records again",
                self.one.name, places, limits.REVOKED_GRACE_MS,
            )  # fmt: skip
        await self._commit_done()
        self._forget(places)

    def _lost(self, places: Iterable[Place]) -> None:
        """These belong to others already: nothing of them can be committed any more."""
        places = [(topic, partition) for topic, partition in places]
        log.warning("comet: handler %s lost %s: what it does there now is done again by others", self.one.name, places)
        self._void(places)
        self._forget(places)

    def _void(self, places: list[Place]) -> None:
        for place in places:
            self._lives[place] = self._lives.get(place, 0) + 1
        self._nudge()

    async def _finish(self, places: list[Place]) -> None:
        """Returns when nothing of these runs any more."""
        raise NotImplementedError

    async def _commit_done(self) -> None:
        """Commits the processed positions that are not committed yet."""

    def _forget(self, places: list[Place]) -> None:
        """Running handlers of these partitions do not count any more."""

    def life(self, place: Place) -> int:
        return self._lives.get(place, 0)

    # ---- one item, with what its policy says

    async def settle(self, item: Item, life: int) -> None:
        """Until the handler has succeeded, or the item is skipped or set aside. Raises what is to end the app, and
        Stopped when the item is left undone."""
        if item.errors:
            await self._set_aside_undecodable(item)
            if item.argument is None:
                return
        attempts = 0
        while True:
            attempts += 1
            try:
                await self.host.caller.call(self.one, item.argument)
            except Exception as error:
                if self.restart:
                    raise Restart(str(error)) from error
                if attempts <= self.policy.retries:
                    await self.pause(item, life, attempts, error)
                    continue
                await self.give_up(item, attempts, error)
                return
            self.one.handled += 1
            return

    async def _set_aside_undecodable(self, item: Item) -> None:
        for error in item.errors:
            offset = int(error.details["offset"])
            await self.give_up(item._replace(first=offset, end=offset + 1), 1, error)

    async def pause(self, item: Item, life: int, attempts: int, error: Exception) -> None:
        """Waits before the next attempt. Raises Stopped when there is to be none."""
        self.one.retried += 1
        ceiling_ms = min(self.policy.backoff_ms * 2 ** min(attempts - 1, 30), limits.RETRY_BACKOFF_MS_MAX)
        delay_s = ceiling_ms * (0.5 + self.host.random.random() / 2) / 1000
        log.warning(
            "comet: handler %s failed on %s/%d at %d, attempt %d, and is called again in %.0f ms: %r",
            self.one.name, item.batch.topic, item.batch.partition, item.first, attempts, delay_s * 1000, error,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        until = loop.time() + delay_s
        while not self.stopping and self.life(item.place) == life and loop.time() < until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._given_up.wait()
        if self.stopping or self.life(item.place) != life:
            raise Stopped

    async def give_up(self, item: Item, attempts: int, error: Exception) -> None:
        """Sets the item aside in the dead-letter topic, or lets on_error decide."""
        one, topic = self.one, self.policy.dead_letter
        if not topic:
            one.failure(error)
            return
        one.failed += 1
        log.error(
            "comet: handler %s gives up on %s/%d at %d after %d attempts: it goes to %r: %r",
            one.name, item.batch.topic, item.batch.partition, item.first, attempts, topic, error, exc_info=error,
        )  # fmt: skip
        one.dead_lettered += await self.host.dead_letters.write(topic, item, self.policy.group, attempts, error)
