"""Producers and consumers on a cluster whose leaders move, die, and are unknown. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from comet.client.client import Client
from comet.consumer.consumer import Consumer
from comet.errors import LimitExceeded, NotEnoughReplicas, Timeout, Unavailable
from comet.producer.producer import Producer
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import Fate
from tests.unit.sdk_fake_cluster import FakeCluster
from tests.unit.test_sdk_producer import now

Scenario = Callable[[FakeCluster], Awaitable[None]]


def scenario(topics: dict[str, int] | None = None, **settings: Any) -> Callable[[Scenario], Callable[[], None]]:
    """Makes a test of a coroutine that is given a fresh cluster of three brokers."""

    def make(function: Scenario) -> Callable[[], None]:
        def test() -> None:
            run(lambda loop: function(FakeCluster(topics, **settings)))  # type: ignore[arg-type,return-value]

        test.__doc__ = function.__doc__
        return test

    return make


def producer(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(cluster.addresses, connect=cluster.connect, random=Random(1), **settings)


def client(cluster: FakeCluster, addresses: Any = None) -> Client:
    return Client(addresses or cluster.addresses, connect=cluster.connect, random=Random(3))


@scenario({"quotes": 6})
async def test_any_broker_leads_to_all_leaders_with_one_connection_each(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        one = client(cluster, ["nobody:1", broker.address])
        attachments = await asyncio.gather(*(one.attach("quotes", index) for index in range(6)))
        assert [attachment.connection.broker_id for attachment in attachments] == [1, 2, 3, 1, 2, 3]
        await one.close()
    assert [broker.connects for broker in cluster.brokers.values()] == [3, 3, 3]
    assert cluster.calls == 3


@scenario()
async def test_the_new_leader_that_an_error_names_is_gone_to_at_once(cluster: FakeCluster) -> None:
    async with producer(cluster) as p:
        await p.publish("quotes", b"0")
        asked = cluster.calls
        cluster.move(2)
        began = now()
        await p.publish("quotes", b"1")
        assert now() - began < 0.02
        assert cluster.calls == asked, "nobody was asked about it"
    assert cluster.leader().replica().values() == [b"0", b"1"]


@scenario()
async def test_nobody_is_asked_with_acks_0_and_yet_the_new_leader_is_found(cluster: FakeCluster) -> None:
    """What the old one refused is lost; what comes after its word is not."""
    async with producer(cluster, acks=0) as p:
        await p.publish("quotes", b"0")
        await asyncio.sleep(0.01)
        cluster.move(2)
        await p.publish("quotes", b"1")
        await asyncio.sleep(0.01)
        for number in range(2, 5):
            await p.publish("quotes", b"%d" % number)
        await asyncio.sleep(0.01)
    assert cluster.leader().replica().values() == [b"0", b"2", b"3", b"4"]


@scenario()
async def test_brokers_that_send_it_to_and_fro_are_not_asked_without_end(cluster: FakeCluster) -> None:
    async with producer(cluster) as p:
        await p.publish("quotes", b"0")
        cluster.brokers[2].outdated = cluster.picture  # sends to 1
        cluster.brokers[3].outdated = cluster.picture
        cluster.move(2)
        frames = len(cluster.brokers[1].frames) + len(cluster.brokers[2].frames)
        delivery = await p.send("quotes", b"1")
        await asyncio.sleep(2)
        assert not delivery.done()
        assert len(cluster.brokers[1].frames) + len(cluster.brokers[2].frames) - frames < 100
        cluster.brokers[2].outdated = cluster.brokers[3].outdated = None
        began = now()
        await delivery
        assert now() - began < 0.3


@scenario()
async def test_what_an_outdated_broker_says_does_not_undo_what_is_known(cluster: FakeCluster) -> None:
    one = client(cluster)
    cluster.brokers[3].outdated = cluster.picture
    cluster.move(2)
    for _ in range(20):
        await one.fetch(["quotes"])
        await asyncio.sleep(1)
    seen = set()
    for _ in range(20):
        seen.add((await one.fetch(["quotes"]))["quotes"].partitions[0].leader)
    assert seen == {2}
    await one.close()


@scenario({"quotes": 4})
async def test_when_leaders_die_one_after_the_other_all_is_written_once_and_in_order(cluster: FakeCluster) -> None:
    cluster.election_s = 0.3
    slowest = 0.0
    expected: dict[int, list[bytes]] = {index: [] for index in range(4)}

    async def nemesis() -> None:
        random = Random(5)
        for _ in range(10):
            await asyncio.sleep(random.uniform(0.5, 2))
            victim = cluster.leader("quotes", random.randrange(4)).id
            cluster.kill(victim)
            await asyncio.sleep(2)
            cluster.revive(victim)

    trouble = asyncio.create_task(nemesis())
    async with producer(cluster, acks="all") as p:

        async def write(index: int) -> float:
            slowest = 0.0
            n = 0
            while not trouble.done():
                value = b"%d" % n
                expected[index].append(value)
                began = now()
                await p.publish("quotes", value, partition=index)
                slowest = max(slowest, now() - began)
                n += 1
                await asyncio.sleep(0.001)
            return slowest

        slowest = max(await asyncio.gather(*map(write, range(4))))
    await trouble
    for index, values in expected.items():
        assert cluster.leader("quotes", index).replica("quotes", index).values() == values
    assert slowest < cluster.election_s + 0.35


@scenario({"quotes": 100})
async def test_many_partitions_without_a_leader_are_asked_about_together(cluster: FakeCluster) -> None:
    async with producer(cluster) as p:
        await asyncio.gather(*[await p.send("quotes", b"0", partition=index) for index in range(100)])
        cluster.election_s = 10
        asked = cluster.calls
        cluster.kill(1)
        deliveries = [await p.send("quotes", b"1", partition=index) for index in range(100)]
        began = now()
        await asyncio.gather(*deliveries)
        assert now() - began < 10.4
        assert cluster.calls - asked < 10 * 4 * 2 + 20


@scenario()
async def test_a_broker_that_is_stopped_in_its_tracks_is_left_once_the_cluster_gives_it_up(
    cluster: FakeCluster,
) -> None:
    async with producer(cluster, acks="all") as p:
        await p.publish("quotes", b"0")
        cluster.brokers[1].frozen = True
        delivery = await p.send("quotes", b"1")
        await asyncio.sleep(3)
        began = now()
        cluster.give_up(1)
        await delivery
        assert now() - began < 1.5
    assert cluster.leader().replica().values() == [b"0", b"1"]


@scenario({"quotes": 3})
async def test_a_broker_that_leaves_costs_no_failure_and_next_to_no_time(cluster: FakeCluster) -> None:
    async with producer(cluster, acks="all") as p:
        slowest = 0.0
        for turn in range(30):
            if turn % 10 == 5:
                broker = cluster.brokers[turn // 10 + 1]
                for index in range(3):
                    if cluster.leader("quotes", index) is broker:
                        cluster.move(broker.id % 3 + 1, "quotes", index)
                broker.go_away()
            began = now()
            await asyncio.gather(*[await p.send("quotes", b"%d" % turn, partition=index) for index in range(3)])
            slowest = max(slowest, now() - began)
        assert slowest < 0.1
    for index in range(3):
        assert cluster.leader("quotes", index).replica("quotes", index).values() == [b"%d" % n for n in range(30)]


@scenario({"quotes": 4})
async def test_an_answer_that_is_long_in_coming_keeps_nobody_else_at_a_broker_that_leaves(cluster: FakeCluster) -> None:
    async with producer(cluster) as p:
        for index in range(4):
            await p.publish("quotes", b"0", partition=index)
        leaving = cluster.brokers[1]
        assert cluster.leader("quotes", 0) is cluster.leader("quotes", 3) is leaving
        leaving.script = lambda partition, header: Fate.WRITTEN_UNANSWERED
        stuck = await p.send("quotes", b"1", partition=0)
        await asyncio.sleep(0.1)
        cluster.move(2, index=3)
        leaving.go_away()
        await asyncio.sleep(0.01)
        began = now()
        await p.publish("quotes", b"1", partition=3)
        assert now() - began < 0.05
        assert (stuck.done(), leaving.connects) == (False, 1)
        cluster.kill(1)
        await stuck
    assert cluster.leader().replica().values() == [b"0", b"1"]


@scenario({"quotes": 2})
async def test_a_broker_that_freezes_under_a_quiet_reader_is_noticed(cluster: FakeCluster) -> None:
    async with Consumer(cluster.addresses, "quotes", connect=cluster.connect, random=Random(1), start="earliest") as c:
        await asyncio.sleep(10)
        assert c.statistics()["reconnects"] == 0, "being quiet is no fault"
        cluster.brokers[1].frozen = True
        await asyncio.sleep(3)
        cluster.give_up(1)
        await asyncio.sleep(2)
        assert sum(len(stream.cursors) for stream in cluster.brokers[2].streams) == 2


@scenario()
async def test_too_few_replicas_are_waited_for_until_the_time_is_up(cluster: FakeCluster) -> None:
    cluster.min_insync = 2
    async with producer(cluster, acks="all", timeout_ms=3000) as p:
        cluster.change("quotes", 0, in_sync=(1,))
        delivery = await p.send("quotes", b"0")
        await asyncio.sleep(1)
        cluster.change("quotes", 0, in_sync=(1, 2))
        began = now()
        await delivery
        assert now() - began < 0.3
        cluster.change("quotes", 0, in_sync=(1,))
        began = now()
        with pytest.raises(NotEnoughReplicas, match=r"not acknowledged within 3 s, after .* tries: too few"):
            await p.publish("quotes", b"1")
        assert now() - began == pytest.approx(3, abs=0.1)
    assert cluster.leader().replica().values() == [b"0"]


@scenario()
async def test_when_nobody_can_be_reached_the_error_says_who_was_tried(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.up = False
    one = client(cluster)
    with pytest.raises(Unavailable) as caught:
        await one.topic("quotes")
    for broker in cluster.brokers.values():
        assert broker.address in caught.value.message
    await one.close()


@scenario()
async def test_a_time_out_says_for_whom_was_waited_and_how_long(cluster: FakeCluster) -> None:
    async with producer(cluster, timeout_ms=2000) as p:
        await p.publish("quotes", b"0")
        cluster.brokers[1].frozen = True
        with pytest.raises(Timeout, match="not acknowledged within 2 s: the broker at fake1:9092 does not answer"):
            await p.publish("quotes", b"1")
        cluster.brokers[1].frozen = False
        cluster.election_s = 60
        cluster.kill(1)
        with pytest.raises(Unavailable, match=r"within 2 s, after .* tries: partition 0 of 'quotes' has no leader"):
            await p.publish("quotes", b"2")


@scenario()
async def test_a_time_out_because_of_a_quota_says_so(cluster: FakeCluster) -> None:
    cluster.brokers[1].throttled_ms = 60_000
    async with producer(cluster, timeout_ms=2000) as p:
        await p.publish("quotes", b"0")
        with pytest.raises(LimitExceeded, match="not acknowledged within 2 s: held back by the quota at fake1:9092"):
            await p.publish("quotes", b"1")
        cluster.brokers[1].throttled_ms = 0


@scenario({"quotes": 3})
async def test_a_broker_that_is_slow_to_answer_keeps_no_other_partition_waiting(cluster: FakeCluster) -> None:
    async with Consumer(cluster.addresses, "quotes", connect=cluster.connect, random=Random(1), start="earliest") as c:
        cluster.brokers[3].cut()
        cluster.brokers[3].frozen = True  # it accepts connections and does nothing with them
        await asyncio.sleep(0.5)
        cluster.kill(2)
        await asyncio.sleep(1)
        assert c.statistics()["subscribed"] == 2
