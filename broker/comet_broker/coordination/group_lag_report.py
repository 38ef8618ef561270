"""The offsets and lag of a group in each partition, for operators."""

from __future__ import annotations

from collections.abc import Callable

from comet.v1 import admin_pb2 as pb
from comet.v1 import coordination_pb2 as coordination
from comet_broker.coordination.group import LiveGroup
from comet_broker.coordination.groups import Groups
from comet_broker.coordination.lag import shared_partitions, stored_floors
from comet_broker.metadata.store import MetadataStore


async def partition_lags(groups: Groups, group: LiveGroup, wall_us: Callable[[], int]) -> list[pb.PartitionLag]:
    """All partitions with an owner or a committed offset; with the last measurement if a leader does not answer."""
    behind = await groups.lag.measure(group)
    now_us = wall_us()
    found = []
    for tp, one in sorted(behind.items()):
        owner = group.machine.owners.get(tp)
        entry = group.offsets.get(tp)
        lag = pb.PartitionLag(
            topic=group.offsets.names.get(tp[0]) or groups.topics.name_of(tp[0]),
            partition=tp[1],
            member="" if owner is None else owner.member,
            log_start=one.log_start,
            end=one.end,
            lag=one.lag,
            age_s=one.age_s(now_us),
        )
        if entry is not None:
            lag.committed = entry.offset
        drain_s = one.pace.drain_s()
        if drain_s is not None:
            lag.drain_s = drain_s
        found.append(lag)
    return sorted(found, key=lambda lag: (lag.topic, lag.partition))


async def shared_lags(
    groups: Groups, group: LiveGroup, store: MetadataStore, wall_us: Callable[[], int]
) -> list[pb.PartitionLag]:
    """All partitions of its members' topics, those it is acquired from, and those with a stored state."""
    stored = (await stored_floors(store)).get(group.name, {})
    tps = sorted(stored.keys() | shared_partitions(groups.logs.catalog(), group))
    queries = [
        coordination.PartitionEndQuery(topic_id=bytes.fromhex(topic_id), partition=index, group=group.name)
        for topic_id, index in tps
    ]
    ends = await groups.logs.fetch(queries)
    for tp, end in zip(tps, ends, strict=True):
        if not end.code and not end.HasField("floor") and tp in stored:
            end.floor = stored[tp]
    oldest = [
        coordination.PartitionEndQuery(topic_id=one.topic_id, partition=one.partition, offset=end.floor)
        for one, end in zip(queries, ends, strict=True)
        if end.HasField("floor")
    ]
    times = iter(await groups.logs.fetch(oldest))
    now_us = wall_us()
    found = []
    for (topic_id, index), end in zip(tps, ends, strict=True):
        lag = pb.PartitionLag(
            topic=groups.topics.name_of(topic_id),
            partition=index,
            log_start=end.log_start,
            end=end.high_watermark,
            in_flight=end.in_flight,
            redelivered=end.redelivered,
            dead_lettered=end.dead_lettered,
            dead_waiting=end.dead_waiting,
            dead_problem=end.dead_problem,
        )
        if end.HasField("floor"):
            oldest_us = next(times).append_time_us
            lag.committed = end.floor
            lag.lag = max(0, end.high_watermark - max(end.floor, end.log_start) - end.acknowledged)
            lag.age_s = max(0, now_us - oldest_us) / 1_000_000 if lag.lag and oldest_us else 0.0
        found.append(lag)
    return sorted(found, key=lambda lag: (lag.topic, lag.partition))
