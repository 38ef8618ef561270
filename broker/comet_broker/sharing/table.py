"""All that this broker shares out: the state of each group at each partition that it leads.

A state is made when the first member asks for it: what an earlier leader kept is read, or a new group begins where its
first member says, and the state is written under this leader's epoch before anything is given, so that the leader
before can keep nothing any more. It ends with the leader's epoch, or when it has no members and nothing to do.

Owned by the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from comet.errors import CometError, Draining, Internal, LimitExceeded, Unavailable
from comet.types import Position
from comet_broker import limits
from comet_broker.core.cluster import DELETED
from comet_broker.core.share_record import SHARES, ShareRecord, share_key, truncated_to
from comet_broker.core.shares import WindowSnapshot
from comet_broker.failures import Kind
from comet_broker.metadata.store import OPERATIONS_MAX, Delete, KeyValue, StoreUnavailable
from comet_broker.partitions.partition import Partition
from comet_broker.sharing.journal import ShareJournal
from comet_broker.sharing.reading import Chunks
from comet_broker.sharing.state import Agreed, SharePartition

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.sharing.acquire_call import AcquireCall

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
LATE_S: Final = 1.0  # a clock that is as late as this has stood still, with all members' acknowledging
RETRY_S: Final = 0.5

Key = tuple[bytes, int, str]


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """What one group has of one partition."""

    topic: str
    topic_id: bytes
    partition: int
    members: int
    floor: int
    acknowledged: int  # above the floor
    in_flight: int
    waiting: int  # to be delivered again
    redelivered: int
    dead: int  # and not written to the dead-letter topic yet
    dead_lettered: int
    dropped: int
    problem: str


class ShareTable:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.journal = ShareJournal(broker.store, broker.tasks)
        self.chunks = Chunks(limits.SHARE_CHUNKS_MAX)
        self.founded: dict[tuple[str, bytes], float] = {}  # group and topic that its coordinator knows of, until when
        self.calls: set[AcquireCall] = set()  # that wait for records, or are about to be answered
        self.turn = 0  # which partition a call begins with
        self._states: dict[Key, SharePartition] = {}
        self._opening: dict[Key, asyncio.Future[SharePartition]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._tick_at = 0.0
        self._closed: CometError | None = None
        broker.view.listen(self._moved)

    # ---- opening

    async def open(self, partition: Partition, group: str, agreed: Agreed, start: Position) -> SharePartition:
        """The group's state at the partition, which this broker leads. `start` is where a new group begins."""
        key = (partition.topic_id, partition.index, group)
        while True:
            opening, state = self._opening.get(key), self._states.get(key)
            if opening is not None:
                await asyncio.wait([opening])
            elif state is None:
                break
            elif state.subscribers or await self._still_stands(state):
                state.agree(agreed)
                return state
        if len(self._states) + len(self._opening) >= limits.SHARES_MAX:
            raise LimitExceeded(f"this broker shares out {limits.SHARES_MAX} partitions, its limit")
        opening = self._opening[key] = asyncio.get_running_loop().create_future()
        opening.add_done_callback(asyncio.Future.exception)  # nobody may be waiting
        self.broker.tasks.spawn(
            self._open_for(opening, key, partition, agreed, start), f"share {partition} out to {group}"
        ).add_done_callback(lambda _: self._opened(opening, key))
        return await asyncio.shield(opening)

    async def _open_for(
        self, opening: asyncio.Future[SharePartition], key: Key, partition: Partition, agreed: Agreed, start: Position
    ) -> None:
        """Goes on where whoever asked has gone away: nobody finds a state that this leader has not claimed."""
        error: CometError | None = None
        try:
            state = await self._open(key, partition, agreed, start)
        except CometError as caught:
            error = caught
        except Exception as caught:
            error = Internal(f"{partition} cannot be shared out: {caught!r}")
            raise
        else:
            opening.set_result(state)
        finally:
            self._opened(opening, key, error)

    def _opened(self, opening: asyncio.Future[SharePartition], key: Key, error: CometError | None = None) -> None:
        """It is open, or it failed, or the broker stops."""
        if self._opening.get(key) is opening:
            del self._opening[key]
        if not opening.done():
            opening.set_exception(error or Draining("this broker is about to stop", retry_after_ms=200))

    async def _still_stands(self, state: SharePartition) -> bool:
        """While a group has no members, it may have been deleted: then the state ends, and what is acquired with it."""
        now = self.broker.clock.monotonic()
        if now < state.stands_until:
            return True
        item = await self._stored(state.key)
        state.stands_until = now + limits.SHARE_STANDS_S
        if state.closed is None and not state.stands(item):
            self.founded.pop((state.group, state.partition.topic_id), None)
            state.replaced()
        return state.closed is None

    async def _stored(self, key: str) -> KeyValue | None:
        try:
            return await self.broker.store.get(key)
        except StoreUnavailable as error:
            raise Unavailable(f"the metadata store does not answer: {error}", retry_after_ms=200) from error

    async def _open(self, key: Key, partition: Partition, agreed: Agreed, start: Position) -> SharePartition:
        epoch = partition.leader_epoch
        self._check(partition, epoch)
        item = await self._stored(share_key(partition.topic_id, partition.index, key[2]))
        if item is None:
            self.founded.pop((key[2], partition.topic_id), None)
            kept = WindowSnapshot(await self.broker.resolve(partition, start), b"", {})
        else:
            kept = self._kept(partition, item)
        self._check(partition, epoch)
        state = SharePartition(self, partition, key[2], agreed, kept, 0 if item is None else item.mod_revision)
        self._states[key] = state
        await state.claim()
        log.info("%s goes on from offset %d", state, state.shares.floor)
        if self._ticking is None:
            self._tick_at = self.broker.clock.monotonic() + TICK_S
            self._ticking = self.broker.tasks.spawn(self._tick(), "look after share groups")
        return state

    def _check(self, partition: Partition, epoch: int) -> None:
        if self._closed is not None:
            raise self._closed
        if partition.closed is not None:
            raise partition.closed
        if not partition.leads or partition.leader_epoch != epoch:
            raise partition.not_leader()

    @staticmethod
    def _kept(partition: Partition, item: KeyValue) -> WindowSnapshot:
        """What an earlier leader kept, as far as the log still holds what it is about."""
        record = ShareRecord.decode(item.value)
        if record.epoch > partition.leader_epoch:
            raise partition.not_leader(f"{partition} is shared out in epoch {record.epoch} already")
        kept = record.snapshot(limits.SHARE_WINDOW_RECORDS_MAX)
        cut_at = partition.log.epochs.end_of(record.epoch, partition.log.log_end)
        return kept if kept.floor + len(kept.marks) <= cut_at else truncated_to(kept, cut_at)

    def drop(self, state: SharePartition) -> None:
        """The state has ended."""
        self.journal.forget(state)
        key = (state.partition.topic_id, state.partition.index, state.group)
        if self._states.get(key) is state:
            del self._states[key]

    # ---- time

    async def _tick(self) -> None:
        clock = self.broker.clock
        try:
            while self._states:
                self._tick_at = clock.monotonic() + TICK_S
                await asyncio.sleep(TICK_S)
                self.look_at_the_clock()
                if self.broker.draining:
                    for call in list(self.calls):
                        call.turn_away(Draining("this broker is about to stop", retry_after_ms=200))
                for state in list(self._states.values()):
                    try:
                        state.tick()
                    except Exception as error:  # noqa: BLE001 - it ends this state, and not the looking after all others
                        state.broke(error)
        finally:
            self._ticking = None

    def look_at_the_clock(self) -> None:
        """If this broker stood still, members could not acknowledge: their locks begin anew. Asked by all timers."""
        now = self.broker.clock.monotonic()
        if self._ticking is None or now - self._tick_at < LATE_S:
            return
        log.warning("this broker stood still for %.1f s: the locks of share groups begin anew", now - self._tick_at)
        self._tick_at = now + TICK_S
        for state in list(self._states.values()):
            try:
                state.forgive()
            except Exception as error:  # noqa: BLE001 - as for a tick
                state.broke(error)

    # ---- deleting

    def _moved(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key.startswith(DELETED) and key.removeprefix(DELETED) in self.broker.view.state.deleted:
                prefix = f"{SHARES}{key.removeprefix(DELETED)}/"
                self.broker.tasks.spawn(self._delete_later(prefix), f"delete {prefix}")

    async def _delete_later(self, prefix: str) -> None:
        """Nobody asks for what was kept of a deleted topic any more."""
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
        """Deletes all that is kept of a group, on every broker: their leaders find out. Returns how many partitions.
        Raises StoreUnavailable; then some may be left."""
        return await self._delete(lambda key: key.rpartition("/")[2] == group, SHARES)

    async def _delete(self, chosen: Callable[[str], bool], prefix: str) -> int:
        keys = [item.key for item in (await self.broker.store.range(prefix)).items if chosen(item.key)]
        for at in range(0, len(keys), OPERATIONS_MAX):
            await self.broker.store.transact([], [Delete(key) for key in keys[at : at + OPERATIONS_MAX]])
        return len(keys)

    # ---- the end, and what there is

    def close(self, error: CometError) -> None:
        """The broker stops: whoever waits gets the error."""
        self._closed = error
        for state in list(self._states.values()):
            with self.broker.failures.guard(Kind.SHARE, str(state), "close"):
                state.close(error)

    def state(self, group: str, topic_id: bytes, index: int) -> SharePartition | None:
        """The group's state at a partition, if it is there."""
        return self._states.get((topic_id, index, group))

    def find(self, group: str, topic_id: bytes, index: int) -> ShareStatus | None:
        """What the group has of one partition; None if that is not known here."""
        state = self.state(group, topic_id, index)
        return None if state is None else _status(state)

    def describe(self, group: str) -> list[ShareStatus]:
        """What the group has of the partitions that this broker leads, as far as it has members there."""
        return [_status(state) for state in self._states.values() if state.group == group]

    def _state_statistics(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for state in list(self._states.values())[:1000]:
            with self.broker.failures.guard(Kind.SHARE, str(state), "statistics"):
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
        members=len(state.subscribers),
        floor=shares.floor,
        acknowledged=shares.acknowledged_above,
        in_flight=shares.in_flight,
        waiting=shares.waiting,
        redelivered=shares.redelivered,
        dead=len(shares.dead),
        dead_lettered=shares.dead_lettered,
        dropped=shares.dropped,
        problem=state.dead_letters.problem,
    )
