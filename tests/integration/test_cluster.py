"""Three brokers together: replication, what is visible when, and who leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import comet
from comet.v1 import admin_pb2 as admin
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet_broker.core.cluster import NO_BROKER
from tests.integration.local_cluster import LocalCluster, log_bytes, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


def producer(cluster: LocalCluster, **options: object) -> comet.Producer:
    options.setdefault("acks", "all")
    return comet.Producer(cluster.addresses, connect=cluster.network.connect, **options)  # type: ignore[arg-type]


async def make(
    cluster: LocalCluster, name: str, *, partitions: int = 1, replicas: int = 3, min_insync: int | None = None
) -> None:
    request = admin.CreateTopicRequest(name=name, partitions=partitions, replicas=replicas)
    if min_insync is not None:
        request.config.min_insync = min_insync
    await cluster.call("comet.v1.Admin/CreateTopic", request)
    await cluster.opened(name, partitions=partitions, replicas=replicas)


def all_equal(cluster: LocalCluster, name: str, index: int = 0) -> bool:
    replicas = cluster.replicas(name, index).values()
    return len({partition.log.log_end for partition in replicas}) == 1


async def test_what_is_acknowledged_by_all_is_on_every_replica_byte_for_byte(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    async with producer(cluster) as one:
        for number in range(50):
            await one.publish("t", f"{number}".encode())
    replicas = cluster.replicas("t")
    assert len(replicas) == 3
    assert {partition.log.log_end for partition in replicas.values()} == {50}
    assert len({log_bytes(partition) for partition in replicas.values()}) == 1
    await until(
        lambda: all(partition.high_watermark == 50 for partition in replicas.values()), "followers know the watermark"
    )


async def test_a_second_partition_on_a_quiet_link_is_replicated_too(cluster: LocalCluster) -> None:
    """The first record of each partition finds its follower's link with nothing else to do."""
    for name in ("a", "b", "c"):
        await make(cluster, name, partitions=3)
        async with producer(cluster, timeout_ms=30_000) as one:
            for index in range(3):
                await one.publish(name, b"x", partition=index)


async def test_every_broker_tells_of_every_topic_and_passes_calls_on(cluster: LocalCluster) -> None:
    await make(cluster, "t", partitions=3)
    for number in cluster.brokers:
        published = await cluster.call(
            "comet.v1.Comet/Publish",
            pb.PublishRequest(topic="t", partition=1, records=[pb.Record(value=b"%d" % number)], acks=ACKS_ALL),
            on=number,
        )
        assert isinstance(published, pb.PublishResponse)
    for number in cluster.brokers:
        fetched = await cluster.call(
            "comet.v1.Comet/Fetch", pb.FetchRequest(topic="t", partition=1, wait_ms=1000), on=number
        )
        assert isinstance(fetched, pb.FetchResponse)
        assert [record.value for record in fetched.records] == [b"1", b"2", b"3"]


async def test_leaders_are_spread_over_the_brokers(cluster: LocalCluster) -> None:
    await make(cluster, "t", partitions=6)
    await until(
        lambda: sorted(cluster.leader("t", index) for index in range(6)) == [1, 1, 2, 2, 3, 3], "all lead as many"
    )


async def test_a_stop_passes_leadership_on_and_a_start_gives_it_back(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    leader = cluster.leader("t")
    async with producer(cluster) as one:
        await one.publish("t", b"before")
        sending = asyncio.get_running_loop().create_task(_send(one, 300))
        await cluster.stop(leader)
        receipts = await sending
    assert [receipt.offset for receipt in receipts] == list(range(1, 301))
    assert cluster.leader("t") not in (0, leader)
    await cluster.start(leader)
    await until(lambda: all_equal(cluster, "t") and len(cluster.replicas("t")) == 3, "it has caught up")
    assert len({log_bytes(partition) for partition in cluster.replicas("t").values()}) == 1
    await until(lambda: cluster.leader("t") == leader, "the preferred leader leads again")


async def _send(one: comet.Producer, count: int) -> list[comet.Receipt]:
    return [await one.publish("t", b"%d" % number) for number in range(count)]


async def test_the_last_in_sync_replica_that_comes_back_with_an_empty_disk_follows_the_one_that_has_data(
    tmp_path: Path,
) -> None:
    """What it alone had is lost with its disk. What the other has must not be."""
    async with LocalCluster(tmp_path, brokers=2) as cluster:
        await make(cluster, "t", replicas=2, min_insync=1)
        leader = cluster.leader("t")
        (other,) = cluster.brokers.keys() - {leader}
        async with producer(cluster) as one:
            await _send(one, 20)
            kept = log_bytes(cluster.replicas("t")[other])
            await cluster.stop(other)
            await until(lambda: len(cluster.state("t").in_sync) == 1, "the leader is alone in sync")
            await _send(one, 5)
        await cluster.stop(leader)
        cluster.replace_disk(leader)
        await cluster.start(leader)
        await until(lambda: leader in cluster.replicas("t"), "the partition is open there")
        assert cluster.leader("t") == NO_BROKER, "the other may come back"
        await cluster.start(other)
        await until(lambda: cluster.leader("t") == other, "the one that has data leads")
        assert log_bytes(cluster.replicas("t")[other]) == kept
        await until(lambda: len(cluster.state("t").in_sync) == 2, "the one with the new disk has caught up")
        assert {log_bytes(partition) for partition in cluster.replicas("t").values()} == {kept}
        await until(lambda: cluster.leader("t") == leader, "the preferred leader leads again")
        async with producer(cluster) as one:
            assert [receipt.offset for receipt in await _send(one, 3)] == [20, 21, 22]
        assert len(set(cluster.state("t").folders.values())) == 2
        # All is accounted for: from here on, stops are clean again.
        await cluster.stop(leader)
        assert cluster.identity(leader).clean


async def test_who_has_nothing_to_make_up_for_has_lost_nothing_when_it_is_registered_again(
    cluster: LocalCluster,
) -> None:
    """A lease that runs out takes nothing from the disk, whatever this process had lost when it started."""
    await make(cluster, "t")
    broker, view = cluster.brokers[2], cluster.brokers[1].view.state
    broker_epoch = broker.membership.broker_epoch
    assert not view.brokers[2].value.clean, "its folder was empty"
    await until(lambda: cluster.state("t").in_sync.get(2) == broker_epoch, "it is in sync")
    await until(lambda: not cluster.identity(2).lossy, "that is written down")
    await broker.guard.revoke_lease(view.brokers[2].value.lease)
    await until(lambda: broker.membership.broker_epoch not in (0, broker_epoch), "it is registered again")
    await until(lambda: 2 in view.brokers, "the others know")
    assert view.brokers[2].value.clean


async def test_acks_all_is_refused_while_too_few_replicas_are_in_sync(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    leader = cluster.leader("t")
    for number in [number for number in cluster.brokers if number != leader]:
        await cluster.stop(number)
    partition = cluster.replicas("t")[leader]
    await until(lambda: partition.leads and len(partition.state.in_sync) == 1, "it leads alone")  # type: ignore[union-attr]
    with pytest.raises(comet.NotEnoughReplicas):
        partition.produce(memoryview(b""), 2)


async def test_a_deleted_topic_leaves_every_broker(cluster: LocalCluster, tmp_path: Path) -> None:
    await make(cluster, "t")
    assert all(list((tmp_path / str(number) / "topics").iterdir()) for number in cluster.brokers)
    await cluster.call("comet.v1.Admin/DeleteTopic", admin.DeleteTopicRequest(name="t"))
    await until(
        lambda: not any(list((tmp_path / str(number) / "topics").iterdir()) for number in cluster.brokers),
        "the files are gone",
    )


async def test_a_partition_moves_to_another_broker(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        await make(cluster, "t", replicas=1)
        async with producer(cluster) as one:
            await one.publish("t", b"x")
            leader = cluster.leader("t")
            target = next(number for number in cluster.brokers if number != leader)
            await cluster.call(
                "comet.v1.Admin/MovePartition", admin.MovePartitionRequest(name="t", partition=0, replicas=[target])
            )
            await until(lambda: list(cluster.replicas("t")) == [target], "it has moved")
            await until(lambda: cluster.leader("t") == target, "it is led there")
            assert (await one.publish("t", b"y")).offset == 1
