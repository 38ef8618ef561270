"""Admin on real brokers: pages of topics, committed offsets of groups for who is no member, and brokers asked
themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import comet
import comet.testing
from comet.errors import BrokerNotFound, GroupNotEmpty, GroupNotFound, InvalidArgument
from tests.integration.local_cluster import LocalCluster

TPS = [comet.TopicPartition("t", index) for index in range(6)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[comet.Admin]:
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as one:
        await one.create_topic("t", partitions=len(TPS))
        yield one


async def fill(cluster: LocalCluster, records: int = 10) -> None:
    async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
        for tp in TPS:
            await (await producer.send_many("t", [b"x"] * records, partition=tp.partition))


def codes(done: list[comet.CommitResult]) -> list[str | None]:
    return [None if one.error is None else one.error.code for one in done]


async def test_pages_hold_every_topic_once(admin: comet.Admin) -> None:
    names = sorted([f"page-{number:02}" for number in range(23)] + ["Upper.Page"])
    for name in names:
        await admin.create_topic(name)
    for limit in (1, 5, 24, 100):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await admin.find_topics("PAGE", after=after, limit=limit)
            assert page.total == len(names) and 1 <= len(page.topics) <= limit
            found += [topic.name for topic in page.topics]
            after = page.after
        assert found == names
    assert (await admin.find_topics("nothing")).total == 0
    with pytest.raises(InvalidArgument):
        await admin.find_topics(limit=0)


async def test_positions_of_every_coordinator_are_read_and_committed(cluster: LocalCluster, admin: comet.Admin) -> None:
    await fill(cluster)
    for number in range(12):  # in slots of all brokers
        name = f"engine-{number}"
        done = await admin.commit_offsets(name, {tp: tp.partition for tp in TPS})
        assert [(one.offset, one.error) for one in done] == [(tp.partition, None) for tp in TPS]
        found = await admin.group_offsets(name)
        assert [(one.topic, one.partition, one.offset) for one in found] == [
            (tp.topic, tp.partition, tp.partition) for tp in TPS
        ]
    assert len({group.coordinator for group in await admin.list_groups()}) == 3


async def test_what_is_refused_is_told_for_each_partition(cluster: LocalCluster, admin: comet.Admin) -> None:
    await fill(cluster)
    await admin.commit_offsets("engine", {("t", 0): 5})
    asked = {("t", 0): 3, ("t", 1): 10, ("t", 2): 11, ("t", 6): 0, ("other", 0): 0}
    done = await admin.commit_offsets("engine", asked)
    assert [(one.topic, one.partition) for one in done] == list(asked)
    assert codes(done) == [None, None, "OFFSET_OUT_OF_RANGE", "PARTITION_NOT_FOUND", "TOPIC_NOT_FOUND"]
    assert [one.offset for one in done] == [5, 10, None, None, None]  # nothing goes back
    assert [(one.partition, one.offset) for one in await admin.group_offsets("engine")] == [(0, 5), (1, 10)]


async def test_offsets_of_its_own_for_each_partition_may_go_back(cluster: LocalCluster, admin: comet.Admin) -> None:
    await fill(cluster)
    await admin.commit_offsets("engine", dict.fromkeys(TPS, 5))
    changes = await admin.reset_group("engine", offsets={TPS[1]: 2, TPS[3]: 99})
    assert [(one.partition, one.before, one.after, one.skipped) for one in changes] == [(1, 5, 2, -3), (3, 5, 10, 5)]
    assert [one.offset for one in await admin.group_offsets("engine")] == [5, 2, 5, 10, 5, 5]
    with pytest.raises(InvalidArgument):
        await admin.reset_group("engine", "earliest", offsets={TPS[1]: 2})
    with pytest.raises(InvalidArgument):
        await admin.reset_group("engine", offsets={})


async def test_only_members_commit_while_there_are_any(cluster: LocalCluster, admin: comet.Admin) -> None:
    with pytest.raises(GroupNotFound):
        await admin.group_offsets("engine")
    async with comet.GroupConsumer(cluster.addresses, "t", group="engine", connect=cluster.network.connect) as member:
        await member.start()
        with pytest.raises(GroupNotEmpty):
            await admin.commit_offsets("engine", {TPS[0]: 0})
    async with comet.ShareConsumer(cluster.addresses, "t", group="work", connect=cluster.network.connect) as sharer:
        await sharer.get(timeout_s=0.01)
        assert await admin.group_offsets("work") == []
    with pytest.raises(InvalidArgument):
        await admin.commit_offsets("work", {TPS[0]: 0})


async def test_calls_to_coordinators_leave_nothing_on_their_connections(admin: comet.Admin) -> None:
    await admin.commit_offsets("engine", {TPS[0]: 0})
    connections = [peer.connection for peer in admin._client._peers.values() if peer.connection is not None]
    before = [len(connection._lost_callbacks) for connection in connections]
    for _ in range(20):
        await admin.group_offsets("engine")
    assert [len(connection._lost_callbacks) for connection in connections] == before


async def test_a_broker_is_asked_itself(cluster: LocalCluster, admin: comet.Admin) -> None:
    await fill(cluster)
    for number in cluster.brokers:
        assert (await admin.statistics(number))["broker_id"] == number
        found = await admin.describe_topic("t", broker=number)
        assert {one.partition for one in found.partitions if one.log_end is not None} == {tp.partition for tp in TPS}
    with pytest.raises(BrokerNotFound):
        await admin.statistics(9)


async def test_offsets_of_many_partitions_are_asked_together() -> None:
    async with comet.testing.broker({"many": 100}) as broker, comet.Admin(broker.address) as admin:
        async with comet.Producer(broker.address) as producer:
            await (await producer.send_many("many", [b"1", b"2"], partition=99))
        found = await admin.offsets("many")
        assert list(found) == list(range(100)) and sum(found.values()) == found[99] == 2


async def test_offsets_are_those_of_the_topic_that_is_there_now() -> None:
    async with comet.testing.broker(["t"]) as broker, comet.Admin(broker.address) as admin:
        assert await admin.offsets("t") == {0: 0}
        await admin.delete_topic("t")
        await admin.create_topic("t", partitions=2)
        async with comet.Producer(broker.address) as producer:
            await producer.publish("t", b"1", partition=0)
        assert await admin.offsets("t") == {0: 1, 1: 0}


async def test_offsets_are_told_while_leaders_change(cluster: LocalCluster, admin: comet.Admin) -> None:
    await fill(cluster)
    assert await admin.offsets("t") == dict.fromkeys(range(len(TPS)), 10)
    await cluster.stop(cluster.leader("t", 0))
    assert await admin.offsets("t") == dict.fromkeys(range(len(TPS)), 10)
