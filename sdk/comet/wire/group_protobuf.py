"""Conversion between the protocol's messages about groups and the SDK's types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from comet.types import (
    GroupInfo,
    GroupMember,
    GroupState,
    GroupSummary,
    LagPoint,
    PartitionLag,
    ResetPartition,
    TopicPartition,
)
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as pb


def summary_from_pb(message: admin.GroupSummary) -> GroupSummary:
    return GroupSummary(
        name=message.name,
        kind="share" if message.kind == pb.GROUP_KIND_SHARE else "consumer",
        state=cast(GroupState, message.state),
        members=message.members,
        coordinator=message.coordinator,
        generation=message.generation,
        topics=tuple(message.topics),
        assignment=message.assignment,
    )


def group_from_pb(message: admin.DescribeGroupResponse) -> GroupInfo:
    return GroupInfo(
        summary=summary_from_pb(message.summary),
        members=tuple(_member_from_pb(member) for member in message.members),
        lags=tuple(lag_from_pb(lag) for lag in message.lags),
        rebalances_us=tuple(message.rebalances_us),
    )


def _member_from_pb(message: admin.GroupMember) -> GroupMember:
    return GroupMember(
        id=message.id,
        instance=message.instance,
        client=message.client,
        owned=_topic_partitions(message.owned),
        release=_topic_partitions(message.release),
        silent_ms=message.silent_ms,
        session_timeout_ms=message.session_timeout_ms,
        assignment=message.assignment,
        rack=message.rack,
    )


def _topic_partitions(topics: Iterable[pb.TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)


def lag_from_pb(message: admin.PartitionLag) -> PartitionLag:
    return PartitionLag(
        topic=message.topic,
        partition=message.partition,
        member=message.member or None,
        committed=message.committed if message.HasField("committed") else None,
        log_start=message.log_start,
        end=message.end,
        lag=message.lag,
        age_s=message.age_s,
        drain_s=message.drain_s if message.HasField("drain_s") else None,
        in_flight=message.in_flight,
        redelivered=message.redelivered,
        dead_lettered=message.dead_lettered,
        dead_waiting=message.dead_waiting,
        dead_problem=message.dead_problem,
    )


def reset_from_pb(message: admin.ResetPartition) -> ResetPartition:
    return ResetPartition(
        topic=message.topic,
        partition=message.partition,
        before=message.before if message.HasField("before") else None,
        after=message.after,
        skipped=message.skipped,
        note=message.note,
    )


def point_from_pb(message: admin.LagPoint) -> LagPoint:
    return LagPoint(
        time_us=message.time_us,
        topic=message.topic,
        lag=message.lag,
        age_s=message.age_s,
        committed=message.committed,
        end=message.end,
    )


def selected(topics: Iterable[str | tuple[str, int]]) -> list[pb.TopicPartitions]:
    """Whole topics, and single partitions of others."""
    found: dict[str, set[int]] = {}
    for one in topics:
        topic, indexes = (one, ()) if isinstance(one, str) else (one[0], (one[1],))
        found.setdefault(topic, set()).update(indexes)
    return [pb.TopicPartitions(topic=topic, partitions=sorted(indexes)) for topic, indexes in found.items()]
