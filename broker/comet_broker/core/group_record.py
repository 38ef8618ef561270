"""A group as it is stored in the metadata store: one value, `groups/<group>` below its slot's prefix.

Members are named once, and by their index in the list from then on: a thousand partitions take some kilobytes.

Pure; part of core.groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from comet_broker.core.assignment import STICKY, STRATEGIES
from comet_broker.core.cluster import PartitionId, Stored
from comet_broker.core.group_members import CONSUMER, Member

NO_MEMBER: Final = -1


class Shape(NamedTuple):
    """The id and size of a topic that a group subscribes to."""

    topic_id: str
    partitions: int


class Owner(NamedTuple):
    member: str
    since: int


class GroupState(Protocol):
    """The part of a group that is stored. See core.groups.Group."""

    kind: int
    generation: int
    members: dict[str, Member]
    shapes: dict[str, Shape]
    owners: dict[PartitionId, Owner]
    target: dict[PartitionId, str]
    acquired: dict[str, None]
    strategy: str

    def partitions(self) -> Iterable[PartitionId]: ...


class MemberRecord(Stored, frozen=True):
    id: str
    instance: str
    client: str
    topics: tuple[str, ...]
    pattern: str
    session_ms: int
    release_ms: int
    fenced: tuple[str, ...] = ()
    assignment: str = STICKY
    rack: str = ""


class TopicRecord(Stored, frozen=True):
    """Per partition its owner, since which generation, and its next owner: members by index in the group's list."""

    name: str
    id: str
    owners: tuple[int, ...]
    since: tuple[int, ...]
    target: tuple[int, ...]


class GroupRecord(Stored, frozen=True):
    kind: int
    generation: int
    members: tuple[MemberRecord, ...]
    topics: tuple[TopicRecord, ...]
    acquired: tuple[str, ...] = ()  # ids of topics whose records are acquired without members
    strategy: str = STICKY


def record_of(group: GroupState) -> GroupRecord:
    ids = {member: number for number, member in enumerate(group.members)}
    topics = []
    for name, topic_id, count in _topics(group):
        owners = [group.owners.get((topic_id, index)) for index in range(count)]
        target = [group.target.get((topic_id, index), "") for index in range(count)]
        topics.append(
            TopicRecord(
                name=name,
                id=topic_id,
                owners=tuple(NO_MEMBER if owner is None else ids[owner.member] for owner in owners),
                since=tuple(0 if owner is None else owner.since for owner in owners),
                target=tuple(ids.get(member, NO_MEMBER) for member in target),
            )
        )
    members = tuple(_member_record(member) for member in group.members.values())
    return GroupRecord(
        kind=group.kind,
        generation=group.generation,
        members=members,
        topics=tuple(topics),
        acquired=tuple(group.acquired),
        strategy=group.strategy,
    )


def _member_record(member: Member) -> MemberRecord:
    return MemberRecord(
        id=member.id,
        instance=member.instance,
        client=member.client,
        topics=tuple(sorted(member.topics)),
        pattern=member.pattern,
        session_ms=round(member.session_s * 1000),
        release_ms=round(member.release_s * 1000),
        fenced=member.fenced,
        assignment=member.assignment,
        rack=member.rack,
    )


def _topics(group: GroupState) -> list[tuple[str, str, int]]:
    """Name, id and partition count of the topics: those subscribed to, and those that members still own parts of."""
    found = [(name, shape.topic_id, shape.partitions) for name, shape in group.shapes.items()]
    known = {topic_id for _, topic_id, _ in found}
    left: dict[str, int] = {}
    for topic_id, index in group.owners:
        if topic_id not in known:
            left[topic_id] = max(left.get(topic_id, 0), index + 1)
    return found + [("", topic_id, count) for topic_id, count in sorted(left.items())]


def fill(group: GroupState, record: GroupRecord, now: float) -> None:
    """Fills a new group from its record."""
    group.generation = record.generation
    group.acquired = dict.fromkeys(record.acquired)
    group.strategy = record.strategy if record.strategy in STRATEGIES else STICKY
    for stored in record.members:
        group.members[stored.id] = Member(
            stored.id, stored.instance, stored.client, frozenset(stored.topics), stored.pattern,
            stored.session_ms / 1000, stored.release_ms / 1000, now, stored.fenced, stored.assignment, stored.rack,
        )  # fmt: skip
    ids = [member.id for member in record.members]
    for topic in record.topics:
        if topic.name:
            group.shapes[topic.name] = Shape(topic.id, len(topic.owners))
        for index, (owner, since, wanted) in enumerate(zip(topic.owners, topic.since, topic.target, strict=True)):
            if owner != NO_MEMBER:
                group.owners[topic.id, index] = Owner(ids[owner], since)
            if wanted != NO_MEMBER:
                group.target[topic.id, index] = ids[wanted]
    if group.kind != CONSUMER:
        group.target = dict.fromkeys(group.partitions(), "")
