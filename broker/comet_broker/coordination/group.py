"""One group as its coordinator runs it: decisions are stored first, then sent to the members.

    join, leave, release, topics, time ─► core.groups ─► plan ─► one write of the journal ─► answers, assignments
    commit ─► admitted ─► pending ─► one write for all that has gathered ─► answers

While a record is being written, nothing is decided except removals, and nothing is sent. Offsets that were admitted
before a record are written before it, so that an assignment shows them. Owned by `Groups`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol

from comet.errors import CometError, LimitExceeded, MemberFenced
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.coordination.committed_offsets import (
    Admitted,
    CommittedOffsets,
    OffsetsByTopic,
    StoredOffsets,
    offset_to_pb,
)
from comet_broker.coordination.journal import Journal, Operation, Written
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import CONSUMER, Claim, Member, View
from comet_broker.core.group_record import GroupRecord
from comet_broker.core.groups import Group
from comet_broker.metadata.store import Delete, Put

RETRY_S: Final = 0.2
HEARTBEAT_MS_MAX: Final = 3_000
HEARTBEATS: Final = 4  # in a session

Evict = Callable[[str, str], None]


class MemberConnection(Protocol):
    """The stream of a member or of a transactional producer."""

    @property
    def closed(self) -> bool: ...
    def send(self, frame: records_pb.ServerFrame) -> None:
        """Sends a frame, as an answer or unsolicited."""

    def fail(self, request: int, error: CometError) -> None: ...
    def spawn(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs a slow request; its errors answer it."""


class LiveGroup:
    """`name_of` returns a topic's current name; `evicted` is called for each evicted member."""

    def __init__(
        self,
        name: str,
        machine: Group,
        *,
        prefix: str,
        journal: Journal,
        clock: Callable[[], float],
        name_of: Callable[[str], str],
        racks: Callable[[PartitionId], Collection[str]],
        evicted: Evict,
        halt: Callable[[str, Exception], object],
    ) -> None:
        self.name = name
        self.machine = machine
        self.offsets = CommittedOffsets()
        self.streams: dict[str, MemberConnection] = {}
        self.last_commit_us = 0  # 0: none since it was loaded
        self.rebalances_us: deque[int] = deque(maxlen=limits.REBALANCES_MAX)
        self.exists = False  # the store has its record, or will before any later write
        self._prefix = prefix
        self._journal = journal
        self._clock = clock
        self._name_of = name_of
        self._racks = racks
        self._generation = 0  # that was noted last
        self._evicted = evicted
        self._halt = halt
        self._writing = False
        self._closed: CometError | None = None
        self._waiting: list[Written] = []  # waiting for the next record
        self._entering: set[str] = set()  # members without an answer to their join yet
        self._sending = 0  # writes of gathered offsets
        self._committers: list[Written] = []
        self._timer: asyncio.TimerHandle | None = None

    # ---- the store

    @property
    def key(self) -> str:
        return f"{self._prefix}groups/{self.name}"

    def offsets_key(self, topic_id: str) -> str:
        return f"{self._prefix}offsets/{self.name}/{topic_id}"

    @property
    def idle(self) -> bool:
        """Whether it has no members and no state, here or in the store: it need not be kept."""
        return self._empty and not (self.exists or self._writing or self._waiting)

    @property
    def _empty(self) -> bool:
        """Whether it has neither members nor offsets. A share group stays until it is deleted: its leaders have the
        state."""
        return not (self.machine.members or self.offsets or (self.exists and self.machine.kind != CONSUMER))

    def load(self, record: GroupRecord) -> None:
        self.machine = Group.restore(record, self._clock())
        self.exists = True
        self._generation = record.generation

    def load_offsets(self, topic_id: str, stored: StoredOffsets) -> None:
        self.offsets.load(topic_id, stored)

    def delete(self) -> Awaitable[object]:
        """Deletes all keys of the group, in an order in which half of it does no harm. Queued at once, so that later
        writes under its name are not deleted; done when it has taken effect."""
        keys = [self.offsets_key(topic_id) for topic_id in self.offsets.names]
        return asyncio.gather(
            *(self._journal.written(Delete(key)) for key in keys),
            self._journal.written(Delete(self.key), generation=self.machine.generation),
        )

    def close(self, error: CometError) -> None:
        """Evicts all members: another broker coordinates the group now."""
        self._closed = error
        self._stop_timer()
        for member, stream in self.streams.items():
            stream.send(self._evicted_frame(member, error))
        self.streams.clear()
        waiting = [*self._waiting, *self._committers]
        self._waiting, self._committers = [], []
        for answer in waiting:
            answer(error)

    async def found(self, topic_id: str) -> None:
        """Makes sure that the store has the share group, with that topic as one it acquires from."""
        operations = []
        if self.machine.acquire(topic_id) or not self.exists:
            self.exists = True
            operations.append(self.record_operation())
        try:
            await self._journal.written(*operations)
        except CometError:
            if operations:
                self.machine.acquired.pop(topic_id, None)
            raise

    # ---- members

    def join(self, stream: MemberConnection, request: int, claim: Claim, new_id: Callable[[], str]) -> str:
        self._check_room(self._waiting)
        entry = self.machine.join(claim, self._clock(), new_id)
        if entry.replaced:
            self.evict(entry.replaced, MemberFenced("another instance has joined under the same static name"))
        self.streams[entry.member] = stream
        self._entering.add(entry.member)

        def answer(error: CometError | None) -> None:
            self._entering.discard(entry.member)
            if error is not None:
                stream.fail(request, error)
                return
            member = self.machine.members.get(entry.member)
            if member is not None:
                stream.send(records_pb.ServerFrame(request=request, joined=self._joined(member)))
            else:
                stream.send(self._evicted_frame(entry.member, self._why_not(entry.member)))
                stream.fail(request, self._why_not(entry.member))

        self._waiting.append(answer)
        self.kick()
        return entry.member

    def _joined(self, member: Member) -> pb.Joined:
        session_ms = round(member.session_s * 1000)
        return pb.Joined(
            member=member.id,
            generation=self.machine.generation,
            heartbeat_ms=max(1, min(HEARTBEAT_MS_MAX, session_ms // HEARTBEATS)),
            session_timeout_ms=session_ms,
        )

    def _why_not(self, member: str) -> CometError:
        try:
            self.machine.known(member)
        except CometError as error:
            return error
        raise AssertionError(f"{member} is a member")

    def leave(self, stream: MemberConnection, request: int, member: str) -> None:
        self._check_room(self._waiting)
        self.machine.leave(member)
        self.streams.pop(member, None)
        self._evicted(self.name, member)
        self._answer_later(stream, request, records_pb.ServerFrame(request=request, left=pb.Left()))

    def release(
        self, stream: MemberConnection, request: int, member: str, tps: Iterable[PartitionId], generation: int
    ) -> None:
        self._check_room(self._waiting)
        self.machine.release(member, tps, generation, self._clock())
        self._answer_later(stream, request, records_pb.ServerFrame(request=request, released=pb.Released()))

    def _answer_later(self, stream: MemberConnection, request: int, frame: records_pb.ServerFrame) -> None:
        """Answers once the store has the change."""

        def answer(error: CometError | None) -> None:
            if error is not None:
                stream.fail(request, error)
            else:
                stream.send(frame)

        self._waiting.append(answer)
        self.kick()

    def _check_room(self, waiting: Sequence[Written]) -> None:
        if len(waiting) >= limits.GROUP_WAITING_MAX:
            raise LimitExceeded("too many requests wait for the metadata store", retry_after_ms=500)

    def evict(self, member: str, error: CometError) -> None:
        """Evicts a member that the machine no longer has."""
        stream = self.streams.pop(member, None)
        if stream is not None and member not in self._entering:
            stream.send(self._evicted_frame(member, error))
        self._evicted(self.name, member)

    def _evicted_frame(self, member: str, error: CometError) -> records_pb.ServerFrame:
        return records_pb.ServerFrame(evicted=pb.Evicted(group=self.name, member=member, error=error_to_pb(error)))

    def tick(self, now: float) -> None:
        out = self.machine.tick(now)
        for member, error in out:
            self.evict(member, error)
        if out:
            self.kick()

    def note_rebalance(self, now_us: int) -> None:
        """Notes the time of a rebalance if partitions have changed hands."""
        if self.machine.generation != self._generation:
            self._generation = self.machine.generation
            self.rebalances_us.append(now_us)

    # ---- decide, store, answer

    def kick(self) -> None:
        """Plans and writes, if nothing is being written to the store."""
        if self._writing or self._closed is not None or self._timer is not None:
            return
        delay_s = self.machine.plan_due(self._clock())
        if delay_s > 0:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._timed)
            return
        self.machine.plan(self._clock(), self._racks)
        answers, self._waiting = self._waiting, []
        if not self.machine.dirty:
            self._finish(answers)
            return
        try:
            self.machine.dirty = False
            self._send_offsets()
            removed = self._empty
            self.exists = not removed
            operation = Delete(self.key) if removed else self.record_operation()
            floor = self.machine.generation if removed else 0
        except Exception:
            self._waiting = [*answers, *self._waiting]  # answered when it is closed
            raise
        self._writing = True
        self._journal.write([operation], lambda error: self._stored(answers, error), generation=floor)

    def _timed(self) -> None:
        self._timer = None
        try:
            self.kick()
        except Exception as error:  # noqa: BLE001 - reported by halt
            self._halt("planning", error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def record_operation(self) -> Put:
        return Put(self.key, self.machine.record().encode())

    def _stored(self, answers: Sequence[Written], error: CometError | None) -> None:
        self._writing = False
        if error is None:
            try:
                self._finish(answers)
                self.kick_if_needed()
            except Exception as caught:  # noqa: BLE001 - reported by halt; the slot's other writes are answered
                self._halt("notifying its members", caught)
            return
        for answer in answers:
            answer(error)
        if self._closed is None:  # not queued, for example at a limit: retried later
            self.machine.dirty = True
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._timed)

    def kick_if_needed(self) -> None:
        if self.machine.dirty or self.machine.stale or self._waiting:
            self.kick()

    def _finish(self, answers: Sequence[Written]) -> None:
        """Answers the requests that are stored now, and sends changed assignments."""
        if self._closed is not None:
            for answer in answers:
                answer(self._closed)
            return
        self._waiting = [*answers, *self._waiting]
        for answer in answers:
            answer(None)
            self._waiting.remove(answer)  # the rest is answered on close if one fails
        names: dict[str, str] = {}
        for member, view in self.machine.news(self._entering).items():
            stream = self.streams.get(member)
            if stream is not None:
                stream.send(records_pb.ServerFrame(assignment=self._assignment(member, view, names)))

    def _assignment(self, member: str, view: View, names: dict[str, str]) -> pb.Assignment:
        """The assignment without deleted topics, which have no name. The next plan is without them."""
        message = pb.Assignment(group=self.name, member=member, generation=self.machine.generation)
        topics: dict[str, pb.AssignedTopic] = {}
        for tp, since in sorted(view.owned.items()):
            topic_id, index = tp
            topic = topics.get(topic_id)
            if topic is None:
                name = names.get(topic_id) or names.setdefault(topic_id, self._name_of(topic_id))
                if not name:
                    continue
                topic = topics[topic_id] = message.owned.add(topic=name, topic_id=bytes.fromhex(topic_id))
            assigned = topic.partitions.add(partition=index, since=since)
            entry = self.offsets.get(tp)
            if entry is not None:
                assigned.offset = entry.offset
                if entry.epoch >= 0:
                    assigned.leader_epoch = entry.epoch
        add_partitions(message.release, (tp for tp in view.release if names.get(tp[0])), names.__getitem__)
        return message

    # ---- offsets

    def commit(self, admitted: Admitted, done: Written) -> None:
        """Writes the offsets, with others that have gathered. Calls `done` when they and all earlier ones are
        written."""
        if not admitted.entries and not self.offsets.pending:
            done(None)
            return
        self._check_room(self._committers)
        self.offsets.gather(admitted.entries)
        self._committers.append(done)
        if not self._sending:
            self._send_offsets()

    def _send_offsets(self) -> None:
        """Queues a write of all gathered offsets; commits that wait for earlier ones wait for it, too."""
        if not self.offsets.gathered and not self._committers:
            return
        flight = self.offsets.take_gathered()
        answers, self._committers = self._committers, []
        self._sending += 1

        def done(error: CometError | None) -> None:
            self._sending -= 1
            try:
                self.offsets.finish_write(flight, written=error is None)
                for answer in answers:
                    answer(error)
                if not self._sending and self._closed is None:
                    self._send_offsets()
            except Exception as caught:  # noqa: BLE001 - as above
                self._halt("applying written offsets", caught)

        self._journal.write(self._operations(flight), done)

    def _operations(self, flight: OffsetsByTopic) -> list[Operation]:
        operations: list[Operation] = [
            Put(self.offsets_key(topic_id), self.offsets.merged(topic_id).encode()) for topic_id in flight
        ]
        if operations and not self.exists:
            self.exists = True
            operations.append(self.record_operation())
        return operations

    def write(self, admitted: Admitted, operations: Sequence[Operation], done: Written) -> None:
        """Writes the offsets and `operations` together."""
        flight = self.offsets.start_write(admitted.entries)

        def written(error: CometError | None) -> None:
            self.offsets.finish_write(flight, written=error is None)
            done(error)

        self._journal.write([*self._operations(flight), *operations], written)

    async def caught_up(self) -> None:
        """Waits until all admitted offsets are written, and no other broker coordinates the group for certain."""
        self._send_offsets()
        await self._journal.written()

    def drop_topic(self, topic_id: str) -> None:
        """Drops the offsets of a deleted topic."""
        if self.offsets.drop(topic_id):
            self._journal.write([Delete(self.offsets_key(topic_id))], _ignore)
            self.machine.dirty = True  # these may have been its last offsets
        if topic_id in self.machine.acquired:
            del self.machine.acquired[topic_id]
            self.machine.dirty = True

    def committed(self, topics: Iterable[pb.TopicPartitions]) -> pb.Committed:
        """The committed offsets of these partitions; of all if none are named."""
        wanted = {topic.topic_id.hex(): set(topic.partitions) for topic in topics}
        answer = pb.Committed()
        for topic_id, entries in sorted(self.offsets.written.items()):
            if wanted and topic_id not in wanted:
                continue
            only = wanted.get(topic_id)
            chosen = [
                offset_to_pb(index, entry) for index, entry in sorted(entries.items()) if not only or index in only
            ]
            name = self.offsets.names[topic_id]
            answer.topics.add(topic=name, topic_id=bytes.fromhex(topic_id), offsets=chosen)
        return answer


def _ignore(error: CometError | None) -> None:
    """Ignores an error: the operation is retried when the slot is loaded."""


def add_partitions(
    into: Iterable[pb.TopicPartitions], tps: Iterable[PartitionId], name_of: Callable[[str], str]
) -> None:
    """Adds the partitions, grouped by topic."""
    topics: dict[str, pb.TopicPartitions] = {}
    for topic_id, index in sorted(tps):
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = into.add(topic=name_of(topic_id), topic_id=bytes.fromhex(topic_id))  # type: ignore[attr-defined]
        topic.partitions.append(index)
