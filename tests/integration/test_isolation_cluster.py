"""Transactions on three brokers: replicas agree on what is open and what was aborted, and so do those who lead next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker.broker import Broker
from comet_broker.partitions import transaction_batches
from tests.integration.local_cluster import LocalCluster, log_bytes, until
from tests.integration.test_isolation import Reader, Transactional


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        await one.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t", replicas=3))
        await until(lambda: one.leader("t") != 0 and len(one.replicas("t")) == 3, "the topic is open everywhere")
        yield one


async def coordinator(cluster: LocalCluster, name: str) -> Broker:
    found = await cluster.call("comet.v1.Comet/FindCoordinator", groups.FindCoordinatorRequest(name=name))
    assert isinstance(found, groups.FindCoordinatorResponse)
    return cluster.brokers[found.broker]


async def name_elsewhere(cluster: LocalCluster) -> str:
    """A transactional id whose coordinator is not the leader of the topic."""
    for number in range(1000):
        if (await coordinator(cluster, f"tx-{number}")).env.me != cluster.leader("t"):
            return f"tx-{number}"
    raise AssertionError("one broker coordinates everything")


class Spread:
    """A producer of transactions with a stream to its coordinator and one to the leader of a partition."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.sequence = 0

    async def open(self) -> None:
        broker = await coordinator(self.cluster, self.name)
        self.coordinating = broker.env.me
        self.coordinator = Transactional(broker)
        await self.coordinator.open(self.name)

    async def write(self, *values: bytes) -> int:
        leader = Transactional(self.cluster.brokers[self.cluster.leader("t")])
        handle = await leader.attach()
        leader.producer_id, leader.epoch = self.coordinator.producer_id, self.coordinator.epoch
        leader.sequences = {handle: self.sequence}
        self.sequence += len(values)
        try:
            return await leader.write(handle, *values)
        finally:
            leader.session.close()

    async def end(self, *, commit: bool) -> None:
        await self.coordinator.end(commit=commit)
        self.sequence = 0


async def values_of(cluster: LocalCluster, broker: int) -> list[bytes | None]:
    """What a reader of what is committed gets from that broker's replica."""
    reader = Reader(cluster.brokers[broker])
    handle = await reader.attach()
    await reader.start(handle)
    got = reader.take()
    reader.session.close()
    return got


async def test_followers_show_what_the_leader_shows(cluster: LocalCluster) -> None:
    one = Spread(cluster, await name_elsewhere(cluster))
    await one.open()
    await one.write(b"aborted")
    await one.end(commit=False)
    await one.write(b"a", b"b")
    await one.end(commit=True)
    await one.write(b"open")
    replicas = cluster.replicas("t")
    await until(lambda: {replica.high_watermark for replica in replicas.values()} == {6}, "all know the watermark")
    assert {replica.last_stable_offset for replica in replicas.values()} == {5}
    assert len({log_bytes(replica) for replica in replicas.values()}) == 1
    for broker in replicas:
        assert await values_of(cluster, broker) == [b"a", b"b"]


async def test_a_new_leader_knows_what_is_open_and_what_was_aborted(cluster: LocalCluster) -> None:
    one = Spread(cluster, await name_elsewhere(cluster))
    await one.open()
    await one.write(b"aborted")
    await one.end(commit=False)
    await one.write(b"a")
    await cluster.stop(cluster.leader("t"))
    await until(lambda: cluster.leader("t") != 0, "another leads")
    leader = cluster.leader("t")
    await until(lambda: cluster.replicas("t")[leader].settled, "it knows how far all are")
    assert await values_of(cluster, leader) == []
    assert cluster.replicas("t")[leader].last_stable_offset == 2
    assert await one.write(b"b") == 3, "it is open here, and goes on"
    await one.end(commit=True)
    assert await values_of(cluster, leader) == [b"a", b"b"]
    aborted = cluster.replicas("t")[leader].watermarks.isolation.aborted(0, 10)
    assert [(found.first, found.end) for found in aborted] == [(0, 1)]


async def test_the_leader_goes_with_the_coordinator(cluster: LocalCluster) -> None:
    """Who takes the slot over ends what is still to be ended, at whoever leads by then."""
    leader = cluster.leader("t")
    name = await _name_at(cluster, leader)
    one = Spread(cluster, name)
    await one.open()
    await one.write(b"left behind")
    await cluster.stop(leader)
    await until(lambda: cluster.leader("t") != 0, "another leads")
    two = Spread(cluster, name)
    await two.open()  # ends what was left open
    assert two.coordinator.epoch > one.coordinator.epoch
    await two.write(b"new")
    await two.end(commit=True)
    assert await values_of(cluster, cluster.leader("t")) == [b"new"]


async def _name_at(cluster: LocalCluster, broker: int) -> str:
    for number in range(1000):
        if (await coordinator(cluster, f"tx-{number}")).env.me == broker:
            return f"tx-{number}"
    raise AssertionError(f"broker {broker} coordinates nothing")


async def test_a_replica_that_starts_again_knows_its_transactions(cluster: LocalCluster) -> None:
    one = Spread(cluster, await name_elsewhere(cluster))
    await one.open()
    await one.write(b"aborted")
    await one.end(commit=False)
    await one.write(b"open")
    await until(lambda: {replica.high_watermark for replica in cluster.replicas("t").values()} == {3}, "all have it")
    follower = next(
        number for number in cluster.brokers if number != cluster.leader("t") and number != one.coordinating
    )
    await cluster.stop(follower)
    await one.end(commit=True)
    await cluster.start(follower)
    await until(lambda: follower in cluster.replicas("t"), "its log is open")
    await until(lambda: cluster.replicas("t")[follower].last_stable_offset == 4, "it hears of the end")
    assert await values_of(cluster, follower) == [b"open"]


async def test_a_refusal_from_another_broker_reaches_the_producer(cluster: LocalCluster) -> None:
    name = await name_elsewhere(cluster)
    one, two = Spread(cluster, name), Spread(cluster, name)
    await one.open()
    await two.open()
    leader = Transactional(cluster.brokers[cluster.leader("t")])
    handle = await leader.attach()
    leader.producer_id, leader.epoch, leader.sequences = one.coordinator.producer_id, one.coordinator.epoch, {}
    leader.begin(handle, b"zombie")
    answer: pb.ServerFrame = await leader.answer()
    assert answer.error.error.code == types.ERROR_CODE_PRODUCER_FENCED
    assert cluster.replicas("t")[cluster.leader("t")].log.log_end == 0


@pytest.mark.parametrize("commit", [False, True])
async def test_a_marker_that_was_lost_with_the_power_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, commit: bool
) -> None:
    """The end of a log that was not on disk yet is gone; the coordinator knows how the transaction ended."""
    monkeypatch.setattr(transaction_batches, "LEFT_OPEN_S", 0.01)
    async with LocalCluster(tmp_path, brokers=1) as cluster:
        await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="t"))
        await until(lambda: bool(cluster.leader("t")), "it has a leader")
        one = Spread(cluster, "tx")
        await one.open()
        await one.write(b"a")
        await one.end(commit=commit)
        (segment,) = (tmp_path / "1" / "topics").glob("*/0/*.log")
        await cluster.stop(1)
        for derived in segment.parent.iterdir():
            if derived != segment:
                derived.unlink()
        marker_bytes = 112
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - marker_bytes)
        await cluster.start(1)
        await until(lambda: cluster.leader("t") == 1, "it leads again")
        partition = cluster.replicas("t")[1]
        assert partition.log.recovered.log_end == 1, "it was gone"
        await until(lambda: partition.last_stable_offset == 2, "the marker is there again")
        assert await values_of(cluster, 1) == ([b"a"] if commit else [])
