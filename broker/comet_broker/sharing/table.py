"""All share groups on this broker: the state of each group in each partition that it leads.

A state is created for the first member: an earlier leader's state is loaded, or a new group begins where its first
member says, and the state is written under this leader's epoch before any record is given, so that the earlier leader
can store nothing any more. It ends with the leader's epoch, or when it has no members and nothing to do.

Owned by the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from comet.errors import CometError, Draining, Internal, InvalidArgument, LimitExceeded, Unavailable
from comet.types import Position
from comet_broker import limits
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import DELETED
from comet_broker.core.share_record import SHARES, ShareRecord, ShareStatus, share_key, truncated_to
from comet_broker.core.shares import WindowSnapshot
from comet_broker.env import Env
from comet_broker.failures import Kind
from comet_broker.metadata.store import OPERATIONS_MAX, Delete, KeyValue, MetadataStore, StoreUnavailable
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.chunk import Chunks
from comet_broker.sharing.context import Agreed, Publish, ShareContext
from comet_broker.sharing.journal import ShareJournal
from comet_broker.sharing.state import SharePartition

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
LATE_S: Final = 1.0  # a clock that is as late as this has been stopped, and with it all acknowledgements
RETRY_S: Final = 0.5

Key = tuple[bytes, int, str]


class WaitingCall(Protocol):
    """A call that waits for records."""

    def end_waiting(self, error: CometError) -> None: ...


class ShareTable:
    """`publish` writes a dead letter; see streams.unary_records."""

    def __init__(
        self,
        env: Env,
        *,
        store: MetadataStore,
        view: ClusterView,
        reader: LogReader,
        broker_epoch: Callable[[], int],
        draining: Callable[[], bool],
        publish: Publish,
    ) -> None:
        self.journal = ShareJournal(store, env.tasks)
        self.chunks = Chunks(limits.SHARE_CHUNKS_MAX)
        self._env = env
        self._store = store
        self._view = view
        self._draining = draining
        self._context = ShareContext(
            env, broker_epoch, reader, self.journal, self.chunks, publish, self._ended, self.check_clock
        )
        self.founded: dict[tuple[str, bytes], float] = {}  # group and topic that its coordinator knows, and until when
        self.calls: set[WaitingCall] = set()  # that wait for records, or are about to be answered
        self.turn = 0  # the first partition of the next call
        self._states: dict[Key, SharePartition] = {}
        self._opening: dict[Key, asyncio.Future[SharePartition]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._tick_at = 0.0
        self._closed: CometError | None = None
        view.listen(self._moved)

    # ---- opening

    async def open(self, partition: Partition, group: str, agreed: Agreed, start: Position) -> SharePartition:
        """The group's state in a partition that this broker leads. A new group begins at `start`."""
        if agreed.filter and not self._env.config.filter_percent:
            raise InvalidArgument("this broker evaluates no filters: its setting filter_percent is 0")
        key = (partition.topic_id, partition.index, group)
        while True:
            opening, state = self._opening.get(key), self._states.get(key)
            if opening is not None:
                await asyncio.wait([opening])
            elif state is None:
                break
            elif state.acquirers.members or await self._still_exists(state):
                state.agree(agreed)
                return state
        if len(self._states) + len(self._opening) >= limits.SHARES_MAX:
            raise LimitExceeded(f"limit of {limits.SHARES_MAX} share partitions reached on this broker")
        opening = self._opening[key] = asyncio.get_running_loop().create_future()
        opening.add_done_callback(asyncio.Future.exception)  # there may be no waiter
        self._env.tasks.spawn(
            self._open_for(opening, key, partition, agreed, start), f"open {partition} for group {group}"
        ).add_done_callback(lambda _: self._opened(opening, key))
        return await asyncio.shield(opening)

    async def _open_for(
        self, opening: asyncio.Future[SharePartition], key: Key, partition: Partition, agreed: Agreed, start: Position
    ) -> None:
        """Opens a state, even after the caller has gone: no caller gets a state that this leader has not claimed."""
        error: CometError | None = None
        try:
            state = await self._open(key, partition, agreed, start)
        except CometError as caught:
            error = caught
        except Exception as caught:
            error = Internal(f"{partition} cannot be opened for the group: {caught!r}")
            raise
        else:
            opening.set_result(state)
        finally:
            self._opened(opening, key, error)

    def _opened(self, opening: asyncio.Future[SharePartition], key: Key, error: CometError | None = None) -> None:
        """Ends an opening: it succeeded, it failed, or the broker stops."""
        if self._opening.get(key) is opening:
            del self._opening[key]
        if not opening.done():
            opening.set_exception(error or Draining("this broker is about to stop", retry_after_ms=200))

    async def _still_exists(self, state: SharePartition) -> bool:
        """Whether the state of a group without members still exists in the store; if not, ends it with its locks."""
        now = self._env.clock.monotonic()
        if state.stored.is_checked(now):
            return True
        item = await self._stored(state.stored.key)
        state.stored.check_again_at(now + limits.SHARE_CHECK_S)
        if state.closed is None and not state.stored.is_current(item):
            self.founded.pop((state.group, state.partition.topic_id), None)
            state.stored.replaced()
        return state.closed is None

    async def _stored(self, key: str) -> KeyValue | None:
        try:
            return await self._store.get(key)
        except StoreUnavailable as error:
            raise Unavailable(f"the metadata store does not answer: {error}", retry_after_ms=200) from error

    async def _open(self, key: Key, partition: Partition, agreed: Agreed, start: Position) -> SharePartition:
        epoch = partition.leader_epoch
        self._check(partition, epoch)
        item = await self._stored(share_key(partition.topic_id, partition.index, key[2]))
        if item is None:
            self.founded.pop((key[2], partition.topic_id), None)
            snapshot = WindowSnapshot(await self._context.reader.resolve(partition, start), b"", {})
        else:
            snapshot = self._stored_snapshot(partition, item)
        self._check(partition, epoch)
        state = SharePartition(
            self._context, partition, key[2], agreed, snapshot, 0 if item is None else item.mod_revision
        )
        self._states[key] = state
        await state.stored.claim()
        floor = state.shares.window.floor
        log.info(
            "%s goes on from offset %d",
            state,
            floor,
            extra={"group": state.group, "offset": floor, **state.partition.log_fields},
        )
        if self._ticking is None:
            self._tick_at = self._env.clock.monotonic() + TICK_S
            self._ticking = self._env.tasks.spawn(self._tick(), "look after share groups")
        return state

    def _check(self, partition: Partition, epoch: int) -> None:
        if self._closed is not None:
            raise self._closed
        if partition.closed is not None:
            raise partition.closed
        if not partition.leads or partition.leader_epoch != epoch:
            raise partition.not_leader()

    @staticmethod
    def _stored_snapshot(partition: Partition, item: KeyValue) -> WindowSnapshot:
        """An earlier leader's state, as far as the log still holds its records."""
        record = ShareRecord.decode(item.value)
        if record.epoch > partition.leader_epoch:
            raise partition.not_leader(f"{partition} is shared in epoch {record.epoch} already")
        snapshot = record.snapshot(limits.SHARE_WINDOW_RECORDS_MAX)
        cut_at = partition.log.epochs.end_of(record.epoch, partition.log.log_end)
        return snapshot if snapshot.floor + len(snapshot.marks) <= cut_at else truncated_to(snapshot, cut_at)

    def _ended(self, state: SharePartition) -> None:
        """Removes a state that has ended."""
        self.journal.forget(state.stored)
        key = (state.partition.topic_id, state.partition.index, state.group)
        if self._states.get(key) is state:
            del self._states[key]

    # ---- time

    async def _tick(self) -> None:
        clock = self._env.clock
        try:
            while self._states:
                self._tick_at = clock.monotonic() + TICK_S
                await asyncio.sleep(TICK_S)
                self.check_clock()
                if self._draining():
                    for call in list(self.calls):
                        call.end_waiting(Draining("this broker is about to stop", retry_after_ms=200))
                for state in list(self._states.values()):
                    try:
                        state.tick()
                    except Exception as error:  # noqa: BLE001 - it ends this state, not the loop over all others
                        state.halt(error)
        finally:
            self._ticking = None

    def check_clock(self) -> None:
        """Restarts the locks if this broker was stopped, since members could not acknowledge. Called by all timers."""
        now = self._env.clock.monotonic()
        if self._ticking is None or now - self._tick_at < LATE_S:
            return
        log.warning("this broker was stopped for %.1f s: the locks of share groups restart", now - self._tick_at)
        self._tick_at = now + TICK_S
        for state in list(self._states.values()):
            try:
                state.shares.forgive(state.now)  # no acknowledgement could arrive
            except Exception as error:  # noqa: BLE001 - as for a tick
                state.halt(error)

    # ---- deleting

    def _moved(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key.startswith(DELETED) and key.removeprefix(DELETED) in self._view.state.deleted:
                prefix = f"{SHARES}{key.removeprefix(DELETED)}/"
                self._env.tasks.spawn(self._delete_later(prefix), f"delete {prefix}")

    async def _delete_later(self, prefix: str) -> None:
        """Deletes the states of a deleted topic."""
        while self._closed is None:
            try:
                await self._delete(lambda key: key.startswith(prefix), prefix)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
            except CometError:
                return
            else:
                return

    async def delete(self, group: str) -> int:
        """Deletes all states of a group, of every broker; the leaders notice. Returns how many partitions. Raises
        StoreUnavailable; then some may be left."""
        return await self._delete(lambda key: key.rpartition("/")[2] == group, SHARES)

    async def _delete(self, chosen: Callable[[str], bool], prefix: str) -> int:
        keys = [item.key for item in (await self._store.range(prefix)).items if chosen(item.key)]
        for at in range(0, len(keys), OPERATIONS_MAX):
            await self._store.transact([], [Delete(key) for key in keys[at : at + OPERATIONS_MAX]])
        return len(keys)

    # ---- the end, and status

    def close(self, error: CometError) -> None:
        """Closes all states when the broker stops; waiters get the error."""
        self._closed = error
        for state in list(self._states.values()):
            with self._env.failures.guard(Kind.SHARE, str(state), "close"):
                state.close(error)

    def state(self, group: str, topic_id: bytes, index: int) -> SharePartition | None:
        """The group's state in a partition, if there is one."""
        return self._states.get((topic_id, index, group))

    def find(self, group: str, topic_id: bytes, index: int) -> ShareStatus | None:
        """The group's status in one partition; None if unknown here."""
        state = self.state(group, topic_id, index)
        return None if state is None else _status(state)

    def describe(self, group: str) -> list[ShareStatus]:
        """The group's status in the partitions that this broker leads, as far as it has members there."""
        return [_status(state) for state in self._states.values() if state.group == group]

    def _state_statistics(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for state in list(self._states.values())[:1000]:
            with self._env.failures.guard(Kind.SHARE, str(state), "statistics"):
                found.append(state.statistics())
        return found

    def statistics(self) -> dict[str, Any]:
        return {
            "partitions": self._state_statistics(),
            "partition_count": len(self._states),
            "calls": len(self.calls),
            "transactions": self.journal.transactions,
            "writes": self.journal.writes,
        }


def _status(state: SharePartition) -> ShareStatus:
    shares = state.shares
    return ShareStatus(
        topic=state.partition.topic,
        topic_id=state.partition.topic_id,
        partition=state.partition.index,
        members=len(state.acquirers.members),
        floor=shares.window.floor,
        acknowledged=shares.window.acknowledged_above,
        in_flight=shares.in_flight,
        waiting=shares.window.waiting,
        redelivered=shares.redelivered,
        dead=len(shares.window.dead),
        dead_lettered=shares.window.dead_lettered,
        dropped=shares.window.dropped,
        problem=state.dead_letters.problem,
    )
