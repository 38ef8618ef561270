"""Generations of a group's name never go back, whatever becomes of the group's record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as pb
from comet_broker.coordination.groups import Groups
from tests.integration.group_client import Member
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.test_groups import code, fill, make_topic, ready


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await make_topic(cluster, partitions=2)
        yield cluster


def groups_of(cluster: LocalCluster) -> Groups:
    return cluster.brokers[1].coordinator.of("g").groups


async def joined(cluster: LocalCluster) -> Member:
    """A member that owns everything."""
    await ready(cluster)
    one = Member(cluster.brokers[1])
    await one.join("t")
    await one.owns(2)
    return one


async def emptied(cluster: LocalCluster, member: Member) -> None:
    """The last member leaves before anything was committed; the coordinator forgets the group."""
    await member.leave()
    await until(lambda: groups_of(cluster).find("g") is None, "the group is forgotten")


async def restarted(cluster: LocalCluster) -> None:
    await cluster.stop(1)
    await cluster.start(1)
    await ready(cluster)


def since(member: Member) -> int:
    return min(one.since for one in member.owned.values())


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_group_that_empties_before_its_first_commit_goes_on_above_it(
    cluster: LocalCluster, restarts: bool
) -> None:
    last = 0
    for _ in range(3):
        member = await joined(cluster)
        assert since(member) > last, "a generation was given twice"
        last = member.generation
        await emptied(cluster, member)
        await member.close()
        if restarts:
            await restarted(cluster)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_group_that_an_operator_deletes_goes_on_above_it(cluster: LocalCluster, restarts: bool) -> None:
    member = await joined(cluster)
    await fill(cluster)
    assert not (await member.commit("t", {0: 5})).committed.refused
    await member.leave()
    await cluster.call("comet.v1.Admin/DeleteGroup", admin.DeleteGroupRequest(name="g"))
    if restarts:
        await restarted(cluster)
    successor = await joined(cluster)
    assert since(successor) > member.generation
    assert not any(one.HasField("offset") for one in successor.owned.values())
    await member.close()
    await successor.close()


async def test_a_member_of_the_group_before_passes_no_fence_of_the_group_after(cluster: LocalCluster) -> None:
    """It was paused, and has not heard that it was put out, or that the group was deleted."""
    paused = await joined(cluster)
    await fill(cluster)
    machine = groups_of(cluster).make("g").machine
    machine.leave(paused.id)
    groups_of(cluster).make("g").kick()
    await until(lambda: groups_of(cluster).find("g") is None, "the group is forgotten")
    successor = await joined(cluster)
    for generation in (paused.generation, successor.generation, 1 << 31):
        frame = await paused.commit("t", {0: 7}, generation=generation)
        assert code(frame.error.error) == "MEMBER_UNKNOWN"
    answer = await paused.stream.ask(join=pb.Join(group="g", topics=["t"], member=paused.id))
    assert code(answer.error.error) == "MEMBER_UNKNOWN"
    await paused.close()
    await successor.close()


async def test_a_group_that_is_joined_while_it_is_deleted_stays(cluster: LocalCluster) -> None:
    member = await joined(cluster)
    await fill(cluster)
    await member.commit("t", {0: 5})
    await member.leave()
    groups = groups_of(cluster)
    found = groups.find("g")
    assert found is not None
    deleting = asyncio.get_running_loop().create_task(groups.delete(found))
    await asyncio.sleep(0)  # it has begun
    successor = await joined(cluster)
    await deleting
    stored = await cluster.brokers[1].guard.get(groups.make("g").key)
    assert stored is not None
    await restarted(cluster)
    assert groups_of(cluster).make("g").machine.members.keys() == {successor.id}
    await member.close()
    await successor.close()
