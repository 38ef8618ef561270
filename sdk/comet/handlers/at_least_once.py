"""At least once: offsets are committed after the handler's success, every HANDLED_COMMIT_MS.

    one at a time    take ─► acknowledge ─► done ─► commit
    several          take ─► dispatch ─► workers: acknowledge ─► the lowest unfinished offset ─► commit

Records that are processed and not committed when the process dies are processed again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from comet import limits
from comet.errors import CometError, GroupError
from comet.handlers.binding import Binding, Item, items_of
from comet.handlers.dispatch import Dispatch, Task
from comet.handlers.serving import GroupServing, Host, Stopped, current_serving, settling
from comet.types import TopicPartition
from comet.values.record import RecordBatch

log = logging.getLogger("comet")


class AtLeastOnce(GroupServing):
    """Commits processed records in intervals. Handlers run one at a time, or several with a dispatch."""

    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self._done: dict[TopicPartition, int] = {}  # uncommitted offsets
        self._passed: dict[TopicPartition, int] = {}  # offsets committed while no record was pending
        self._busy: TopicPartition | None = None  # the running partition, if one runs at a time
        self._changed = asyncio.Event()  # set and replaced when a handler ended
        self._committing = asyncio.Lock()
        self._dispatch: Dispatch[tuple[Item, int]] | None = None
        self._failure: BaseException | None = None
        if self.policy.concurrency > 1:
            window = self.policy.concurrency * limits.DISPATCH_WINDOW_PER_HANDLER
            self._dispatch = Dispatch(self.policy.concurrency, window)

    async def _serve(self) -> None:
        self._done, self._passed, self._failure = {}, {}, None  # a restart discards the earlier state
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
        tp = TopicPartition(batch.topic, batch.partition)
        life = self.life(tp)
        self._busy = tp
        settle = settling(self, batch)
        try:
            for n, item in enumerate(items_of(self.one, batch), 1):
                if n % limits.TURN_RECORDS == 0:
                    await asyncio.sleep(0)
                if self.stopping or self._lives[tp] != life:
                    return
                await settle(item, life)
                if self._busy == tp:  # else the partition was lost meanwhile
                    self._done[tp] = item.end
            if self._busy == tp:
                self._done[tp] = batch.next_offset
        except Stopped:
            return
        finally:
            self._busy = None
            self._notify()

    # ---- several at once

    async def _feed(self, dispatch: Dispatch[tuple[Item, int]], batch: RecordBatch[Any]) -> None:
        tp = TopicPartition(batch.topic, batch.partition)
        life = self.life(tp)
        for item in items_of(self.one, batch):
            while not dispatch.room and not self._over(tp, life):
                await self._changed.wait()
            if self._over(tp, life):
                return
            dispatch.add(tp, item.first, item.key, (item, life), end=item.end)
            self._notify()

    def _over(self, tp: TopicPartition, life: int) -> bool:
        return self.stopping or self._failure is not None or self._lives[tp] != life

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
            item, life = task.item
            await settling(self, item.batch)(item, life)
        except BaseException as error:
            if not isinstance(error, Stopped):
                dispatch.close(list(self._lives))  # starts no more handlers
            dispatch.dropped(task)
            if isinstance(error, asyncio.CancelledError):
                raise
            if not isinstance(error, Stopped) and self._failure is None:
                self._failure = error
                self._interrupt()
        else:
            dispatch.done(task)
        finally:
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- committing

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(limits.HANDLED_COMMIT_MS / 1000)
            await self._commit_done()

    async def _commit_done(self) -> None:
        """Commits the processed offsets. Failed ones are retried the next time."""
        async with self._committing:
            if self._dispatch is not None:
                self._done.update(self._dispatch.moved())
            if self._consuming and not self.stopping and (self._dispatch is None or not self._dispatch.held):
                for tp, position in self.passed_over().items():
                    if position > self._passed.get(tp, -1):
                        self._done[tp] = self._passed[tp] = position
            done, self._done = self._done, {}
            if not done or self.source is None:
                return
            lives = {tp: self.life(tp) for tp in done}
            committed = False
            try:
                with self.committing():
                    await self.source.commit(done)
                committed = True
            except GroupError as error:
                log.warning("comet: handler %s: processed records not committed: %s", self.one.name, error)
                committed = True  # by the member to which the partition is assigned now
            except CometError as error:
                log.warning("comet: handler %s: commit is retried: %s", self.one.name, error)
            finally:
                for tp, position in done.items():
                    if not committed and self.life(tp) == lives[tp]:
                        self._done.setdefault(tp, position)

    async def _finish(self, tps: list[TopicPartition]) -> None:
        if self._dispatch is not None:
            self._dispatch.close(tps)
            while any(self._dispatch.running_in(tp) for tp in tps):
                await self._changed.wait()
        while self._busy in tps:
            await self._changed.wait()

    def _forget(self, tps: list[TopicPartition]) -> None:
        if self._busy in tps:
            self._busy = None
        for tp in tps:
            self._done.pop(tp, None)
            self._passed.pop(tp, None)
        if self._dispatch is not None:
            self._dispatch.forget(tps)
        self._notify()
