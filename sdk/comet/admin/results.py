"""The results of admin acts. With `dry_run` the act was not done, and the result is the effect that it would have.

`str()` is the effect in one line, as the command line prints it and asks for confirmation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from comet.admin.documents import DRY_RUN
from comet.entities import BrokerDetails, BrokerFailure, BrokerInfo, ClusterInfo, ReplicaInfo, TopicInfo
from comet.settings.topic import TopicConfig
from comet.types import GroupSummary, Int64, LagPoint, PartitionLag
from comet.units import count, format_bytes, least
from comet.v1 import admin_pb2 as admin
from comet.wire import group_protobuf, protobuf


@dataclass(frozen=True, slots=True)
class TopicPage:
    """A page of topics, by name. `after` is the name to continue after; None: the last page. `total` counts all.

    >>> comet.TopicPage(topics=(), after=None, total=0).after is None
    True
    """

    topics: tuple[TopicInfo, ...]
    after: str | None
    total: int


@dataclass(frozen=True, slots=True)
class TopicAlteration:
    """The change of a topic's settings. A shorter retention deletes `records` at its next check; not `complete`: a
    partition's leader did not answer, and may delete more.

    >>> one = comet.TopicInfo("quotes", bytes(16), (), comet.TopicConfig(), created_us=0)
    >>> from dataclasses import replace
    >>> other = replace(one, config=comet.TopicConfig(retention_ms=1000))
    >>> comet.TopicAlteration(True, before=one, after=other, records=3, bytes=99, complete=True).changed
    ('retention_ms',)
    """

    dry_run: Annotated[bool, DRY_RUN]
    before: TopicInfo
    after: TopicInfo
    records: int
    bytes: int
    complete: bool

    @property
    def changed(self) -> tuple[str, ...]:
        """The settings whose value or source changes."""
        return tuple(
            name
            for name in TopicConfig.names()
            if getattr(self.before.config, name) != getattr(self.after.config, name)
            or self.before.source(name) != self.after.source(name)
        )


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """The deletion of a topic. Not `complete`: a broker did not answer, so the topic may hold more, or more groups read
    it. The `groups` lose their committed offsets in it.

    >>> comet.TopicDeletion(True, "quotes", partitions=1, records=3, bytes=99, complete=True, groups=()).records
    3
    """

    dry_run: Annotated[bool, DRY_RUN]
    topic: str
    partitions: int
    records: Int64
    bytes: Int64
    complete: Annotated[bool, "False: a broker did not answer, so there may be more records and groups."]
    groups: Annotated[tuple[GroupSummary, ...], "Groups that read it; their committed offsets in it are deleted, too."]

    def __str__(self) -> str:
        records = least(count(self.records, "record"), complete=self.complete)
        held = f"{records} ({format_bytes(self.bytes)}) in {count(self.partitions, 'partition')}"
        reading = f"; groups that read it: {', '.join(group.name for group in self.groups)}" if self.groups else ""
        return held + reading if self.dry_run else f"deleted {self.topic}: {held}{reading}"


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """New partitions of a topic.

    >>> comet.PartitionsAdded(False, "quotes", before=3, after=6).keys_moved
    0.5
    """

    dry_run: Annotated[bool, DRY_RUN]
    topic: str
    before: int
    after: int

    @property
    def keys_moved(self) -> float:
        """The share of keys that map to another partition afterwards."""
        # Of the hashes below the least common multiple, the first `before` have the same remainder by both.
        return round(1 - self.before / math.lcm(self.before, self.after), 4)

    def __str__(self) -> str:
        verb = "would have" if self.dry_run else "has"
        return f"{self.topic} {verb} {count(self.after, 'partition')}; {self.keys_moved:.0%} of its keys move"


@dataclass(frozen=True, slots=True)
class RecordDeletion:
    """The deletion of the oldest records of a partition: its log started at `before`, and starts at `log_start`.

    >>> comet.RecordDeletion(False, "quotes", 0, before=2, log_start=5).records
    3
    """

    dry_run: Annotated[bool, DRY_RUN]
    topic: str
    partition: int
    before: Annotated[Int64, "Log start offset before."]
    log_start: Int64

    @property
    def records(self) -> Int64:
        """Offsets that are deleted."""
        return max(0, self.log_start - self.before)

    def __str__(self) -> str:
        records, tp = count(self.records, "record"), f"{self.topic}/{self.partition}"
        if self.dry_run:
            return f"{records} of {tp}, which then starts at offset {self.log_start}"
        return f"deleted {records}: {tp} starts at offset {self.log_start}"


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The reassignment of a partition, decided but not done. `bytes` are copied to new replicas; None: unknown.

    >>> move = comet.PartitionMove(False, "quotes", 0, before=(1, 2), after=(2, 3), bytes=99, in_sync=(1, 2))
    >>> move.added, move.removed, move.is_finished()
    ((3,), (1,), False)
    """

    dry_run: Annotated[bool, DRY_RUN]
    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes: Annotated[Int64 | None, "Bytes to copy, all together; null: the leader cannot be reached."]
    in_sync: Annotated[tuple[int, ...], "Brokers whose replicas are in sync now."]

    @property
    def added(self) -> tuple[int, ...]:
        """Brokers that get a replica."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        """Brokers that delete their replica once the new ones are in sync."""
        return tuple(broker for broker in self.before if broker not in self.after)

    def is_finished(self) -> bool:
        """Whether the partition has the new replicas, and all of them are in sync."""
        return self.before == self.after and set(self.after) == set(self.in_sync)

    def __str__(self) -> str:
        tp, before, after = (f"{self.topic}/{self.partition}", *map(_listed, (self.before, self.after)))
        size = "an unknown size" if self.bytes is None else format_bytes(self.bytes)
        if self.before == self.after:
            return f"{tp} is on {after}" + ("" if self.is_finished() else f"; in sync: {_listed(self.in_sync)}")
        return f"{tp} {'would move' if self.dry_run else 'moves'} from {before} to {after}; that copies {size}"


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """The election of a leader that may lack records. `copies` have the figures of before it.

    >>> comet.LeaderElection(False, "quotes", 0, broker=2, leader_epoch=5, lost=3, copies=()).lost
    3
    """

    dry_run: Annotated[bool, DRY_RUN]
    topic: str
    partition: int
    broker: Annotated[int, "The new leader."]
    leader_epoch: int
    lost: Annotated[Int64 | None, "Records that other replicas have and this one lacks; null: unknown."]
    copies: tuple[ReplicaInfo, ...]

    def __str__(self) -> str:
        tp = f"{self.topic}/{self.partition}"
        lost = "an unknown number of records" if self.lost is None else count(self.lost, "record")
        if self.dry_run:
            return f"{tp} would be led by broker {self.broker}, and lose {lost}"
        return f"{tp} is now led by broker {self.broker}, in epoch {self.leader_epoch}; it lost {lost}"


@dataclass(frozen=True, slots=True)
class Handover:
    """A partition that a draining broker leads, and its next leader; None: no other replica can lead.

    >>> comet.Handover("quotes", 0, to=2).to
    2
    """

    topic: str
    partition: int
    to: Annotated[int | None, "The next leader; null: no other replica is in sync, so the leader stays."]


@dataclass(frozen=True, slots=True)
class BrokerDrain:
    """The drain of a broker, or its end. `partitions` are the first thousand that it leads, with their next leaders if
    it drains; `staying` counts those that no other replica can lead.

    >>> comet.BrokerDrain(False, 2, draining=True, leading=0, staying=0, partitions=()).leading
    0
    """

    dry_run: Annotated[bool, DRY_RUN]
    broker: int
    draining: Annotated[bool, "Whether it drains now; in a dry run, whether it drains already."]
    leading: Annotated[int, "Partitions that the broker leads now."]
    staying: Annotated[int, "Of those, partitions that no other replica can take over."]
    partitions: Annotated[tuple[Handover, ...], "The first thousand partitions that it leads."]

    def is_finished(self) -> bool:
        """Whether it leads nothing, or does not drain. A dry run says only the first: its broker may not know of the
        drain yet."""
        return not self.leading or not (self.draining or self.dry_run)

    def __str__(self) -> str:
        if self.dry_run:
            next_leaders = Counter(one.to for one in self.partitions if one.to is not None)
            parts = [f"broker {self.broker} leads {count(self.leading, 'partition')}"]
            parts += [f"{number} to broker {broker}" for broker, number in sorted(next_leaders.items())]
            parts += [f"{self.staying} without another replica in sync"] if self.staying else []
            return "; ".join(parts)
        if not self.draining:
            return f"broker {self.broker} may lead again"
        still = f"broker {self.broker} drains: it still leads {count(self.leading, 'partition')}"
        return still if self.leading else f"broker {self.broker} is drained"


@dataclass(frozen=True, slots=True)
class Resumed:
    """The number of parts of brokers that run again, and those that are stopped.

    >>> comet.Resumed(False, resumed=2, failed=()).resumed
    2
    """

    dry_run: Annotated[bool, DRY_RUN]
    resumed: Annotated[int, "Partitions, topics, slots, groups and transactional ids."]
    failed: Annotated[tuple[BrokerFailure, ...], "Still stopped; in a dry run, stopped now."]

    def __str__(self) -> str:
        number, verb = (len(self.failed), "would be resumed") if self.dry_run else (self.resumed, "resumed")
        still = f"; {len(self.failed)} failed again" if self.failed and not self.dry_run else ""
        return f"{number} {verb}{still}" if number or still else "nothing to resume"


@dataclass(frozen=True, slots=True)
class GroupDeletion:
    """The deletion of a group: its committed offsets, and the records that it has not processed.

    >>> comet.GroupDeletion(True, "engine", offsets=3, lag=40).lag
    40
    """

    dry_run: Annotated[bool, DRY_RUN]
    group: str
    offsets: Annotated[int, "Partitions whose committed offsets are deleted."]
    lag: Annotated[Int64, "Records that it has not processed."]

    def __str__(self) -> str:
        lost = f"committed offsets in {count(self.offsets, 'partition')}, {count(self.lag, 'record')} not processed"
        return lost if self.dry_run else f"deleted group {self.group}: {lost}"


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group: now by partition, and its history by topic.

    >>> comet.GroupLag("engine", now=(), history=()).group
    'engine'
    """

    group: str
    now: tuple[PartitionLag, ...]
    history: Annotated[tuple[LagPoint, ...], "Oldest first, as far back as the coordinator has it."]


def _listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"


def cluster_from_pb(answer: admin.DescribeClusterResponse) -> ClusterInfo:
    controller = answer.controller or None
    brokers = tuple(protobuf.broker_from_pb(one, controller) for one in answer.brokers)
    defaults = protobuf.defaults_from_pb(answer.topic_defaults)
    return ClusterInfo(answer.cluster_id, controller, brokers, answer.topics, answer.partitions, defaults)


def alteration_from_pb(answer: admin.AlterTopicResponse, *, dry_run: bool) -> TopicAlteration:
    before, after = protobuf.topic_from_pb(answer.before), protobuf.topic_from_pb(answer.topic)
    lost = answer.deletes
    complete = lost.partitions >= len(after.partitions)
    return TopicAlteration(dry_run, before, after, lost.records, lost.bytes, complete)


def deletion_from_pb(topic: str, answer: admin.DeleteTopicResponse, *, dry_run: bool) -> TopicDeletion:
    lost = answer.deletes
    complete = lost.partitions >= answer.partitions and not answer.groups_unknown
    groups = tuple(map(group_protobuf.summary_from_pb, answer.groups))
    return TopicDeletion(dry_run, topic, answer.partitions, lost.records, lost.bytes, complete, groups)


def move_from_pb(
    partition: int, after: tuple[int, ...], answer: admin.MovePartitionResponse, *, dry_run: bool
) -> PartitionMove:
    size = answer.bytes if answer.HasField("bytes") else None
    in_sync = next((tuple(one.in_sync) for one in answer.topic.partitions if one.index == partition), ())
    return PartitionMove(dry_run, answer.topic.name, partition, tuple(answer.before), after, size, in_sync)


def election_from_pb(
    partition: int, broker: int, answer: admin.ElectLeaderResponse, *, dry_run: bool
) -> LeaderElection:
    topic = protobuf.topic_from_pb(answer.topic)
    found = topic.partitions[partition]
    lost = answer.lost if answer.HasField("lost") else None
    copies = protobuf.replicas_from_pb(found, answer.replicas)
    return LeaderElection(dry_run, topic.name, partition, broker, found.leader_epoch, lost, copies)


def drain_from_pb(broker: int, answer: admin.DrainBrokerResponse, *, dry_run: bool) -> BrokerDrain:
    handovers = tuple(Handover(one.topic, one.partition, one.to or None) for one in answer.handovers)
    return BrokerDrain(dry_run, broker, answer.draining, answer.leading, answer.staying, handovers)


def broker_details(info: BrokerInfo, numbers: Mapping[str, Any]) -> BrokerDetails:
    """A broker with the numbers of its brief statistics."""
    totals = numbers["totals"]
    return BrokerDetails(
        **{one.name: getattr(info, one.name) for one in fields(info)},
        started_us=numbers["started_us"],
        now_us=numbers["now_us"],
        sessions=numbers["session_count"],
        partitions=totals["partitions"],
        leading=totals["leading"],
        bytes=totals["bytes"],
        free_bytes=numbers["free_bytes"],
        tail_bytes=numbers["tail_bytes"],
        problems=tuple(f"{name}: {text}" for name, text in numbers["problems"].items()),
        failures=numbers["failures"],
        failed=broker_failures(info.id, numbers),
    )


def broker_failures(broker: int, numbers: Mapping[str, Any]) -> tuple[BrokerFailure, ...]:
    """The failures in the statistics of a broker."""
    names = [one.name for one in fields(BrokerFailure) if one.name != "broker"]
    return tuple(BrokerFailure(broker, **{name: one[name] for name in names}) for one in numbers.get("failed") or ())


def resumed_from_pb(answers: Mapping[int, admin.ResumeResponse], *, dry_run: bool) -> Resumed:
    failed = tuple(
        BrokerFailure(broker, one.kind, one.name, one.step, one.reason, one.since_us, one.count)
        for broker, answer in answers.items()
        for one in answer.failed
    )
    return Resumed(dry_run, sum(answer.resumed for answer in answers.values()), failed)


def lag_from_pb(group: str, answer: admin.GroupLagResponse) -> GroupLag:
    now, history = map(group_protobuf.lag_from_pb, answer.now), map(group_protobuf.point_from_pb, answer.history)
    return GroupLag(group, tuple(now), tuple(history))
