"""How far logs reach, asked of their leaders: in one call, through others, and when there is nobody to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import coordination_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.core.slots import slot_of
from tests.integration.group_client import Member
from tests.integration.local_cluster import LocalCluster
from tests.integration.stream_client import Client
from tests.integration.test_groups import code, fill, make_topic, ready

ENDS = "comet.v1.Coordination/PartitionEnds"


def asked(cluster: LocalCluster, partition: int = 0, **what: Any) -> pb.PartitionEndQuery:
    state = next(iter(cluster.brokers.values())).view.state
    return pb.PartitionEndQuery(topic_id=bytes.fromhex(state.topics["t"].value.id), partition=partition, **what)


async def ends(cluster: LocalCluster, *wanted: pb.PartitionEndQuery, on: int = 1) -> list[pb.PartitionEnd]:
    answer = await cluster.call(ENDS, pb.PartitionEndsRequest(queries=wanted), on=on)
    assert isinstance(answer, pb.PartitionEndsResponse)
    return list(answer.ends)


async def test_a_leader_says_how_far_it_is_and_when_a_record_came(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster, partitions=2)
        before_us = cluster.brokers[1].env.clock.wall_us()
        await fill(cluster)
        await fill(cluster)
        end, empty, none = await ends(
            cluster, asked(cluster, offset=12, timestamp_us=1_000), asked(cluster, 1, offset=0), asked(cluster, 7)
        )
        assert (end.code, end.log_start, end.high_watermark, end.last_stable_offset) == (0, 0, 20, 20)
        assert before_us <= end.append_time_us <= cluster.brokers[1].env.clock.wall_us()
        assert end.offset_at == 0
        assert (empty.high_watermark, empty.append_time_us) == (0, 0)
        assert none.code == types.ERROR_CODE_UNAVAILABLE
        # While somebody reads, the answer comes from memory; it is the same.
        client = Client(cluster.brokers[1])
        handle = await client.attach()
        await client.subscribe(handle, latest=True)
        await fill(cluster)
        live, cold = await ends(cluster, asked(cluster, offset=25), asked(cluster, offset=3))
        partition = cluster.replicas("t")[1]
        assert partition.readers.tail.entries
        partition.readers.tail.clear()
        assert live == (await ends(cluster, asked(cluster, offset=25)))[0]
        assert before_us <= cold.append_time_us <= end.append_time_us <= live.append_time_us
        client.session.close()


async def test_what_breaks_with_one_partition_leaves_the_others_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster, partitions=3)
        for index in range(3):
            client = Client(cluster.brokers[1])
            client.produce(await client.attach("t", index), b"x")
            await client.answer()
            client.session.close()
        broker = cluster.brokers[1]
        partitions = broker.topics.by_name["t"].partitions
        with monkeypatch.context() as bug:
            bug.setattr(partitions[0].readers, "tail", None)
            bug.setattr(partitions[1].log.segments, "find_time", None)
            found = await ends(cluster, *(asked(cluster, index, offset=0, timestamp_us=1_000) for index in range(3)))
        internal = types.ERROR_CODE_INTERNAL
        assert [(one.code, one.high_watermark) for one in found] == [(internal, 0), (internal, 0), (0, 1)]
        assert len(broker.env.tasks.failed) == 2
        broker.env.tasks.failed.clear()


async def test_a_coordinator_asks_leaders_elsewhere_before_it_believes_a_commit(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        await make_topic(cluster)
        coordinator = next(iter(cluster.brokers.values())).coordinator.whereabouts(slot_of("g"))[0]
        await ready(cluster, on=coordinator)
        leaders = {index: cluster.leader("t", index) for index in range(4)}
        for index, leader in leaders.items():
            client = Client(cluster.brokers[leader])
            client.produce(await client.attach("t", index), *(b"x" for _ in range(5)), acks=2)
            await client.answer()
            client.session.close()
        one = Member(cluster.brokers[coordinator])
        await one.join("t")
        await one.owns(4)
        answer = await one.commit("t", dict.fromkeys(range(4), 5))
        assert [mark.offset for mark in answer.committed.topics[0].offsets] == [5] * 4
        answer = await one.commit("t", dict.fromkeys(range(4), 6))
        assert [code(refused.error) for refused in answer.committed.refused] == ["OFFSET_OUT_OF_RANGE"] * 4
        follower = next(number for number in cluster.brokers if number != leaders[0])
        (end,) = await ends(cluster, asked(cluster), on=follower)
        assert end.code == types.ERROR_CODE_NOT_LEADER
        await one.close()


async def test_a_commit_that_nobody_can_vouch_for_is_refused_for_now(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=2) as cluster:
        await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", partitions=4, replicas=1))
        coordinator = next(iter(cluster.brokers.values())).coordinator.whereabouts(slot_of("g"))[0]
        other = 3 - coordinator
        await ready(cluster, on=coordinator)
        index = next(index for index in range(4) if cluster.leader("t", index) == other)
        client = Client(cluster.brokers[other])
        client.produce(await client.attach("t", index), b"x")
        await client.answer()
        client.session.close()
        one = Member(cluster.brokers[coordinator])
        await one.join("t")
        await one.owns(4)
        there = cluster.network.brokers.pop(cluster.address(other))
        answer = await one.commit("t", {index: 1})
        assert [code(refused.error) for refused in answer.committed.refused] == ["UNAVAILABLE"]
        described = await cluster.call(
            "comet.v1.Admin/DescribeGroup", admin.DescribeGroupRequest(name="g"), on=coordinator
        )
        assert isinstance(described, admin.DescribeGroupResponse)
        assert [(lag.partition, lag.member) for lag in described.lags] == [(number, one.id) for number in range(4)]
        cluster.network.brokers[cluster.address(other)] = there
        answer = await one.commit("t", {index: 1})
        assert answer.committed.topics[0].offsets[0].offset == 1
        await one.close()
