"""Groups for operators: on one broker, and asked of a broker that does not coordinate them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.errors import (
    CoordinatorLoading,
    GroupNotEmpty,
    GroupNotFound,
    InvalidArgument,
    NotCoordinator,
    TopicNotFound,
)
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.coordination import admin as module
from comet_broker.core.slots import slot_of
from tests.integration.group_client import Member, Stream
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.test_groups import fill, make_topic, ready


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster, partitions=2)
        await fill(cluster)
        await ready(cluster)
        yield cluster


async def ask(cluster: LocalCluster, method: str, request: Any, on: int = 1) -> Any:
    return await cluster.call(f"comet.v1.Admin/{method}", request, on=on)


async def reset(cluster: LocalCluster, **request: Any) -> list[admin.ResetPartition]:
    answer = await ask(cluster, "ResetGroup", admin.ResetGroupRequest(name="g", **request))
    return list(answer.partitions)


def to(**position: Any) -> types.Position:
    return types.Position(**position)


ALL = [pb.TopicPartitions(topic="t")]
FIRST = [pb.TopicPartitions(topic="t", partitions=[0])]


async def test_a_group_is_listed_and_described(cluster: LocalCluster) -> None:
    member = Member(cluster.brokers[1])
    await member.join("t", client="engine-1")
    await member.owns(2)
    await member.commit("t", {0: 4})
    listed = (await ask(cluster, "ListGroups", admin.ListGroupsRequest())).groups
    assert [(one.name, one.state, one.members, list(one.topics)) for one in listed] == [("g", "stable", 1, ["t"])]
    found = await ask(cluster, "DescribeGroup", admin.DescribeGroupRequest(name="g"))
    assert [(one.client, list(one.owned[0].partitions)) for one in found.members] == [("engine-1", [0, 1])]
    first, second = found.lags
    assert (first.committed, first.end, first.lag, first.member) == (4, 10, 6, member.id)
    assert 0 < first.age_s < 60
    assert not second.HasField("committed") and second.lag == 0 and second.drain_s == 0
    await member.leave()
    listed = (await ask(cluster, "ListGroups", admin.ListGroupsRequest())).groups
    assert [one.state for one in listed] == ["empty"]
    await member.close()


async def test_a_group_without_positions_goes_with_its_last_member(cluster: LocalCluster) -> None:
    member = Member(cluster.brokers[1])
    await member.join("t")
    await member.leave()
    assert not (await ask(cluster, "ListGroups", admin.ListGroupsRequest())).groups
    with pytest.raises(GroupNotFound):
        await ask(cluster, "DescribeGroup", admin.DescribeGroupRequest(name="g"))
    prefix = cluster.brokers[1].coordinator.of("g").claim.prefix
    assert [item.key for item in (await cluster.brokers[1].guard.range(prefix)).items] == [prefix + "head"]
    await member.close()


async def test_positions_are_set_to_ends_offsets_times_and_shifts(cluster: LocalCluster) -> None:
    def afters(changes: list[admin.ResetPartition]) -> list[tuple[int, int, int]]:
        return [(one.partition, one.after, one.skipped) for one in changes]

    assert afters(await reset(cluster, topics=ALL, position=to(latest=True))) == [(0, 10, 0), (1, 0, 0)]
    assert afters(await reset(cluster, shift=-3)) == [(0, 7, -3), (1, 0, 0)]
    assert afters(await reset(cluster, topics=FIRST, shift=-3, dry_run=True)) == [(0, 4, -3)]
    assert afters(await reset(cluster, topics=FIRST, position=to(offset=9))) == [(0, 9, 2)]
    assert afters(await reset(cluster, topics=FIRST, position=to(earliest=True))) == [(0, 0, -9)]
    assert afters(await reset(cluster, topics=FIRST, position=to(timestamp_us=1_001))) == [(0, 10, 10)]
    assert afters(await reset(cluster, topics=FIRST, position=to(timestamp_us=1_000))) == [(0, 0, -10)]
    beyond = (await reset(cluster, topics=FIRST, position=to(offset=99)))[0]
    assert beyond.after == 10 and "beyond the log end offset" in beyond.note
    with pytest.raises(InvalidArgument):
        await reset(cluster)


async def test_each_partition_is_set_to_an_offset_of_its_own(cluster: LocalCluster) -> None:
    def entries(**topics: dict[int, int]) -> list[pb.TopicOffsets]:
        return [
            pb.TopicOffsets(
                topic=name, offsets=[pb.PartitionOffset(partition=index, offset=at) for index, at in offsets.items()]
            )
            for name, offsets in topics.items()
        ]

    changes = await reset(cluster, offsets=entries(t={1: 3, 0: 4}))
    assert [(one.partition, one.after) for one in changes] == [(1, 0), (0, 4)]
    assert "beyond the log end offset" in changes[0].note
    back = await reset(cluster, offsets=entries(t={0: 1}), dry_run=True)
    assert [(one.before, one.after, one.skipped) for one in back] == [(4, 1, -3)]
    for wrong in (
        {"offsets": entries(t={0: 1}), "topics": FIRST},
        {"offsets": entries(t={0: 1}), "shift": 1},
        {"offsets": entries(t={0: -1})},
        {"offsets": entries(t={2: 1})},
        {"offsets": [*entries(t={0: 1}), *entries(t={0: 2})]},
    ):
        with pytest.raises(InvalidArgument):
            await reset(cluster, **wrong)
    with pytest.raises(TopicNotFound):
        await reset(cluster, offsets=entries(other={0: 1}))


async def test_a_reset_says_what_retention_has_taken(cluster: LocalCluster) -> None:
    await reset(cluster, topics=FIRST, position=to(offset=2))
    await ask(cluster, "DeleteRecords", admin.DeleteRecordsRequest(name="t", partition=0, before_offset=6))
    change = (await reset(cluster, position=to(earliest=True)))[0]
    assert (change.before, change.after, change.skipped) == (2, 6, 0)
    assert "the log starts at 6: 4 records from 2 on are deleted" in change.note
    lag = (await ask(cluster, "GroupLag", admin.GroupLagRequest(name="g"))).now[0]
    assert (lag.committed, lag.lag) == (6, 4)


async def test_nothing_is_changed_under_members(cluster: LocalCluster) -> None:
    member = Member(cluster.brokers[1])
    await member.join("t")
    with pytest.raises(GroupNotEmpty):
        await reset(cluster, topics=ALL, position=to(earliest=True))
    with pytest.raises(GroupNotEmpty):
        await ask(cluster, "DeleteGroup", admin.DeleteGroupRequest(name="g"))
    with pytest.raises(GroupNotFound):
        await ask(cluster, "DeleteGroup", admin.DeleteGroupRequest(name="other"))
    await member.leave()
    await member.close()


async def test_a_deleted_group_leaves_nothing(cluster: LocalCluster) -> None:
    await reset(cluster, topics=ALL, position=to(offset=5))
    await ask(cluster, "DeleteGroup", admin.DeleteGroupRequest(name="g"))
    assert not (await ask(cluster, "ListGroups", admin.ListGroupsRequest())).groups
    prefix = cluster.brokers[1].coordinator.of("g").claim.prefix
    assert [item.key for item in (await cluster.brokers[1].guard.range(prefix)).items] == [prefix + "head"]
    stream = Stream(cluster.brokers[1])
    assert not (await stream.ask(fetch_committed=pb.FetchCommitted(group="g"))).committed.topics
    await stream.close()


async def test_a_deleted_topic_takes_its_positions_along(cluster: LocalCluster) -> None:
    await reset(cluster, topics=ALL, position=to(offset=5))
    await ask(cluster, "DeleteTopic", admin.DeleteTopicRequest(name="t"))
    slot = cluster.brokers[1].coordinator.of("g")
    await until(lambda: slot.groups.find("g") is None, "it had nothing else")
    prefix = slot.claim.prefix
    assert [item.key for item in (await cluster.brokers[1].guard.range(prefix)).items] == [prefix + "head"]
    await make_topic(cluster, partitions=1)
    stream = Stream(cluster.brokers[1])
    assert not (await stream.ask(fetch_committed=pb.FetchCommitted(group="g"))).committed.topics
    await stream.close()


async def test_the_lag_has_a_history(cluster: LocalCluster) -> None:
    await reset(cluster, topics=ALL, position=to(offset=3))
    groups = cluster.brokers[1].coordinator.of("g").groups
    found = groups.find("g")
    assert found is not None
    await until(lambda: any(points for _, points in groups.lag.history(found)), "somebody has looked")
    answer = await ask(cluster, "GroupLag", admin.GroupLagRequest(name="g"))
    point = answer.history[-1]
    assert (point.topic, point.lag, point.committed, point.end) == ("t", 7, 3, 10)
    assert point.age_s > 0


async def test_a_shared_group_shows_what_its_leaders_know(cluster: LocalCluster) -> None:
    member = Member(cluster.brokers[1])
    await member.join("t", kind=pb.GROUP_KIND_SHARE)
    await member.owns(2)
    found = await ask(cluster, "DescribeGroup", admin.DescribeGroupRequest(name="g"))
    assert found.summary.kind == pb.GROUP_KIND_SHARE and [lag.end for lag in found.lags] == [10, 0]
    await member.leave()
    assert [one.name for one in (await ask(cluster, "ListGroups", admin.ListGroupsRequest())).groups] == ["g"]
    await ask(cluster, "DeleteGroup", admin.DeleteGroupRequest(name="g"))
    assert not (await ask(cluster, "ListGroups", admin.ListGroupsRequest())).groups
    await member.close()


async def test_any_broker_answers(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        await make_topic(cluster)
        await until(lambda: all("t" in broker.topics.by_name for broker in cluster.brokers.values()), "all know it")
        for number in cluster.brokers:
            request = admin.ResetGroupRequest(name="g", topics=ALL, position=to(earliest=True))
            assert len((await ask(cluster, "ResetGroup", request, on=number)).partitions) == 4
            listed = (await ask(cluster, "ListGroups", admin.ListGroupsRequest(), on=number)).groups
            assert [one.name for one in listed] == ["g"]
            assert listed[0].coordinator == cluster.brokers[number].coordinator.owner(slot_of("g"))
            found = await ask(cluster, "DescribeGroup", admin.DescribeGroupRequest(name="g"), on=number)
            assert [lag.committed for lag in found.lags] == [0] * 4
        await ask(cluster, "DeleteGroup", admin.DeleteGroupRequest(name="g"), on=2)


async def test_a_list_that_would_lack_groups_is_refused_and_not_short(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the metadata store is away, and coordinators have given up what they cannot be sure of."""
    request = admin.ResetGroupRequest(name="g", topics=ALL, position=to(earliest=True))
    await ask(cluster, "ResetGroup", request)
    monkeypatch.setattr(module, "FIND_S_MAX", 0.1)
    cluster.brokers[1].coordinator.give_up(NotCoordinator("the lease has run out"))
    with pytest.raises(CoordinatorLoading):
        await ask(cluster, "ListGroups", admin.ListGroupsRequest())


async def test_through_the_sdk() -> None:
    async with comet.testing.broker() as broker, comet.Admin(broker.address) as operator:
        await operator.create_topic("quotes", partitions=2)
        async with comet.Producer(broker.address) as producer:
            await asyncio.gather(*(producer.send("quotes", b"%d" % n, partition=0) for n in range(5)))
        changes = await operator.reset_group("g", "latest", topics=[("quotes", 0)])
        assert [(one.before, one.after) for one in changes] == [(None, 5)]
        assert (await operator.describe_group("g")).lags[0].committed == 5
