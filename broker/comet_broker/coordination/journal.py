"""The writes of one slot's coordinator to the metadata store: in order, many to a transaction, one under way.

    write(operations) ─► waiting ─► one transaction: compare the head, put the head, put the gathered writes ─► done

The *head* is a key that every transaction of the slot compares and writes. So the slot's writes have one order, a
coordinator that was replaced cannot write any more (its successor has written the head), and a transaction whose
outcome is not known is looked up: the head says which was the last to take effect.

Every write is absolute (whole values), so of several to one key the last one counts. Owned by the slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from comet.errors import Closed, CometError, LimitExceeded, NotCoordinator, StoreDamaged
from comet_broker.core.cluster import Stored
from comet_broker.metadata.store import (
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Compare,
    Delete,
    MetadataStore,
    Put,
    StoreUnavailable,
)
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
WAITING_BYTES_MAX: Final = 32 << 20
_OVERHEAD_BYTES: Final = 256  # of the head, and of the frame of each operation

COORDINATION: Final = "coordination/"
Operation = Put | Delete
Written = Callable[[CometError | None], None]


def slot_prefix(number: int) -> str:
    """The prefix of the slot's keys."""
    return f"{COORDINATION}{number}/"


class Head(Stored, frozen=True):
    """The last writer, its number of writes, and the highest generation of the slot's deleted groups.

    A deleted group leaves its generation here, in the same transaction. A new group of the slot, of any name, begins
    above it, so that generations of a name never go back. The next coordinator takes the floor over.
    """

    broker: int
    epoch: int  # of the slot: one more with each coordinator
    sequence: int
    generation_floor: int = 0  # no generation of a deleted group lies above it


class _Write(msgspec.Struct):
    operations: tuple[Operation, ...]
    size: int
    done: Written
    generation: int


class Journal:
    """The writer of one slot. Calls `lost` once when another coordinator has taken over, or `halt` after an unexpected
    error; then every write fails."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        key: str,
        head: Head,
        revision: int,
        tasks: Tasks,
        lost: Callable[[CometError], None],
        halt: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._key = key
        self._head = head
        self._revision = revision
        self._tasks = tasks
        self._lost = lost
        self._halt = halt
        self._waiting: deque[_Write] = deque()
        self._waiting_bytes = 0
        self._generation_floor = head.generation_floor  # including waiting writes
        self._writer: asyncio.Task[None] | None = None
        self.closed: CometError | None = None
        self.transactions = 0  # that took effect
        self.writes = 0

    # ---- writing

    @property
    def generation_floor(self) -> int:
        """The generation above which a new group begins. It is stored before any later write takes effect."""
        return self._generation_floor

    def write(self, operations: Sequence[Operation], done: Written, *, generation: int = 0) -> None:
        """Queues operations that take effect together; calls `done` with None once they have, else with the error. With
        them the floor of generations is raised to `generation`: that of a group that they delete.

        NotCoordinator means that they have no effect, or that another coordinator knows whether they have.
        """
        if self.closed is not None:
            done(self.closed)
            return
        size = sum(_size(one) for one in operations)
        if len({one.key for one in operations}) >= OPERATIONS_MAX or size + _OVERHEAD_BYTES > TRANSACTION_BYTES_MAX:
            done(LimitExceeded(f"{len(operations)} changes of {size} bytes are too much for one metadata transaction"))
            return
        if self._waiting_bytes + size > WAITING_BYTES_MAX:
            done(LimitExceeded("the metadata store does not keep up with this coordinator; retry", retry_after_ms=200))
            return
        self._generation_floor = max(self._generation_floor, generation)
        self._waiting.append(_Write(tuple(operations), size, done, generation))
        self._waiting_bytes += size
        if self._writer is None:
            self._writer = self._tasks.spawn(self._run(), f"write {self._key}")

    def written(self, *operations: Operation, generation: int = 0) -> asyncio.Future[None]:
        """Queues the operations at once. The future is done when they have taken effect; raises the error that `write`
        reports."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: CometError | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        self.write(operations, done, generation=generation)
        return future

    def close(self, error: CometError) -> None:
        """Ends the journal; waiting writes get the error. The one under way may still take effect."""
        if self.closed is not None:
            return
        self.closed = error
        if self._writer is not None:
            self._writer.cancel()
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        self._answer(waiting, error)

    # ---- the writer

    async def _run(self) -> None:
        under_way: list[_Write] = []
        try:
            while self._waiting:
                under_way = self._take()
                await self._apply(under_way)
                self.transactions += 1
                self.writes += len(under_way)
                finished, under_way = under_way, []
                self._answer(finished, None)
        except Closed:
            self._end(NotCoordinator("this broker is stopping", retry_after_ms=100), under_way)
        except NotCoordinator as error:
            self._end(error, under_way)
            self._lost(error)
        except Exception as error:  # noqa: BLE001 - reported by halt; the coordinator that loads the slot next knows
            self._end(NotCoordinator(f"writing {self._key} failed: {error!r}", retry_after_ms=100), under_way)
            self._halt(error)
        except asyncio.CancelledError:
            self._end(self.closed or NotCoordinator("this broker is stopping", retry_after_ms=100), under_way)
            raise
        finally:
            self._writer = None

    def _end(self, error: CometError, under_way: list[_Write]) -> None:
        self._answer(under_way, error)
        self.close(error)

    def _answer(self, writes: Iterable[_Write], error: CometError | None) -> None:
        for one in writes:
            try:
                one.done(error)
            except Exception as caught:  # noqa: BLE001 - the slot's other writes are still to be answered
                self._tasks.report(f"an answer to a write of {self._key}", caught)

    def _take(self) -> list[_Write]:
        """As many writes as fit into one transaction, at least one."""
        chosen: list[_Write] = []
        keys: set[str] = set()
        size = _OVERHEAD_BYTES
        while self._waiting:
            following = self._waiting[0]
            more = keys | {one.key for one in following.operations}
            if chosen and (len(more) >= OPERATIONS_MAX or size + following.size > TRANSACTION_BYTES_MAX):
                break
            keys = more
            size += following.size
            self._waiting_bytes -= following.size
            chosen.append(self._waiting.popleft())
        return chosen

    async def _apply(self, writes: list[_Write]) -> None:
        """Returns once the writes have taken effect. Raises NotCoordinator when they no longer can."""
        final: dict[str, Operation] = {one.key: one for write in writes for one in write.operations}
        floor = max(self._head.generation_floor, *(write.generation for write in writes))
        head = msgspec.structs.replace(self._head, sequence=self._head.sequence + 1, generation_floor=floor)
        operations = [Put(self._key, head.encode()), *final.values()]
        pause_s = RETRY_S
        while True:
            try:
                result = await self._store.transact([Compare(self._key, self._revision)], operations)
                if result.applied:
                    self._head, self._revision = head, result.revision
                    return
                if await self._took_effect(head):
                    return
            except StoreUnavailable as error:
                log.warning("%s waits for the metadata store: %s", self._key, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _took_effect(self, head: Head) -> bool:
        """Checks the head after an attempt whose answer was lost. Raises when another coordinator has written."""
        item = await self._store.get(self._key)
        found = None if item is None else Head.decode(item.value)
        if item is None or found is None or (found.broker, found.epoch) != (head.broker, head.epoch):
            owner = "no broker" if found is None else f"broker {found.broker}"
            raise NotCoordinator(f"{owner} coordinates this slot now", retry_after_ms=20)
        if found.sequence not in {head.sequence, self._head.sequence}:
            raise StoreDamaged(
                f"{self._key} shows write {found.sequence} of epoch {head.epoch} as the last, and this broker has"
                f" made {self._head.sequence}: the metadata store went back in time"
            )
        self._revision = item.mod_revision
        if found.sequence == head.sequence:
            self._head = head
            return True
        return False  # the lost answer was a "no": retry from this state


def _size(operation: Operation) -> int:
    value = operation.value if isinstance(operation, Put) else b""
    return len(operation.key.encode()) + len(value) + _OVERHEAD_BYTES
