"""Transactions over two topics of three partitions on three brokers, any of which may go at any step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

import comet
import comet.testing
from comet.errors import InvalidArgument, ProducerFenced, StaleGeneration, TransactionAborted, TransactionNotOpen
from comet.v1 import coordination_pb2 as coordination
from comet.v1 import groups_pb2 as pb
from comet_broker.coordination.markers import METHOD as WRITE_MARKERS
from comet_broker.core.transactions import EPOCH_MAX
from tests.integration.group_client import Member
from tests.integration.local_cluster import until
from tests.integration.transactions_world import OUTPUTS, PARTITIONS, Output, Producer, World

NOTHING: list[list[bytes]] = [[] for _ in OUTPUTS]


def everywhere(*values: bytes) -> list[list[bytes]]:
    return [list(values) for _ in OUTPUTS]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as one:
        await one.make_topics()
        yield one


async def opened(world: World, name: str = "tx", **more: Any) -> Producer:
    one = Producer(world, name)
    await one.open(**more)
    return one


def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


# ---- nothing goes wrong


async def test_outputs_become_visible_together(world: World) -> None:
    one = await opened(world)
    for number in range(3):
        value = b"%d" % number
        await one.write_all(value)
        assert await world.all_seen() == everywhere(*(b"%d" % before for before in range(number)))
        await one.end(commit=True)
    assert await world.all_seen() == everywhere(b"0", b"1", b"2")
    assert world.readers_are_free()


async def test_nothing_of_an_aborted_transaction_is_seen(world: World) -> None:
    one = await opened(world)
    await one.write_all(b"no")
    await one.end(commit=False)
    await one.write(OUTPUTS[0], b"yes")
    await one.end(commit=True)
    assert await world.all_seen() == [[b"yes"], *NOTHING[1:]]
    assert world.readers_are_free()


async def test_a_batch_that_comes_after_the_end_is_not_written(world: World) -> None:
    """It would keep readers waiting for ever, or be taken for part of the next transaction."""
    one = await opened(world)
    await one.write(OUTPUTS[0], b"a")
    epoch = one.epoch
    await one.end(commit=False)
    one.epoch, following = epoch, one.epoch
    for output in OUTPUTS[:2]:
        with pytest.raises((TransactionAborted, ProducerFenced, TransactionNotOpen)):
            await one.write(output, b"late")
    one.epoch = following
    await one.write_all(b"b")
    await one.end(commit=True)
    assert await world.all_seen() == everywhere(b"b")
    assert world.readers_are_free()


# ---- producers that go away


async def test_a_zombie_is_fenced_in_all_it_does(world: World) -> None:
    zombie = await opened(world)
    await zombie.write_all(b"zombie")
    heir = await opened(world)
    assert world.readers_are_free(), "what it left open was ended before anything new begins"
    for output in OUTPUTS:
        with pytest.raises((ProducerFenced, TransactionAborted)):
            await zombie.write(output, b"zombie")
    for commit in (True, False):
        with pytest.raises(ProducerFenced):
            await zombie.end(commit=commit)
    await heir.write_all(b"heir")
    await heir.end(commit=True)
    assert await world.all_seen() == everywhere(b"heir")


async def test_readers_are_free_when_an_abandoned_transaction_runs_out_of_time(world: World) -> None:
    world.clock.hold()
    one = await opened(world, timeout_ms=300)
    await one.write_all(b"abandoned")
    other = await opened(world, "other")
    await other.write_all(b"x")
    await other.end(commit=True)
    assert await world.all_seen() == NOTHING, "what lies behind what is open is not seen either"
    world.clock.go_on()
    await until(world.readers_are_free, "its time is over")
    assert await world.all_seen() == everywhere(b"x")
    with pytest.raises(TransactionAborted):
        await one.end(commit=True)


# ---- markers of programs that are no coordinators


async def send_marker(world: World, output: Output, producer_id: int, epoch: int, *, commit: bool) -> list[int]:
    """A marker as a stranger sends it to a partition's leader, over the network."""
    leader = world.brokers[world.leader(*output)]
    tp = coordination.PartitionId(topic_id=world.leading(output).topic_id, partition=output[1])
    request = coordination.WriteMarkersRequest(producer_id=producer_id, epoch=epoch, commit=commit, partitions=[tp])
    channel = world.network.connect(leader.registration.brokers_address)
    try:
        answer = await channel.unary(WRITE_MARKERS, request, coordination.WriteMarkersResponse, 10.0)
    finally:
        await channel.close()
    assert isinstance(answer, coordination.WriteMarkersResponse)
    return list(answer.codes)


async def test_only_what_the_coordinator_has_decided_ends_a_transaction(world: World) -> None:
    one = await opened(world)
    await one.write_all(b"first")
    ends_before = [world.leading(output).high_watermark for output in OUTPUTS]
    for output in OUTPUTS:
        for epoch in (one.epoch, one.epoch + 1, EPOCH_MAX):
            for commit in (True, False):
                with pytest.raises(InvalidArgument, match="has not"):
                    await send_marker(world, output, one.producer_id, epoch, commit=commit)
        with pytest.raises(InvalidArgument, match="has not"):
            await send_marker(world, output, one.producer_id + 1, EPOCH_MAX, commit=False)
    assert [world.leading(output).high_watermark for output in OUTPUTS] == ends_before
    assert await world.all_seen() == NOTHING
    epoch = one.epoch
    await one.end(commit=True)
    for output in OUTPUTS:
        with pytest.raises(InvalidArgument, match="has not aborted"):
            await send_marker(world, output, one.producer_id, epoch, commit=False)
        assert await send_marker(world, output, one.producer_id, epoch, commit=True) == [0], "as repeated"
    await one.write_all(b"second")
    await one.end(commit=True)
    assert await world.all_seen() == everywhere(b"first", b"second")
    assert world.readers_are_free()


# ---- coordinators that go away


@pytest.mark.parametrize("commits_again", [True, False])
async def test_the_coordinator_goes_before_the_decision_is_written(world: World, commits_again: bool) -> None:
    one = await opened(world)
    await one.end(commit=True, note=b"1")
    await one.write_all(b"a")
    world.store.disturb("tx")
    ending = started(one.end(commit=True, note=b"2"))
    await until(lambda: world.store.tried > 0, "it tries to decide")
    await world.stop(await world.coordinator("tx"))
    assert await _seen(world) == NOTHING
    if commits_again:
        world.store.calm()
        await ending
        assert await _seen(world) == everywhere(b"a")
        assert (await opened(world)).note == b"2"
        return
    ending.cancel()
    world.store.calm()
    assert (await opened(world)).note == b"1"
    assert await _seen(world) == NOTHING
    assert world.readers_are_free()


async def test_the_coordinator_goes_without_knowing_that_it_has_decided(world: World) -> None:
    one = await opened(world)
    await one.write_all(b"a")
    world.store.disturb("tx", applies=True)
    ending = started(one.end(commit=True, note=b"1"))
    await until(lambda: world.store.tried > 0, "it has decided")
    assert await world.all_seen() == NOTHING
    await world.stop(await world.coordinator("tx"))
    ending.cancel()
    world.store.calm()
    heir = await opened(world)
    assert await _seen(world) == everywhere(b"a"), "what is decided stays, whoever comes"
    assert heir.note == b"1"
    assert world.readers_are_free()
    await one.end(commit=True)
    with pytest.raises(ProducerFenced):
        await one.write(OUTPUTS[0], b"zombie")
    await heir.write_all(b"b")
    await heir.end(commit=True)
    assert await _seen(world) == everywhere(b"a", b"b")


async def test_a_note_outlives_the_broker(tmp_path: Path) -> None:
    for number in range(2):
        async with (
            comet.testing.broker(["out"], data=tmp_path) as broker,
            comet.TransactionalProducer(broker.address, "tx") as producer,
        ):
            assert producer.note == (b"0" if number else b"")
            async with producer.transaction() as tx:
                if number:
                    await tx.send("out", b"x")
                tx.note(b"%d" % number)
            assert producer.note == b"%d" % number


@pytest.mark.parametrize("commit", [True, False])
async def test_the_coordinator_goes_between_the_markers(world: World, commit: bool) -> None:
    coordinator = await world.coordinator("tx")
    one = await opened(world)
    await one.write_all(b"a")
    world.network.deaf = set(world.addresses)
    ending = started(one.end(commit=commit))
    mine = [output for output in OUTPUTS if world.leader(*output) == coordinator]
    others = [output for output in OUTPUTS if output not in mine]
    await until(lambda: all(_free(world, output) for output in mine), "its own partitions are marked")
    await until(lambda: world.network.refused_markers > 0, "it tries the others")
    assert others
    assert not any(_free(world, output) for output in others)
    await world.stop(coordinator)
    world.network.deaf = set()
    await ending
    assert await _seen(world) == (everywhere(b"a") if commit else NOTHING)
    assert world.readers_are_free()


async def test_a_leader_goes_between_the_markers(world: World) -> None:
    coordinator = await world.coordinator("tx")
    output = next(output for output in OUTPUTS if world.leader(*output) != coordinator)
    leader = world.leader(*output)
    one = await opened(world)
    await one.write_all(b"a")
    world.network.deaf = {world.address(leader)}
    ending = started(one.end(commit=True))
    await until(lambda: world.network.refused_markers > 0, "the markers do not arrive")
    assert not ending.done()
    await world.stop(leader)
    await ending
    assert await _seen(world) == everywhere(b"a")
    assert world.readers_are_free()


async def test_brokers_come_and_go_under_transactions(world: World) -> None:
    """Each in turn is stopped and started again while producers go on: nothing is lost, twice, or torn."""
    ended: list[bytes] = []
    stopping = asyncio.Event()

    async def produce(name: str) -> None:
        one = await opened(world, name)
        number = 0
        while not stopping.is_set():
            value = b"%s-%d" % (name.encode(), number)
            commit = number % 3 != 2
            try:
                await one.write_all(value)
                await one.end(commit=commit)
            except (TransactionAborted, TransactionNotOpen, ProducerFenced):
                await one.open()
            else:
                if commit:
                    ended.append(value)
            number += 1

    producers = [started(produce(name)) for name in ("one", "two")]
    for broker in (1, 2, 3):
        before = len(ended)
        await until(lambda before=before: len(ended) > before + 2, "transactions go on")  # type: ignore[misc]
        await world.stop(broker)
        await world.start(broker)
    stopping.set()
    await asyncio.gather(*producers)
    seen = await _seen(world)
    for values in seen:
        assert sorted(value or b"" for value in values) == sorted(ended)
    assert world.readers_are_free()


# ---- with a group's positions


async def joined(world: World, session_timeout_ms: int = 10_000) -> Member:
    broker = await world.coordinator("g")
    await world.ask("g", fetch_committed=pb.FetchCommitted(group="g"))  # the coordinator is ready
    member = Member(world.brokers[broker])
    await member.join("orders", session_timeout_ms=session_timeout_ms)
    await member.owns(PARTITIONS)
    return member


async def committed(world: World) -> dict[int, int]:
    answer = await world.ask("g", fetch_committed=pb.FetchCommitted(group="g"))
    return {mark.partition: mark.offset for topic in answer.committed.topics for mark in topic.offsets}


async def fill(world: World, count: int) -> None:
    """Something to be consumed."""
    one = await opened(world, "source")
    for index in range(PARTITIONS):
        await one.write(("orders", index), *(b"%d" % number for number in range(count)))
    await one.end(commit=True)


async def test_positions_and_outputs_are_committed_together(world: World) -> None:
    await fill(world, 10)
    member = await joined(world)
    one = Producer(world, "", "g")
    await one.open(member=member.id)
    for offset, commit in ((3, True), (6, False), (9, True)):
        await one.write(("payments", 0), b"up to %d" % offset)
        before = await committed(world)
        offsets = member.commit_frame("orders", {0: offset, 1: offset}) if commit else None
        await one.end(commit=commit, offsets=offsets)
        assert await committed(world) == ({0: offset, 1: offset} if commit else before)
    assert await world.seen(("payments", 0)) == [b"up to 3", b"up to 9"]
    await member.close()


async def test_positions_that_may_not_be_committed_take_the_outputs_with_them(world: World) -> None:
    await fill(world, 10)
    member = await joined(world)
    one = Producer(world, "", "g")
    await one.open(member=member.id)
    await one.write(("payments", 0), b"of an old generation")
    with pytest.raises(StaleGeneration):
        await one.end(commit=True, offsets=member.commit_frame("orders", {0: 3}, generation=0))
    await until(world.readers_are_free, "it is aborted")
    assert await world.seen(("payments", 0)) == []
    assert await committed(world) == {}
    with pytest.raises(TransactionAborted):
        await one.end(commit=True, offsets=member.commit_frame("orders", {0: 3}))
    await member.close()


async def test_what_a_member_leaves_open_ends_when_it_is_put_out(world: World) -> None:
    world.clock.hold()
    member = await joined(world, session_timeout_ms=1_000)
    one = Producer(world, "", "g")
    await one.open(member=member.id)
    await one.write(("payments", 0), b"abandoned")
    assert not world.readers_are_free()
    await member.close()
    world.clock.go_on()
    await until(world.readers_are_free, "it is put out, long before the transaction has run out of time")
    assert await world.seen(("payments", 0)) == []


async def test_nobody_reads_old_positions_while_new_ones_are_being_committed(world: World) -> None:
    await fill(world, 10)
    member = await joined(world)
    one = Producer(world, "", "g")
    await one.open(member=member.id)
    await one.write(("payments", 0), b"a")
    world.store.disturb("g", applies=True)
    ending = started(one.end(commit=True, offsets=member.commit_frame("orders", {0: 7})))
    await until(lambda: world.store.tried > 0, "it is decided, and nobody knows")
    fetching = asyncio.get_running_loop().create_task(committed(world))
    tried = world.store.tried
    await until(lambda: world.store.tried > tried or fetching.done(), "some time has gone by")
    assert not fetching.done()
    world.store.calm()
    assert await fetching == {0: 7}
    await ending
    await member.close()


def _free(world: World, output: tuple[str, int]) -> bool:
    partition = world.leading(output)
    return partition.last_stable_offset == partition.high_watermark


async def _seen(world: World) -> list[list[bytes | None]]:
    """Once somebody leads everywhere."""
    await world.led()
    return await world.all_seen()
