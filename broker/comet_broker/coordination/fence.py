"""Decides which offsets of a commit are admitted: by owners and generations, and by the ends of the logs.

no such topic, recreated, no such partition    TOPIC_NOT_FOUND, PARTITION_NOT_FOUND
not the member's, or not yet in its generation STALE_GENERATION
before the first offset, beyond the end        OFFSET_OUT_OF_RANGE
more is committed than the sender expects      STALE_GENERATION, if it says what it expects
less than the committed offset                 no error: nothing changes, and the answer has the committed offset
"""

from __future__ import annotations

from collections.abc import Iterator

from comet.errors import (
    CometError,
    CoordinatorLoading,
    OffsetOutOfRange,
    PartitionNotFound,
    StaleGeneration,
    TopicNotFound,
)
from comet.v1 import groups_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker.coordination.committed_offsets import NONE, Admitted, CommittedOffset, OffsetsByTopic
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.logs import Logs
from comet_broker.core.cluster import PartitionId


def partitions_of(commit: pb.Commit, logs: Logs) -> Iterator[tuple[str, PartitionId, int]]:
    """Topic, partition and offset of everything to look up in the logs."""
    for topic in commit.topics:
        topic_id = topic.topic_id.hex()
        for entry in topic.offsets:
            if _unknown_partition(logs, topic.topic, topic_id, entry.partition) is None:
                yield topic.topic, (topic_id, entry.partition), entry.offset


def admit(group: LiveGroup, commit: pb.Commit, logs: Logs, *, up_to_date: bool) -> Admitted:
    """Checks a commit. `up_to_date`: this broker knows every topic that an earlier coordinator can have known."""
    entries: OffsetsByTopic = {}
    admitted: list[tuple[str, PartitionId]] = []
    refused: list[pb.RefusedOffset] = []
    for topic in commit.topics:
        topic_id = topic.topic_id.hex()
        for entry in topic.offsets:
            tp = (topic_id, entry.partition)
            error = _unknown_partition(logs, topic.topic, topic_id, entry.partition)
            if error is None:
                error = _refusal(group, commit, logs, topic.topic, tp, entry)
            elif not up_to_date:
                error = CoordinatorLoading("the coordinator does not know all topics yet", retry_after_ms=20)
            if error is not None:
                refused.append(pb.RefusedOffset(topic=topic.topic, partition=entry.partition, error=error_to_pb(error)))
                continue
            admitted.append((topic.topic, tp))
            latest = group.offsets.latest(tp)
            if latest is None or entry.offset > latest.offset:
                epoch = entry.leader_epoch if entry.HasField("leader_epoch") else NONE
                entries.setdefault(topic_id, {})[entry.partition] = CommittedOffset(entry.offset, epoch)
                group.offsets.names.setdefault(topic_id, topic.topic)
    return Admitted(group.offsets, entries, admitted, refused, group.name)


def _refusal(
    group: LiveGroup, commit: pb.Commit, logs: Logs, topic: str, tp: PartitionId, entry: pb.PartitionOffset
) -> CometError | None:
    if commit.member and not group.machine.owns(commit.member, tp, commit.generation):
        return StaleGeneration(f"{topic}/{tp[1]} is not assigned to this member in generation {commit.generation}")
    latest = group.offsets.latest(tp)
    committed = NONE if latest is None else latest.offset
    if entry.HasField("expected") and committed > entry.expected:
        return StaleGeneration(
            f"{topic}/{tp[1]} is committed up to {committed}, not {entry.expected}: records between were processed",
            details={"committed": str(committed)},
        )
    if entry.offset < 0:
        return OffsetOutOfRange(f"{entry.offset} is not a valid offset")
    return logs.refusal(tp, entry.offset)


def _unknown_partition(logs: Logs, topic: str, topic_id: str, partition: int) -> CometError | None:
    shape = logs.catalog().get(topic)
    if shape is None or shape.topic_id != topic_id:
        return TopicNotFound(f"no topic {topic!r} has this id: it was deleted, or recreated")
    if partition >= shape.partitions:
        return PartitionNotFound(f"topic {topic!r} has partitions 0 to {shape.partitions - 1}, not {partition}")
    return None
