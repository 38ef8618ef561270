"""What is deleted by hand is deleted wherever the partition is led from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import comet
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from tests.integration.local_cluster import LocalCluster, until


async def test_what_a_leader_has_deleted_is_gone_on_its_followers_too(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=1, replicas=3))
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as one:
            for number in range(10):
                await one.publish("t", b"%d" % number)
        leader = cluster.leader("t")
        other = next(number for number in cluster.brokers if number != leader)
        request = admin.DeleteRecordsRequest(name="t", partition=0, before_offset=7)
        await cluster.call("comet.v1.Admin/DeleteRecords", request, on=other)
        replicas = cluster.replicas("t")
        await until(lambda: {one.log.log_start for one in replicas.values()} == {7}, "it is deleted everywhere")
        assert {one.leader_epoch for one in replicas.values()} == {replicas[leader].leader_epoch}


async def test_what_is_deleted_stays_so_when_one_leads_that_has_not_heard_of_it(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=2) as cluster:
        request = admin.CreateTopicRequest(name="t", partitions=1, replicas=2)
        await cluster.call("comet.v1.Admin/CreateTopic", request)
        leader = cluster.leader("t")
        (other,) = cluster.brokers.keys() - {leader}
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as one:
            for number in range(10):
                await one.publish("t", b"%d" % number)
            link = cluster.brokers[other].replicator._links[leader]
            setattr(link, "_delete_records", lambda *_: None)  # noqa: B010 - the word of it gets lost on the way
            await cluster.call(
                "comet.v1.Admin/DeleteRecords", admin.DeleteRecordsRequest(name="t", partition=0, before_offset=7)
            )
            follower = cluster.replicas("t")[other]
            assert follower.log.log_start == 0
            await cluster.stop(leader)
            await until(lambda: follower.leads, "it leads now")
            assert follower.log.log_start == 7
            assert (await one.publish("t", b"10")).offset == 10
        fetched = await cluster.call("comet.v1.Comet/Fetch", pb.FetchRequest(topic="t", partition=0, wait_ms=1000))
        assert isinstance(fetched, pb.FetchResponse)
        assert [record.value for record in fetched.records] == [b"7", b"8", b"9", b"10"]


async def test_of_two_that_delete_at_once_the_one_that_deletes_more_is_remembered(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=2) as cluster:
        request = admin.CreateTopicRequest(name="t", partitions=1, replicas=2)
        await cluster.call("comet.v1.Admin/CreateTopic", request)
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as one:
            for number in range(10):
                await one.publish("t", b"%d" % number)

        async def delete(before: int) -> None:
            request = admin.DeleteRecordsRequest(name="t", partition=0, before_offset=before)
            await cluster.call("comet.v1.Admin/DeleteRecords", request)

        await asyncio.gather(delete(7), delete(5), delete(6))
        assert cluster.state("t").deleted == (1, 7)
        await delete(3)
        assert cluster.state("t").deleted == (1, 7)


async def test_what_was_passed_on_is_not_passed_on_again(tmp_path: Path) -> None:
    """Two brokers that each take the other for the leader would never come to an end."""
    async with LocalCluster(tmp_path) as cluster:
        await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=1, replicas=3))
        await cluster.opened("t")
        other = next(number for number in cluster.brokers if number != cluster.leader("t"))
        request = admin.DeleteRecordsRequest(name="t", partition=0, before_offset=0, forwarded=True)
        with pytest.raises(comet.NotLeader):
            await cluster.call("comet.v1.Admin/DeleteRecords", request, on=other)
