"""Members of share groups on real brokers: every record is acknowledged, whoever vanishes, and bad ones are set
aside."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import comet
import comet.testing
from comet.cli._lag import unwritten
from tests.integration.local_cluster import LocalCluster

MEMBERS = 6
RECORDS = 300


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("work", partitions=2)
        yield one


def sharer(cluster: LocalCluster, **settings: Any) -> comet.ShareConsumer[bytes]:
    chosen = {"group": "g", "start": "earliest", "in_flight": 20, "connect": cluster.network.connect, **settings}
    return comet.ShareConsumer(cluster.addresses, "work", **chosen)


async def write(cluster: LocalCluster, values: list[bytes]) -> None:
    async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
        deliveries = [await producer.send("work", value, partition=n % 2) for n, value in enumerate(values)]
        await asyncio.gather(*deliveries)


class Crew:
    """Members that acknowledge what they take, and note what was kept. Owned by a test."""

    def __init__(self, expected: set[bytes]) -> None:
        self.acked: Counter[bytes] = Counter()
        self.unknown: set[bytes] = set()  # kept, or to come again
        self.done = asyncio.Event()
        self._expected = expected

    async def work(self, consumer: comet.ShareConsumer[bytes]) -> None:
        try:
            async for record in consumer:
                try:
                    await record.ack()
                    self.acked[record.value] += 1
                except comet.LockExpired:
                    continue  # it comes again
                except comet.Timeout:
                    self.unknown.add(record.value)
                if self.acked.keys() | self.unknown >= self._expected:
                    self.done.set()
        except comet.Closed:
            return


async def test_more_members_than_partitions_acknowledge_every_record_once(cluster: LocalCluster) -> None:
    values = [b"%d" % n for n in range(RECORDS)]
    crew = Crew(set(values))
    members = [sharer(cluster) for _ in range(MEMBERS)]
    for member in members:
        await member.start()
    tasks = [asyncio.create_task(crew.work(member)) for member in members]
    await write(cluster, values)
    async with asyncio.timeout(30):
        await crew.done.wait()
    for member in members:
        await member.close()
    await asyncio.gather(*tasks)
    assert crew.acked == Counter(values)
    async with sharer(cluster) as late:
        assert await late.get(timeout_s=0.2) is None, "all of it is acknowledged"


async def test_what_a_member_had_when_it_vanished_comes_to_another_at_once(cluster: LocalCluster) -> None:
    values = [b"%d" % n for n in range(20)]
    await write(cluster, values)
    first = sharer(cluster, lock_ms=60_000)
    await first.start()
    taken = await first.get(timeout_s=30)
    assert taken is not None
    await first._client.close()
    crew = Crew(set(values))
    async with sharer(cluster, lock_ms=60_000) as second:
        task = asyncio.create_task(crew.work(second))
        async with asyncio.timeout(30):
            await crew.done.wait()
        task.cancel()
    assert set(crew.acked) == set(values)


async def test_a_leader_that_stops_forgets_nothing_that_was_acknowledged(cluster: LocalCluster) -> None:
    values = [b"%d" % n for n in range(RECORDS)]
    await write(cluster, values)
    crew = Crew(set(values))
    async with sharer(cluster) as one, sharer(cluster) as two:
        tasks = [asyncio.create_task(crew.work(member)) for member in (one, two)]
        for _ in range(2):
            leader = cluster.leader("work", 0)
            await cluster.stop(leader)
            await cluster.start(leader)
        async with asyncio.timeout(30):
            await crew.done.wait()
        for task in tasks:
            task.cancel()
    async with sharer(cluster) as late:
        again = []
        while (record := await late.get(timeout_s=0.3)) is not None:
            again.append(record.value)
            await record.ack()
        assert not set(again) & {value for value, count in crew.acked.items() if count}, "what was kept stays so"


async def test_what_fails_too_often_is_set_aside_with_why() -> None:
    async with comet.testing.broker(["work", "dead"]) as broker, comet.Producer(broker.address) as producer:
        await producer.publish("work", b"good", key="a")
        await producer.publish("work", b"bad", key="b", headers={"h": b"1"})
        await producer.publish("work", b"worse", key="c")
        settings: Any = {"group": "g", "start": "earliest", "deliveries_max": 3, "dead_letter": "dead"}
        attempts: Counter[bytes] = Counter()
        async with (
            comet.ShareConsumer(broker.address, "work", **settings) as consumer,
            comet.Consumer(broker.address, "dead", start="earliest") as dead,
        ):
            while attempts[b"bad"] < 3 or not attempts[b"worse"]:
                record = await consumer.get(timeout_s=30)
                assert record is not None
                attempts[record.value] += 1
                assert record.delivery_count == attempts[record.value]
                match record.value:
                    case b"good":
                        await record.ack()
                    case b"bad":
                        await record.nack()
                    case _:
                        await record.reject("it makes no sense")
            letters = {letter.value: letter for letter in [await dead.get(timeout_s=30) for _ in range(2)] if letter}
        assert attempts == {b"good": 1, b"bad": 3, b"worse": 1}
        bad = letters[b"bad"]
        headers = dict(bad.headers)
        assert (bad.key, headers["h"]) == (b"b", b"1")
        assert headers["comet-dead-letter-topic"] == b"work"
        assert headers["comet-dead-letter-group"] == b"g"
        assert headers["comet-dead-letter-attempts"] == b"3"
        assert dict(letters[b"worse"].headers)["comet-dead-letter-reason"] == b"it makes no sense"


async def test_why_dead_letters_are_not_written_is_told_to_who_looks_at_the_group() -> None:
    settings: Any = {"group": "g", "start": "earliest", "dead_letter": "nowhere"}
    async with comet.testing.broker(["work"]) as broker, comet.Admin(broker.address) as admin:
        async with comet.Producer(broker.address) as producer:
            await producer.publish("work", b"worse")
        async with comet.ShareConsumer(broker.address, "work", **settings) as consumer:
            record = await consumer.get(timeout_s=30)
            assert record is not None
            await record.reject("it makes no sense")
            (lag,) = (await admin.describe_group("g")).lags
            while not lag.dead_problem:
                (lag,) = (await admin.describe_group("g")).lags
            assert (lag.dead_lettered, lag.dead_waiting) == (0, 1)
            assert "nowhere" in lag.dead_problem
            (line,) = unwritten([lag, lag])
            assert line.startswith("dead letters not written yet: 2: ")
            await admin.create_topic("nowhere")
            while lag.dead_waiting:
                (lag,) = (await admin.describe_group("g")).lags
            assert (lag.dead_lettered, lag.dead_problem, unwritten([lag])) == (1, "", [])


async def test_records_of_one_key_go_to_one_member_at_a_time_in_order() -> None:
    async with comet.testing.broker(["work"]) as broker:
        async with comet.Producer(broker.address) as producer:
            for n in range(60):
                await producer.send("work", b"%d" % n, key=f"k{n % 5}")
        order: defaultdict[bytes, list[int]] = defaultdict(list)
        busy: set[bytes] = set()
        done = asyncio.Event()

        async def work(consumer: comet.ShareConsumer[bytes]) -> None:
            async for record in consumer:
                assert record.key is not None
                assert record.key not in busy, "another member has a record of that key"
                busy.add(record.key)
                await asyncio.sleep(0)
                order[record.key].append(int(record.value))
                busy.discard(record.key)
                await record.ack()
                if sum(map(len, order.values())) == 60:
                    done.set()

        settings: Any = {"group": "g", "start": "earliest", "by_key": True, "in_flight": 3}
        members = [comet.ShareConsumer(broker.address, "work", **settings) for _ in range(3)]
        for member in members:
            await member.start()
        tasks = [asyncio.create_task(work(member)) for member in members]
        finished = asyncio.create_task(done.wait())
        await asyncio.wait([finished, *tasks], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for task in (finished, *tasks):
            task.cancel()
        await asyncio.wait(tasks)
        for member in members:
            await member.close()
        assert finished.done()
        assert not finished.cancelled()
        assert len(order) == 5
        assert all(found == sorted(found) for found in order.values())
