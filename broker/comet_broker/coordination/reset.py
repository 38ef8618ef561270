"""Sets positions of a group that has no members: to an end, an offset, a time, or so many events further or back.

places ─► the leaders say how far the partitions reach ─► where each is to be, and what that skips ─► one write
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from comet.errors import CometError, GroupNotEmpty, GroupNotFound, InvalidArgument, TopicNotFound, Unavailable
from comet.v1 import admin_pb2 as pb
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.coordination.committed_offsets import Admitted, Mark, Marks
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.logs import unknown
from comet_broker.core.cluster import Place
from comet_broker.core.group_members import CONSUMER
from comet_broker.core.group_record import Shape


class Target(NamedTuple):
    topic: str
    place: Place
    offset: int | None = None  # its own; else what the request says of all


async def reset(groups: Groups, request: pb.ResetGroupRequest) -> pb.ResetGroupResponse:
    """All positions or none. Raises GroupNotEmpty, GroupNotFound, TopicNotFound, InvalidArgument, Unavailable."""
    _check_request(request)
    group = groups.find(request.name)
    _check(group, request)
    if group is not None:
        await group.caught_up()
    targets = _targets(groups, group, request)
    timestamp_us = request.position.timestamp_us if request.position.WhichOneof("at") == "timestamp_us" else None
    ends = await groups.logs.ask(
        [
            coordination.AskedEnd(
                topic_id=bytes.fromhex(target.place[0]), partition=target.place[1], timestamp_us=timestamp_us
            )
            for target in targets
        ]
    )
    group = groups.find(request.name)
    _check(group, request)  # again: time has passed
    answer = pb.ResetGroupResponse()
    marks: Marks = {}
    for target, end in zip(targets, ends, strict=True):
        if end.code:
            raise Unavailable(f"{target.topic}/{target.place[1]}: {unknown(end).message}", retry_after_ms=100)
        before = None if group is None else group.positions.latest(target.place)
        one = effect(None if before is None else before.offset, _wanted(target, request), end)
        one.topic, one.partition = target.topic, target.place[1]
        answer.partitions.append(one)
        marks.setdefault(target.place[0], {})[target.place[1]] = Mark(one.after)
    if not request.dry_run and marks:
        await _write(groups.make(request.name), {target.place[0]: target.topic for target in targets}, marks)
    return answer


def _check_request(request: pb.ResetGroupRequest) -> None:
    to = request.WhichOneof("to")
    if request.marks:
        if to is not None or request.topics:
            raise InvalidArgument("give each partition an offset, or say where all are to be, not both")
        if any(mark.offset < 0 for topic in request.marks for mark in topic.marks):
            raise InvalidArgument("an offset is not negative")
    elif to is None or (to == "position" and request.position.WhichOneof("at") is None):
        raise InvalidArgument("say where to: a position, a shift, or an offset for each partition")


def _wanted(target: Target, request: pb.ResetGroupRequest) -> types.Position | int:
    """Where the partition is to be: a position, or so many events from where it is."""
    if target.offset is not None:
        return types.Position(offset=target.offset)
    return request.position if request.WhichOneof("to") == "position" else request.shift


def _check(group: LiveGroup | None, request: pb.ResetGroupRequest) -> None:
    if group is None:
        if not request.topics and not request.marks:
            raise GroupNotFound(f"there is no group {request.name!r}; name the topics to give a new one its positions")
        return
    if group.machine.members:
        raise GroupNotEmpty(f"group {group.name!r} has members ({len(group.machine.members)}); stop them first")
    if group.machine.kind != CONSUMER:
        raise InvalidArgument(f"group {group.name!r} is shared: it has no positions; delete it to begin anew")


def _targets(groups: Groups, group: LiveGroup | None, request: pb.ResetGroupRequest) -> list[Target]:
    if not request.topics and not request.marks:
        assert group is not None
        names = group.positions.names
        return [Target(names[place[0]], place) for place in sorted(group.positions.places())]
    found: list[Target] = []
    for topic in request.topics:
        shape = _shape(groups, topic.topic)
        indexes = sorted(set(topic.partitions)) or range(shape.partitions)
        found += [Target(topic.topic, _place(topic.topic, shape, index)) for index in indexes]
    for marked in request.marks:
        shape = _shape(groups, marked.topic)
        found += [
            Target(marked.topic, _place(marked.topic, shape, mark.partition), mark.offset) for mark in marked.marks
        ]
    if len(found) > limits.COMMIT_MARKS_MAX or len({target.place for target in found}) < len(found):
        raise InvalidArgument(f"name each partition once, and at most {limits.COMMIT_MARKS_MAX}")
    return found


def _shape(groups: Groups, topic: str) -> Shape:
    shape = groups.logs.catalog().get(topic)
    if shape is None:
        raise TopicNotFound(f"there is no topic {topic!r}")
    return shape


def _place(topic: str, shape: Shape, index: int) -> Place:
    if index >= shape.partitions:
        raise InvalidArgument(f"topic {topic!r} has partitions 0 to {shape.partitions - 1}, not {index}")
    return shape.topic_id, index


def effect(before: int | None, to: types.Position | int, end: coordination.PartitionEnd) -> pb.ResetPartition:
    """Where one partition is to be, and what comes of it."""
    start, stop = end.log_start, end.high_watermark
    notes: list[str] = []
    if before is not None and before < start:
        notes.append(f"the log begins at {start}: {start - before} events from {before} on are gone")
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
        notes.append(f"{wanted} lies before the log's start, {start}")
    elif wanted > stop:
        notes.append(f"{wanted} lies beyond the log's end, {stop}")
    skipped = 0 if before is None else after - min(max(before, start), stop)
    one = pb.ResetPartition(after=after, skipped=skipped, note="; ".join(notes))
    if before is not None:
        one.before = before
    return one


async def _write(group: LiveGroup, names: dict[str, str], marks: Marks) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: CometError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    for topic_id, name in names.items():
        group.positions.names.setdefault(topic_id, name)
    group.write(Admitted(group.positions, marks), (), done)
    await future
