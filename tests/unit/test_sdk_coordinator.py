"""Finding who coordinates, and asking again where that can help. On virtual time."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from comet.admin.admin import Admin
from comet.client.client import Client
from comet.client.coordinator import Coordinator
from comet.consumer.aborted import Discards
from comet.errors import (
    CometError,
    CoordinatorLoading,
    InvalidArgument,
    MemberUnknown,
    NotCoordinator,
    OffsetOutOfRange,
    Timeout,
    Unavailable,
)
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from tests.unit.sdk_fake import ADDRESS
from tests.unit.sdk_fake_groups import GroupBroker
from tests.unit.test_sdk_groups import scenario
from tests.unit.test_sdk_producer import now
from tests.waiting import until

FIND = "comet.v1.Comet/FindCoordinator"


def frame() -> pb.ClientFrame:
    return pb.ClientFrame(fetch_committed=groups_pb.FetchCommitted(group="g"))


def refusing(broker: GroupBroker, *errors: CometError) -> None:
    left = iter(errors)
    broker.refuse = lambda kind, asked: next(left, None)


@scenario()
async def test_it_is_found_once_and_asked_again_where_that_can_help(broker: GroupBroker) -> None:
    client = Client(ADDRESS, connect=broker.connect, random=Random(1))
    coordinator = Coordinator(client, "g")
    await asyncio.gather(*(coordinator.request(frame()) for _ in range(5)))
    assert broker.calls.count(FIND) == 1
    refusing(broker, CoordinatorLoading("soon"), CoordinatorLoading("soon"))
    await coordinator.request(frame())
    assert broker.calls.count(FIND) == 1, "it is the right one"
    moved: list[CometError] = []
    coordinator.listen(lambda pushed: None, moved.append)
    refusing(broker, NotCoordinator("another"))
    await coordinator.request(frame())
    assert broker.calls.count(FIND) == 2
    assert [error.code for error in moved] == ["NOT_COORDINATOR"]
    broker.cut()
    await coordinator.request(frame())
    assert [error.code for error in moved] == ["NOT_COORDINATOR", "UNAVAILABLE"]
    await client.close()


@scenario()
async def test_a_hint_is_believed_once(broker: GroupBroker) -> None:
    broker.dead_addresses = {"gone:1"}
    client = Client(ADDRESS, connect=broker.connect, random=Random(1))
    coordinator = Coordinator(client, "g")
    refusing(broker, NotCoordinator("another", details={"leader": "7", "host": "gone", "port": "1"}))
    await coordinator.request(frame())
    assert broker.calls.count(FIND) == 2, "nobody is there, so it is looked up"
    refusing(broker, NotCoordinator("another", details={"leader": "1", "host": "fake", "port": "9092"}))
    await coordinator.request(frame())
    assert broker.calls.count(FIND) == 2, "it was right"
    await client.close()


@scenario()
async def test_what_asking_again_cannot_help_is_raised_at_once(broker: GroupBroker) -> None:
    client = Client(ADDRESS, connect=broker.connect, random=Random(1))
    for error in (InvalidArgument("no"), MemberUnknown("who?")):
        refusing(broker, error, error)
        with pytest.raises(type(error)):
            await Coordinator(client, "g").request(frame())
    await client.close()


@scenario()
async def test_no_answer_is_unknown_and_nobody_there_is_not(broker: GroupBroker) -> None:
    client = Client(ADDRESS, connect=broker.connect, random=Random(1))
    coordinator = Coordinator(client, "g")
    await coordinator.request(frame())
    began = now()
    refusing(broker, *[CoordinatorLoading("the store is slow")] * 1000)
    with pytest.raises(Timeout, match="the store is slow"):
        await coordinator.request(frame(), 2_000)
    assert now() - began == pytest.approx(2, abs=0.3)
    refusing(broker)
    broker.up = False
    broker.cut()
    await asyncio.sleep(0.1)
    with pytest.raises(Unavailable):
        await coordinator.request(frame(), 2_000)
    broker.up = True
    await coordinator.request(frame())
    await client.close()


@scenario()
async def test_a_coordinator_that_stands_still_as_it_is_connected_to_is_looked_for_again(broker: GroupBroker) -> None:
    client = Client(ADDRESS, connect=broker.connect, random=Random(1))
    began = now()
    asking = asyncio.create_task(Coordinator(client, "g").request(frame(), 10_000))
    assert await until(lambda: FIND in broker.calls, within_s=1, every_s=0.0001)
    broker.frozen = True
    await asyncio.sleep(6)
    assert not asking.done(), "connecting was given up, and nothing was asked"
    broker.frozen = False
    await asking
    assert now() - began < 8
    await client.close()


def test_what_was_aborted_is_known_until_it_was_passed() -> None:
    discards = Discards()
    discards.add(7, 1, first=10, end=20)
    discards.add(7, 2, first=30, end=35)
    assert [discards.covers(7, 1, offset) for offset in (9, 10, 19, 20)] == [False, True, True, False]
    assert not discards.covers(8, 1, 15)
    discards.passed(20)
    assert discards.covers(7, 1, 10), "its marker is still to come"
    discards.passed(21)
    assert not discards.covers(7, 1, 10)
    assert len(discards) == 1


@scenario({"quotes": 3})
async def test_positions_that_are_refused_for_now_are_committed_a_little_later(broker: GroupBroker) -> None:
    opening = [Unavailable("the leader could not say how far it reaches", retry_after_ms=50)] * 3
    beyond = OffsetOutOfRange("beyond the end")
    broker.refuse_offset = lambda tp: beyond if tp[1] == 1 else opening.pop() if tp[1] and opening else None
    async with Admin(ADDRESS, connect=broker.connect, random=Random(1)) as admin:
        done = await admin.commit_offsets("g", {("quotes", 2): 7, ("quotes", 1): 9, ("quotes", 0): 5})
    assert [(one.partition, one.offset) for one in done] == [(2, 7), (1, None), (0, 5)]
    assert isinstance(done[1].error, OffsetOutOfRange)
    asked = [[mark.partition for topic in commit.topics for mark in topic.offsets] for commit in broker.commits]
    assert asked == [[2, 1, 0], [2], [2], [2]]


@scenario()
async def test_positions_that_stay_refused_are_told(broker: GroupBroker) -> None:
    broker.refuse_offset = lambda tp: CoordinatorLoading("soon", retry_after_ms=20)
    async with Admin(ADDRESS, connect=broker.connect, random=Random(1), timeout_ms=2_000) as admin:
        began = now()
        (done,) = await admin.commit_offsets("g", {("quotes", 0): 5})
        assert now() - began <= 2
    assert isinstance(done.error, CoordinatorLoading)
