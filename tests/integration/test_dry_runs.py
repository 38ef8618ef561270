"""Dry runs: the broker that would act says what would happen, by the same code, and then it happens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.v1 import admin_pb2
from comet_broker.core.cluster import NO_BROKER
from comet_broker.partitions.partition import Partition
from tests.integration.local_cluster import LocalCluster, until

PARTITIONS = 3
SEGMENT = 64 << 10
YEAR_US = 365 * 86_400 * 1_000_000
HOUR_MS = 3_600_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[comet.Admin]:
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as one:
        await one.create_topic("t", partitions=PARTITIONS, replicas=2, segment_bytes=SEGMENT)
        await cluster.opened("t", partitions=PARTITIONS, replicas=2)
        yield one


async def fill(cluster: LocalCluster, timestamp_us: int) -> None:
    """Some segments in each partition, whose records all say this time."""
    async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
        for partition in range(PARTITIONS):
            for _ in range(40):
                await producer.send("t", b"x" * 8_000, partition=partition, timestamp_us=timestamp_us)
                await producer.flush()
    for one in leaders(cluster):
        assert one.log.statistics()["segments"] > 3


def leaders(cluster: LocalCluster) -> list[Partition]:
    return [
        broker.topics.partition("t", index)
        for index in range(PARTITIONS)
        for broker in [cluster.brokers[cluster.leader("t", index)]]
    ]


async def alter(cluster: LocalCluster, admin: comet.Admin, **settings: Any) -> comet.TopicAlteration:
    """Alters the topic; returns when all leaders have its new settings."""
    done = await admin.alter_topic("t", **settings)
    config = done.after.config
    await until(
        lambda: all(one.log.state.config == config for one in leaders(cluster)), "all leaders have the settings"
    )
    return done


async def retained(cluster: LocalCluster) -> int:
    """Runs retention; returns how many records it has deleted at the leaders."""
    for broker in cluster.brokers.values():
        for partition in broker.topics.by_handle.values():
            await partition.housekeeping.run()
    return sum(one.log.log_start for one in leaders(cluster))


async def test_a_replay_of_old_data_loses_nothing_by_a_shorter_retention_and_the_dry_run_says_so(
    cluster: LocalCluster, admin: comet.Admin
) -> None:
    await fill(cluster, timestamp_us=YEAR_US)  # 1971
    plan = await admin.alter_topic("t", retention_ms=HOUR_MS, dry_run=True)
    assert (plan.dry_run, plan.changed, plan.records, plan.bytes, plan.complete) == (
        True,
        ("retention_ms",),
        0,
        0,
        True,
    )
    topic = await admin.describe_topic("t")
    assert topic.config == plan.before.config != plan.after.config
    done = await alter(cluster, admin, retention_ms=HOUR_MS)
    assert (done.dry_run, done.records, done.after.config) == (False, 0, plan.after.config)
    assert await retained(cluster) == 0


async def test_records_of_the_future_go_when_they_were_written_long_ago_and_the_dry_run_says_how_many(
    cluster: LocalCluster, admin: comet.Admin
) -> None:
    await fill(cluster, timestamp_us=130 * YEAR_US)
    plan = await admin.alter_topic("t", retention_ms=0, dry_run=True)
    newest = sum(one.log.log_end - one.log.segments.active.base_offset for one in leaders(cluster))
    assert plan.records == PARTITIONS * 40 - newest > 0 and plan.bytes > PARTITIONS * SEGMENT and plan.complete
    assert await retained(cluster) == 0, "a dry run changes nothing"
    await alter(cluster, admin, retention_ms=0)
    assert await retained(cluster) == plan.records


@pytest.mark.parametrize(
    "settings", [{"retention_records": 7}, {"retention_bytes": SEGMENT}, {"retention_ms": 0, "segment_ms": 100}]
)
async def test_every_limit_deletes_what_the_dry_run_says(
    cluster: LocalCluster, admin: comet.Admin, settings: dict[str, Any]
) -> None:
    await fill(cluster, timestamp_us=0)

    def aged() -> bool:
        created = max(one.log.segments.active.created_us for one in leaders(cluster))
        return time.time_ns() // 1_000 > created + 200_000

    await until(aged, "the newest segment is older than segment_ms")
    plan = await admin.alter_topic("t", dry_run=True, **settings)
    assert plan.records > 0
    await alter(cluster, admin, **settings)
    assert await retained(cluster) == plan.records


async def test_a_leader_that_does_not_answer_makes_the_effect_incomplete(
    cluster: LocalCluster, admin: comet.Admin
) -> None:
    await admin.create_topic("alone", partitions=3, replicas=1)
    await cluster.opened("alone", partitions=3, replicas=1)
    gone = cluster.leader("alone", 0)
    await cluster.stop(gone)
    views = [broker.view for broker in cluster.brokers.values()]
    tp = views[0].state.topics["alone"].value.id, 0
    await until(
        lambda: all(view.state.partitions[tp].value.leader == NO_BROKER for view in views), "all know of no leader"
    )
    assert not (await admin.alter_topic("alone", retention_ms=1, dry_run=True)).complete
    plan = await admin.delete_topic("alone", dry_run=True)
    assert (plan.partitions, plan.complete) == (3, False)
    with pytest.raises(comet.NotLeader):
        await admin.delete_records("alone", 0, dry_run=True)


async def test_a_dry_run_is_refused_as_the_act_would_be(cluster: LocalCluster, admin: comet.Admin) -> None:
    with pytest.raises(comet.InvalidArgument):
        await admin.alter_topic("t", min_insync=9, dry_run=True)
    with pytest.raises(comet.InvalidArgument):
        await admin.add_partitions("t", 1, dry_run=True)
    with pytest.raises(comet.InvalidArgument):
        await admin.delete_records("t", 0, 7, dry_run=True)
    with pytest.raises(comet.TopicNotFound):
        await admin.delete_topic("none", dry_run=True)
    with pytest.raises(comet.GroupNotFound):
        await admin.delete_group("none", dry_run=True)
    with pytest.raises(comet.BrokerNotFound):
        await admin.drain_broker(9, dry_run=True)
    with pytest.raises(comet.BrokerNotFound):
        await admin.resume(9, dry_run=True)


async def test_only_a_leader_counts_what_it_would_delete(cluster: LocalCluster, admin: comet.Admin) -> None:
    """Else a record would be counted once for each replica."""
    request = admin_pb2.AlterTopicRequest(name="t", local=True)
    counted = 0
    for number in cluster.brokers:
        answer = await cluster.call("comet.v1.Admin/AlterTopic", request, on=number)
        assert isinstance(answer, admin_pb2.AlterTopicResponse)
        counted += answer.deletes.partitions
    assert counted == PARTITIONS
