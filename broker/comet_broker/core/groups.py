"""One group: its members, the partitions that they own, and the rebalance between them.

    member leaves, exceeds its session timeout, or releases   ─►  the partition is free
    plan     a new target if anything has changed, then every free partition to its target member; generation + 1
    record   to the store                                     (the driver)
    news     each member whose assignment has changed          (the driver, once the record is stored)

    owner ── target names another ──► to be released ── released, left, or removed ──► free ──► owned by the other

A partition is taken from a member only in the three ways above, and given only by `plan`. So a driver that stores the
record right after `plan`, and sends no assignments while a record is on its way, never assigns the same partition to
two members. Changes in between only take partitions away.

Pure: the driver is coordination.groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from comet.errors import CometError, InvalidArgument, LimitExceeded, MemberFenced, MemberUnknown
from comet.patterns import compiled
from comet.types import is_internal_topic
from comet_broker import limits
from comet_broker.core import group_record
from comet_broker.core.assignment import STICKY, AssignmentInput, Subscriber, assign, strategy_of
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import CONSUMER, Claim, Member, View, check, size_of
from comet_broker.core.group_record import GroupRecord, Owner, Shape

PLAN_INTERVAL_S: Final = 0.05  # members that come or go within it are planned for together
FENCED_MAX: Final = 4  # replaced instances that a static member remembers


def _no_racks(_: PartitionId) -> Collection[str]:
    return ()


class Entry(NamedTuple):
    """The result of a join: the member's id, and the id of the member that it has replaced."""

    member: str
    replaced: str = ""


class Group:
    """One group. Owned by its driver. `dirty` while the store does not have its present record."""

    def __init__(self, kind: int, generation: int = 0) -> None:
        """`generation` is the last one that an earlier group of this name may have had."""
        self.kind = kind
        self.generation = generation
        self.members: dict[str, Member] = {}
        self.shapes: dict[str, Shape] = {}  # of all topics that members subscribe to, by name
        self.owners: dict[PartitionId, Owner] = {}
        self.target: dict[PartitionId, str] = {}
        self.strategy = STICKY
        self.acquired: dict[str, None] = {}  # ids of topics whose records are acquired without members
        self.dirty = False
        self.stale = False  # the target is to be computed again
        self._planned_at = float("-inf")
        self._replaced = False  # a static member was replaced since the last plan
        self._catalog: Mapping[str, Shape] | None = None  # None: not known yet, so no topic counts as deleted
        self._matches: dict[str, frozenset[str]] = {}  # of patterns, in the catalog

    # ---- members join and leave

    def join(self, claim: Claim, now: float, new_id: Callable[[], str]) -> Entry:
        """Adds or updates a member. Raises the error that answers the join instead."""
        check(claim)
        if self.members and claim.kind != self.kind:
            raise InvalidArgument(
                "the group is of the other kind (consumer or share) and has members: use another group id"
            )
        if claim.member:
            member = self.known(claim.member)
            member.heard, member.notified = now, None
            if (member.topics, member.pattern) != (frozenset(claim.topics), claim.pattern):
                self._check_room(claim, member)
                member.topics, member.pattern = frozenset(claim.topics), claim.pattern
                self._reshape()
                self.stale = self.dirty = True
            if (member.assignment, member.rack) != (claim.assignment, claim.rack):
                member.assignment, member.rack = claim.assignment, claim.rack
                self.stale = self.dirty = True
            return Entry(member.id)
        before = self._of_instance(claim.instance)
        self._check_room(claim, before)
        member = Member(
            new_id(), claim.instance, claim.client, frozenset(claim.topics), claim.pattern,
            claim.session_ms / 1000, claim.release_ms / 1000, now, assignment=claim.assignment, rack=claim.rack,
        )  # fmt: skip
        assert member.id not in self.members
        self.members[member.id] = member
        self.stale = self.dirty = True
        if before is not None:
            self._replace(before, member)
        self._reshape()
        return Entry(member.id, "" if before is None else before.id)

    def _check_room(self, claim: Claim, before: Member | None) -> None:
        if before is None and len(self.members) >= limits.GROUP_MEMBERS_MAX:
            raise LimitExceeded(f"the group has {limits.GROUP_MEMBERS_MAX} members, its limit", retry_after_ms=1000)
        others = [member for member in self.members.values() if member is not before]
        size = size_of(claim.topics, claim.pattern) + sum(size_of(one.topics, one.pattern) for one in others)
        if size > limits.GROUP_SUBSCRIPTION_BYTES_MAX:
            raise LimitExceeded("the members of the group subscribe to too many topics by name; use a pattern")

    def _of_instance(self, instance: str) -> Member | None:
        if not instance:
            return None
        return next((member for member in self.members.values() if member.instance == instance), None)

    def _replace(self, before: Member, member: Member) -> None:
        """The static member has restarted: it keeps its partitions, from the next generation on."""
        self._replaced = True
        del self.members[before.id]
        member.fenced = (*before.fenced, before.id)[-FENCED_MAX:]
        for partition, owner in self.owners.items():
            if owner.member == before.id:
                self.owners[partition] = Owner(member.id, self.generation + 1)
        for partition, owner_id in self.target.items():
            if owner_id == before.id:
                self.target[partition] = member.id
        member.releasing = dict.fromkeys(before.releasing, member.heard)

    def known(self, member_id: str) -> Member:
        """Raises MemberFenced or MemberUnknown."""
        member = self.members.get(member_id)
        if member is not None:
            return member
        if any(member_id in member.fenced for member in self.members.values()):
            raise MemberFenced("another member has joined the group with the same instance id")
        raise MemberUnknown("the group has no such member, or no longer: join again")

    def heard_from(self, member_id: str, now: float) -> Member:
        member = self.known(member_id)
        member.heard = now
        return member

    def leave(self, member_id: str) -> None:
        self.known(member_id)
        self._remove(member_id)

    def _remove(self, member_id: str) -> None:
        del self.members[member_id]
        for partition in [partition for partition, owner in self.owners.items() if owner.member == member_id]:
            del self.owners[partition]
        self.stale = self.dirty = True
        self._reshape()

    def release(self, member_id: str, partitions: Iterable[PartitionId], generation: int, now: float) -> None:
        """Frees partitions that the member no longer reads. Ignores those that it does not own, or has got back since
        that generation, so a repeated release is harmless."""
        member = self.heard_from(member_id, now)
        for partition in partitions:
            if self.owns(member_id, partition, generation):
                member.releasing.pop(partition, None)
                del self.owners[partition]
                self.dirty = True

    def acquire(self, topic_id: str) -> bool:
        """Notes a topic whose records are acquired for the group without members. True if it is new."""
        assert self.kind != CONSUMER
        if topic_id in self.acquired:
            return False
        if len(self.acquired) >= limits.JOIN_TOPICS_MAX:
            raise LimitExceeded(f"the group acquires from {limits.JOIN_TOPICS_MAX} topics, its limit; use another one")
        self.acquired[topic_id] = None
        return True

    # ---- time

    def tick(self, now: float) -> list[tuple[str, CometError]]:
        """Removes members that exceed their session or release timeout."""
        out: list[tuple[str, CometError]] = []
        for member in self.members.values():
            if now - member.heard > member.session_s:
                reason = f"no heartbeat of this member for {now - member.heard:.1f} s: its session has ended"
            elif member.releasing and now - min(member.releasing.values()) > member.release_s:
                reason = f"the member has not released {len(member.releasing)} partitions within {member.release_s:g} s"
            else:
                continue
            out.append((member.id, MemberUnknown(f"{reason}; join again")))
        for member_id, _ in out:
            self._remove(member_id)
        return out

    def forgive(self, now: float) -> None:
        """Restarts all timeouts after a stall of this broker, during which it received no heartbeats."""
        for member in self.members.values():
            member.heard = now
            member.releasing = dict.fromkeys(member.releasing, now)

    def plan_due(self, now: float) -> float:
        """Seconds until `plan` may be called: joins and leaves within PLAN_INTERVAL_S are planned for together."""
        return max(0.0, self._planned_at + PLAN_INTERVAL_S - now) if self.stale else 0.0

    # ---- topics

    def topics(self, catalog: Mapping[str, Shape]) -> None:
        """Takes the present topics of the cluster."""
        self._catalog = catalog
        self._matches.clear()
        self._reshape()

    def _reshape(self) -> None:
        """Computes the topics that the members' subscriptions cover."""
        names = {name for member in self.members.values() for name in self._names(member)}
        if self._catalog is None:
            shapes = {name: shape for name, shape in self.shapes.items() if name in names}
        else:
            shapes = {name: self._catalog[name] for name in sorted(names) if name in self._catalog}
        while sum(shape.partitions for shape in shapes.values()) > limits.GROUP_PARTITIONS_MAX:
            shapes.popitem()
        if shapes != self.shapes:
            self.shapes = shapes
            self.stale = self.dirty = True
        self._drop_deleted()

    def _drop_deleted(self) -> None:
        """Frees partitions of deleted topics at once; those of unsubscribed topics are released by their owners."""
        subscribed = {shape.topic_id for shape in self.shapes.values()}
        left = {topic_id for topic_id, _ in self.owners} - subscribed
        if left and self._catalog is not None:
            gone = left - {shape.topic_id for shape in self._catalog.values()}
            for partition in [partition for partition in self.owners if partition[0] in gone]:
                del self.owners[partition]
                self.dirty = True

    def _names(self, member: Member) -> frozenset[str]:
        if not member.pattern:
            return member.topics
        names = self.shapes if self._catalog is None else self._catalog
        found = self._matches.get(member.pattern)
        if found is None or self._catalog is None:
            try:
                expression: re.Pattern[str] = compiled(member.pattern)
            except InvalidArgument:  # stored by a version that allowed it; the member's next join is refused
                return member.topics
            internal = is_internal_topic(member.pattern)  # only such a pattern matches internal topics
            found = frozenset(
                name for name in names if is_internal_topic(name) <= internal and expression.fullmatch(name)
            )
            self._matches[member.pattern] = found
        return member.topics | found

    # ---- deciding

    def plan(self, now: float, racks: Callable[[PartitionId], Collection[str]] = _no_racks) -> None:
        """Computes the target if it is stale, and assigns free partitions. The driver stores the record right after.
        `racks` are those of a partition's in-sync replicas; when only they change, nothing is stale."""
        before = self.generation
        changed, self._replaced = self._replaced, False
        if self.stale:
            self.stale = False
            self._planned_at = now
            target = self._assign(racks) if self.kind == CONSUMER else dict.fromkeys(self.partitions(), "")
            changed = changed or target != self.target
            self.target = target
        if changed:
            self.generation += 1
            self.dirty = True
        if self.kind != CONSUMER:
            return
        self._give(
            {partition: member for partition, member in self.target.items() if partition not in self.owners}, before
        )
        for member_id, view in self.views().items():
            member = self.members[member_id]
            member.releasing = {partition: member.releasing.get(partition, now) for partition in view.release}

    def _give(self, free: Mapping[PartitionId, str], before: int) -> None:
        """Assigns free partitions, in a generation after `before`: an earlier owner may have got them in `before`, and
        the generation alone tells the owners apart."""
        if not free:
            return
        if self.generation == before:
            self.generation += 1
        for partition, member_id in free.items():
            self.owners[partition] = Owner(member_id, self.generation)
        self.dirty = True

    def partitions(self) -> list[PartitionId]:
        return [(shape.topic_id, index) for shape in self.shapes.values() for index in range(shape.partitions)]

    def _assign(self, racks: Callable[[PartitionId], Collection[str]]) -> dict[PartitionId, str]:
        self.strategy = strategy_of([member.assignment for member in self.members.values()], self.strategy)
        wanted = {
            member.id: Subscriber(
                {self.shapes[name].topic_id for name in self._names(member) if name in self.shapes},
                member.rack, member.instance,
            )
            for member in self.members.values()
        }  # fmt: skip
        partitions = {shape.topic_id: shape.partitions for shape in self.shapes.values()}
        # A member that is to release a partition may have begun to: the target keeps it released.
        before = {partition: owner.member for partition, owner in self.owners.items()}
        before.update((partition, member) for partition, member in self.target.items() if member in self.members)
        return assign(self.strategy, AssignmentInput(wanted, partitions, before, racks))

    # ---- queries

    @property
    def rebalancing(self) -> bool:
        return self.stale or any(self.target.get(partition) != owner.member for partition, owner in self.owners.items())

    def owns(self, member_id: str, partition: PartitionId, generation: int) -> bool:
        """The fence of a commit: whether the member owns the partition since that generation or earlier."""
        owner = self.owners.get(partition)
        return owner is not None and owner.member == member_id and generation >= owner.since

    def names(self, member_id: str) -> frozenset[str]:
        """The topics that a member reads."""
        return frozenset(name for name in self._names(self.members[member_id]) if name in self.shapes)

    def views(self) -> dict[str, View]:
        """The views of all members."""
        if self.kind != CONSUMER:
            return {member_id: self._shared_view(member_id) for member_id in self.members}
        owned: dict[str, dict[PartitionId, int]] = {member_id: {} for member_id in self.members}
        release: dict[str, list[PartitionId]] = {member_id: [] for member_id in self.members}
        for partition, owner in self.owners.items():
            owned[owner.member][partition] = owner.since
            if self.target.get(partition) != owner.member:
                release[owner.member].append(partition)
        return {member: View(has, frozenset(release[member])) for member, has in owned.items()}

    def _shared_view(self, member_id: str) -> View:
        shapes = [self.shapes[name] for name in self.names(member_id)]
        return View({(shape.topic_id, index): 0 for shape in shapes for index in range(shape.partitions)}, frozenset())

    def news(self, not_yet: Collection[str] = ()) -> dict[str, View]:
        """The views that differ from the members' last ones. Only while no record is on its way to the store."""
        views = self.views()
        news = {id_: view for id_, view in views.items() if id_ not in not_yet and self.members[id_].notified != view}
        for member, view in news.items():
            self.members[member].notified = view
        return news

    # ---- the store

    def record(self) -> GroupRecord:
        return group_record.record_of(self)

    @classmethod
    def restore(cls, record: GroupRecord, now: float) -> Group:
        """The stored group; all sessions restart."""
        group = cls(record.kind)
        group_record.fill(group, record, now)
        group.stale = True  # something may have been left undecided
        return group
