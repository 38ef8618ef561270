"""Acquiring from many partitions, and while the metadata store is slow: what is not open yet keeps nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet_broker.core.share_record import SHARES
from comet_broker.sharing.calls import TOGETHER_MAX
from tests.integration.acquire_client import acknowledge, acquire, request
from tests.integration.local_cluster import until
from tests.integration.stream_client import Call
from tests.integration.test_sharing_store import World, world

__all__ = ["world"]

LOCK = "comet.v1.Comet/Acquire"
BOUND_S = 10.0  # far more than a call may take, and far less than a store that does not answer
PARTITIONS = 3


@pytest.fixture
async def call(world: World) -> AsyncIterator[Call]:
    """Of a broker with a topic, a record in each of its partitions, and a store that is slow when it is told to be."""
    table = {method.path: method for method in world.broker.methods}

    async def answer(path: str, request: object) -> object:
        async with asyncio.timeout(BOUND_S):
            return await table[path](request)  # type: ignore[arg-type]

    await answer("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="wide", partitions=PARTITIONS))
    for index in range(PARTITIONS):
        record = pb.Record(value=b"%d" % index)
        await answer("comet.v1.Comet/Publish", pb.PublishRequest(topic="wide", records=[record], partition=index))
    yield answer
    world.store.free.set()


async def kept(world: World) -> int:
    return len((await world.store.range(SHARES)).items)


@pytest.mark.parametrize("wait_ms", [0, 300])
async def test_a_call_does_not_outlast_its_wait_because_nothing_is_open_yet(
    world: World, call: Call, wait_ms: int
) -> None:
    world.store.free.clear()
    asked = request(topic="wide", wait_ms=wait_ms)
    answer = await call(LOCK, asked)
    assert isinstance(answer, groups.AcquireResponse)
    assert not answer.ranges
    assert sorted(answer.missing) == list(range(PARTITIONS)), "so that nobody takes it for nothing being there"
    world.store.free.set()
    found: list[int] = []
    while len(found) < PARTITIONS and (more := await acquire(call, topic="wide", wait_ms=5_000)):
        found += [one.partition for one in more]  # those that are open by then
    assert sorted(found) == list(range(PARTITIONS))


async def test_what_is_open_does_not_wait_for_what_is_not(world: World, call: Call) -> None:
    (one,) = await acquire(call, topic="wide", partitions=[1])
    await acknowledge(call, [one], groups.ACKNOWLEDGE_TYPE_RETURN, topic="wide")
    world.store.free.clear()
    found = await acquire(call, topic="wide", wait_ms=60_000)
    assert [one.partition for one in found] == [1]


async def test_a_state_that_is_not_claimed_yet_is_found_by_nobody(world: World, call: Call) -> None:
    """An earlier leader could keep something, until this one has its word in the store."""
    world.store.free.clear()
    world.store.done.clear()
    given_up = asyncio.ensure_future(acquire(call, topic="wide", partitions=[0], wait_ms=60_000))
    await world.store.done.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    answer = await call(LOCK, request(topic="wide", partitions=[0]))
    assert isinstance(answer, groups.AcquireResponse)
    assert (list(answer.ranges), list(answer.missing)) == ([], [0])
    world.store.free.set()
    assert [one.value for one in await acquire(call, topic="wide", partitions=[0], wait_ms=5_000)] == [b"0"]


async def test_many_partitions_are_opened_in_turns_until_there_is_something(world: World, call: Call) -> None:
    partitions = 2 * TOGETHER_MAX + 3
    await call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="many", partitions=partitions))
    assert await acquire(call, topic="many") == []
    assert await kept(world) == partitions, "it has looked at all of them"
    waiting = asyncio.ensure_future(acquire(call, topic="many", wait_ms=60_000))
    await until(lambda: len(world.broker.shares.calls) == 1, "it waits")
    record = pb.Record(value=b"last")
    await call("comet.v1.Comet/Publish", pb.PublishRequest(topic="many", records=[record], partition=partitions - 1))
    assert [(one.partition, one.value) for one in await waiting] == [(partitions - 1, b"last")]


async def test_a_store_that_is_slow_at_all_times_keeps_records_from_nobody(world: World, call: Call) -> None:
    """What one call began and could not wait for is there for a later one."""
    await acquire(call, topic="wide", partitions=[0])
    (state,) = world.broker.shares._states.values()
    state.stored.check_again_at(0.0)
    world.store.reading.clear()
    answer = await call(LOCK, request(topic="wide", partitions=[0]))
    assert isinstance(answer, groups.AcquireResponse)
    assert list(answer.missing) == [0]
    world.store.reading.set()
    await until(lambda: state.stored.is_checked(0.0), "the store has answered whom nobody waits for any more")
