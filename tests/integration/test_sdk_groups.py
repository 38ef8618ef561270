"""Members of groups on real brokers: who reads what while members and brokers come and go."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import comet
import comet.sync
import comet.testing
from comet.types import TopicPartition
from tests.integration.local_cluster import LocalCluster

PARTITIONS = 10


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("t", partitions=PARTITIONS)
        yield one


class Group:
    """Members that note what they handle. Owned by a test."""

    def __init__(self, cluster: LocalCluster, name: str = "engine") -> None:
        self.seen: Counter[bytes] = Counter()
        self.members: dict[str, comet.GroupConsumer[bytes]] = {}
        self._cluster = cluster
        self._name = name
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def add(self, name: str, **settings: Any) -> comet.GroupConsumer[bytes]:
        consumer = comet.GroupConsumer(
            self._cluster.addresses, "t", group=self._name, name=name, start="earliest", commit_interval_ms=50,
            connect=self._cluster.network.connect, on_assigned=self._note, on_revoked=self._note, **settings,
        )  # fmt: skip
        await consumer.start()
        self.members[name] = consumer
        self._tasks[name] = asyncio.create_task(self._handle(consumer))
        return consumer

    def _note(self, tps: list[TopicPartition]) -> None:
        self._changed.set()

    async def _handle(self, consumer: comet.GroupConsumer[bytes]) -> None:
        try:
            async for record in consumer:
                self.seen[record.value] += 1
                self._changed.set()
        except comet.Closed:
            return

    async def remove(self, name: str) -> None:
        await self.members.pop(name).close()
        await self._tasks.pop(name)

    async def vanish(self, name: str) -> None:
        """As a process that is killed: nothing is said any more."""
        self._tasks.pop(name).cancel()
        await self.members.pop(name)._client.close()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    def owned(self) -> list[TopicPartition]:
        return sorted(tp for one in self.members.values() for tp in one.assignment())

    def balanced(self) -> bool:
        loads = [len(one.assignment()) for one in self.members.values()]
        return self.owned() == [TopicPartition("t", n) for n in range(PARTITIONS)] and max(loads) - min(loads) <= 1

    async def close(self) -> None:
        for name in list(self.members):
            await self.remove(name)


async def write(cluster: LocalCluster, first: int, count: int) -> set[bytes]:
    values = [b"%d" % n for n in range(first, first + count)]
    async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
        deliveries = [await producer.send("t", value, partition=n % PARTITIONS) for n, value in enumerate(values)]
        await asyncio.gather(*deliveries)
    return set(values)


async def test_members_that_come_and_go_miss_nothing(cluster: LocalCluster) -> None:
    group = Group(cluster)
    expected: set[bytes] = set()
    for step in range(5):
        await group.add(f"m{step}")
        await group.until(group.balanced)
        expected |= await write(cluster, 100 * step, 100)
    await group.until(lambda: group.seen.keys() >= expected)
    for step in range(4):
        await group.remove(f"m{step}")
        await group.until(group.balanced)
        expected |= await write(cluster, 1000 + 100 * step, 100)
    await group.until(lambda: group.seen.keys() >= expected)
    await group.close()
    assert set(group.seen) == expected
    assert set(group.seen.values()) == {1}, "whoever leaves in good order has committed what it has handled"


async def test_the_partitions_of_a_member_that_vanishes_are_taken_over(cluster: LocalCluster) -> None:
    group = Group(cluster)
    for name in ("a", "b"):
        await group.add(name, session_timeout_ms=1_000)
    await group.until(group.balanced)
    expected = await write(cluster, 0, 100)
    await group.until(lambda: group.seen.keys() >= expected)
    await group.vanish("a")
    expected |= await write(cluster, 100, 100)
    await group.until(lambda: group.seen.keys() >= expected)
    await group.until(lambda: len(group.members["b"].assignment()) == PARTITIONS)
    await group.close()


async def test_a_coordinator_that_stops_costs_no_partition_and_no_record(cluster: LocalCluster) -> None:
    group = Group(cluster)
    lost: list[TopicPartition] = []
    for name in ("a", "b"):
        await group.add(name, on_lost=lost.extend)
    await group.until(group.balanced)
    expected = await write(cluster, 0, 100)
    await group.until(lambda: group.seen.keys() >= expected)
    member = group.members["a"].member
    coordinator = group.members["a"]._member.coordinator.connected
    assert coordinator is not None
    broker = coordinator.broker_id
    await cluster.stop(broker)
    await cluster.start(broker)
    expected |= await write(cluster, 100, 100)
    await group.until(lambda: group.seen.keys() >= expected)
    for consumer in group.members.values():
        await consumer.commit()
    assert group.members["a"].member == member
    assert lost == []
    assert group.balanced()
    await group.close()


async def test_a_static_member_that_comes_back_finds_its_partitions(cluster: LocalCluster) -> None:
    group = Group(cluster)
    for name in ("a", "b"):
        await group.add(name, instance=name)
    await group.until(group.balanced)
    before = group.members["a"].assignment()
    generation = group.members["b"].generation
    await group.remove("a")
    expected = await write(cluster, 0, 50)
    again = await group.add("a", instance="a")
    await group.until(lambda: group.seen.keys() >= expected)
    assert again.assignment() == before
    assert group.members["b"].generation == generation, "nobody else was disturbed"
    await group.close()


async def test_topics_that_match_are_read_also_when_they_are_made_later() -> None:
    async with comet.testing.broker(["orders-eu"]) as broker, comet.Producer(broker.address) as producer:
        await producer.publish("orders-eu", b"1")
        async with comet.GroupConsumer(broker.address, pattern="orders-.*", group="g", start="earliest") as consumer:
            record = await consumer.get(timeout_s=30)
            assert record is not None
            assert (record.topic, record.value) == ("orders-eu", b"1")
            async with comet.Admin(broker.address) as admin:
                await admin.create_topic("orders-us", partitions=2)
                await admin.create_topic("trades")
            await producer.publish("orders-us", b"2", partition=1)
            record = await consumer.get(timeout_s=30)
            assert record is not None
            assert (record.topic, record.partition, record.value) == ("orders-us", 1, b"2")


async def test_nothing_of_a_transaction_that_is_aborted_is_seen_and_all_of_one_that_is_committed() -> None:
    async with (
        comet.testing.broker(["t"]) as broker,
        comet.TransactionalProducer(broker.address, transactional_id="p") as producer,
    ):
        for n in range(6):
            try:
                async with producer.transaction() as transaction:
                    for m in range(3):
                        await (await transaction.send("t", b"%d" % (10 * n + m)))
                    if n % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        async with comet.Consumer(broker.address, "t", start="earliest") as consumer:
            values = [await consumer.get(timeout_s=30) for _ in range(9)]
            assert [int(one.value) for one in values if one] == [10 * n + m for n in (0, 2, 4) for m in range(3)]
            assert await consumer.get(timeout_s=0.2) is None
            while consumer.positions() != {0: 24}:  # markers and what was aborted have offsets too
                assert await consumer.get(timeout_s=0.2) is None
        async with comet.Consumer(broker.address, "t", isolation="uncommitted", start="earliest") as consumer:
            everything = [await consumer.get(timeout_s=30) for _ in range(18)]
            assert [int(one.value) for one in everything if one] == [10 * n + m for n in range(6) for m in range(3)]


async def test_a_loop_that_is_held_up_is_told_of_with_the_code_that_does(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "been blocked" in record.getMessage():
                told.set()

    listener = Listener()
    logging.getLogger("comet").addHandler(listener)
    try:
        async with (
            comet.testing.broker(["t"]) as broker,
            comet.GroupConsumer(broker.address, "t", group="g", session_timeout_ms=1_000) as consumer,
        ):
            assert consumer.assignment() == [TopicPartition("t", 0)]
            assert told.wait(20), "nobody noticed"
            await consumer.commit()
    finally:
        logging.getLogger("comet").removeHandler(listener)
    held_up = next(record.getMessage() for record in caplog.records if "been blocked" in record.getMessage())
    assert "test_a_loop_that_is_held_up" in held_up
    assert __file__ in held_up


def test_a_member_without_a_loop_reads_batches_and_goes_back_to_what_is_committed() -> None:
    with comet.testing.broker(["quotes"]) as broker:
        with comet.sync.Producer(broker.address) as producer:
            producer.send_many("quotes", [b"0", b"1", b"2"]).result()
        with comet.sync.GroupConsumer(
            broker.address, "quotes", group="g", start="earliest", auto_commit=False
        ) as consumer:
            batch = consumer.get_batch(30)
            assert batch is not None
            assert list(batch.values) == [b"0", b"1", b"2"]
            consumer.commit({("quotes", 0): 1})
            consumer.rewind()
            again = consumer.get(30)
            assert again is not None
            assert again.offset == 1
            consumer.commit_soon(again)
            assert consumer.member
            assert consumer.generation
        with comet.sync.Admin(broker.address) as admin:
            assert [one.offset for one in admin.group_offsets("g")] == [2]
