"""Real clusters of processes: leaders die and stand still, brokers are rolled, etcd goes away, links go silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import comet
from comet import records
from comet.settings.client import Transport
from comet_broker.core.cluster import TopicSpec
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for
from tests.robustness.cluster_cycles import TOPIC, Report, check, consume, load, run, seconds_since_ack

pytestmark = pytest.mark.slow

SILENT_S_MAX = 25.0  # less than the 30 s after which a broker closes a connection that answers no ping


async def test_leaders_that_die_or_stand_still_lose_nothing_that_all_have_acknowledged(tmp_path: Path) -> None:
    report = await run(tmp_path, kills=4, pauses=1, rolls=3, seed=1)
    print(report)
    assert not report.violations
    assert (report.kills, report.pauses, report.rolls) == (4, 1, 3)
    assert len(report.acked) > 500 and report.failed == 0


@pytest.mark.parametrize("acks", [1, 0])
async def test_what_is_lost_with_weaker_acks_is_only_the_end_of_an_epoch(tmp_path: Path, acks: int) -> None:
    """Order, uniqueness and equal replicas are kept; what is lost is counted and printed."""
    report = await run(tmp_path, kills=3, pauses=0, seed=2, acks=acks)
    print(report)
    assert not report.violations


async def test_with_flush_always_a_kill_loses_nothing_either(tmp_path: Path) -> None:
    report = await run(tmp_path, kills=2, pauses=0, seed=3, flush="always")
    print(report)
    assert not report.violations and report.lost == 0


@contextlib.asynccontextmanager
async def loaded(one: ClusterProcesses, acks: Any = "all", **settings: Any) -> Any:
    """A topic under load; what was written is checked when the block ends."""
    report = Report(acks)
    async with comet.Admin(one.addresses) as admin:
        settings = {"segment_bytes": 1 << 20, **settings}
        info = await admin.create_topic(TOPIC, replicas=len(one.brokers), **settings)
    await one.well(TOPIC)
    stop = asyncio.Event()
    loading = asyncio.create_task(load(one.addresses, report, stop, Random(5)))
    reading = asyncio.create_task(consume(one.addresses, report))
    await wait_for(lambda: len(report.acked) > 50, "records are acknowledged")
    yield report
    stop.set()
    await loading
    await one.well(TOPIC)
    spec = TopicSpec(id=info.id.hex(), partitions=1, created_us=0, config=info.config, replicas=3)
    await check(one, report, reading, spec)
    assert not report.violations + one.complaints()


async def test_rolling_all_brokers_fails_no_produce(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one, loaded(one) as report:
        for number, broker in one.brokers.items():
            assert await asyncio.to_thread(broker.terminate) == 0
            await one.restart(number)
            await one.well(TOPIC)
        assert report.failed == 0


async def test_while_etcd_is_stopped_reads_go_on_writes_wait_and_all_heals(tmp_path: Path) -> None:
    report = await run(tmp_path, kills=1, pauses=0, etcd_away_s=4, seed=4)
    assert not report.violations and report.failed == 0


async def test_while_etcd_stands_still_reads_go_on_writes_wait_and_all_heals(tmp_path: Path) -> None:
    async with cluster(tmp_path, options=("--session-ms", "2s")) as one, loaded(one) as report:
        one.etcd.pause()
        try:
            # Longer than the lease no leader may be sure of its office.
            await wait_for(lambda: seconds_since_ack(report) > 1, "writes wait")
            acked = len(report.acked)
            async with comet.Consumer(one.addresses, TOPIC, start="earliest") as consumer:
                record = await anext(aiter(consumer))
                assert record.offset == 0
        finally:
            one.etcd.resume()
        await wait_for(lambda: len(report.acked) > acked, "writes go on by themselves")


async def test_an_available_topic_takes_writes_while_etcd_is_away(tmp_path: Path) -> None:
    async with cluster(tmp_path, options=("--session-ms", "2s")) as one:
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic("quotes", replicas=3, consistency="available", min_insync=1)
            await admin.create_topic("orders", replicas=3)
        await one.well("quotes")
        await one.well("orders")
        async with (
            comet.Producer(one.addresses, acks=1) as producer,
            comet.Producer(one.addresses, acks=1, timeout_ms=500) as strict,
        ):
            await producer.publish("quotes", b"before")
            one.etcd.pause()
            try:
                while await taken(strict, "orders"):
                    pass  # until no leader is sure of its office any more
                receipt = await producer.publish("quotes", b"meanwhile")
            finally:
                one.etcd.resume()
        assert receipt.offset == 1


async def taken(producer: comet.Producer, topic: str) -> bool:
    try:
        await producer.publish(topic, b"x")
    except comet.CometError:
        return False
    return True


async def test_a_leader_that_its_followers_cannot_reach_acknowledges_nothing_alone(tmp_path: Path) -> None:
    """The leader's port goes silent to everyone: followers leave in_sync or another leads, and nothing is lost."""
    async with cluster(tmp_path, options=("--replica-lag-ms", "1s"), links="grpc") as one, loaded(one) as report:
        leader = await one.leader(TOPIC)
        one.links[leader].hold(up=True, down=True)
        await wait_for(lambda: seconds_since_ack(report) > 2, "nobody is told anything")
        one.links[leader].release()
        acked = len(report.acked)
        await wait_for(lambda: len(report.acked) > acked + 50, "writes go on")
        for link in one.links.values():
            link.cut()
        acked = len(report.acked)
        await wait_for(lambda: len(report.acked) > acked + 50, "writes go on after every link was reset")


@pytest.mark.parametrize(
    ("transport", "directions"), [("wire", [(True, False), (False, True), (True, True)]), ("grpc", [(True, True)])]
)
async def test_a_follower_whose_connection_dies_silently_is_in_sync_again(
    tmp_path: Path, transport: Transport, directions: list[tuple[bool, bool]]
) -> None:
    """A firewall forgets the connection to the leader, in one direction or both, and neither end is told."""
    async with cluster(tmp_path, options=("--replica-lag-ms", "1s"), links=transport) as one, loaded(one) as report:
        leader = await one.leader(TOPIC)
        follower = next(number for number in one.brokers if number != leader)
        link, broker = one.links[leader], one.brokers[follower]
        for up, down in directions:
            before = broker.ports_to(link.port)
            assert one.forget(follower, leader, up=up, down=down)
            began, acked = time.perf_counter(), len(report.acked)
            async with asyncio.timeout(SILENT_S_MAX):
                while before & broker.ports_to(link.port):
                    await one.topic(TOPIC)  # a look takes long enough
                closed = time.perf_counter()
                while follower not in await one.in_sync(TOPIC):
                    pass
                await wait_for(lambda acked=acked: len(report.acked) > acked + 50, "writes go on")  # type: ignore[misc]
            print(f"closed after {closed - began:.1f} s, in sync after {time.perf_counter() - began:.1f} s")
            assert await one.leader(TOPIC) == leader


async def test_a_damaged_follower_mends_itself_from_its_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one, loaded(one, segment_bytes=256 << 10) as report:
        await wait_for(lambda: sum(map(len, report.acked.values())) > 3 << 18, "some segments are full", 120)
        leader = await one.leader(TOPIC)
        number = next(number for number in one.brokers if number != leader)
        assert await asyncio.to_thread(one.brokers[number].terminate) == 0
        info = await one.topic(TOPIC)
        folder = one.brokers[number].data / "topics" / info.id.hex() / "0"
        segment = sorted(folder.glob("*.log"))[1]
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0xFF
        segment.write_bytes(data)
        for index in folder.glob("*.index"):
            index.unlink()  # so that the segment is scanned at the start
        await one.restart(number)
        await one.well(TOPIC)


async def test_no_replica_follows_over_damage_in_the_only_one_in_sync_until_it_is_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one, comet.Admin(one.addresses) as admin:
        info = await admin.create_topic(TOPIC, replicas=2, min_insync=1, flush="always")
        await one.well(TOPIC, replicas=2)
        leader = await one.leader(TOPIC)
        (follower,) = {*(await one.topic(TOPIC)).partitions[0].replicas} - {leader}
        await asyncio.to_thread(one.brokers[follower].terminate)
        async with comet.Producer(one.addresses) as producer:
            for number in range(9):
                await producer.publish(TOPIC, b"%d" % number)
        await asyncio.to_thread(one.brokers[leader].terminate)
        (segment,) = (one.brokers[leader].data / "topics" / info.id.hex() / "0").glob("*.log")
        data = bytearray(segment.read_bytes())
        at = SEGMENT_HEADER_BYTES
        for _ in range(4):
            at += records.read_header(data, at).length
        data[at - 1] ^= 0xFF  # in the fourth batch
        segment.write_bytes(data)
        await one.restart(leader)
        await one.restart(follower)
        said = "stays out of sync until the records before offset 4 are deleted"
        await wait_for(lambda: said in one.brokers[follower].said(), "the follower says why it does not follow")
        assert await one.in_sync(TOPIC) == {leader}
        async with comet.Reader(one.addresses) as reader:
            assert (await reader.fetch(TOPIC, 0, 4)).next_offset == 9
        await admin.delete_records(TOPIC, 0, before_offset=4)
        await one.well(TOPIC, replicas=2)
    assert not one.complaints()
