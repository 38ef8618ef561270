"""One group: who its members are, which partitions they own, and how partitions get from one to another.

    member leaves, is silent for too long, or releases   ─►  the partition is free
    plan     a new target if anything has changed, then every free partition to whom the target names; generation + 1
    record   to the store                                     (the driver)
    news     each member whose assignment has changed          (the driver, once the record is stored)

    owner ── target says another ──► asked to release ── released, left, or put out ──► free ──► owned by the other

Nothing is ever taken away but by the three ways above, and nothing is given but by `plan`. So a driver that stores
the record right after `plan`, and tells nobody anything while a record is on its way, never tells two members that
they own the same partition. What changes in between only takes away.

Pure: the driver is coordination.groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from comet.errors import CometError, InvalidArgument, LimitExceeded, MemberFenced, MemberUnknown
from comet.patterns import compiled
from comet_broker import limits
from comet_broker.core import group_record
from comet_broker.core.assignment import assign
from comet_broker.core.cluster import Place
from comet_broker.core.group_members import CONSUMER, Claim, Member, View, check, size_of
from comet_broker.core.group_record import GroupRecord, Owner, Shape

PLAN_INTERVAL_S: Final = 0.05  # members that come or go within it are planned for together
FENCED_MAX: Final = 4  # instances that a static member remembers to have replaced


class Entry(NamedTuple):
    """How a join came out: who it is now, and whom it has replaced."""

    member: str
    replaced: str = ""


class Group:
    """Owned by its driver. `dirty` while the store does not have what is here."""

    def __init__(self, kind: int, generation: int = 0) -> None:
        """`generation` is one that may have been given before to a group of this name."""
        self.kind = kind
        self.generation = generation
        self.members: dict[str, Member] = {}
        self.shapes: dict[str, Shape] = {}  # of all topics that somebody subscribes to, by name
        self.owners: dict[Place, Owner] = {}
        self.target: dict[Place, str] = {}
        self.acquired: dict[str, None] = {}  # ids of topics whose records are acquired without members
        self.dirty = False
        self.stale = False  # the target is to be thought over
        self._planned_at = float("-inf")
        self._replaced = False  # a static member has been, since the last plan
        self._catalog: Mapping[str, Shape] | None = None  # None: it is not known yet, and nothing is gone
        self._matches: dict[str, frozenset[str]] = {}  # of patterns, in the catalog

    # ---- members come and go

    def join(self, claim: Claim, now: float, new_id: Callable[[], str]) -> Entry:
        """Raises what answers the join instead."""
        check(claim)
        if self.members and claim.kind != self.kind:
            raise InvalidArgument(
                "the group is of the other kind (consumer or share) and has members: take another name"
            )
        if claim.member:
            member = self.known(claim.member)
            member.heard, member.told = now, None
            if (member.topics, member.pattern) != (frozenset(claim.topics), claim.pattern):
                self._check_room(claim, member)
                member.topics, member.pattern = frozenset(claim.topics), claim.pattern
                self._reshape()
                self.stale = self.dirty = True
            return Entry(member.id)
        before = self._of_instance(claim.instance)
        self._check_room(claim, before)
        member = Member(
            new_id(), claim.instance, claim.client, frozenset(claim.topics), claim.pattern,
            claim.session_ms / 1000, claim.release_ms / 1000, now,
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
            raise LimitExceeded("the members of the group name too many topics; a pattern is shorter")

    def _of_instance(self, instance: str) -> Member | None:
        if not instance:
            return None
        return next((member for member in self.members.values() if member.instance == instance), None)

    def _replace(self, before: Member, member: Member) -> None:
        """The same static member, started again: it has what it had, from the next generation on."""
        self._replaced = True
        del self.members[before.id]
        member.fenced = (*before.fenced, before.id)[-FENCED_MAX:]
        for place, owner in self.owners.items():
            if owner.member == before.id:
                self.owners[place] = Owner(member.id, self.generation + 1)
        for place, owner_id in self.target.items():
            if owner_id == before.id:
                self.target[place] = member.id
        member.asked = dict.fromkeys(before.asked, member.heard)

    def known(self, member_id: str) -> Member:
        """Raises MemberFenced or MemberUnknown."""
        member = self.members.get(member_id)
        if member is not None:
            return member
        if any(member_id in member.fenced for member in self.members.values()):
            raise MemberFenced("another instance has joined the group under the same static name")
        raise MemberUnknown("the group has no such member, or no longer: join again")

    def hear(self, member_id: str, now: float) -> Member:
        member = self.known(member_id)
        member.heard = now
        return member

    def leave(self, member_id: str) -> None:
        self.known(member_id)
        self._remove(member_id)

    def _remove(self, member_id: str) -> None:
        del self.members[member_id]
        for place in [place for place, owner in self.owners.items() if owner.member == member_id]:
            del self.owners[place]
        self.stale = self.dirty = True
        self._reshape()

    def release(self, member_id: str, places: Iterable[Place], generation: int, now: float) -> None:
        """What the member no longer reads. It may say so twice: what it did not own, or has got back since that
        generation, is no matter."""
        member = self.hear(member_id, now)
        for place in places:
            if self.owns(member_id, place, generation):
                member.asked.pop(place, None)
                del self.owners[place]
                self.dirty = True

    def acquire(self, topic_id: str) -> bool:
        """Records of that topic are acquired in the group's name, by who is no member. True if that is new."""
        assert self.kind != CONSUMER
        if topic_id in self.acquired:
            return False
        if len(self.acquired) >= limits.JOIN_TOPICS_MAX:
            raise LimitExceeded(f"the group locks from {limits.JOIN_TOPICS_MAX} topics, its limit")
        self.acquired[topic_id] = None
        return True

    # ---- time

    def tick(self, now: float) -> list[tuple[str, CometError]]:
        """Puts out whoever was silent, or kept what it was to release, for too long."""
        out: list[tuple[str, CometError]] = []
        for member in self.members.values():
            if now - member.heard > member.session_s:
                reason = f"nothing was heard of this member for {now - member.heard:.1f} s: its session has ended"
            elif member.asked and now - min(member.asked.values()) > member.release_s:
                reason = f"it was asked to release {len(member.asked)} partitions and has not in {member.release_s:g} s"
            else:
                continue
            out.append((member.id, MemberUnknown(f"{reason}; join again")))
        for member_id, _ in out:
            self._remove(member_id)
        return out

    def forgive(self, now: float) -> None:
        """This broker itself was away: nobody can be blamed for what it has not heard."""
        for member in self.members.values():
            member.heard = now
            member.asked = dict.fromkeys(member.asked, now)

    def plan_due(self, now: float) -> float:
        """How long until `plan` may be called; members that come and go are gathered."""
        return max(0.0, self._planned_at + PLAN_INTERVAL_S - now) if self.stale else 0.0

    # ---- topics

    def topics(self, catalog: Mapping[str, Shape]) -> None:
        """All topics of the cluster, as they are now."""
        self._catalog = catalog
        self._matches.clear()
        self._reshape()

    def _reshape(self) -> None:
        """What the members' subscriptions come to."""
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
        """What nobody subscribes to any more is released by its owner; what is deleted is gone at once."""
        kept = {shape.topic_id for shape in self.shapes.values()}
        left = {topic_id for topic_id, _ in self.owners} - kept
        if left and self._catalog is not None:
            gone = left - {shape.topic_id for shape in self._catalog.values()}
            for place in [place for place in self.owners if place[0] in gone]:
                del self.owners[place]
                self.dirty = True

    def _names(self, member: Member) -> frozenset[str]:
        if not member.pattern:
            return member.topics
        names = self.shapes if self._catalog is None else self._catalog
        found = self._matches.get(member.pattern)
        if found is None or self._catalog is None:
            expression: re.Pattern[str] = compiled(member.pattern)
            found = frozenset(name for name in names if expression.fullmatch(name))
            self._matches[member.pattern] = found
        return member.topics | found

    # ---- deciding

    def plan(self, now: float) -> None:
        """Thinks the target over if need be, and gives out what is free. The record is to be stored right after."""
        before = self.generation
        changed, self._replaced = self._replaced, False
        if self.stale:
            self.stale = False
            self._planned_at = now
            target = self._assign() if self.kind == CONSUMER else dict.fromkeys(self.places(), "")
            changed = changed or target != self.target
            self.target = target
        if changed:
            self.generation += 1
            self.dirty = True
        if self.kind != CONSUMER:
            return
        self._give({place: member for place, member in self.target.items() if place not in self.owners}, before)
        for member_id, view in self.views().items():
            member = self.members[member_id]
            member.asked = {place: member.asked.get(place, now) for place in view.release}

    def _give(self, free: Mapping[Place, str], before: int) -> None:
        """Whoever had one of them in the generation `before` may have got it in that one, so it must not be given again
        in the same: who owned what is told by the generation alone."""
        if not free:
            return
        if self.generation == before:
            self.generation += 1
        for place, member_id in free.items():
            self.owners[place] = Owner(member_id, self.generation)
        self.dirty = True

    def places(self) -> list[Place]:
        return [(shape.topic_id, index) for shape in self.shapes.values() for index in range(shape.partitions)]

    def _assign(self) -> dict[Place, str]:
        wanted = {
            member.id: {self.shapes[name].topic_id for name in self._names(member) if name in self.shapes}
            for member in self.members.values()
        }
        partitions = {shape.topic_id: shape.partitions for shape in self.shapes.values()}
        # Who was asked to release a partition has perhaps begun to: better that it goes on.
        before = {place: owner.member for place, owner in self.owners.items()}
        before.update((place, member) for place, member in self.target.items() if member in self.members)
        return assign(wanted, partitions, before)

    # ---- looking

    @property
    def rebalancing(self) -> bool:
        return self.stale or any(self.target.get(place) != owner.member for place, owner in self.owners.items())

    def owns(self, member_id: str, place: Place, generation: int) -> bool:
        """The fence of a commit: the member has the partition, and had it already in that generation."""
        owner = self.owners.get(place)
        return owner is not None and owner.member == member_id and generation >= owner.since

    def names(self, member_id: str) -> frozenset[str]:
        """The topics that a member reads."""
        return frozenset(name for name in self._names(self.members[member_id]) if name in self.shapes)

    def views(self) -> dict[str, View]:
        """Of all members."""
        if self.kind != CONSUMER:
            return {member_id: self._shared_view(member_id) for member_id in self.members}
        owned: dict[str, dict[Place, int]] = {member_id: {} for member_id in self.members}
        release: dict[str, list[Place]] = {member_id: [] for member_id in self.members}
        for place, owner in self.owners.items():
            owned[owner.member][place] = owner.since
            if self.target.get(place) != owner.member:
                release[owner.member].append(place)
        return {member: View(has, frozenset(release[member])) for member, has in owned.items()}

    def _shared_view(self, member_id: str) -> View:
        shapes = [self.shapes[name] for name in self.names(member_id)]
        return View({(shape.topic_id, index): 0 for shape in shapes for index in range(shape.partitions)}, frozenset())

    def news(self, not_yet: Collection[str] = ()) -> dict[str, View]:
        """Of the members whose view is not what they were told. Only while no record is on its way to the store."""
        views = self.views()
        news = {id_: view for id_, view in views.items() if id_ not in not_yet and self.members[id_].told != view}
        for member, view in news.items():
            self.members[member].told = view
        return news

    # ---- the store

    def record(self) -> GroupRecord:
        return group_record.record_of(self)

    @classmethod
    def restore(cls, record: GroupRecord, now: float) -> Group:
        """As it was stored; all sessions begin anew."""
        group = cls(record.kind)
        group_record.fill(group, record, now)
        group.stale = True  # something may have been left undecided
        return group
