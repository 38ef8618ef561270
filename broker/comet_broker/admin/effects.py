"""The effect of admin acts, counted where the records are: by the leaders of a topic's partitions.

    AlterTopic(dry_run) ─► answering broker ─► each leader: AlterTopic(local)     what its retention would delete
                                            ◄─ records, bytes, partitions         summed up

A leader that does not answer makes the effect incomplete, never an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from comet.errors import CometError
from comet.settings.topic import TopicConfig
from comet.v1 import admin_pb2 as admin
from comet.v1 import types_pb2 as types
from comet.wire.protobuf import config_to_pb
from comet_broker.core.cluster import NO_BROKER, ClusterState
from comet_broker.core.controller import handovers
from comet_broker.core.retention import Expired
from comet_broker.partitions.partition import Partition

HANDOVERS_SHOWN_MAX = 1_000

AskLeader = Callable[[int, admin.AlterTopicRequest], Awaitable[admin.AlterTopicResponse]]


def expiring(
    partitions: Iterable[Partition], before: TopicConfig, after: TopicConfig, now_us: int
) -> admin.RecordsLost:
    """The records that this broker, as leader, would delete with `after` and keep with `before`."""
    lost = admin.RecordsLost()
    for partition in partitions:
        if not partition.leads:
            continue
        lost.partitions += 1
        old, new = (_expired(partition, config, now_us) for config in (before, after))
        lost.records += max(0, new.records - old.records)
        lost.bytes += max(0, new.bytes - old.bytes)
    return lost


def _expired(partition: Partition, config: TopicConfig, now_us: int) -> Expired:
    return partition.log.deletion.expired(config, now_us, partition.high_watermark)


async def expiring_at(leaders: Iterable[int], name: str, after: TopicConfig, ask: AskLeader) -> admin.RecordsLost:
    """The same, summed over all leaders."""
    local = admin.AlterTopicRequest(name=name, config=config_to_pb(after), dry_run=True, local=True)

    async def at(leader: int) -> admin.RecordsLost:
        try:
            return (await ask(leader, local)).deletes
        except CometError:
            return admin.RecordsLost()

    return _sum(await asyncio.gather(*map(at, leaders)))


def _sum(counted: Sequence[admin.RecordsLost]) -> admin.RecordsLost:
    return admin.RecordsLost(
        records=sum(one.records for one in counted),
        bytes=sum(one.bytes for one in counted),
        partitions=sum(one.partitions for one in counted),
    )


def held(statuses: Iterable[types.PartitionStatus]) -> admin.RecordsLost:
    """All records of the partitions whose leader answered."""
    answered = [status for status in statuses if status.broker]
    return admin.RecordsLost(
        records=sum(status.log_end - status.log_start for status in answered),
        bytes=sum(status.bytes for status in answered),
        partitions=len(answered),
    )


def lost_by(statuses: Sequence[types.PartitionStatus], broker: int) -> int | None:
    """Records that the longest of the other replicas has beyond this broker's; None if its log is not known."""
    ends = {status.broker: status.log_end for status in statuses}
    return max(ends.values()) - ends[broker] if broker in ends else None


def drain_plan(state: ClusterState, broker: int) -> admin.DrainBrokerResponse:
    """The partitions that a broker leads, and their next leaders if it drains, by the controller's rules."""
    found = handovers(state, broker)
    names = {topic.value.id: name for name, topic in state.topics.items()}
    return admin.DrainBrokerResponse(
        leading=len(found),
        draining=broker in state.drains or (broker in state.brokers and state.brokers[broker].value.draining),
        staying=sum(to == NO_BROKER for to in found.values()),
        handovers=[
            admin.Handover(topic=name, partition=index, to=to)
            for name, index, to in sorted((names[topic_id], index, to) for (topic_id, index), to in found.items())
        ][:HANDOVERS_SHOWN_MAX],
    )
