"""Parts of a partition while it is not known how far it goes: its leader has just begun, or begun again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from comet.errors import CometError, NotLeader, Unavailable
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.range_read import Ranges
from comet_broker.partitions.shared_answers import SharedAnswers
from comet_broker.partitions.topics import TopicTable
from comet_broker.streams.answers import Replies
from comet_broker.streams.partition_frames import PartitionFrames
from tests.unit.replica_world import STATE, ReplicaWorld, replace_state, settle
from tests.unit.test_partition import FOLLOWS, LEADS, from_leader

FIVE = 5  # records in the log
SEEN = 2  # of them, that the follower was told that all have


class Reading:
    """What fetches from the partition of a world."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._partition = world.partition
        self._ranges = Ranges(LogReader(world.worker), world.env, SharedAnswers())

    async def fetch(self, offset: int, wait_ms: int = 0) -> pb.FetchResponse:
        request = pb.FetchRequest(start=types.Position(offset=offset), whole_batches=True, wait_ms=wait_ms)
        return await self._ranges.fetch(self._partition, request)


async def followed() -> tuple[ReplicaWorld, Reading]:
    world = ReplicaWorld()
    world.partition.apply(await world.put(FOLLOWS))
    for one in from_leader(FIVE):
        world.partition.follower.replicate(one, 2, SEEN)
    return world, Reading(world)


async def test_a_new_leader_does_not_say_that_there_is_nothing_where_it_does_not_know() -> None:
    """Others were told of five records before, to whom it would look like a loss."""
    world, reading = await followed()
    world.partition.apply(await world.put(LEADS))
    assert (await reading.fetch(0)).next_offset == SEEN
    for offset in range(SEEN, FIVE):
        with pytest.raises(Unavailable, match="does not know its high watermark yet") as refused:
            await reading.fetch(offset)
        assert refused.value.retriable and refused.value.retry_after_ms
    at_end = await reading.fetch(FIVE)
    assert (at_end.next_offset, at_end.batches) == (FIVE, b""), "what it has not, no replica in sync has"
    world.follow(2, FIVE)
    answer = await reading.fetch(SEEN)
    assert (answer.next_offset, answer.readable_end) == (FIVE, FIVE)
    assert not (await reading.fetch(FIVE)).batches, "now it knows"
    await world.tasks.close()


async def test_the_offset_of_a_position_comes_with_a_high_watermark_that_is_known() -> None:
    world, _ = await followed()
    world.partition.apply(await world.put(LEADS))
    answers = list[pb.ServerFrame]()
    topics = cast(TopicTable, SimpleNamespace(by_handle={1: world.partition}))
    replies = cast(Replies, SimpleNamespace(answer=answers.append))
    frames = PartitionFrames(topics, LogReader(world.worker), replies, lambda: None)
    find = pb.FindOffset(partition=1, position=types.Position(earliest=True))
    with pytest.raises(Unavailable, match="does not know its high watermark yet"):
        frames.find_offset(7, find)
    world.follow(2, FIVE)
    frames.find_offset(7, find)
    (frame,) = answers
    assert (frame.request, frame.found_offset.high_watermark) == (7, FIVE)
    await world.tasks.close()


async def test_who_waits_for_records_waits_until_it_is_known_too() -> None:
    world, reading = await followed()
    world.partition.apply(await world.put(LEADS))
    waiting = asyncio.create_task(reading.fetch(SEEN, wait_ms=20_000))
    await settle()
    assert not waiting.done()
    world.follow(2, FIVE)
    assert (await waiting).next_offset == FIVE
    await world.tasks.close()


async def test_who_has_waited_is_told_that_nothing_came() -> None:
    world, reading = await followed()
    world.partition.apply(await world.put(LEADS))
    answer = await reading.fetch(SEEN, wait_ms=1)
    assert (answer.next_offset, answer.readable_end) == (SEEN, SEEN)
    await world.tasks.close()


async def test_a_broker_that_is_named_and_has_never_led_since_it_began_does_not_know() -> None:
    world, reading = await followed()
    world.partition.apply(await world.put(replace_state(LEADS, in_sync={1: 9, 2: 20})))  # it was another process
    assert not world.partition.leads and world.partition.named
    for offset in (SEEN, FIVE):
        with pytest.raises(Unavailable, match="does not know its high watermark yet"):
            await reading.fetch(offset)
    await world.tasks.close()


async def test_a_leader_without_its_lease_still_answers_readers() -> None:
    """While the metadata store is away nobody has one, and reading goes on."""
    world = ReplicaWorld()
    await world.lead()
    world.produce(FIVE)
    reading = Reading(world)
    world.partition.step_down("its lease is over")
    assert world.partition.named and not world.partition.leads
    end = world.partition.high_watermark
    assert (await reading.fetch(end)).next_offset == end
    world.partition.apply(await world.put(replace_state(STATE, leader=2, epoch=2, in_sync={2: 20})))
    with pytest.raises(NotLeader):
        await reading.fetch(end)
    await world.tasks.close()


async def test_a_leader_that_did_not_know_when_its_lease_ended_does_not_know_after() -> None:
    world, reading = await followed()
    world.partition.apply(await world.put(LEADS))
    world.partition.step_down("its lease is over")
    problem: CometError | None = None
    try:
        await reading.fetch(SEEN)
    except CometError as error:
        problem = error
    assert isinstance(problem, Unavailable)
    await world.tasks.close()
