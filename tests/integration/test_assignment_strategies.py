"""Assignment strategies on three brokers in three racks: the members' choice, and its change without an outage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import comet
from comet.types import AssignmentStrategy
from tests.integration.local_cluster import LocalCluster, until

RACKS = {1: "a", 2: "b", 3: "c"}
PARTITIONS = 6


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, racks=RACKS) as one:
        yield one


def member_of(
    cluster: LocalCluster, *topics: str, assignment: AssignmentStrategy, rack: str = ""
) -> comet.GroupConsumer[bytes]:
    options = comet.GroupOptions(assignment=assignment, rack=rack)
    return comet.GroupConsumer(
        cluster.addresses, *topics, group="g", options=options, name=rack, connect=cluster.network.connect
    )


def admin_of(cluster: LocalCluster) -> comet.Admin:
    return comet.Admin(cluster.addresses, connect=cluster.network.connect)


async def test_members_get_the_partitions_that_are_in_their_rack(cluster: LocalCluster) -> None:
    async with admin_of(cluster) as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replicas=1)
        topic = await admin.describe_topic("t")
        homes = {partition.partition: RACKS[partition.replicas[0]] for partition in topic.partitions}
        members = {rack: member_of(cluster, "t", assignment="rack", rack=rack) for rack in ("c", "a", "b")}
        for member in members.values():
            await member.start()
        await until(
            lambda: all(len(member.assignment()) == PARTITIONS // 3 for member in members.values()), "an equal share"
        )
        for rack, member in members.items():
            assert {homes[tp.partition] for tp in member.assignment()} == {rack}
        found = await admin.describe_group("g")
        assert found.summary.assignment == "rack"
        assert {(one.client, one.rack, one.assignment) for one in found.members} == {(r, r, "rack") for r in members}
        for member in members.values():
            await member.close()


async def test_ranges_of_two_topics_meet_at_one_member(cluster: LocalCluster) -> None:
    async with admin_of(cluster) as admin:
        for topic in ("quotes", "trades"):
            await admin.create_topic(topic, partitions=4)
        async with (
            member_of(cluster, "quotes", "trades", assignment="range") as one,
            member_of(cluster, "quotes", "trades", assignment="range") as other,
        ):
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 4, "an equal share")
            for member in (one, other):
                owned = member.assignment()
                by_topic = [{tp.partition for tp in owned if tp.topic == topic} for topic in ("quotes", "trades")]
                assert by_topic[0] == by_topic[1]
                assert by_topic[0] in ({0, 1}, {2, 3})


async def test_a_rolling_restart_changes_the_strategy(cluster: LocalCluster) -> None:
    async with admin_of(cluster) as admin:
        await admin.create_topic("t", partitions=PARTITIONS)
        members = [member_of(cluster, "t", assignment="sticky") for _ in range(3)]
        for member in members:
            await member.start()
        seen = []
        for at in range(3):
            await members[at].close()
            members[at] = member_of(cluster, "t", assignment="range")
            await members[at].start()
            await until(lambda: all(len(member.assignment()) == 2 for member in members), "an equal share")
            seen.append((await admin.describe_group("g")).summary.assignment)
        assert seen == ["sticky", "range", "range"], "from the moment at which most of them ask for it"
        for member in members:
            await member.close()


async def test_a_strategy_that_the_coordinator_does_not_know_is_refused(cluster: LocalCluster) -> None:
    async with admin_of(cluster) as admin:
        await admin.create_topic("t")
        member = member_of(cluster, "t", assignment="sticky")
        member._member._join_frame.assignment = "round-robin"  # of a later version
        with pytest.raises(comet.InvalidArgument, match="unknown assignment 'round-robin': use sticky, range, rack"):
            await member.start()
        await member.close()
