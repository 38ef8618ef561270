"""Share groups while the metadata store is away, or answers get lost: nobody is told what is not kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import types_pb2 as types
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.share_record import SHARES, ShareRecord
from comet_broker.metadata.store import Compare, Delete, KeyValue, Put, TransactionResult
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.storage.files import RealFiles
from comet_broker.system import SystemClock, ThreadWorker
from tests.integration.share_client import Member
from tests.unit.cluster_world import FaultyStore


class HeldStore(FaultyStore):
    """Answers transactions about share groups when it is let go, having done them at once."""

    def __init__(self, clock: SystemClock) -> None:
        super().__init__(clock)
        self.free = asyncio.Event()
        self.free.set()
        self.done = asyncio.Event()
        self.reading = asyncio.Event()  # cleared: what is read of share groups waits, too
        self.reading.set()

    async def get(self, key: str) -> KeyValue | None:
        if key.startswith(SHARES):
            await self.reading.wait()
        return await super().get(key)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        result = await super().transact(compares, operations)
        if operations[0].key.startswith(SHARES):
            self.done.set()
            await self.free.wait()
        return result


class World:
    def __init__(self, broker: Broker, store: HeldStore) -> None:
        self.broker = broker
        self.store = store

    async def member(self) -> tuple[Member, int]:
        """One that has taken three records."""
        member = Member(self.broker)
        handle = await member.attach()
        member.produce(handle, b"a", b"b", b"c")
        await member.answer()
        await member.share(handle)
        await member.take(3)
        return member, handle

    async def record(self) -> ShareRecord:
        (item,) = (await self.store.range(SHARES)).items
        return ShareRecord.decode(item.value)


def accept(member: Member, handle: int, offset: int) -> int:
    return member.send(
        acknowledge=groups.Acknowledge(
            subscription=1, partition=handle, kind=groups.ACKNOWLEDGE_TYPE_ACCEPT, firsts=[offset], ends=[offset + 1]
        )
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock, worker = SystemClock(), ThreadWorker(2)
    store = HeldStore(clock)
    broker = Broker(
        BrokerConfig(data=tmp_path),
        files=RealFiles(tmp_path),
        store=store,
        clock=clock,
        worker=worker,
        random=Random(1),
        network=LocalNetwork(),
        boot_id="boot",
    )
    await broker.start()
    await broker.join()
    create = next(method for method in broker.methods if method.name == "CreateTopic")
    await create(admin.CreateTopicRequest(name="t", partitions=1))
    yield World(broker, store)
    store.down = False
    await broker.close()
    worker.close()
    assert not broker.env.tasks.failed


async def test_acknowledges_wait_for_the_store(world: World) -> None:
    member, handle = await world.member()
    world.store.down = True
    requests = [accept(member, handle, offset) for offset in (0, 2)]
    for _ in range(50):
        await asyncio.sleep(0)
        assert member.session.poll() is None, "nothing is kept yet"
    later = accept(member, handle, 1)
    world.store.down = False
    answers = [await member.other() for _ in range(3)]
    assert {answer.request for answer in answers} == {*requests, later}
    assert all(answer.WhichOneof("frame") == "acknowledged" for answer in answers)
    assert (await world.record()).floor == 3


async def test_what_comes_while_a_transaction_is_under_way_waits_for_the_next(world: World) -> None:
    member, handle = await world.member()
    world.store.free.clear()
    world.store.done.clear()
    first = accept(member, handle, 0)
    await world.store.done.wait()
    second = accept(member, handle, 1)
    assert (await world.record()).floor == 1
    world.store.free.set()
    assert (await member.other()).request == first
    assert member.session.poll() is None or (await world.record()).floor == 2, "told when it is kept, not before"
    assert (await member.other()).request == second
    assert (await world.record()).floor == 2


async def test_an_answer_of_the_store_that_gets_lost_changes_nothing(world: World) -> None:
    member, handle = await world.member()
    world.store.lost_answers = 2
    assert await member.acknowledge(handle, 0) == []
    assert await member.acknowledge(handle, 1) == []
    assert (await world.record()).floor == 2


async def test_who_finds_another_leader_in_the_store_keeps_nothing_more(world: World) -> None:
    member, handle = await world.member()
    (item,) = (await world.store.range(SHARES)).items
    other = ShareRecord(broker=9, broker_epoch=9, epoch=99, sequence=1, floor=0)
    world.store.overtake = Put(item.key, other.encode())
    accept(member, handle, 0)
    answer = await member.other()
    assert answer.error.error.code == types.ERROR_CODE_NOT_LEADER
    assert await world.record() == other
    assert world.broker.shares.describe("g") == []


async def test_a_share_that_finds_no_store_is_to_be_tried_again(world: World) -> None:
    member = Member(world.broker)
    handle = await member.attach()
    world.store.down = True
    await member.share(handle)
    ended = (await member.answer()).error
    assert ended.error.code == types.ERROR_CODE_UNAVAILABLE
    assert ended.error.retry_after_ms > 0
    world.store.down = False
    await member.share(handle)
    member.produce(handle, b"a")
    assert (await member.take(1))[0][:2] == (0, b"a")
