"""Consumers on a cluster: which broker they read from, when they leave it, and what they say about what is lost.

On virtual time (comet_testing.simulation.loop).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from comet import records
from comet.consumer.consumer import Consumer
from comet.consumer.replica_choice import suitable
from comet.entities import BrokerInfo, PartitionInfo
from comet.errors import DataLoss, InvalidArgument, OffsetOutOfRange, Truncated
from comet.types import Gap
from tests.unit.sdk_fake import FakePartition
from tests.unit.sdk_fake_cluster import FakeCluster
from tests.unit.test_sdk_cluster import producer, scenario
from tests.unit.test_sdk_consumer import take
from tests.unit.test_sdk_producer import now


def consumer(cluster: FakeCluster, **settings: Any) -> Consumer[Any]:
    given = {"type": None, "start": "earliest", "connect": cluster.connect, "random": Random(2), **settings}
    return Consumer(cluster.addresses, "quotes", **given)


def fill(cluster: FakeCluster, values: Sequence[bytes], index: int = 0) -> None:
    """Writes values as batches of one record at the leader."""
    for value in values:
        _append(cluster.leader("quotes", index).replica("quotes", index), value)
    cluster.replicate("quotes", index)


def _append(partition: FakePartition, value: bytes) -> None:
    batch = b"".join(records.encode([value], timestamps=1000))
    partition.append(records.read_header(batch), batch)


def readers(cluster: FakeCluster) -> list[int]:
    return [broker.reading() for broker in cluster.brokers.values()]


def values(found: list[Any]) -> list[bytes]:
    return [record.value for record in found]


def test_suitable_brokers_are_in_sync_in_the_rack_and_not_about_to_stop() -> None:
    one, two, three = (BrokerInfo(n, "host", 9092, "", rack) for n, rack in ((1, "a"), (2, "b"), (3, "b")))
    partition = PartitionInfo(0, 1, 1, (1, 2, 3), (1, 2, 3))
    assert suitable(partition, [one, two, three], "leader", "") == []
    assert suitable(partition, [one, three], "any", "") == [1, 3]
    assert suitable(partition, [one, two, three], "nearest", "b") == [2, 3]
    assert suitable(partition, [one, two, three], "nearest", "c") == []
    leaving = BrokerInfo(2, "host", 9092, "", "b", draining=True)
    assert suitable(partition, [one, leaving, three], "any", "") == [1, 3]
    assert suitable(partition, [leaving], "any", "") == [2]


@pytest.mark.parametrize("settings", [{"read_from": "all"}, {"read_from": "nearest"}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Consumer("localhost", "quotes", **settings)


@scenario({"quotes": 6})
async def test_any_spreads_the_partitions_and_nearest_stays_in_its_rack(cluster: FakeCluster) -> None:
    for index in range(6):
        cluster.move(1, index=index)
    async with consumer(cluster, read_from="leader"):
        assert readers(cluster) == [6, 0, 0]
    await asyncio.sleep(0.1)
    async with consumer(cluster, read_from="any") as c:
        assert readers(cluster) == [2, 2, 2]
        fill(cluster, [b"1"], 3)
        assert values(await take(c, 1)) == [b"1"]
    await asyncio.sleep(0.1)
    async with consumer(cluster, read_from="nearest", rack="b"):
        assert readers(cluster) == [0, 6, 0]
    await asyncio.sleep(0.1)
    async with consumer(cluster, read_from="nearest", rack="elsewhere"):
        assert readers(cluster) == [6, 0, 0]


@pytest.mark.parametrize(
    "settings", [{"read_from": "leader"}, {"read_from": "any"}, {"read_from": "nearest", "rack": "b"}]
)
def test_when_brokers_die_reading_goes_on_elsewhere_within_a_second(settings: dict[str, Any]) -> None:
    @scenario({"quotes": 3})
    async def check(cluster: FakeCluster) -> None:
        random = Random(3)
        async with consumer(cluster, **settings) as c:
            for turn in range(20):
                victim = random.choice([1, 2, 3])
                cluster.kill(victim)
                await asyncio.sleep(random.choice([0, 0.05, 0.3]))
                began = now()
                await asyncio.sleep(0.2)  # until there is a leader to write to
                for index in range(3):
                    fill(cluster, [b"%d" % turn], index)
                found = await take(c, 3)
                assert now() - began < 1.0
                assert [(r.partition, r.offset, r.value) for r in sorted(found)] == [
                    (index, turn, b"%d" % turn) for index in range(3)
                ]
                cluster.revive(victim)

    check()


@scenario()
async def test_who_reads_from_the_leader_follows_it_at_once(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        for turn in range(10):
            cluster.move(turn % 3 + 1)
            began = now()
            fill(cluster, [b"%d" % turn])
            assert values(await take(c, 1)) == [b"%d" % turn]
            assert now() - began < 0.05
        assert readers(cluster) == [1, 0, 0]


@scenario()
async def test_what_a_follower_has_not_yet_is_asked_of_the_leader(cluster: FakeCluster) -> None:
    fill(cluster, [b"0", b"1"])
    cluster.brokers[2].isolated = True
    fill(cluster, [b"2", b"3"])
    async with consumer(cluster, read_from="nearest", rack="b", start=3) as c:
        assert [record.offset for record in await take(c, 1)] == [3]
    async with consumer(cluster, read_from="nearest", rack="b", start=9) as c:
        with pytest.raises(OffsetOutOfRange):
            await c.get()


@scenario()
async def test_a_follower_that_stands_still_is_left_in_bounded_time(cluster: FakeCluster) -> None:
    async with consumer(cluster, read_from="nearest", rack="b") as c:
        fill(cluster, [b"0"])
        await take(c, 1)
        assert readers(cluster) == [0, 1, 0]
        await asyncio.sleep(60)
        assert readers(cluster) == [0, 1, 0], "where nothing is written, standing still is right"
        cluster.brokers[2].isolated = True
        fill(cluster, [b"1"])
        began = now()
        assert values(await take(c, 1)) == [b"1"]
        assert now() - began < 3.5
        cluster.brokers[2].isolated = False
        cluster.replicate("quotes", 0)
        await asyncio.sleep(40)
        assert readers(cluster) == [0, 1, 0], "after a while it is tried again"


@scenario()
async def test_a_follower_that_is_no_longer_in_sync_is_left(cluster: FakeCluster) -> None:
    async with consumer(cluster, read_from="nearest", rack="b"):
        cluster.change("quotes", 0, in_sync=(1, 3))
        await asyncio.sleep(7)
        assert readers(cluster) == [1, 0, 0]


@scenario({"quotes": 6})
async def test_partitions_are_spread_anew_when_a_broker_comes_back(cluster: FakeCluster) -> None:
    async with consumer(cluster, read_from="any"):
        cluster.kill(2)
        await asyncio.sleep(1)
        assert readers(cluster) == [3, 0, 3]
        cluster.revive(2)
        await asyncio.sleep(10)
        assert readers(cluster) == [2, 2, 2]


def cut_back(cluster: FakeCluster) -> None:
    """Five records were read of which the last two are lost with their leader; others take their places."""
    for broker in (2, 3):
        cluster.brokers[broker].replica().truncate(2)
    cluster.kill(1)


@scenario()
async def test_a_reader_that_has_read_what_no_longer_is_hears_of_it(cluster: FakeCluster) -> None:
    fill(cluster, [b"%d" % n for n in range(5)])
    async with consumer(cluster) as c:
        await take(c, 5)
        cut_back(cluster)
        await asyncio.sleep(0.2)
        fill(cluster, [b"other 3", b"other 4", b"5"])
        with pytest.raises(Truncated) as caught:
            await c.get(timeout_s=5)
        assert caught.value.details == {"log_end": "3", "topic": "quotes", "partition": "0"}
        await c.seek(3, partition=0)
        assert values(await take(c, 3)) == [b"other 3", b"other 4", b"5"]


@scenario()
async def test_a_reader_that_asked_to_be_told_goes_on(cluster: FakeCluster) -> None:
    fill(cluster, [b"%d" % n for n in range(5)])
    gaps: list[Gap] = []
    async with consumer(cluster, on_gap=gaps.append) as c:
        await take(c, 5)
        cut_back(cluster)
        await asyncio.sleep(0.2)
        fill(cluster, [b"other 3", b"other 4", b"5"])
        assert values(await take(c, 3)) == [b"other 3", b"other 4", b"5"]
    assert gaps == [Gap("quotes", 0, 3, 5, "truncated")]


@scenario()
async def test_no_reader_is_told_of_truncation_that_it_did_not_see(cluster: FakeCluster) -> None:
    fill(cluster, [b"%d" % n for n in range(5)])
    async with consumer(cluster) as c:
        await take(c, 5)
        await c.seek(3)
        assert values(await take(c, 2)) == [b"3", b"4"]
        for turn in range(5):
            cluster.move(turn % 3 + 1)
            fill(cluster, [b"x"])
            assert values(await take(c, 1)) == [b"x"]
        starts = [start for broker in cluster.brokers.values() for stream in broker.streams for start in stream.starts]
        assert any(start.HasField("leader_epoch") for start in starts)


@scenario()
async def test_what_a_follower_was_cut_back_by_is_no_loss_while_the_leader_has_it(cluster: FakeCluster) -> None:
    fill(cluster, [b"%d" % n for n in range(5)])
    async with consumer(cluster, read_from="nearest", rack="b") as c:
        await take(c, 5)
        cluster.brokers[2].isolated = True
        cut = cluster.brokers[2].replica()
        cut.truncate(2)
        for stream in list(cluster.brokers[2].streams):
            stream.end_cursor(cut.handle, Truncated("cut back", details={"log_end": "3"}))
        fill(cluster, [b"5"])
        assert values(await take(c, 1)) == [b"5"]


def test_partitions_that_cannot_be_read_for_long_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    @scenario({"quotes": 3})
    async def check(cluster: FakeCluster) -> None:
        async with consumer(cluster):
            cluster.election_s = 60
            cluster.kill(2)
            await asyncio.sleep(50)

    check()
    told = [record.getMessage() for record in caplog.records if "unavailable" in record.getMessage()]
    assert told == ["comet: partitions unavailable, retrying: quotes/1: partition 1 of 'quotes' has no leader now"]


@scenario()
async def test_every_kind_of_gap_is_reported_in_its_place(cluster: FakeCluster) -> None:
    fill(cluster, [b"%d" % n for n in range(10)])
    for broker in cluster.brokers.values():
        broker.replica().start = 2
        del broker.replica().batches[5:7]
    gaps: list[Gap] = []
    async with consumer(cluster, start=0, on_gap=gaps.append) as c:
        found = await take(c, 3)
        assert gaps == [Gap("quotes", 0, 0, 2, "deleted")]
        found += await take(c, 3)
        assert [record.offset for record in found] == [2, 3, 4, 7, 8, 9]
        assert gaps[1:] == [Gap("quotes", 0, 5, 7, "damaged")]
        assert c.positions() == {0: 10}


@scenario()
async def test_what_a_follower_has_lost_the_leader_may_have(cluster: FakeCluster) -> None:
    fill(cluster, [b"%d" % n for n in range(10)])
    del cluster.brokers[2].replica().batches[5:7]
    async with consumer(cluster, read_from="nearest", rack="b") as c:
        assert [record.offset for record in await take(c, 10)] == list(range(10))
    for broker in cluster.brokers.values():
        broker.replica().batches = cluster.brokers[2].replica().batches
    async with consumer(cluster, read_from="nearest", rack="b") as c:
        await take(c, 5)
        with pytest.raises(DataLoss):
            await c.get(timeout_s=5)


@scenario({"quotes": 3})
async def test_a_producer_and_readers_of_every_kind_through_everything(cluster: FakeCluster) -> None:
    random = Random(11)
    stop = asyncio.Event()

    async def nemesis() -> None:
        while not stop.is_set():
            await asyncio.sleep(random.uniform(0.1, 1))
            victim = cluster.brokers[random.choice([1, 2, 3])]
            match random.randrange(4):
                case 0:
                    cluster.kill(victim.id)
                    await asyncio.sleep(random.uniform(0.2, 2))
                    cluster.revive(victim.id)
                case 1:
                    victim.frozen = True
                    await asyncio.sleep(random.uniform(0, 3))
                    cluster.give_up(victim.id)
                    await asyncio.sleep(random.uniform(0.2, 3))
                    victim.cut()
                    cluster.revive(victim.id)
                case 2:
                    cluster.move(victim.id, index=random.randrange(3))
                case 3:
                    victim.outdated = cluster.picture
                    cluster.move(victim.id % 3 + 1, index=random.randrange(3))
                    await asyncio.sleep(random.uniform(0, 2))
                    victim.outdated = None

    async def produce(index: int) -> None:
        async with producer(cluster, acks="all") as p:
            for n in range(300):
                await p.send("quotes", b"%d" % n, partition=index)
                await asyncio.sleep(random.uniform(0, 0.05))

    kinds: list[dict[str, Any]] = [{}, {"read_from": "any"}, {"read_from": "nearest", "rack": "b"}]
    consumers = [consumer(cluster, **kind) for kind in kinds]
    await asyncio.gather(*(c.start() for c in consumers))
    trouble = asyncio.create_task(nemesis())
    producing = [asyncio.create_task(produce(index)) for index in range(3)]
    for c, found in zip(consumers, await asyncio.gather(*(take(c, 900) for c in consumers)), strict=True):
        for index in range(3):
            mine = [record for record in found if record.partition == index]
            assert [(record.offset, record.value) for record in mine] == [(n, b"%d" % n) for n in range(300)]
        await c.close()
    stop.set()
    await asyncio.gather(trouble, *producing)
