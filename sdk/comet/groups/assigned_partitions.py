"""The partitions that are assigned to a group consumer: gained, released and lost while it reads.

    Changes ─► gained     read from the committed offset, or from `start`
           ├─► release    no more records; processed, committed, then released
           └─► lost       no more records; another member has it

Asking for the next record marks the previous one as processed; processed records are committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from comet import limits
from comet.client.client import Client
from comet.client.retry import Backoff
from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.iteration import RecordIterator
from comet.errors import Closed, CometError
from comet.groups.commits import Commits, OffsetToCommit
from comet.groups.member import Member
from comet.groups.member_partition import MemberPartition
from comet.groups.membership import AssignedPartition, Changes
from comet.groups.options import OnPartitions
from comet.types import AtOffset, Earliest, Position, TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.values.record import Record

log = logging.getLogger("comet")

T = TypeVar("T")


class AssignedPartitions(RecordIterator[T]):
    """The base of GroupConsumer: reads the partitions that are assigned to it. GroupConsumer sets these attributes."""

    _rebalances = True
    auto_commit: bool
    _client: Client
    _member: Member
    _commits: Commits
    _start_at: Position
    _callbacks: dict[str, OnPartitions | None]
    _assigned: dict[TopicPartition, MemberPartition]
    _returned: asyncio.Future[None] | None  # completes when the next record or batch is handed back
    _closed: bool

    @property
    def group(self) -> str:
        """The group's name."""
        return self._member.group

    # ---- assignments

    def _changed(self, changes: Changes) -> None:
        for tp in changes.lost:
            self._let_go(self._assigned.pop(tp))
        if changes.lost:
            self._notify("lost", list(changes.lost))
        self._gain(changes.gained)
        if changes.release and not self._closed:  # possibly partitions gained just now
            requested = [self._assigned[tp] for tp in changes.release]
            self._release([one for one in requested if not one.releasing])
        if changes.over is not None:
            self._fetcher.queue.end(changes.over)

    def _gain(self, gained: Sequence[AssignedPartition]) -> None:
        unknown: list[MemberPartition] = []
        for assignment in gained:
            assigned = self._assigned[assignment.tp] = MemberPartition(assignment)
            if assignment.offset is None:
                unknown.append(assigned)
            else:
                self._read(assigned, AtOffset(assignment.offset), assignment.epoch)
        if unknown:
            self._client.spawn(self._begin(unknown))
        if gained:
            self._notify("assigned", [assignment.tp for assignment in gained])
            if self._closed:  # the member is leaving and has released its partitions
                self._notify("revoked", [assignment.tp for assignment in gained])

    def _read(self, assigned: MemberPartition, where: Position, epoch: int | None = None) -> None:
        assigned.reader = self._fetcher.assign(assigned.tp, assigned.assignment.topic_id, where, epoch)
        if assigned.reader.position >= 0:
            assigned.begin()

    def _let_go(self, assigned: MemberPartition) -> None:
        """Stops handing out its records."""
        assigned.begin()
        if assigned.reader is not None and self._fetcher.readers.get(assigned.tp) is assigned.reader:
            self._fetcher.unassign(assigned.tp)
            if self._ahead is None:
                self._drop(assigned.reader)
            else:
                self._ahead.recall(assigned.reader)  # the program's thread may be taking a record

    async def _begin(self, partitions: list[MemberPartition]) -> None:
        """Starts partitions without a committed offset: at `start`, but at the beginning if the group reads the topic
        already, since then the partition was added later and all its records are new."""
        entries = {} if isinstance(self._start_at, Earliest) else await self._known_offsets(partitions)
        if entries is None:
            return
        topics = {topic_id for topic_id, _ in entries}
        for assigned in partitions:
            if not self._holds(assigned) or assigned.reader is not None:
                continue
            topic_id = assigned.assignment.topic_id
            entry = entries.get((topic_id, assigned.tp.partition))
            if entry is not None:
                assigned.committed = entry.offset
                self._read(
                    assigned,
                    AtOffset(entry.offset),
                    entry.leader_epoch if entry.HasField("leader_epoch") else None,
                )
            else:
                self._read(assigned, Earliest() if topic_id in topics else self._start_at)

    async def _known_offsets(
        self, partitions: list[MemberPartition]
    ) -> dict[tuple[bytes, int], groups_pb.PartitionOffset] | None:
        backoff = Backoff(self._client.random)
        fetch = pb.ClientFrame(fetch_committed=groups_pb.FetchCommitted(group=self.group))
        while any(map(self._holds, partitions)):
            try:
                answer = (await self._member.coordinator.request(fetch)).committed
            except Closed:
                return None
            except CometError as error:
                log.warning(
                    "comet: group %s: could not resolve start positions: %s",
                    self.group,
                    error,
                    extra={"group": self.group},
                )
                await asyncio.sleep(backoff.next_s(error.retry_after_ms))
                continue
            return {(topic.topic_id, entry.partition): entry for topic in answer.topics for entry in topic.offsets}
        return None

    def _begun(self, reader: PartitionSubscription) -> None:
        """Handles a resolved position; a first one is committed for the group."""
        assigned = self._assigned.get(reader.tp)
        if assigned is not None and assigned.reader is reader:
            assigned.begin()
            if assigned.first is None:
                assigned.first = reader.position
            if assigned.committed is None:
                self._commits.add([self._mark(assigned, assigned.first)])

    def _holds(self, assigned: MemberPartition) -> bool:
        return self._assigned.get(assigned.tp) is assigned

    # ---- releasing

    def _release(self, partitions: list[MemberPartition]) -> None:
        """Releases partitions; those that the application is processing do not delay the others."""
        busy = [one for one in partitions if self._in_hand(one)]
        free = [one for one in partitions if one not in busy]
        for assigned in partitions:
            assigned.releasing = True
            if assigned.begun.done():
                self._let_go(assigned)
        for some in (free, busy):
            if some:
                self._client.spawn(self._give_up(some))

    async def _give_up(self, partitions: list[MemberPartition]) -> None:
        await asyncio.wait([one.begun for one in partitions], timeout=limits.FIRST_POSITION_MS / 1000)
        for assigned in partitions:
            if self._holds(assigned):
                self._let_go(assigned)
        while any(map(self._in_hand, partitions)):
            await self._next_return()
        await self._revoke(partitions)
        try:
            await self._commits.commit(self._due(partitions))
        except CometError as error:
            log.warning(
                "comet: group %s: released partitions without their last commit: %s",
                self.group,
                error,
                extra={"group": self.group},
            )
        released: list[tuple[TopicPartition, bytes]] = []
        for assigned in partitions:
            if self._holds(assigned) and self._member.state.released(assigned.tp, assigned.assignment.since):
                del self._assigned[assigned.tp]
                released.append((assigned.tp, assigned.assignment.topic_id))
        if released:
            await self._member.release(released)

    async def _revoke(self, partitions: Iterable[MemberPartition]) -> None:
        """Calls `on_revoked` once, and waits for it."""
        notified = [one for one in partitions if self._holds(one) and not one.revoked]
        for assigned in notified:
            assigned.revoked = True
        await self._call("revoked", sorted(one.tp for one in notified))

    def _in_hand(self, assigned: MemberPartition) -> bool:
        """Whether the application is processing records of that partition. With commits of its own and an `on_revoked`,
        it finishes them there instead."""
        if not self.auto_commit and self._callbacks["revoked"] is not None:
            return False
        if assigned.reader is None:
            return False
        return _first_in_hand(self, assigned.reader) is not None or assigned.reader in self._held

    def _handed_back(self) -> None:
        super()._handed_back()
        if self._returned is not None:
            self._returned.set_result(None)
            self._returned = None

    async def _next_return(self) -> None:
        if self._returned is None:
            self._returned = asyncio.get_running_loop().create_future()
        if self._ahead is not None:
            self._ahead.recalled = True  # the next record is asked of the loop, which so learns of it
        await asyncio.shield(self._returned)

    # ---- callbacks

    def _notify(self, which: str, tps: list[TopicPartition]) -> None:
        """Calls a callback; an awaitable that it returns is awaited in the background."""
        outcome = self._run_callback(which, tps)
        if outcome is not None:
            self._client.spawn(self._finish(which, outcome))

    async def _call(self, which: str, tps: list[TopicPartition]) -> None:
        outcome = self._run_callback(which, tps) if tps else None
        if outcome is not None:
            await self._finish(which, outcome)

    def _run_callback(self, which: str, tps: list[TopicPartition]) -> Awaitable[None] | None:
        callback = self._callbacks[which]
        try:
            outcome = None if callback is None else callback(tps)
        except Exception:
            log.exception("comet: group %s: on_%s failed", self.group, which, extra={"group": self.group})
            return None
        return outcome if inspect.isawaitable(outcome) else None

    async def _finish(self, which: str, outcome: Awaitable[None]) -> None:
        try:
            await outcome
        except Exception:
            log.exception("comet: group %s: on_%s failed", self.group, which, extra={"group": self.group})

    # ---- positions

    def _done(self, reader: PartitionSubscription) -> int:
        """The offset up to which the application has processed the partition."""
        done = self._held.get(reader, reader.position)
        first = _first_in_hand(self, reader)
        return done if first is None else min(first, done)

    def _position(self, reader: PartitionSubscription) -> int:
        """The offset after the last record handed out."""
        last = _last_of(self, reader)
        return reader.position if last is None else last.offset + 1

    def _mark(self, assigned: MemberPartition, offset: int) -> OffsetToCommit:
        epoch = None if assigned.reader is None else assigned.reader.epoch_before(offset)
        return OffsetToCommit(
            assigned.tp,
            assigned.assignment.topic_id,
            assigned.assignment.since,
            offset,
            epoch,
        )

    def _due(self, partitions: Iterable[MemberPartition] | None = None) -> list[OffsetToCommit]:
        """Uncommitted offsets that can be committed: with auto_commit the processed ones, else only first positions."""
        found: list[OffsetToCommit] = []
        for assigned in self._assigned.values() if partitions is None else filter(self._holds, partitions):
            if assigned.reader is None or assigned.reader.position < 0:
                continue
            if not self.auto_commit and assigned.committed is not None:
                continue
            done = self._done(assigned.reader) if self.auto_commit or assigned.first is None else assigned.first
            if assigned.committed is None or done > assigned.committed:
                found.append(self._mark(assigned, done))
        return found

    def _was_committed(self, tp: TopicPartition, since: int, offset: int) -> None:
        assigned = self._assigned.get(tp)
        if assigned is not None and assigned.assignment.since == since:
            assigned.committed = max(offset, -1 if assigned.committed is None else assigned.committed)


def _first_in_hand(consumer: RecordIterator[T], reader: PartitionSubscription) -> int | None:
    """The offset of the record or batch of that partition that the application is processing."""
    last, whole_from = _last_of(consumer, reader), consumer._whole_from
    if last is not None:
        return last.offset
    return whole_from[1] if whole_from is not None and whole_from[0] is reader else None


def _last_of(consumer: RecordIterator[T], reader: PartitionSubscription) -> Record[T] | None:
    """The record handed out last, if it is of that partition. `_last` is read once, and compared: the thread of a
    synchronous program may take the next record meanwhile."""
    last = consumer._last
    if last is None or consumer._reader is not reader or (last.topic, last.partition) != reader.tp:
        return None
    return last
