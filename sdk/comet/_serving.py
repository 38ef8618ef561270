"""How handlers are fed: the loop of each kind of delivery, from taking events to committing positions.

    without a group    Consumer ─► handler
    at most once       take ─► commit, confirmed ─► handler                     COMMITTED_AHEAD_RECORDS at a time
    at least once      take ─► handler ─► (retries ─► dead letter) ─► commit    gathered, every HANDLED_COMMIT_MS
    exactly once       see _exactly_once
    shared             see _shared_work

A partition that is to be given up gets nothing new to do; what runs may finish, is committed, and only then the
partition is released. What was taken and not begun is forgotten: whoever has the partition next begins with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from comet import _limits as limits
from comet._bindings import Binding, Caller, Item, Policy, items_of
from comet._consumer import Consumer
from comet._dead_letters import DeadLetters
from comet._dispatch import Dispatch, Place, Task
from comet._record import RecordBatch
from comet.errors import Closed, CometError, GroupError

if TYPE_CHECKING:
    from random import Random

    from comet.v1 import groups_pb2 as groups_pb

log = logging.getLogger("comet")

# What runs the handler that asks, so that app.transaction() finds the consumer of its messages.
current_serving: ContextVar[Serving | None] = ContextVar("comet_serving", default=None)


class Source(Protocol):
    """A consumer of a group, as far as a serving needs it."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def get_batch(self, timeout_s: float | None = None) -> RecordBatch[Any] | None: ...
    async def commit(self, positions: Mapping[Place, int]) -> object: ...
    def offsets_to_commit(self, positions: Any) -> groups_pb.Commit: ...


class Host(Protocol):
    """The app, as far as a serving needs it."""

    @property
    def caller(self) -> Caller: ...
    @property
    def dead_letters(self) -> DeadLetters: ...
    @property
    def random(self) -> Random: ...
    @property
    def stop_timeout_s(self) -> float: ...
    def consumer(self, one: Binding) -> Consumer[Any]: ...
    def group_consumer(self, one: Binding, **hooks: Any) -> Source: ...


class Stopped(Exception):
    """The app stops, or the partition is another's: what was being tried is left to whoever begins at the positions."""


class Restart(Exception):
    """What became of a commit is not known: only the positions that the group has can tell where to go on."""


class Serving:
    """Runs one handler for as long as the app does. Owned by the app; one task runs it."""

    def __init__(self, host: Host, one: Binding) -> None:
        self.host = host
        self.one = one
        self.stopping = False
        self._task: asyncio.Task[Any] | None = None
        self._taking = False

    async def run(self) -> None:
        """Until `stop`, or a handler's failure, which is raised."""
        self._task = asyncio.current_task()
        current_serving.set(self)
        await self._run()

    async def _run(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Takes nothing new; what runs finishes."""
        self.stopping = True
        self._interrupt()

    def _interrupt(self) -> None:
        """Ends the waiting for the next batch."""
        if self._taking and self._task is not None:
            self._taking = False
            self._task.cancel()

    async def _waiting(self, what: Awaitable[Any]) -> Any:
        """Waits for something to take; None when that was interrupted."""
        if self.stopping:
            if hasattr(what, "close"):
                what.close()
            return None
        self._taking = True
        try:
            return await what
        except asyncio.CancelledError:
            if self._taking:
                raise  # somebody else's
            assert self._task is not None
            self._task.uncancel()
            return None
        finally:
            self._taking = False

    async def handle(self, item: Item) -> None:
        """Calls the handler once; what it failed on is its policy's business."""
        one = self.one
        for error in item.errors:
            one.failure(error)
        if item.argument is None and item.errors:
            return
        try:
            await self.host.caller.call(one, item.argument)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its policy's business
            one.failure(error)
        else:
            one.handled += 1


class PlainServing(Serving):
    """A handler without a group."""

    async def _run(self) -> None:
        one = self.one
        consumer = self.host.consumer(one)
        try:
            if await self._waiting(self._started(consumer)) is None:
                return
            while (batch := await self._waiting(consumer.get_batch())) is not None:
                for item in items_of(one, batch):
                    await self.handle(item)
                    if self.stopping:
                        return
        except Closed:
            return
        finally:
            await consumer.close()

    async def _started(self, consumer: Consumer[Any]) -> bool:
        await consumer.start()
        return True


class GroupServing(Serving):
    """A handler whose events come from a group's partitions."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        assert one.policy is not None
        self.policy: Policy = one.policy
        self.source: Source | None = None
        self.restart = False  # what became of a commit is not known
        self._lives: dict[Place, int] = {}  # rises each time a partition is given up: what was taken before is void
        self._given_up = asyncio.Event()  # set for a moment with each change of the above, and when the app stops

    def stop(self) -> None:
        super().stop()
        self._nudge()

    def _nudge(self) -> None:
        given_up, self._given_up = self._given_up, asyncio.Event()
        given_up.set()

    async def _run(self) -> None:
        while True:
            self.source = self.host.group_consumer(self.one, on_revoked=self._revoked, on_lost=self._lost)
            self.restart = False
            try:
                if await self._waiting(self._started()) is None:
                    return
                await self._serve()
                return
            except Restart as restart:
                log.warning("comet: handler %s begins anew at the group's positions: %s", self.one.name, restart)
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
        """Whatever happened, before the group is left."""

    async def take(self, timeout_s: float | None = None) -> RecordBatch[Any] | None:
        assert self.source is not None
        batch: RecordBatch[Any] | None = await self._waiting(self.source.get_batch(timeout_s))
        if batch is not None:
            self._lives.setdefault((batch.topic, batch.partition), 0)
        return batch

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
                "comet: handler %s did not finish with %s within %d ms: whoever has them next gets again what it is at",
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
        """Commits what was done and is not committed."""

    def _forget(self, places: list[Place]) -> None:
        """What still runs of these does not count."""

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


class AtMostOnce(GroupServing):
    """Commits before it calls: what is under way when the process dies is not handled again."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self._busy: Place | None = None
        self._idle = asyncio.Event()

    async def _serve(self) -> None:
        while (batch := await self.take()) is not None:
            place, chunk = (batch.topic, batch.partition), list[Item]()
            life, records = self.life(place), 0
            for item in items_of(self.one, batch):
                chunk.append(item)
                records += 1 if not self.one.whole else len(batch)
                if records >= limits.COMMITTED_AHEAD_RECORDS:
                    await self._commit_and_handle(place, life, chunk)
                    chunk, records = [], 0
            if chunk:
                await self._commit_and_handle(place, life, chunk)

    async def _commit_and_handle(self, place: Place, life: int, chunk: list[Item]) -> None:
        if self.stopping or self.life(place) != life:
            return
        self._busy = place
        try:
            if not await self._commit(place, life, chunk[-1].end):
                return
            for item in chunk:  # committed, so now or never: also when the app stops, or the partition goes
                with contextlib.suppress(Stopped):
                    await self.settle(item, life)
        finally:
            self._busy = None
            self._idle.set()
            self._idle = asyncio.Event()

    async def _commit(self, place: Place, life: int, end: int) -> bool:
        """Until the coordinator has confirmed it; False where the partition is another's."""
        assert self.source is not None
        while not self.stopping and self.life(place) == life:
            try:
                await self.source.commit({place: end})
            except GroupError as error:
                log.warning("comet: %s/%d at %d is not handled here: %s", *place, end, error)
                return False
            except CometError as error:
                if isinstance(error, Closed):
                    return False
                log.warning("comet: the commit of %s/%d at %d is tried again: %s", *place, end, error)
                await asyncio.sleep(limits.BACKOFF_MAX_MS / 1000)
            else:
                return True
        return False

    async def _finish(self, places: list[Place]) -> None:
        while self._busy in places:
            await self._idle.wait()


class AtLeastOnce(GroupServing):
    """Commits what was handled, a moment later. One at a time, or several with a dispatch."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self._done: dict[Place, int] = {}  # positions that are not committed
        self._busy: Place | None = None  # what runs, where one runs at a time
        self._changed = asyncio.Event()  # set, and another one made, when something ended
        self._committing = asyncio.Lock()
        self._dispatch: Dispatch[tuple[Item, int]] | None = None
        self._failure: BaseException | None = None
        if self.policy.concurrency > 1:
            window = self.policy.concurrency * limits.DISPATCH_WINDOW_PER_HANDLER
            self._dispatch = Dispatch(self.policy.concurrency, window)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._commit_now_and_then())]
        if self._dispatch is not None:
            tasks += [loop.create_task(self._work(self._dispatch)) for _ in range(self.policy.concurrency)]
        try:
            while self._failure is None and (batch := await self.take()) is not None:
                if self._dispatch is None:
                    await self._one_by_one(batch)
                else:
                    await self._feed(self._dispatch, batch)
            if self._dispatch is not None:
                self._dispatch.close(list(self._lives))
                while self._dispatch.running:
                    await self._changed.wait()
            if self._failure is not None:
                raise self._failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _end(self) -> None:
        await self._commit_done()

    async def _one_by_one(self, batch: RecordBatch[Any]) -> None:
        place = (batch.topic, batch.partition)
        life = self.life(place)
        self._busy = place
        try:
            for item in items_of(self.one, batch):
                if self.stopping or self._lives[place] != life:
                    return
                await self.settle(item, life)
                if self._busy == place:  # else it was forgotten meanwhile
                    self._done[place] = item.end
            if self._busy == place:
                self._done[place] = batch.next_offset
        except Stopped:
            return
        finally:
            self._busy = None
            self._tell()

    # ---- several at once

    async def _feed(self, dispatch: Dispatch[tuple[Item, int]], batch: RecordBatch[Any]) -> None:
        place = (batch.topic, batch.partition)
        life = self.life(place)
        for item in items_of(self.one, batch):
            while not dispatch.room and not self._over(place, life):
                await self._changed.wait()
            if self._over(place, life):
                return
            dispatch.add(place, item.first, item.key, (item, life), end=item.end)
            self._tell()

    def _over(self, place: Place, life: int) -> bool:
        return self.stopping or self._failure is not None or self._lives[place] != life

    async def _work(self, dispatch: Dispatch[tuple[Item, int]]) -> None:
        current_serving.set(self)
        while True:
            task = dispatch.take()
            if task is None:
                await self._changed.wait()
                continue
            await self._run_task(dispatch, task)

    async def _run_task(self, dispatch: Dispatch[tuple[Item, int]], task: Task[tuple[Item, int]]) -> None:
        try:
            await self.settle(*task.item)
        except BaseException as error:
            dispatch.dropped(task)
            if isinstance(error, asyncio.CancelledError):
                raise
            if not isinstance(error, Stopped) and self._failure is None:
                self._failure = error
                self._interrupt()
        else:
            dispatch.done(task)
        finally:
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- committing

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(limits.HANDLED_COMMIT_MS / 1000)
            await self._commit_done()

    async def _commit_done(self) -> None:
        """Commits what is done. What cannot be committed for now is kept for the next time."""
        async with self._committing:
            if self._dispatch is not None:
                self._done.update(self._dispatch.moved())
            done, self._done = self._done, {}
            if not done or self.source is None:
                return
            lives = {place: self.life(place) for place in done}
            try:
                await self.source.commit(done)
            except GroupError as error:
                log.warning("comet: handler %s: what it did was not committed: %s", self.one.name, error)
            except CometError as error:
                log.warning("comet: handler %s: the commit is tried again: %s", self.one.name, error)
                for place, position in done.items():
                    if self.life(place) == lives[place]:
                        self._done.setdefault(place, position)

    async def _finish(self, places: list[Place]) -> None:
        if self._dispatch is not None:
            self._dispatch.close(places)
            while any(self._dispatch.running_in(place) for place in places):
                await self._changed.wait()
        while self._busy in places:
            await self._changed.wait()

    def _forget(self, places: list[Place]) -> None:
        if self._busy in places:
            self._busy = None
        for place in places:
            self._done.pop(place, None)
        if self._dispatch is not None:
            self._dispatch.forget(places)
        self._tell()
