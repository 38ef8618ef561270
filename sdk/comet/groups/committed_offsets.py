"""Committed offsets of groups for clients outside the group: reads them, and commits while the group has no members.

Requests go to the coordinator on a stream, as those of members do. A retry after a failure changes nothing: an offset
is absolute, and never goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from comet import limits
from comet.client.client import Client
from comet.client.coordinator import Coordinator
from comet.client.retry import Backoff
from comet.errors import CometError, InvalidArgument, TopicNotFound
from comet.types import Int64, TopicPartition, check_topic_name
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire import protobuf

Offsets = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]

OFFSET_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in one partition, and the leader epoch of the record before, if known.

    >>> comet.CommittedOffset("quotes", 0, offset=40, epoch=3).offset
    40
    """

    topic: str
    partition: int
    offset: Annotated[Int64, "The next record to read."]
    epoch: Annotated[int | None, "Leader epoch of the record before it, if known."]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of one commit: the committed offset, which may be further, or the error.

    >>> comet.CommitResult("quotes", 0, offset=40, error=None).offset
    40
    """

    topic: str
    partition: int
    offset: int | None
    error: CometError | None


async def fetch(client: Client, group: str, timeout_ms: int) -> list[CommittedOffset]:
    """All committed offsets, by topic and partition; empty if the group does not exist."""
    request = pb.ClientFrame(fetch_committed=groups_pb.FetchCommitted(group=group))
    answer = (await _request(client, group, request, timeout_ms)).committed
    return sorted(
        (
            CommittedOffset(
                topic.topic,
                entry.partition,
                entry.offset,
                entry.leader_epoch if entry.HasField("leader_epoch") else None,
            )
            for topic in answer.topics
            for entry in topic.offsets
        ),
        key=lambda found: (found.topic, found.partition),
    )


async def commit(client: Client, group: str, offsets: Offsets, timeout_ms: int) -> list[CommitResult]:
    """One result per offset, in the order of the request. Temporary refusals are retried, such as for a topic that is
    being opened."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout_ms / 1000
    backoff = Backoff(client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
    found: dict[tuple[str, int], CommitResult] = {}
    wanted = {(topic, partition): offset for (topic, partition), offset in offsets.items()}
    due = wanted
    while True:
        for one in await _commit_once(client, group, due, max(round((give_up - loop.time()) * 1000), 1)):
            found[one.topic, one.partition] = one
        passing = {tp: one.error for tp, one in found.items() if one.error is not None and one.error.retriable}
        wait_s = backoff.next_s(max((error.retry_after_ms for error in passing.values()), default=0))
        if not passing or loop.time() + wait_s >= give_up:
            return list(found.values())
        await asyncio.sleep(wait_s)
        due = {tp: wanted[tp] for tp in passing}


async def _commit_once(client: Client, group: str, offsets: Offsets, timeout_ms: int) -> list[CommitResult]:
    requested = topic_offsets(offsets)
    known = await client.fetch({topic.topic for topic in requested})
    message = groups_pb.Commit(group=group)
    for topic in requested:
        if topic.topic in known:
            topic.topic_id = known[topic.topic].id
            message.topics.append(topic)
    answer = (await _request(client, group, pb.ClientFrame(commit=message), timeout_ms)).committed
    found = {
        (topic, partition): CommitResult(topic, partition, None, TopicNotFound(f"topic {topic!r} does not exist"))
        for topic, partition in offsets
    }
    for topic in answer.topics:
        for entry in topic.offsets:
            found[topic.topic, entry.partition] = CommitResult(topic.topic, entry.partition, entry.offset, None)
    for refused in answer.refused:
        error = protobuf.error_from_pb(refused.error)
        found[refused.topic, refused.partition] = CommitResult(refused.topic, refused.partition, None, error)
    return list(found.values())


def topic_offsets(offsets: Offsets) -> list[groups_pb.TopicOffsets]:
    """Offsets of partitions by topic, as in the protocol."""
    found: dict[str, groups_pb.TopicOffsets] = {}
    for (topic, partition), offset in offsets.items():
        if not 0 <= partition <= PARTITION_MAX or not 0 <= offset <= OFFSET_MAX:
            raise InvalidArgument(f"a partition and an offset must be at least 0, not {topic}/{partition} at {offset}")
        marked = found.setdefault(check_topic_name(topic), groups_pb.TopicOffsets(topic=topic))
        marked.offsets.append(groups_pb.PartitionOffset(partition=partition, offset=offset))
    if not found:
        raise InvalidArgument("no offsets given: name at least one partition and its offset")
    return list(found.values())


async def _request(client: Client, group: str, frame: pb.ClientFrame, timeout_ms: int) -> pb.ServerFrame:
    coordinator = Coordinator(client, group)
    try:
        return await coordinator.request(frame, timeout_ms)
    finally:
        coordinator.close()
