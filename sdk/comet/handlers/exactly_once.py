"""Exactly once: the records that handlers send and their offsets are committed in one transaction, or not at all.

    take up to `transaction_records`, for `transaction_ms` ─► handlers, inside a transaction ─► outputs + offsets: End
        ├─ a handler failed ─► abort ─► the same records again; after the last attempt without that one ─► dead letter,
        │                                                                       inside the transaction, like the outputs
        ├─ aborted, or partitions lost ─► again, with the records of the remaining partitions
        └─ unknown ─► everything is dropped, and read again from the committed offsets

Each attempt repeats a handler's other effects: only the transaction counts once.

While a transaction ends, the handlers of the next one run, with another producer. Its records are held back until all
of the one before are acknowledged. It is committed after the one before, or aborted with it: then both are repeated,
one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass

from comet import limits
from comet.client.retry import Backoff
from comet.errors import (
    Closed,
    CometError,
    GroupError,
    ProducerFenced,
    SerdeError,
    Timeout,
    TransactionAborted,
    TransactionError,
    Unavailable,
)
from comet.handlers.binding import Binding, Item, current_transaction, items_of
from comet.handlers.dead_letters import send_dead_letters
from comet.handlers.dispatch import Dispatch, Task
from comet.handlers.serving import GroupServing, Host, Restart, Stopped, current_serving, span_of
from comet.producer.transaction import Transaction, TransactionalProducer
from comet.types import TopicPartition

log = logging.getLogger("comet")


class Hopeless(Exception):
    """An error in a transaction that ends the app."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class HandlerFailed(Exception):
    """An error of a handler, which aborts its transaction."""

    def __init__(self, item: Item, error: Exception) -> None:
        super().__init__(str(error))
        self.item = item
        self.error = error


Chunk = list[tuple[Item, int]]  # the items of a transaction, each with the life of its partition


@dataclass
class Ending:
    """A transaction that is being committed: its handlers are done."""

    transaction: Transaction
    chunk: Chunk
    task: asyncio.Task[None]

    @property
    def tps(self) -> set[TopicPartition]:
        return {item.tp for item, _ in self.chunk}


class ExactlyOnce(GroupServing):
    def __init__(self, host: Host, one: Binding) -> None:
        super().__init__(host, one)
        self._producers: deque[TransactionalProducer] = deque()  # two; the first is for the next transaction
        self._ending: Ending | None = None
        self._pending: deque[tuple[Item, int]] = deque()  # taken, with the life of their partition, in order
        self._attempts: dict[tuple[TopicPartition, int], int] = {}  # of failed items
        self._condemned: dict[tuple[TopicPartition, int], Exception] = {}  # items that are not retried
        self._passed: dict[TopicPartition, int] = {}  # offsets committed while no record was pending
        self._busy: set[TopicPartition] = set()  # partitions of the running transaction
        self._changed = asyncio.Event()

    async def _serve(self) -> None:
        self._pending.clear()
        self._attempts.clear()
        self._condemned.clear()
        self._passed.clear()
        self._producers.extend(self.host.clients.transactional_producer(self.source) for _ in range(2))
        try:
            while not self.stopping:
                await self._gather()
                if chunk := self._chunk():
                    await self._handle_ahead(chunk)
                elif self._ending is not None and self._ending.task.done():
                    await self._settle([])
            await self._settle([])
        except Stopped:
            return

    async def _end(self) -> None:
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.task.cancel()
            await asyncio.wait([ending.task])
            _ = ending.task.cancelled() or ending.task.exception()  # read, so that asyncio does not report it
        while self._producers:
            await self._producers.popleft().close()

    # ---- taking

    async def _gather(self) -> None:
        """Waits for a first item, and takes more until the transaction is full or its time is up."""
        loop = asyncio.get_running_loop()
        enough = self.policy.transaction_records
        give_up: float | None = None
        if self._pending:
            give_up = loop.time() + self.policy.transaction_ms / 1000
        records = sum(_records(self.one, item) for item, _ in self._pending) if self.one.whole else len(self._pending)
        while not self.stopping and records < enough:
            timeout_s = None if give_up is None else give_up - loop.time()
            if timeout_s is not None and timeout_s <= 0:
                return
            batch = await self.take(limits.HANDLED_COMMIT_MS / 1000 if timeout_s is None else timeout_s)
            if batch is None:
                if timeout_s is None:
                    await self._pass_over()
                return
            life = self.life(TopicPartition(batch.topic, batch.partition))
            self._pending.extend((item, life) for item in items_of(self.one, batch))
            records += len(batch)
            if give_up is None:
                give_up = loop.time() + self.policy.transaction_ms / 1000

    async def _pass_over(self) -> None:
        """Commits offsets of control records, while no records come."""
        ending = self._ending
        if self.stopping or (ending is not None and (not ending.task.done() or ending.task.exception() is not None)):
            return
        assert self.source is not None
        passed = {tp: end for tp, end in self.passed_over().items() if end > self._passed.get(tp, -1)}
        if passed:
            try:
                await self.source.commit(passed)
                self._passed.update(passed)
            except (GroupError, Timeout, Unavailable) as error:
                log.info("comet: handler %s: commit is retried: %s", self.one.name, error)

    def _chunk(self) -> Chunk:
        """The items of the next transaction: the first pending ones."""
        chunk: Chunk = []
        records = 0
        while self._pending and records < self.policy.transaction_records and not self.stopping:
            item, life = self._pending.popleft()
            if self.life(item.tp) == life:
                chunk.append((item, life))
                records += _records(self.one, item)
        return chunk

    # ---- handlers run while the transaction before is committed

    async def _handle_ahead(self, chunk: Chunk) -> None:
        """Runs the handlers; after the transaction before, commits this one while the next one's handlers run."""
        transaction, failure = self._producers[0].transaction(), None
        self._busy = {item.tp for item, _ in chunk}
        try:
            await transaction.__aenter__()
            try:
                if self._ending is not None:
                    transaction.hold_behind(self._ending.transaction)
                await self._handle_in(transaction, [item for item, _ in chunk])
            except BaseException as error:
                await transaction.__aexit__(type(error), error, None)
                raise
        except (HandlerFailed, Hopeless, CometError) as error:
            failure = error
        try:
            before = self._ending
            if before is not None and await self._outcome(before) is not None:
                if failure is None:
                    over = TransactionAborted("the transaction before it was not committed")
                    await transaction.__aexit__(type(over), over, None)
                await self._settle(chunk)
            elif failure is not None:
                self._ending = None
                await self._until_committed(chunk, failure)
            else:
                self._producers.rotate()
                task = asyncio.get_running_loop().create_task(self._finish_one(transaction, chunk))
                self._ending = Ending(transaction, chunk, task)
        finally:
            self._busy = set()
            self._notify()

    async def _finish_one(self, transaction: Transaction, chunk: Chunk) -> None:
        try:
            await transaction.__aexit__(None, None, None)
            self._count(chunk)
        except BaseException:
            self.restart = self.restart or transaction.state == "unknown"
            self._interrupt()  # it is to be repeated at once, not when the next records come
            raise
        finally:
            self._notify()

    async def _outcome(self, ending: Ending) -> BaseException | None:
        """The error of the transaction, once it has ended."""
        await asyncio.wait([ending.task])
        return ending.task.exception()

    async def _settle(self, chunk: Chunk) -> None:
        """Waits for the transaction that is being committed; if it failed, repeats it and the one after it."""
        ending = self._ending
        if ending is None:
            return
        error = await self._outcome(ending)
        self._ending = None
        if error is not None:
            if not isinstance(error, Exception):
                raise error
            await self._until_committed(ending.chunk, error)
            await self._until_committed(self._mine(chunk))

    def _mine(self, chunk: Chunk) -> Chunk:
        return [(item, life) for item, life in chunk if self.life(item.tp) == life]

    # ---- one transaction, until it is committed

    async def _until_committed(self, chunk: Chunk, failure: Exception | None = None) -> None:
        """Repeats a transaction until it is committed. `failure` is the error of a first attempt."""
        backoff = Backoff(self.host.random)
        while chunk:
            self._busy = {item.tp for item, _ in chunk}
            try:
                if failure is not None:
                    first, failure = failure, None
                    raise first
                await self._transact([item for item, _ in chunk])
                self._count(chunk)
                return
            except HandlerFailed as failed:
                await self._failed(failed, chunk)
            except Hopeless as hopeless:
                raise hopeless.error from None
            except (Closed, Restart, Stopped):
                raise
            except ProducerFenced as error:
                raise Restart(f"the coordinator no longer knows its producer: {error}") from error
            except CometError as error:
                if self.restart:
                    raise Restart(f"the outcome of the transaction is unknown: {error}") from error
                cause = error.__cause__ if isinstance(error.__cause__, CometError) else error
                if not _passes(cause):
                    raise cause from None
                log.warning("comet: handler %s: transaction not committed: %s", self.one.name, error)
                await self._rest(backoff.next_s(error.retry_after_ms))
            finally:
                self._busy = set()
                self._notify()
            if self.stopping:
                raise Stopped
            chunk = self._mine(chunk)

    async def _rest(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._given_up.wait()
        except TimeoutError:
            pass

    async def _transact(self, items: list[Item]) -> None:
        tx = self._producers[0].transaction()
        try:
            async with tx:
                await self._handle_in(tx, items)
        finally:
            self.restart = self.restart or tx.state == "unknown"

    async def _handle_in(self, tx: Transaction, items: list[Item]) -> None:
        assert self.source is not None
        token = current_transaction.set(tx)
        try:
            await self._handle_all(items, tx)
        finally:
            current_transaction.reset(token)
        await tx.commit_offsets(self.source, {item.tp: item.end for item in items})

    async def _handle_all(self, items: list[Item], tx: Transaction) -> None:
        handle = self._handle if self.spans is None else self._handle_in_span
        if self.policy.concurrency == 1:
            for n, item in enumerate(items):
                if n % limits.TURN_RECORDS == 0:
                    await asyncio.sleep(0)  # lets the transaction before proceed
                await handle(item, tx)
            return
        dispatch: Dispatch[Item] = Dispatch(self.policy.concurrency, max(len(items), self.policy.concurrency))
        for item in items:
            dispatch.add(item.tp, item.first, item.key, item, end=item.end)
        async with asyncio.TaskGroup() as group:
            failures: list[Exception] = []
            for _ in range(min(self.policy.concurrency, len(items))):
                group.create_task(self._work(dispatch, tx, failures))
        if failures:
            raise failures[0]

    async def _work(self, dispatch: Dispatch[Item], tx: Transaction, failures: list[Exception]) -> None:
        current_serving.set(self)
        while not failures:
            task: Task[Item] | None = dispatch.take()
            if task is None:
                if not dispatch.held:
                    return
                await self._changed.wait()
                continue
            try:
                await (self._handle if self.spans is None else self._handle_in_span)(task.item, tx)
            except Exception as error:  # noqa: BLE001 - raised once all handlers of the transaction have ended
                failures.append(error)
            finally:
                dispatch.done(task)
                self._notify()

    async def _handle_in_span(self, item: Item, tx: Transaction) -> None:
        assert self.spans is not None
        with span_of(self.spans, self.one, item) if self.spans.concern(item.batch) else nullcontext():
            await self._handle(item, tx)

    async def _handle(self, item: Item, tx: Transaction) -> None:
        identity = (item.tp, item.first)
        if self._condemned or item.errors:
            condemned = self._condemned.get(identity)
            if condemned is not None:
                ends = self.policy.on_error == "stop"
                await self._set_aside(item, self._attempts[identity], condemned, tx, ends=ends)
                return
            for error in item.errors:
                offset = int(error.details["offset"])
                ends = self.one.ends_app(error)
                await self._set_aside(item._replace(first=offset, end=offset + 1), 1, error, tx, ends=ends)
            if item.errors and item.argument is None:
                return
        try:
            await self.host.caller.call(self.one, item.argument, item)
        except Exception as error:
            raise HandlerFailed(item, error) from error

    async def _set_aside(
        self, item: Item, attempts: int, error: Exception, tx: Transaction, *, ends: bool
    ) -> None:  # fmt: skip
        topic = self.policy.dead_letter
        if self.spans is not None:
            self.spans.give_up(error)
        if topic:
            await send_dead_letters(tx.send, topic, item, self.one.group, attempts, error)
            if self.spans is not None:
                self.spans.event("dead_letter", error, attempts, topic)
        elif ends:
            self.one.failed += 1
            raise Hopeless(error)

    def _count(self, chunk: Chunk) -> None:
        """Counts committed records."""
        one = self.one
        one.handled += len(chunk)
        if not self._condemned and not any(item.errors for item, _ in chunk):
            self._attempts.clear()
            return
        for item, _ in chunk:
            condemned = self._condemned.pop((item.tp, item.first), None)
            self._attempts.pop((item.tp, item.first), None)
            lost = [condemned] if condemned is not None else list(item.errors)
            if not lost:
                continue
            one.handled -= condemned is not None or item.argument is None
            for error in lost:
                if self.policy.dead_letter:
                    one.failed += 1
                    one.dead_lettered += len(item.batch) if one.whole and condemned is not None else 1
                    log.error("comet: handler %s gave up on %s/%d at %d: %r", one.name, *item.tp, item.first, error)
                elif condemned is None and isinstance(error, SerdeError):
                    one.malformed(error)
                else:
                    one.failure(error)

    async def _failed(self, failed: HandlerFailed, chunk: Chunk) -> None:
        """Handles a failed item after the abort: waits for the next attempt, or condemns the item."""
        item, error = failed.item, failed.error
        if self.restart:
            raise Restart(str(error)) from error
        if isinstance(error, TransactionError):
            # The handler got the error of its ended transaction, which it did not cause.
            await self._rest(limits.BACKOFF_FIRST_MS / 1000)
            return
        if isinstance(error, CometError) and error.retriable:
            # Nor did it cause a missing answer of a broker. The abort undid its work, so retries are not limited.
            log.warning("comet: handler %s: waiting for a broker: %s", self.one.name, error)
            await self._rest(max(limits.ROUTE_BACKOFF_MAX_MS, error.retry_after_ms) / 1000)
            return
        identity = (item.tp, item.first)
        attempts = self._attempts[identity] = self._attempts.get(identity, 0) + 1
        if attempts <= self.policy.retries:
            life = next(life for one, life in chunk if one is item)
            try:
                await self.pause(item, life, attempts, error)
            except Stopped:
                if self.stopping:
                    raise
            return
        if not self.policy.dead_letter and self.policy.on_error == "stop":
            self.one.failure(error)
        self._condemned[identity] = error

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- revoked and lost partitions

    async def _finish(self, tps: list[TopicPartition]) -> None:
        while not self._busy.isdisjoint(tps) or self._ends(tps):
            await self._changed.wait()

    def _ends(self, tps: list[TopicPartition]) -> bool:
        ending = self._ending
        return ending is not None and not ending.task.done() and not ending.tps.isdisjoint(tps)


def _passes(error: CometError) -> bool:
    """Whether a retry in another transaction may succeed."""
    return error.retriable or error.outcome_unknown or isinstance(error, TransactionError | GroupError)


def _records(one: Binding, item: Item) -> int:
    return len(item.batch) if one.whole else 1
