"""The messages of a group's coordinator to its members. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from comet.errors import CometError
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.wire.protobuf import error_to_pb
from comet_broker.coordination.committed_offsets import CommittedOffsets, offset_to_pb
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import Member, View

HEARTBEAT_MS_MAX: Final = 3_000
HEARTBEATS: Final = 4  # in a session


def joined(member: Member, generation: int) -> pb.Joined:
    session_ms = round(member.session_s * 1000)
    return pb.Joined(
        member=member.id,
        generation=generation,
        heartbeat_ms=max(1, min(HEARTBEAT_MS_MAX, session_ms // HEARTBEATS)),
        session_timeout_ms=session_ms,
    )


def evicted(group: str, member: str, error: CometError) -> records_pb.ServerFrame:
    return records_pb.ServerFrame(evicted=pb.Evicted(group=group, member=member, error=error_to_pb(error)))


def assignment(
    group: str, member: str, generation: int, view: View, offsets: CommittedOffsets, name_of: Callable[[str], str]
) -> pb.Assignment:
    """The member's assignment without deleted topics, which have no name. The next plan is without them."""
    message = pb.Assignment(group=group, member=member, generation=generation)
    topics: dict[str, pb.AssignedTopic] = {}
    for tp, since in sorted(view.owned.items()):
        topic_id, index = tp
        topic = topics.get(topic_id)
        if topic is None:
            name = name_of(topic_id)
            if not name:
                continue
            topic = topics[topic_id] = message.owned.add(topic=name, topic_id=bytes.fromhex(topic_id))
        partition = topic.partitions.add(partition=index, since=since)
        entry = offsets.get(tp)
        if entry is not None:
            partition.offset = entry.offset
            if entry.epoch >= 0:
                partition.leader_epoch = entry.epoch
    add_partitions(message.release, (tp for tp in view.release if name_of(tp[0])), name_of)
    return message


def committed(offsets: CommittedOffsets, topics: Iterable[pb.TopicPartitions]) -> pb.Committed:
    """The committed offsets of these partitions; of all if none are named."""
    wanted = {topic.topic_id.hex(): set(topic.partitions) for topic in topics}
    answer = pb.Committed()
    for topic_id, entries in sorted(offsets.written.items()):
        if wanted and topic_id not in wanted:
            continue
        only = wanted.get(topic_id)
        chosen = [offset_to_pb(index, entry) for index, entry in sorted(entries.items()) if not only or index in only]
        answer.topics.add(topic=offsets.names[topic_id], topic_id=bytes.fromhex(topic_id), offsets=chosen)
    return answer


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
