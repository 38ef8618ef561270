"""Groups, raw frames against a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from comet.errors import NotCoordinator
from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.core.slots import slot_of
from tests.integration.group_client import Member, Stream, settled
from tests.integration.held_clock import HeldClock
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.stream_client import Client


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        yield cluster


Make = Callable[..., Awaitable[Member]]


@pytest.fixture
async def member(cluster: LocalCluster) -> AsyncIterator[Make]:
    """Makes members on the coordinator's broker that have joined."""
    made: list[Member] = []

    async def make(*topics: str, group: str = "g", keeps: bool = False, **more: object) -> Member:
        one = Member(cluster.brokers[1], group, keeps=keeps)
        made.append(one)
        await ready(cluster, group)
        await one.join(*(topics or ("t",)), **more)
        return one

    yield make
    for one in made:
        await one.close()


async def ready(cluster: LocalCluster, group: str = "g", on: int = 1) -> None:
    """The slot of the group is loaded."""

    def loaded() -> bool:
        try:
            cluster.brokers[on].coordinator.of(group)
        except NotCoordinator:
            return False
        return True

    await until(loaded, "the coordinator is ready")


async def make_topic(cluster: LocalCluster, name: str = "t", partitions: int = 4) -> None:
    await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name=name, partitions=partitions))
    await until(lambda: all(cluster.leader(name, index) for index in range(partitions)), "somebody leads")


async def fill(cluster: LocalCluster, partition: int = 0, records: int = 10, topic: str = "t") -> None:
    client = Client(cluster.brokers[1])
    handle = await client.attach(topic, partition)
    client.produce(handle, *(b"%d" % number for number in range(records)))
    await client.answer()
    client.session.close()


def code(error: types.Error) -> str:
    return types.ErrorCode.Name(error.code).removeprefix("ERROR_CODE_")


async def test_one_member_gets_all_and_a_second_one_half_of_it(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    first = await member()
    await first.until(lambda: len(first.owned) == 4)
    assert not any(one.HasField("offset") for one in first.owned.values())
    second = await member()
    await settled([first, second], 4)
    assert first.generation <= second.generation


async def test_a_partition_moves_only_when_it_is_released(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster, partitions=2)
    first = await member(keeps=True)
    await first.until(lambda: len(first.owned) == 2)
    second = await member()
    await first.until(lambda: bool(first.release))
    await second.until(lambda: second.assignments > 0)
    assert not second.owned
    await fill(cluster, first.release[0].partitions[0])
    moving = first.release[0].partitions[0]
    answer = await first.commit("t", {moving: 7})
    assert answer.committed.topics[0].offsets[0].offset == 7
    first.give_back()
    await second.until(lambda: bool(second.owned))
    assert second.owned["t", moving].offset == 7
    assert second.owned["t", moving].since == second.generation
    refused = await first.commit("t", {moving: 8})
    assert code(refused.committed.refused[0].error) == "STALE_GENERATION"


async def test_what_a_leaving_member_had_goes_to_the_others_at_once(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    first, second = await member(), await member()
    await settled([first, second], 4)
    before = dict(first.owned)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await second.leave()
    await first.until(lambda: len(first.owned) == 4)
    print(f"takeover after leave: {(loop.time() - began) * 1000:.1f} ms")
    assert all(first.owned[tp].since == one.since for tp, one in before.items())


async def test_who_is_silent_is_put_out_after_its_session(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    first = await member(session_timeout_ms=60_000)
    second = await member(session_timeout_ms=1_500)
    await settled([first, second], 4)
    loop = asyncio.get_running_loop()
    began = loop.time()
    second.stream.post(heartbeat=pb.Heartbeat(group="g", member=second.id, generation=second.generation))
    await second.close()  # its stream ends, and it has its session to come back
    await first.until(lambda: len(first.owned) == 4)
    assert loop.time() - began >= 1.5


async def test_a_stream_that_breaks_costs_nothing_within_the_session(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    first, second = await member(), await member()
    await settled([first, second], 4)
    owned, assignments = set(second.owned), first.assignments
    await second.stream.close()
    second.stream = Stream(cluster.brokers[1])
    joined = await second.join("t", member=second.id, generation=second.generation)
    assert joined.member == second.id
    second.owned = {}
    await second.until(lambda: bool(second.owned))
    assert set(second.owned) == owned
    first.hear()
    assert first.assignments == assignments


async def test_a_member_that_is_none_is_told_so(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    first = await member()
    answer = await first.stream.ask(join=pb.Join(group="g", topics=["t"], member="nobody"))
    assert code(answer.error.error) == "MEMBER_UNKNOWN"
    first.stream.post(heartbeat=pb.Heartbeat(group="g", member="nobody"))
    await first.until(lambda: first.evicted is not None and first.evicted.member == "nobody")
    answer = await first.stream.ask(commit=pb.Commit(group="g", member="nobody"))
    assert code(answer.error.error) == "MEMBER_UNKNOWN"


async def test_a_static_member_that_starts_again_takes_its_place_back(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    await fill(cluster)
    first, old = await member(), await member(instance="i")
    await settled([first, old], 4)
    assignments, tps = first.assignments, set(old.owned)
    new = await member(instance="i")
    await new.until(lambda: bool(new.owned))
    assert set(new.owned) == tps and new.id != old.id
    await old.until(lambda: old.evicted is not None)
    assert old.evicted is not None and code(old.evicted.error) == "MEMBER_FENCED"
    answer = await old.commit("t", {next(iter(tps))[1]: 0})
    assert code(answer.error.error) == "MEMBER_FENCED"
    answer = await old.stream.ask(join=pb.Join(group="g", topics=["t"], member=old.id, instance="i"))
    assert code(answer.error.error) == "MEMBER_FENCED"
    first.hear()
    assert first.assignments == assignments


async def test_a_commit_that_names_what_it_follows_is_refused_when_more_is_committed(
    cluster: LocalCluster, member: Make
) -> None:
    """So that what was read before a commit whose answer was lost cannot count once more after it."""
    await make_topic(cluster, partitions=1)
    await fill(cluster)
    one = await member()
    await one.until(lambda: len(one.owned) == 1)

    async def commit(offset: int, expected: int) -> str:
        frame = one.commit_frame("t", {0: offset})
        frame.topics[0].offsets[0].expected = expected
        answer = (await one.stream.ask(commit=frame)).committed
        return code(answer.refused[0].error) if answer.refused else ""

    assert await commit(4, -1) == ""
    assert await commit(8, -1) == "STALE_GENERATION"
    assert await commit(8, 4) == ""
    assert await commit(8, 4) == "STALE_GENERATION", "also where nothing would change"


async def test_commits_are_fenced_and_bounded(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster, partitions=2)
    await fill(cluster)
    one = await member()
    await one.until(lambda: len(one.owned) == 2)

    async def refusal(offsets: dict[int, int], **more: object) -> str:
        answer = await one.commit("t", offsets, **more)
        return code(answer.committed.refused[0].error)

    assert (await one.commit("t", {0: 10})).committed.topics[0].offsets[0].offset == 10
    assert await refusal({0: 11}) == "OFFSET_OUT_OF_RANGE"
    assert await refusal({0: -1}) == "OFFSET_OUT_OF_RANGE"
    assert await refusal({7: 0}) == "PARTITION_NOT_FOUND"
    assert await refusal({0: 3}, generation=0) == "STALE_GENERATION"
    lower = (await one.commit("t", {0: 5})).committed
    assert lower.topics[0].offsets[0].offset == 10 and not lower.refused
    one.ids["t"] = bytes(16)
    assert await refusal({0: 10}) == "TOPIC_NOT_FOUND"
    nobody = await one.stream.ask(commit=pb.Commit(group="g"))
    assert code(nobody.error.error) == "GROUP_NOT_EMPTY"


async def test_positions_without_members(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    await fill(cluster)
    await ready(cluster, "spark")
    topic_id = bytes.fromhex(cluster.brokers[1].view.state.topics["t"].value.id)
    stream = Stream(cluster.brokers[1])
    entries = [
        pb.TopicOffsets(
            topic="t", topic_id=topic_id, offsets=[pb.PartitionOffset(partition=0, offset=4, leader_epoch=1)]
        )
    ]
    answer = await stream.ask(commit=pb.Commit(group="spark", topics=entries))
    assert answer.committed.topics == entries
    answer = await stream.ask(fetch_committed=pb.FetchCommitted(group="spark"))
    assert answer.committed.topics == entries
    one = await member(group="spark")
    await one.until(lambda: len(one.owned) == 4)
    assert (one.owned["t", 0].offset, one.owned["t", 0].leader_epoch) == (4, 1)
    other = await stream.ask(join=pb.Join(group="spark", topics=["t"], kind=pb.GROUP_KIND_SHARE))
    assert code(other.error.error) == "INVALID_ARGUMENT"
    await stream.close()


async def test_topics_that_come_and_grow_and_go_are_followed(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster, "orders.eu", 2)
    one = await member(group="p", pattern=r"orders\..*")
    await one.until(lambda: len(one.owned) == 2)
    await make_topic(cluster, "orders.us", 1)
    await make_topic(cluster, "other", 1)
    await one.until(lambda: len(one.owned) == 3)
    await cluster.call("comet.v1.Admin/AddPartitions", admin.AddPartitionsRequest(name="orders.us", total=3))
    await one.until(lambda: len(one.owned) == 5)
    await cluster.call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="orders.eu"))
    await one.until(lambda: len(one.owned) == 3)
    bad = await one.stream.ask(join=pb.Join(group="p", pattern="(a+)+"))
    assert code(bad.error.error) == "INVALID_ARGUMENT"


async def test_who_does_not_release_in_time_is_put_out(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    first = await member(keeps=True, release_timeout_ms=300)
    await first.until(lambda: len(first.owned) == 4)
    second = await member()
    await first.until(lambda: first.evicted is not None)
    await second.until(lambda: len(second.owned) == 4)


async def test_members_of_a_shared_group_get_everything(cluster: LocalCluster, member: Make) -> None:
    await make_topic(cluster)
    members = [await member(group="s", kind=pb.GROUP_KIND_SHARE) for _ in range(3)]
    for one in members:
        await one.owns(4)
    await cluster.call("comet.v1.Admin/AddPartitions", admin.AddPartitionsRequest(name="t", total=6))
    for one in members:
        await one.owns(6)


async def test_a_group_survives_its_coordinator(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        await make_topic(cluster)
        broker = cluster.brokers[1]
        slot_owner = broker.coordinator.whereabouts(slot_of("g"))[0]
        await ready(cluster, on=slot_owner)
        leader = cluster.leader("t", 0)
        client = Client(cluster.brokers[leader])
        client.produce(await client.attach(), b"1", b"2", b"3")
        await client.answer()
        first, second = Member(cluster.brokers[slot_owner]), Member(cluster.brokers[slot_owner])
        for one in (first, second):
            await one.join("t")
        await settled([first, second], 4)
        holder = first if ("t", 0) in first.owned else second
        assert (await holder.commit("t", {0: 2})).committed.topics[0].offsets[0].offset == 2
        await cluster.stop(slot_owner)
        await first.until(lambda: first.evicted is not None)
        assert first.evicted is not None and code(first.evicted.error) == "NOT_COORDINATOR"
        other = next(iter(cluster.brokers))
        await until(
            lambda: cluster.brokers[other].coordinator.owner(slot_of("g")) in cluster.brokers, "another takes over"
        )
        now = cluster.brokers[other].coordinator.owner(slot_of("g"))
        assert now is not None
        await ready(cluster, on=now)
        for one in (first, second):
            await one.stream.close()
            one.stream = Stream(cluster.brokers[now])
            one.evicted = None
            before, generation = set(one.owned), one.generation
            joined = await one.join("t", member=one.id, generation=one.generation)
            assert joined.member == one.id and joined.generation == generation
            one.owned = {}
            await one.owns(len(before))
            assert set(one.owned) == before
        assert holder.owned["t", 0].offset == 2
        for one in (first, second):
            await one.close()
        client.session.close()


class JumpingClock(HeldClock):
    """A clock that can show that the process stood still for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.jumped_s


async def test_nobody_is_put_out_because_the_broker_itself_stood_still(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, brokers=1)
    clock = cluster.clock = JumpingClock()
    async with cluster:
        await make_topic(cluster)
        await ready(cluster)
        one = Member(cluster.brokers[1])
        await one.join("t", session_timeout_ms=600)
        await one.owns(4)
        clock.jumped_s += 0.7  # its session would be over
        group = cluster.brokers[1].coordinator.of("g").groups.find("g")
        assert group is not None
        before = group.machine.members[one.id].heard
        await until(lambda: group.machine.members[one.id].heard > before, "the broker has noticed")
        answer = await one.stream.ask(fetch_committed=pb.FetchCommitted(group="g"))
        assert answer.WhichOneof("frame") == "committed" and one.id in group.machine.members
        await one.until(lambda: one.evicted is not None)  # it does not say a word, and has all its time again
        assert clock.monotonic() - before > 0.7 + 0.6
        await one.close()
