"""What is deleted by hand is deleted wherever the partition is led from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

import comet
from comet.v1 import admin_pb2 as admin
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


async def test_what_was_passed_on_is_not_passed_on_again(tmp_path: Path) -> None:
    """Two brokers that each take the other for the leader would never come to an end."""
    async with LocalCluster(tmp_path) as cluster:
        await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=1, replicas=3))
        await until(lambda: len(cluster.replicas("t")) == 3, "all have opened it")
        other = next(number for number in cluster.brokers if number != cluster.leader("t"))
        request = admin.DeleteRecordsRequest(name="t", partition=0, before_offset=0, forwarded=True)
        with pytest.raises(comet.NotLeader):
            await cluster.call("comet.v1.Admin/DeleteRecords", request, on=other)
