"""Share groups when their partition's leader goes, and with what they need on other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.share_client import Member


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        await one.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=1, replicas=3))
        await one.opened("t")
        yield one


async def publish(cluster: LocalCluster, *values: bytes, topic: str = "t") -> None:
    records = [pb.Record(value=value) for value in values]
    await cluster.call("comet.v1.Comet/Publish", pb.PublishRequest(topic=topic, records=records, acks=types.ACKS_ALL))


async def join(cluster: LocalCluster, **options: Any) -> tuple[Member, int]:
    """A member at the leader, and the partition's handle there."""
    await until(lambda: cluster.leader("t") != 0, "somebody leads")
    member = Member(cluster.brokers[cluster.leader("t")])
    handle = await member.attach()
    assert (await member.share(handle, **options)).WhichOneof("frame") == "share_subscribed"
    return member, handle


async def end_of(member: Member) -> pb.StreamError:
    """Why the member is given nothing more."""
    while True:
        error = (await member.answer()).error
        if error.HasField("subscription"):
            return error


async def test_a_new_leader_goes_on_where_the_old_one_was(cluster: LocalCluster) -> None:
    await publish(cluster, *(b"%d" % number for number in range(10)))
    member, handle = await join(cluster, deliveries_max=9)
    await member.take(10)
    assert await member.acknowledge(handle, 0, 1, 4, 7) == []
    ending = asyncio.ensure_future(end_of(member))
    leader = cluster.leader("t")
    await cluster.call("comet.v1.Admin/DrainBroker", admin.DrainBrokerRequest(broker=leader))
    ended = await ending
    await cluster.stop(leader)
    assert (ended.subscription, ended.partition) == (1, handle)
    assert ended.error.code == types.ERROR_CODE_NOT_LEADER
    again, _ = await join(cluster, deliveries_max=9)
    got = await again.take(6)
    assert [offset for offset, _, _ in got] == [2, 3, 5, 6, 8, 9]
    assert {count for _, _, count in got} == {2}, "deliveries by the old leader count"


async def test_a_leader_that_does_not_lead_shares_nothing(cluster: LocalCluster) -> None:
    await until(lambda: cluster.leader("t") != 0 and len(cluster.replicas("t")) == 3, "all have it, and one leads")
    follower = next(number for number in cluster.brokers if number != cluster.leader("t"))
    member = Member(cluster.brokers[follower])
    handle = await member.attach()
    assert (await member.share(handle)).WhichOneof("frame") == "share_subscribed"
    ended = (await member.answer()).error
    assert (ended.subscription, ended.partition) == (1, handle)
    assert ended.error.code == types.ERROR_CODE_NOT_LEADER
    assert ended.error.details["leader"] == str(cluster.leader("t"))


async def test_dead_letters_find_their_topic_on_another_broker(cluster: LocalCluster) -> None:
    for name in ("dead-0", "dead-1", "dead-2"):
        await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name=name, partitions=1))
    await until(lambda: all(cluster.leader(f"dead-{at}") for at in range(3)), "all are led")
    chosen = next(f"dead-{at}" for at in range(3) if cluster.leader(f"dead-{at}") != cluster.leader("t"))
    await publish(cluster, b"bad")
    member, handle = await join(cluster, dead_letter=chosen)
    await member.take(1)
    await member.acknowledge(handle, 0, kind=groups.ACKNOWLEDGE_TYPE_REJECT, reason="no")
    fetched = await cluster.call("comet.v1.Comet/Fetch", pb.FetchRequest(topic=chosen, wait_ms=10_000))
    assert isinstance(fetched, pb.FetchResponse)
    assert [record.value for record in fetched.records] == [b"bad"]


async def test_dead_letters_are_written_by_the_next_leader(cluster: LocalCluster) -> None:
    await publish(cluster, b"bad", b"good")
    member, handle = await join(cluster, dead_letter="dead")
    await member.take(2)
    await member.acknowledge(handle, 0, kind=groups.ACKNOWLEDGE_TYPE_REJECT, reason="no")
    await member.acknowledge(handle, 1)
    await cluster.stop(cluster.leader("t"))
    await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="dead", partitions=1, replicas=1))
    again, _ = await join(cluster, dead_letter="dead")
    fetched = await cluster.call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="dead", wait_ms=10_000))
    assert isinstance(fetched, pb.FetchResponse)
    assert [(record.value, record.headers[-1].value) for record in fetched.records] == [(b"bad", b"no")]
    assert again.now() == []


async def test_a_leader_that_comes_back_takes_over_from_its_successor(cluster: LocalCluster) -> None:
    await publish(cluster, *(b"%d" % number for number in range(4)))
    for acknowledged in range(3):
        member, handle = await join(cluster, deliveries_max=99)
        await member.take(4 - acknowledged)
        assert await member.acknowledge(handle, acknowledged) == []
        leader = cluster.leader("t")
        await cluster.stop(leader)
        await cluster.start(leader)
    member, _ = await join(cluster, deliveries_max=99)
    assert [offset for offset, _, _ in await member.take(1)] == [3]
