"""Sets offsets of a group that has no members: to an end, an offset, a time, or a number of records further or back.

partitions ─► their ends, from the leaders ─► the new offset of each, and the records it skips ─► one write
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from comet.errors import CometError, GroupNotEmpty, GroupNotFound, InvalidArgument, TopicNotFound, Unavailable
from comet.v1 import admin_pb2 as pb
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.coordination.committed_offsets import Admitted, CommittedOffset, OffsetsByTopic
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.logs import unknown
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import CONSUMER
from comet_broker.core.group_record import Shape


class Target(NamedTuple):
    topic: str
    tp: PartitionId
    offset: int | None = None  # its own; else the request's for all partitions


async def reset(groups: Groups, request: pb.ResetGroupRequest) -> pb.ResetGroupResponse:
    """Sets all offsets or none. Raises GroupNotEmpty, GroupNotFound, TopicNotFound, InvalidArgument, Unavailable."""
    _check_request(request)
    group = groups.find(request.name)
    _check(group, request)
    if group is not None:
        await group.writer.caught_up()
    targets = _targets(groups, group, request)
    timestamp_us = request.position.timestamp_us if request.position.WhichOneof("at") == "timestamp_us" else None
    ends = await groups.logs.fetch(
        [
            coordination.PartitionEndQuery(
                topic_id=bytes.fromhex(target.tp[0]), partition=target.tp[1], timestamp_us=timestamp_us
            )
            for target in targets
        ]
    )
    group = groups.find(request.name)
    _check(group, request)  # again, after an await
    answer = pb.ResetGroupResponse()
    entries: OffsetsByTopic = {}
    for target, end in zip(targets, ends, strict=True):
        if end.code:
            raise Unavailable(f"{target.topic}/{target.tp[1]}: {unknown(end).message}", retry_after_ms=100)
        before = None if group is None else group.offsets.latest(target.tp)
        one = effect(None if before is None else before.offset, _wanted(target, request), end)
        one.topic, one.partition = target.topic, target.tp[1]
        answer.partitions.append(one)
        entries.setdefault(target.tp[0], {})[target.tp[1]] = CommittedOffset(one.after)
    if not request.dry_run and entries:
        await _write(groups.make(request.name), {target.tp[0]: target.topic for target in targets}, entries)
    return answer


def _check_request(request: pb.ResetGroupRequest) -> None:
    to = request.WhichOneof("to")
    if request.offsets:
        if to is not None or request.topics:
            raise InvalidArgument("set either an offset for each partition, or one position or shift for all")
        if any(entry.offset < 0 for topic in request.offsets for entry in topic.offsets):
            raise InvalidArgument("an offset must not be negative")
    elif to is None or (to == "position" and request.position.WhichOneof("at") is None):
        raise InvalidArgument("a reset needs a position, a shift, or an offset for each partition")


def _wanted(target: Target, request: pb.ResetGroupRequest) -> types.Position | int:
    """The partition's target: a position, or a number of records to move by."""
    if target.offset is not None:
        return types.Position(offset=target.offset)
    return request.position if request.WhichOneof("to") == "position" else request.shift


def _check(group: LiveGroup | None, request: pb.ResetGroupRequest) -> None:
    if group is None:
        if not request.topics and not request.offsets:
            raise GroupNotFound(
                f"group {request.name!r} does not exist; name the topics to create it with these offsets"
            )
        return
    if group.machine.members:
        raise GroupNotEmpty(f"group {group.name!r} has members ({len(group.machine.members)}); stop them first")
    if group.machine.kind != CONSUMER:
        raise InvalidArgument(f"group {group.name!r} is a share group without offsets; delete it to start over")


def _targets(groups: Groups, group: LiveGroup | None, request: pb.ResetGroupRequest) -> list[Target]:
    if not request.topics and not request.offsets:
        assert group is not None
        names = group.offsets.names
        return [Target(names[tp[0]], tp) for tp in sorted(group.offsets.partitions())]
    found: list[Target] = []
    for topic in request.topics:
        shape = _shape(groups, topic.topic)
        indexes = sorted(set(topic.partitions)) or range(shape.partitions)
        found += [Target(topic.topic, _partition_id(topic.topic, shape, index)) for index in indexes]
    for named in request.offsets:
        shape = _shape(groups, named.topic)
        found += [
            Target(named.topic, _partition_id(named.topic, shape, entry.partition), entry.offset)
            for entry in named.offsets
        ]
    if len(found) > limits.COMMIT_OFFSETS_MAX or len({target.tp for target in found}) < len(found):
        raise InvalidArgument(f"name each partition once, and at most {limits.COMMIT_OFFSETS_MAX}")
    return found


def _shape(groups: Groups, topic: str) -> Shape:
    shape = groups.logs.catalog().get(topic)
    if shape is None:
        raise TopicNotFound(f"topic {topic!r} does not exist")
    return shape


def _partition_id(topic: str, shape: Shape, index: int) -> PartitionId:
    if index >= shape.partitions:
        raise InvalidArgument(f"topic {topic!r} has partitions 0 to {shape.partitions - 1}, not {index}")
    return shape.topic_id, index


def effect(before: int | None, to: types.Position | int, end: coordination.PartitionEnd) -> pb.ResetPartition:
    """The new offset of one partition, and its effect."""
    start, stop = end.log_start, end.high_watermark
    notes: list[str] = []
    if before is not None and before < start:
        notes.append(f"the log starts at {start}: {start - before} records from {before} on are deleted")
    if isinstance(to, int):
        wanted = (start if before is None else before) + to
    else:
        match to.WhichOneof("at"):
            case "earliest":
                wanted = start
            case "latest":
                wanted = stop
            case "timestamp_us":
                wanted = end.offset_at
            case _:
                wanted = to.offset
    after = min(max(wanted, start), stop)
    if wanted < start:
        notes.append(f"{wanted} lies before the log start offset, {start}")
    elif wanted > stop:
        notes.append(f"{wanted} lies beyond the log end offset, {stop}")
    skipped = 0 if before is None else after - min(max(before, start), stop)
    one = pb.ResetPartition(after=after, skipped=skipped, note="; ".join(notes))
    if before is not None:
        one.before = before
    return one


async def _write(group: LiveGroup, names: dict[str, str], entries: OffsetsByTopic) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: CometError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    for topic_id, name in names.items():
        group.offsets.names.setdefault(topic_id, name)
    group.writer.write(Admitted(group.offsets, entries), (), done)
    await future
