"""One group as its coordinator runs it: decisions are stored first, then sent to the members.

    join, leave, release, topics, time ─► core.groups ─► plan ─► one write of the journal ─► answers, assignments
    commit ─► admitted ─► pending ─► one write for all that has gathered ─► answers

While a record is being written, nothing is decided except removals, and nothing is sent. Offsets that were admitted
before a record are written before it, so that an assignment shows them; see offset_writer. Owned by `Groups`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

from comet.errors import CometError, MemberFenced
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet_broker import limits
from comet_broker.coordination.committed_offsets import CommittedOffsets
from comet_broker.coordination.group_messages import assignment, evicted, joined
from comet_broker.coordination.journal import Journal, Operation, Written
from comet_broker.coordination.offset_writer import OffsetWriter, check_room
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import CONSUMER, Claim
from comet_broker.core.group_record import GroupRecord
from comet_broker.core.groups import Group
from comet_broker.metadata.store import Delete, Put

RETRY_S: Final = 0.2


class MemberConnection(Protocol):
    """The stream of a member or of a transactional producer."""

    @property
    def closed(self) -> bool: ...
    def send(self, frame: records_pb.ServerFrame) -> None:
        """Sends a frame, as an answer or unsolicited."""

    def fail(self, request: int, error: CometError) -> None: ...
    def spawn(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs a slow request; its errors answer it."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The services that the groups of a slot share."""

    prefix: str  # of the slot's keys
    journal: Journal
    clock: Callable[[], float]
    name_of: Callable[[str], str]  # a topic's current name, by its id; empty if it is deleted
    racks: Callable[[PartitionId], Collection[str]]
    evicted: Callable[[str, str], None]  # called with group and member after each eviction
    halt: Callable[[str, str, Exception], object]  # stops a group after an unexpected error in a step


class Rebalances:
    """When partitions of a group changed hands."""

    def __init__(self) -> None:
        self.times_us: deque[int] = deque(maxlen=limits.REBALANCES_MAX)
        self.generation = 0  # that was noted last

    def note(self, generation: int, now_us: int) -> None:
        if generation != self.generation:
            self.generation = generation
            self.times_us.append(now_us)


class LiveGroup:
    def __init__(self, name: str, machine: Group, context: GroupContext) -> None:
        self.name = name
        self.machine = machine
        self.offsets = CommittedOffsets()
        self.writer = OffsetWriter(
            self.offsets,
            context.journal,
            key=self.offsets_key,
            first_record=self._first_record,
            halt=lambda step, error: context.halt(name, step, error),
        )
        self.streams: dict[str, MemberConnection] = {}
        self.rebalances = Rebalances()
        self.exists = False  # the store has its record, or will before any later write
        self._context = context
        self._journal = context.journal
        self._writing = False
        self._closed: CometError | None = None
        self._waiting: list[Written] = []  # waiting for the next record
        self._entering: set[str] = set()  # members without an answer to their join yet
        self._timer: asyncio.TimerHandle | None = None

    # ---- the store

    @property
    def key(self) -> str:
        return f"{self._context.prefix}groups/{self.name}"

    def offsets_key(self, topic_id: str) -> str:
        return f"{self._context.prefix}offsets/{self.name}/{topic_id}"

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
        self.machine = Group.restore(record, self._context.clock())
        self.exists = True
        self.rebalances.generation = record.generation

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for member, stream in self.streams.items():
            stream.send(evicted(self.name, member, error))
        self.streams.clear()
        waiting = [*self._waiting, *self.writer.close()]
        self._waiting = []
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
        check_room(self._waiting)
        entry = self.machine.join(claim, self._context.clock(), new_id)
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
                stream.send(records_pb.ServerFrame(request=request, joined=joined(member, self.machine.generation)))
            else:
                stream.send(evicted(self.name, entry.member, self._why_not(entry.member)))
                stream.fail(request, self._why_not(entry.member))

        self._waiting.append(answer)
        self.kick()
        return entry.member

    def _why_not(self, member: str) -> CometError:
        try:
            self.machine.known(member)
        except CometError as error:
            return error
        raise AssertionError(f"{member} is a member")

    def leave(self, stream: MemberConnection, request: int, member: str) -> None:
        check_room(self._waiting)
        self.machine.leave(member)
        self.streams.pop(member, None)
        self._context.evicted(self.name, member)
        self._answer_later(stream, request, records_pb.ServerFrame(request=request, left=pb.Left()))

    def release(
        self, stream: MemberConnection, request: int, member: str, tps: Iterable[PartitionId], generation: int
    ) -> None:
        check_room(self._waiting)
        self.machine.release(member, tps, generation, self._context.clock())
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

    def evict(self, member: str, error: CometError) -> None:
        """Evicts a member that the machine no longer has."""
        stream = self.streams.pop(member, None)
        if stream is not None and member not in self._entering:
            stream.send(evicted(self.name, member, error))
        self._context.evicted(self.name, member)

    def tick(self, now: float) -> None:
        out = self.machine.tick(now)
        for member, error in out:
            self.evict(member, error)
        if out:
            self.kick()

    # ---- decide, store, answer

    def kick(self) -> None:
        """Plans and writes, if nothing is being written to the store."""
        if self._writing or self._closed is not None or self._timer is not None:
            return
        delay_s = self.machine.plan_due(self._context.clock())
        if delay_s > 0:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._timed)
            return
        self.machine.plan(self._context.clock(), self._context.racks)
        answers, self._waiting = self._waiting, []
        if not self.machine.dirty:
            self._finish(answers)
            return
        try:
            self.machine.dirty = False
            self.writer.flush()
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
            self._context.halt(self.name, "planning", error)

    def record_operation(self) -> Put:
        return Put(self.key, self.machine.record().encode())

    def _first_record(self) -> list[Operation]:
        """Writes the record with the first offsets."""
        if self.exists:
            return []
        self.exists = True
        return [self.record_operation()]

    def _stored(self, answers: Sequence[Written], error: CometError | None) -> None:
        self._writing = False
        if error is None:
            try:
                self._finish(answers)
                self.kick_if_needed()
            except Exception as caught:  # noqa: BLE001 - reported by halt; the slot's other writes are answered
                self._context.halt(self.name, "notifying its members", caught)
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
        name_of = cache(self._context.name_of)
        for member, view in self.machine.news(self._entering).items():
            stream = self.streams.get(member)
            if stream is not None:
                message = assignment(self.name, member, self.machine.generation, view, self.offsets, name_of)
                stream.send(records_pb.ServerFrame(assignment=message))

    # ---- topics

    def drop_topic(self, topic_id: str) -> None:
        """Drops the offsets of a deleted topic."""
        if self.offsets.drop(topic_id):
            self._journal.write([Delete(self.offsets_key(topic_id))], _ignore)
            self.machine.dirty = True  # these may have been its last offsets
        if topic_id in self.machine.acquired:
            del self.machine.acquired[topic_id]
            self.machine.dirty = True


def _ignore(error: CometError | None) -> None:
    """Ignores an error: the operation is retried when the slot is loaded."""
