"""The groups of one slot: loads, finds, creates and forgets them, stops those that fail, and runs their timers.

    groups/<group>                 core.groups.GroupRecord: members, assignments, target assignments
    offsets/<group>/<topic id>     offsets.StoredOffsets: committed offsets, one value per topic

One group is run by group.LiveGroup. Requests come from memberships.Memberships and commits.Commits. Owned by the slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from comet.errors import (
    CometError,
    GroupNotFound,
    InvalidArgument,
    LimitExceeded,
    MemberUnknown,
    NotCoordinator,
    StoreDamaged,
    Unavailable,
)
from comet_broker import limits
from comet_broker.coordination.committed_offsets import StoredOffsets
from comet_broker.coordination.context import SlotClaim, SlotContext
from comet_broker.coordination.group import GroupContext, LiveGroup
from comet_broker.coordination.lag import LagWatch
from comet_broker.coordination.topic_follower import TopicFollower
from comet_broker.core.group_members import CONSUMER, SHARED
from comet_broker.core.group_record import GroupRecord
from comet_broker.core.groups import Group
from comet_broker.failures import Guard, Kind
from comet_broker.metadata.store import KeyValue

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
LATE_S: Final = 0.5  # a tick that is so late means that this broker was stopped, not the members
FAILED_MS: Final = 1_000  # after which a request for a failed group is worth a retry


class Groups:
    def __init__(self, claim: SlotClaim, context: SlotContext) -> None:
        self.logs = context.logs
        self.on_evicted: list[Callable[[str, str], None]] = []  # called with group and member after each eviction
        self.closed: CometError | None = None
        self.lag = LagWatch(self, context)
        self.topics = TopicFollower(claim, self, view=context.view, logs=context.logs, guard=self.guard)
        self._slot = claim
        self._env = context.env
        self._store = context.store
        self._group_context = GroupContext(
            prefix=claim.prefix,
            journal=claim.journal,
            clock=context.env.clock.monotonic,
            name_of=self.topics.name_of,
            racks=context.logs.racks,
            evicted=self._evicted,
            halt=self.halt,
        )
        self._groups: dict[str, LiveGroup] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._unreadable: set[str] = set()  # groups with values in the store that this version cannot read
        self._failed: dict[str, str] = {}  # groups that an unexpected error has stopped, with the reason

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
                        group.offsets.load(topic_id, StoredOffsets.decode(item.value))
                except (msgspec.DecodeError, ValueError, IndexError) as error:
                    log.error(
                        "cannot read the value of %s in the metadata store: %s", item.key, error, extra={"group": name}
                    )
                    self._unreadable.add(name)
        for name in self._unreadable:
            self._groups.pop(name, None)
        self.topics.follow()
        if self._groups:
            self._start_ticking()

    def close(self, error: CometError) -> None:
        """Closes the groups when the slot moves to another broker: every member is told to look for it."""
        if not isinstance(error, NotCoordinator):
            error = NotCoordinator(error.message, retry_after_ms=error.retry_after_ms)
        self.closed = error
        if self._ticking is not None:
            self._ticking.cancel()
        self.topics.close()
        for group in self:
            with self.guard(group.name, "giving up"):
                group.close(error)
        for name in self._failed:
            self._env.failures.clear(Kind.GROUP, name)  # the slot's next coordinator loads it
        self.lag.close()

    # ---- groups that fail

    def guard(self, name: str, step: str) -> Guard:
        """Guards a step of one group: an unexpected error stops that group, and no other."""
        return self._env.failures.guard(Kind.GROUP, name, step, lambda error: self.halt(name, step, error))

    def halt(self, name: str, step: str, error: Exception) -> CometError:
        """Stops a group after an unexpected error: its state in memory is not reliable. It is closed, and answers
        nothing until it is loaded again. Returns the error for its clients."""
        reason = self._env.failures.note(Kind.GROUP, name, error, step)
        if self.closed is None and len(self._failed) < limits.SLOT_GROUPS_MAX:
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
            if self.closed is None and self._failed.pop(name, None) is not None:
                self._env.failures.clear(Kind.GROUP, name)
                self.load({item.key.removeprefix(prefix): item for item in items})
                count += 1
        return count

    def check_open(self) -> None:
        if self.closed is not None:
            raise self.closed

    # ---- groups

    def get(self, name: str) -> LiveGroup | None:
        """The group in memory, also once the slot is closed."""
        return self._groups.get(name)

    def find(self, name: str) -> LiveGroup | None:
        self.check_open()
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
        self.topics.show(group)
        self._start_ticking()
        return group

    def _make(self, name: str) -> LiveGroup:
        """Creates the group, with generations above those of all deleted groups of the slot, of any name."""
        group = self._groups[name] = LiveGroup(
            name, Group(CONSUMER, self._slot.journal.generation_floor), self._group_context
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

    async def found(self, name: str, topic_id: str) -> None:
        """Ensures that the share group and its acquiring from that topic are in the store."""
        group = self.make(name)
        machine = group.machine
        if machine.kind != SHARED:
            if machine.members or group.exists or group.offsets:
                raise InvalidArgument(f"group {name!r} is a consumer group; use another name")
            machine.kind = SHARED
        await group.found(topic_id)

    def known(self, name: str) -> LiveGroup:
        group = self.find(name)
        if group is None:
            raise MemberUnknown("unknown member of this group: join again")
        return group

    # ---- time

    def _start_ticking(self) -> None:
        if self._ticking is None and self.closed is None:
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
                    group.rebalances.note(group.machine.generation, self._env.clock.wall_us())
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
