"""The SDK on three real brokers, in one process: what it does while they are rolled, drained and given other work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.consumer.options import ReadFrom
from tests.integration.local_cluster import LocalCluster, log_bytes, until

RECORDS_AFTER = 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


def admin(cluster: LocalCluster) -> comet.Admin:
    return comet.Admin(cluster.addresses, connect=cluster.network.connect)


def moved(cluster: LocalCluster, *replicas: int) -> bool:
    """All of them hold the first partition, and nobody else."""
    states = [partition.state for partition in cluster.replicas("t").values() if partition.leads]
    return any(
        state is not None and state.replicas == replicas and set(state.in_sync) == {*replicas} for state in states
    )


async def write(cluster: LocalCluster, index: int, stop: asyncio.Event) -> int:
    """One record after the other, each acknowledged by all; returns how many. None may fail."""
    count = 0
    async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
        while not stop.is_set() or count < RECORDS_AFTER:
            await producer.publish("t", b"%d" % count, partition=index)
            count += 1
    return count


async def read(cluster: LocalCluster, read_from: ReadFrom, counts: asyncio.Future[list[int]]) -> list[list[Any]]:
    """All that is written, by partition."""
    found: list[list[Any]] = [[], [], []]
    async with comet.Consumer(
        cluster.addresses, "t", read_from=read_from, connect=cluster.network.connect, start="earliest"
    ) as consumer:
        while not counts.done() or sum(map(len, found)) < sum(counts.result()):
            record = await consumer.get(timeout_s=0.5)
            if record is not None:
                found[record.partition].append((record.offset, record.value))
    return found


async def test_rolling_all_brokers_fails_no_record_and_no_reader_misses_or_repeats_one(cluster: LocalCluster) -> None:
    async with admin(cluster) as one:
        await one.create_topic("t", partitions=3, replicas=3, min_insync=2)
    stop = asyncio.Event()
    counts: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    writers = [asyncio.create_task(write(cluster, index, stop)) for index in range(3)]
    kinds: list[ReadFrom] = ["leader", "any"]
    readers = [asyncio.create_task(read(cluster, kind, counts)) for kind in kinds]
    for number in (1, 2, 3):
        await cluster.stop(number)
        await cluster.start(number)
        await until(
            lambda: all(
                len(partition.state.in_sync) == 3
                for index in range(3)
                for partition in cluster.replicas("t", index).values()
                if partition.leads and partition.state is not None
            ),
            "all are in sync again",
        )
    stop.set()
    counts.set_result(await asyncio.gather(*writers))
    for found in await asyncio.gather(*readers):
        assert found == [[(n, b"%d" % n) for n in range(count)] for count in counts.result()]


async def test_an_operator_gives_up_what_does_not_come_back(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, brokers=2) as cluster:
        async with admin(cluster) as one:
            await one.create_topic("t", replicas=2, min_insync=1)
        await until(lambda: cluster.leader("t") != 0, "it is led")
        leader = cluster.leader("t")
        (other,) = cluster.brokers.keys() - {leader}
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as producer:
            for number in range(10):
                await producer.publish("t", b"%d" % number)
            await cluster.stop(other)
            await until(lambda: len(cluster.state("t").in_sync) == 1, "the leader is alone in sync")
            for _ in range(5):
                await producer.publish("t", b"only here")
        await cluster.stop(leader)
        await cluster.start(other)
        await until(lambda: other in cluster.replicas("t"), "the partition is open")
        await until(lambda: cluster.state("t").leader == 0, "nobody leads, for want of everything")
        async with admin(cluster) as one:
            with pytest.raises(comet.InvalidArgument, match=f"broker {other}: 10\\..*accept the loss") as refused:
                await one.elect_leader("t", 0, other)
            assert refused.value.details == {str(other): "10"}
            with pytest.raises(comet.BrokerNotFound):
                await one.elect_leader("t", 0, leader, accept_loss=True)
            with pytest.raises(comet.PartitionNotFound):
                await one.elect_leader("t", 1, other, accept_loss=True)
            done = await one.elect_leader("t", 0, other, accept_loss=True)
            assert (done.topic, done.broker) == ("t", other)
            assert [copy.broker for copy in done.copies if copy.leader and copy.in_sync] == [other]
            with pytest.raises(comet.InvalidArgument, match=f"broker {other} leads"):
                await one.elect_leader("t", 0, other, accept_loss=True)

        async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all") as producer:
            assert (await producer.publish("t", b"goes on")).offset == 10
        await cluster.start(leader)
        await until(lambda: len(cluster.state("t").in_sync) == 2, "the other has come back, and follows")
        first, second = (log_bytes(partition) for partition in cluster.replicas("t").values())
        assert first == second and b"only here" not in first


async def test_replicas_are_moved_brokers_drained_and_both_can_be_seen(cluster: LocalCluster) -> None:
    async with admin(cluster) as one:
        await one.create_topic("t", partitions=3, replicas=2)
        described = await one.describe_cluster()
        assert [broker.id for broker in described.brokers] == [1, 2, 3]
        assert described.controller in {1, 2, 3}

        await one.move_partition("t", 0, [3, 2, 1])
        await until(lambda: moved(cluster, 3, 2, 1), "it is moved")
        await one.drain_broker(3)
        await until(lambda: 3 not in {cluster.leader("t", index) for index in range(3)}, "it leads no more")
        while (await one.drain_broker(3)).leading:
            pass  # whichever broker answers may hear of the last move a moment later
        topic = await one.describe_topic("t")
        assert 3 not in {partition.leader for partition in topic.partitions}
        assert topic.totals.complete
        assert [broker.id for broker in (await one.describe_cluster()).brokers if broker.draining] == [3]
        await one.drain_broker(3, undo=True)
        await until(lambda: cluster.leader("t") == 3, "it leads again what it is preferred for")

        with pytest.raises(comet.BrokerNotFound):
            await one.drain_broker(9)
        with pytest.raises(comet.BrokerNotFound):
            await one.move_partition("t", 0, [1, 9])
        with pytest.raises(comet.InvalidArgument):
            await one.create_topic("u", replicas=2, min_insync=3)
