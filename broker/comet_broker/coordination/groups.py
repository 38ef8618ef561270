"""The groups of one slot: finds the group of a frame, checks commits, runs timers, follows topics.

    groups/<group>                 core.groups.GroupRecord: members, assignments, target assignments
    offsets/<group>/<topic id>     offsets.StoredOffsets: committed offsets, one value per topic

One group is run by group.LiveGroup. Owned by the slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from comet.errors import (
    CometError,
    GroupNotEmpty,
    GroupNotFound,
    InvalidArgument,
    LimitExceeded,
    MemberUnknown,
    NotCoordinator,
    StoreDamaged,
    Unavailable,
)
from comet.types import check_topic_name
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.coordination.committed_offsets import Admitted, StoredOffsets
from comet_broker.coordination.context import SlotClaim, SlotContext
from comet_broker.coordination.fence import admit, partitions_of
from comet_broker.coordination.group import LiveGroup, MemberConnection
from comet_broker.coordination.journal import Operation, Written
from comet_broker.coordination.lag import LagWatch
from comet_broker.core.assignment import STICKY
from comet_broker.core.cluster import DELETED, TOPICS
from comet_broker.core.group_members import CONSUMER, SHARED, Claim
from comet_broker.core.group_record import GroupRecord
from comet_broker.core.groups import Group
from comet_broker.failures import Guard, Kind
from comet_broker.metadata.store import KeyValue

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
LATE_S: Final = 0.5  # a tick that is so late means that this broker was stopped, not the members
FAILED_MS: Final = 1_000  # after which a request for a failed group is worth a retry
TOPICS_S: Final = 0.02  # for which changes of topics are gathered
SESSION_MS: Final = 10_000
RELEASE_MS: Final = 60_000


class Groups:
    def __init__(self, claim: SlotClaim, context: SlotContext) -> None:
        self.logs = context.logs
        self.on_evicted: list[Callable[[str, str], None]] = []  # called with group and member after each eviction
        self.lag = LagWatch(self, context)
        self._slot = claim
        self._env = context.env
        self._view = context.view
        self._store = context.store
        self._groups: dict[str, LiveGroup] = {}
        self._streams: dict[MemberConnection, set[tuple[str, str]]] = {}  # group and member
        self._closed: CometError | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._refresh: asyncio.TimerHandle | None = None
        self._unreadable: set[str] = set()  # groups with values in the store that this version cannot read
        self._failed: dict[str, str] = {}  # groups that an unexpected error has stopped, with the reason
        self._deleted: set[str] = set()  # ids of topics; their tombstones may be gone before the next check

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(list(self._groups.values()))

    # ---- life

    def load(self, items: Mapping[str, KeyValue]) -> None:
        """Loads the groups from the keys below the slot's prefix; `items` is keyed by the rest of the key."""
        for key, item in sorted(items.items()):  # groups before their offsets
            kind, _, rest = key.partition("/")
            name, _, topic_id = rest.partition("/")
            if kind not in ("groups", "offsets") or name in self._failed:
                continue
            group = self._groups.get(name) or self._make(name)
            with self.guard(name, "loading"):
                try:
                    if kind == "groups":
                        group.load(GroupRecord.decode(item.value))
                    else:
                        group.load_offsets(topic_id, StoredOffsets.decode(item.value))
                except (msgspec.DecodeError, ValueError, IndexError) as error:
                    log.error("cannot read the value of %s in the metadata store: %s", item.key, error)
                    self._unreadable.add(name)
        for name in self._unreadable:
            self._groups.pop(name, None)
        self._follow_topics()
        if self._groups:
            self._start_ticking()

    def close(self, error: CometError) -> None:
        """Closes the groups when the slot moves to another broker: every member is told to look for it."""
        if not isinstance(error, NotCoordinator):
            error = NotCoordinator(error.message, retry_after_ms=error.retry_after_ms)
        self._closed = error
        if self._ticking is not None:
            self._ticking.cancel()
        if self._refresh is not None:
            self._refresh.cancel()
        for group in self:
            with self.guard(group.name, "giving up"):
                group.close(error)
        for name in self._failed:
            self._env.failures.clear(Kind.GROUP, name)  # the slot's next coordinator loads it
        self._streams.clear()
        self.lag.close()

    # ---- groups that fail

    def guard(self, name: str, step: str) -> Guard:
        """Guards a step of one group: an unexpected error stops that group, and no other."""
        return self._env.failures.guard(Kind.GROUP, name, step, lambda error: self.halt(name, step, error))

    def halt(self, name: str, step: str, error: Exception) -> CometError:
        """Stops a group after an unexpected error: its state in memory is not reliable. It is closed, and answers
        nothing until it is loaded again. Returns the error for its clients."""
        reason = self._env.failures.note(Kind.GROUP, name, error, step)
        if self._closed is None and len(self._failed) < limits.SLOT_GROUPS_MAX:
            self._failed.setdefault(name, reason)
        else:
            self._env.failures.clear(Kind.GROUP, name)
        group = self._groups.pop(name, None)
        self.lag.forget(name)
        if group is not None:
            # As if the coordinator had moved: members join again, and get the reason why they cannot.
            group.close(NotCoordinator(f"group {name!r} has failed: {reason}", retry_after_ms=FAILED_MS))
        return self._stopped(name, reason)

    def _stopped(self, name: str, reason: str) -> CometError:
        me = self._env.me
        return Unavailable(
            f"group {name!r} has failed on broker {me}, its coordinator, and is stopped: {reason}. To resume"
            f" it: comet cluster resume --broker {me}",
            retry_after_ms=FAILED_MS,
        )

    async def resume(self) -> int:
        """Loads failed groups from the store again; returns how many. Raises StoreUnavailable."""
        count = 0
        for name in list(self._failed):
            prefix = self._slot.prefix
            await self._slot.journal.written()  # the writes that the groups had queued are in the store
            store = self._store
            record = await store.get(f"{prefix}groups/{name}")
            offsets = await store.range(f"{prefix}offsets/{name}/")
            items = [*([] if record is None else [record]), *offsets.items]
            if self._closed is None and self._failed.pop(name, None) is not None:
                self._env.failures.clear(Kind.GROUP, name)
                self.load({item.key.removeprefix(prefix): item for item in items})
                count += 1
        return count

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # ---- groups

    def find(self, name: str) -> LiveGroup | None:
        self._check_open()
        if name in self._unreadable:
            raise StoreDamaged(f"group {name!r} cannot be read from the metadata store")
        if name in self._failed:
            raise self._stopped(name, self._failed[name])
        return self._groups.get(name)

    def make(self, name: str) -> LiveGroup:
        """The group of that name; created if it does not exist."""
        found = self.find(name)
        if found is not None:
            return found
        if len(self._groups) >= limits.SLOT_GROUPS_MAX:
            raise LimitExceeded(f"limit of {limits.SLOT_GROUPS_MAX} groups in this slot reached; delete some")
        group = self._make(name)
        self._show_topics(group)
        self._start_ticking()
        return group

    def _make(self, name: str) -> LiveGroup:
        """Creates the group, with generations above those of all deleted groups of the slot, of any name."""
        group = self._groups[name] = LiveGroup(
            name,
            Group(CONSUMER, self._slot.journal.generation_floor),
            prefix=self._slot.prefix,
            journal=self._slot.journal,
            clock=self._env.clock.monotonic,
            name_of=self.topic_name,
            racks=self.logs.racks,
            evicted=self._evicted,
            halt=lambda step, error: self.halt(name, step, error),
        )
        return group

    def forget(self, group: LiveGroup) -> None:
        if self._groups.get(group.name) is group:
            group.close(GroupNotFound(f"group {group.name!r} was deleted"))
            del self._groups[group.name]
            self.lag.forget(group.name)

    async def delete(self, group: LiveGroup) -> None:
        """Deletes a group without members. A member that joins from now on finds a new one, written after the
        deletion."""
        deleted = group.delete()
        self.forget(group)
        await deleted

    def _evicted(self, group: str, member: str) -> None:
        for callback in self.on_evicted:
            with self._env.failures.guard(Kind.GROUP, group, "reporting an eviction"):
                callback(group, member)

    # ---- members

    def join(self, stream: MemberConnection, request: int, join: pb.Join) -> None:
        if len(join.topics) > limits.JOIN_TOPICS_MAX:
            raise InvalidArgument(f"a member subscribes to at most {limits.JOIN_TOPICS_MAX} topics; use a pattern")
        claim = Claim(
            member=join.member,
            instance=join.instance,
            client=_printable(join.client),
            topics=tuple(sorted({check_topic_name(name) for name in join.topics})),
            pattern=join.pattern,
            kind=join.kind or CONSUMER,
            session_ms=join.session_timeout_ms or SESSION_MS,
            release_ms=join.release_timeout_ms or RELEASE_MS,
            assignment=join.assignment or STICKY,
            rack=_printable(join.rack),
        )
        group = self.make(join.group)
        machine = group.machine
        if machine.kind != claim.kind and not machine.members:
            if group.exists or group.offsets:
                raise InvalidArgument(
                    f"group {group.name!r} is of the other kind (consumer or share group); delete it first"
                )
            machine.kind = claim.kind
        try:
            member = group.join(stream, request, claim, self._new_id)
        except CometError as error:
            if claim.member:
                self._send_evicted(stream, join.group, claim.member, error)
            raise
        self._streams.setdefault(stream, set()).add((group.name, member))

    async def found(self, name: str, topic_id: str) -> None:
        """Ensures that the share group and its acquiring from that topic are in the store."""
        group = self.make(name)
        machine = group.machine
        if machine.kind != SHARED:
            if machine.members or group.exists or group.offsets:
                raise InvalidArgument(f"group {name!r} is a consumer group; use another name")
            machine.kind = SHARED
        await group.found(topic_id)

    def _new_id(self) -> str:
        return f"{self._env.random.getrandbits(96):024x}"

    def _send_evicted(self, stream: MemberConnection, group: str, member: str, error: CometError) -> None:
        evicted = pb.Evicted(group=group, member=member, error=error_to_pb(error))
        stream.send(records_pb.ServerFrame(evicted=evicted))

    def _known(self, name: str) -> LiveGroup:
        group = self.find(name)
        if group is None:
            raise MemberUnknown("unknown member of this group: join again")
        return group

    def heartbeat(self, stream: MemberConnection, heartbeat: pb.Heartbeat) -> None:
        try:
            self._known(heartbeat.group).machine.heard_from(heartbeat.member, self._env.clock.monotonic())
        except CometError as error:
            stream.fail(0, error)
            self._send_evicted(stream, heartbeat.group, heartbeat.member, error)

    def leave(self, stream: MemberConnection, request: int, leave: pb.Leave) -> None:
        """Removes a member; leaving twice is no error."""
        group = self.find(leave.group)
        if group is None or leave.member not in group.machine.members:
            stream.send(records_pb.ServerFrame(request=request, left=pb.Left()))
            return
        self._streams.get(stream, set()).discard((group.name, leave.member))
        group.leave(stream, request, leave.member)

    def release(self, stream: MemberConnection, request: int, release: pb.Release) -> None:
        tps = [(topic.topic_id.hex(), index) for topic in release.partitions for index in topic.partitions]
        self._known(release.group).release(stream, request, release.member, tps, release.generation)

    def stream_closed(self, stream: MemberConnection) -> None:
        """Detaches the stream from its members, which have the rest of their session timeouts to come back."""
        for name, member in self._streams.pop(stream, ()):
            group = self._groups.get(name)
            if group is not None and group.streams.get(member) is stream:
                del group.streams[member]

    # ---- offsets

    def commit(self, stream: MemberConnection, request: int, commit: pb.Commit) -> None:
        """Handles a commit, in the order of frames if the log ends are known. A member may commit and release without
        waiting in between."""
        if self.logs.known(partitions_of(commit, self.logs)):
            self._commit(stream, request, commit)
        else:
            stream.spawn(request, self._commit_later(stream, request, commit))

    async def _commit_later(self, stream: MemberConnection, request: int, commit: pb.Commit) -> None:
        await self.learn_ends(commit)
        self._check_open()
        try:
            self._commit(stream, request, commit)
        except CometError:
            raise
        except Exception as error:
            raise self.halt(commit.group, "commit", error) from error

    def _commit(self, stream: MemberConnection, request: int, commit: pb.Commit) -> None:
        admitted = self.admit(commit)

        def done(error: CometError | None) -> None:
            if error is None:
                stream.send(records_pb.ServerFrame(request=request, committed=admitted.committed()))
            else:
                stream.fail(request, error)

        group = self.make(commit.group)
        group.last_commit_us = self._env.clock.wall_us()
        group.commit(admitted, done)

    async def fetch_committed(self, fetch: pb.FetchCommitted) -> pb.Committed:
        group = self.find(fetch.group)
        if group is None:
            return pb.Committed()
        await group.caught_up()
        return group.committed(fetch.topics)

    # ---- for transactions: await learn_ends(commit), then in one turn admit(commit), check `refused`, and write

    async def learn_ends(self, commit: pb.Commit) -> None:
        """Makes sure that the log ends that `admit` needs are known here."""
        if sum(len(topic.offsets) for topic in commit.topics) > limits.COMMIT_OFFSETS_MAX:
            raise InvalidArgument(f"a commit holds at most {limits.COMMIT_OFFSETS_MAX} offsets")
        await self.logs.learn(partitions_of(commit, self.logs))

    def admit(self, commit: pb.Commit) -> Admitted:
        """Checks the fences of a commit now; refused offsets are in `refused`. Changes nothing.

        Raises MemberUnknown, MemberFenced, GroupNotEmpty or InvalidArgument.
        """
        if commit.member:
            group = self._known(commit.group)
            group.machine.heard_from(commit.member, self._env.clock.monotonic())
        else:
            group = self.make(commit.group)
            if group.machine.members:
                raise GroupNotEmpty(f"group {group.name!r} has members: only they commit its offsets")
        if group.machine.kind != CONSUMER:
            raise InvalidArgument(f"group {group.name!r} is a share group: acknowledge its records instead")
        return admit(group, commit, self.logs, up_to_date=self._up_to_date)

    def write(self, admitted: Admitted, operations: Sequence[Operation], done: Written) -> None:
        """Writes the admitted offsets and `operations` in one journal write: both or neither. In the same turn as
        `admit`. After done(None), `admitted.committed()` is the answer."""
        if self._closed is not None:
            done(self._closed)
        else:
            group = self.make(admitted.group)
            if admitted.entries:
                group.last_commit_us = self._env.clock.wall_us()
            group.write(admitted, operations, done)

    # ---- topics

    @property
    def _up_to_date(self) -> bool:
        """The view is as new as any that the previous coordinator can have had: this broker's claim came later."""
        found = self._view.state.coordinators.get(self._slot.number)
        return found is not None and found.value.epoch >= self._slot.epoch

    def topic_name(self, topic_id: str) -> str:
        for name, shape in self.logs.catalog().items():
            if shape.topic_id == topic_id:
                return name
        return ""

    def view_moved(self, keys: Sequence[str]) -> None:
        """Follows a change of the cluster in these keys."""
        self._deleted.update(key.removeprefix(DELETED) for key in keys if key.startswith(DELETED))
        waiting = self._refresh is not None
        if (
            not waiting
            and self._groups
            and any(key.startswith((TOPICS, DELETED)) or key == self._claim for key in keys)
        ):
            self._refresh = asyncio.get_running_loop().call_later(TOPICS_S, self._follow_topics)

    @property
    def _claim(self) -> str:
        return f"cluster/coordinators/{self._slot.number}"

    def _follow_topics(self) -> None:
        self._refresh = None
        deleted = self._deleted | self._view.state.deleted.keys()
        self._deleted.clear()
        for group in self:
            with self.guard(group.name, "following topics"):
                for topic_id in deleted.intersection({*group.offsets.names, *group.machine.acquired}):
                    group.drop_topic(topic_id)
                self._show_topics(group)

    def _show_topics(self, group: LiveGroup) -> None:
        if not self._up_to_date:
            return
        group.machine.topics(self.logs.catalog())
        group.kick_if_needed()

    # ---- time

    def _start_ticking(self) -> None:
        if self._ticking is None and self._closed is None:
            self._ticking = self._env.tasks.keep(self._tick, f"groups of slot {self._slot.number}")

    async def _tick(self) -> None:
        """Ticks while there are groups."""
        before = self._env.clock.monotonic()
        while self._groups:
            await asyncio.sleep(TICK_S)
            now = self._env.clock.monotonic()
            late = now - before > TICK_S + LATE_S
            before = now
            for group in self:
                with self.guard(group.name, "a timer"):
                    if late:
                        group.machine.forgive(now)
                    group.tick(now)
                    group.note_rebalance(self._env.clock.wall_us())
                    if group.idle:
                        self.forget(group)
            self.lag.tick()
        self._ticking = None

    def statistics(self) -> dict[str, Any]:
        return {
            "slot": self._slot.number,
            "groups": len(self._groups),
            "members": sum(len(group.machine.members) for group in self),
            "store_transactions": self._slot.journal.transactions,
            "store_writes": self._slot.journal.writes,
            "lags": self.lag.statistics(),
        }


def _printable(name: str) -> str:
    """A name for people, without characters that would need more bytes in the record than they have letters."""
    cleaned = "".join(character for character in name[: limits.CLIENT_NAME_BYTES_MAX] if character.isprintable())
    short = cleaned.replace("\\", "/").replace('"', "'").encode()[: limits.CLIENT_NAME_BYTES_MAX]
    return short.decode(errors="ignore")
