"""Requests with an idempotency key: written once, through whichever broker they come, whatever happens to answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from google.protobuf.message import Message

import comet
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL, ACKS_NONE
from comet.wire.acting import ActingFor
from comet_broker.partitions.partition import Partition
from comet_broker.ports import PeerChannel
from comet_broker.rpc.local_channel import LocalNetwork
from tests.integration.local_cluster import LocalCluster, log_bytes, until

PARTITIONS = 4
PUBLISH = "comet.v1.Comet/Publish"


class LossyNetwork(LocalNetwork):
    """Some publishes never arrive, and some answers to them; from brokers to brokers, and from clients."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.lost_requests = self.lost_answers = 0.0  # shares
        self.deaf: set[str] = set()

    def connect(self, address: str) -> PeerChannel:
        channel = super().connect(address)
        unary = channel.unary

        async def lossy(
            method: str, request: Message, response: type[Message], timeout_s: float, acting: ActingFor | None = None
        ) -> Message:
            if method != PUBLISH:
                return await unary(method, request, response, timeout_s, acting)
            if address in self.deaf or self.random.random() < self.lost_requests:
                raise comet.Unavailable("lost on the way there")
            answer = await unary(method, request, response, timeout_s, acting)
            if self.random.random() < self.lost_answers:
                raise comet.Unavailable("lost on the way back")
            return answer

        channel.unary = lossy  # type: ignore[method-assign]
        return channel


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, network=LossyNetwork(Random(1))) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("t", partitions=PARTITIONS, replicas=3, min_insync=2)
        for index in range(PARTITIONS):
            await until(lambda index=index: one.leader("t", index) != 0, "it is led")  # type: ignore[misc]
        yield one


def producer_of(cluster: LocalCluster, address: str = "") -> comet.Producer:
    return comet.Producer(address or cluster.addresses, acks="all", connect=cluster.network.connect, timeout_ms=60_000)


async def everything(cluster: LocalCluster) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    async with comet.Reader(cluster.addresses, connect=cluster.network.connect) as reader:
        for index in range(PARTITIONS):
            values: list[bytes | None] = []
            part = await reader.fetch("t", index)
            while part.batches:
                values += [value for batch in part.batches for value in batch.values]
                part = await reader.fetch("t", index, part.next_offset, epoch=part.epoch)
            found[index] = values
    return found


def where(receipts: list[comet.Receipt]) -> list[tuple[int, int]]:
    return [(receipt.partition, receipt.offset) for receipt in receipts]


RECORDS = [
    comet.NewRecord(b"one", key="a"),
    comet.NewRecord("two", key=b"b", headers={"h": "x"}, timestamp_us=5),
    comet.NewRecord(None, partition=3),
    comet.NewRecord({"four": 4}),
]


async def test_it_is_written_once_whoever_asks(cluster: LocalCluster) -> None:
    async with producer_of(cluster) as first:
        receipts = await first.publish_once("t", RECORDS, idempotency_key="k")
        assert [receipt.duplicate for receipt in receipts] == [False] * 4
        assert receipts[2].partition == 3 and all(receipt.append_time_us for receipt in receipts)
        assert await first.publish_once("t", RECORDS, idempotency_key="another key") != receipts
    for address in cluster.addresses:
        async with producer_of(cluster, address) as other:
            again = await other.publish_once("t", RECORDS, idempotency_key="k")
            assert where(again) == where(receipts)
            assert [one.append_time_us for one in again] == [one.append_time_us for one in receipts]
            assert all(receipt.duplicate for receipt in again)
            for changed in (
                RECORDS[:3],
                [*RECORDS, RECORDS[0]],
                [RECORDS[1], RECORDS[0], *RECORDS[2:]],
                [RECORDS[0]._replace(value=b"One"), *RECORDS[1:]],
                [*RECORDS[:3], RECORDS[3]._replace(timestamp_us=9)],
            ):
                with pytest.raises(comet.KeyReused):
                    await other.publish_once("t", changed, idempotency_key="k")
    contents = await everything(cluster)
    assert sum(map(len, contents.values())) == 8


@pytest.mark.parametrize("key", ["k", "order 4711", "größe"])
async def test_without_a_key_of_its_own_a_record_goes_where_the_request_says(cluster: LocalCluster, key: str) -> None:
    async with producer_of(cluster) as producer:
        receipts = await producer.publish_once("t", [comet.NewRecord(b"1"), comet.NewRecord(b"2")], idempotency_key=key)
        assert receipts[0].partition == receipts[1].partition
        assert receipts[1].offset == receipts[0].offset + 1
        assert {receipt.partition for receipt in receipts} == {comet.records.partition_for(key.encode(), PARTITIONS)}


async def test_any_broker_takes_it(cluster: LocalCluster) -> None:
    """And knows it again: the part for another leader carries the digest of the whole."""
    request = pb.PublishRequest(topic="t", acks=ACKS_ALL, idempotency_key="k")
    for number in range(20):
        request.records.add(key=b"symbol %d" % number**3, value=b"%d" % number)
    answers = [await cluster.call(PUBLISH, request, on=number) for number in cluster.brokers]
    first, *others = [answer.receipts for answer in answers if isinstance(answer, pb.PublishResponse)]
    assert {receipt.partition for receipt in first} == set(range(PARTITIONS))
    assert not any(receipt.duplicate for receipt in first)
    for other in others:
        assert all(receipt.duplicate for receipt in other)
        assert [(one.partition, one.offset, one.append_time_us) for one in other] == [
            (one.partition, one.offset, one.append_time_us) for one in first
        ]
    request.records[3].value = b"x"
    for number in cluster.brokers:
        with pytest.raises(comet.KeyReused):
            await cluster.call(PUBLISH, request, on=number)


async def test_what_is_passed_on_and_not_taken_is_told_apart_from_what_is_lost(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = cluster.network
    assert isinstance(network, LossyNetwork)
    leader = cluster.leader("t", 0)
    other = next(number for number in cluster.brokers if number != leader)
    request = pb.PublishRequest(topic="t", partition=0, acks=ACKS_ALL)
    request.records.add(value=b"v")

    def not_yet(name: str, index: int) -> Partition:
        raise comet.Unavailable(f"partition {index} of {name!r} is being opened here", retry_after_ms=20)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.brokers[leader].topics, "partition", not_yet)
        with pytest.raises(comet.Unavailable, match="is being opened here"):
            await cluster.call(PUBLISH, request, on=other)
    network.lost_answers = 1.0
    with pytest.raises(comet.Timeout, match="may or may not be written"):
        await cluster.call(PUBLISH, request, on=other)
    network.lost_answers = 0.0
    assert (await everything(cluster))[0] == [b"v"], "the second one, whose answer was lost"


async def test_what_was_done_by_halves_is_completed(cluster: LocalCluster) -> None:
    network = cluster.network
    assert isinstance(network, LossyNetwork)
    await until(lambda: len({cluster.leader("t", index) for index in range(PARTITIONS)}) > 1, "several lead")
    here = cluster.leader("t", 0)
    away = next(index for index in range(PARTITIONS) if cluster.leader("t", index) != here)
    records = [comet.NewRecord(b"here", partition=0), comet.NewRecord(b"away", partition=away)]
    network.deaf = set(cluster.addresses) - {cluster.address(here)}
    async with producer_of(cluster) as producer:
        asking = asyncio.create_task(producer.publish_once("t", records, idempotency_key="k"))
        await until(lambda: cluster.replicas("t", 0)[here].high_watermark == 1, "one half is done")
        asking.cancel()
        await asyncio.wait([asking])
        contents = await everything(cluster)
        assert (contents[0], contents[away]) == ([b"here"], [])
        network.deaf = set()
        receipts = await producer.publish_once("t", records, idempotency_key="k")
    assert [receipt.duplicate for receipt in receipts] == [True, False]
    contents = await everything(cluster)
    assert (contents[0], contents[away]) == ([b"here"], [b"away"])


async def test_who_repeats_it_waits_for_what_the_first_one_waits_for(cluster: LocalCluster) -> None:
    leader = cluster.leader("t", 0)
    record = [comet.NewRecord(b"v", partition=0)]
    partition = cluster.replicas("t", 0)[leader]
    followers = [number for number in cluster.brokers if number != leader]
    async with producer_of(cluster, cluster.address(leader)) as producer:
        await producer.publish_once("t", record, idempotency_key="before")
        await asyncio.gather(*(cluster.stop(number) for number in followers))
        again = [
            asyncio.create_task(producer.publish_once("t", record, idempotency_key="k", timeout_ms=30_000))
            for _ in range(3)
        ]
        assert (await producer.publish_once("t", record, idempotency_key="before", acks=1))[0].duplicate
        assert partition.committed == partition.log.log_end == 1, "nothing is written that could not be kept"
        for number in followers:
            await cluster.start(number)
        receipts = await asyncio.gather(*again)
    assert {where(one)[0] for one in receipts} == {(0, 1)}
    assert sorted(one[0].duplicate for one in receipts) == [False, True, True]


@pytest.mark.parametrize("seed", range(3))
async def test_lost_answers_and_brokers_that_come_and_go_write_nothing_twice(cluster: LocalCluster, seed: int) -> None:
    """The oracle is what was asked for: each record of each request has to be there once."""
    network = cluster.network
    assert isinstance(network, LossyNetwork)
    random = network.random = Random(seed)
    network.lost_requests = network.lost_answers = 0.3
    asked: dict[str, list[bytes]] = {}

    async def client(name: str) -> None:
        for number in range(8):
            key = f"{name}-{number}"
            values = asked[key] = [f"{key}-{at}".encode() for at in range(random.randint(1, 5))]
            records = [
                comet.NewRecord(
                    value,
                    key=random.choice([None, b"a", b"b", b"c"]),
                    partition=random.choice([None, None, random.randrange(PARTITIONS)]),
                )
                for value in values
            ]
            for _ in range(random.randint(1, 3)):
                async with producer_of(cluster, random.choice(cluster.addresses)) as producer:
                    with suppress(comet.Timeout, comet.Unavailable):  # it may be the broker that is not there
                        await producer.publish_once("t", records, idempotency_key=key, timeout_ms=100)
            async with producer_of(cluster) as producer:
                receipts = await producer.publish_once("t", records, idempotency_key=key)
                assert len(receipts) == len(values)

    clients = [asyncio.create_task(client(f"{seed}-{number}")) for number in range(4)]
    for number in (1, 2, 3):
        await cluster.stop(number)
        await cluster.start(number)
        await until(lambda: len(cluster.state("t").in_sync) == 3, "all are in sync again")
    await asyncio.gather(*clients)
    network.lost_requests = network.lost_answers = 0.0
    contents = await everything(cluster)
    written = sorted(value for values in contents.values() for value in values if value is not None)
    assert written == sorted(value for values in asked.values() for value in values)
    for index in range(PARTITIONS):
        replicas = list(cluster.replicas("t", index).values())
        await until(lambda replicas=replicas: len({one.log.log_end for one in replicas}) == 1, "all have all")  # type: ignore[misc]
        assert len({log_bytes(one) for one in replicas}) == 1
        known = [one.log.producers.snapshot(0).requests for one in replicas]
        assert known[0] == known[1] == known[2] != []


async def test_what_makes_no_sense_is_refused(cluster: LocalCluster) -> None:
    one = [comet.NewRecord(b"v")]
    async with producer_of(cluster) as producer:
        for key, records, acks in (
            ("", one, "all"), ("k" * 201, one, "all"), ("k", [], "all"), ("k", one, 0), ("k", one, 7), (7, one, 1),
            ("k", [comet.NewRecord(b"v", partition=-1)], 1), ("k", [comet.NewRecord(b"v", timestamp_us=-1)], 1),
            ("k", [comet.NewRecord(b"v", key=5)], 1), ("\ud800", one, 1), ("k", one * 10_001, 1),  # type: ignore[arg-type]
        ):  # fmt: skip
            with pytest.raises(comet.InvalidArgument):
                await producer.publish_once("t", records, idempotency_key=key, acks=acks)  # type: ignore[arg-type]
        with pytest.raises(comet.PartitionNotFound):
            await producer.publish_once("t", [comet.NewRecord(b"v", partition=PARTITIONS)], idempotency_key="k")
        with pytest.raises(comet.TopicNotFound):
            await producer.publish_once("u", one, idempotency_key="k")
    with pytest.raises(comet.Closed):
        await producer.publish_once("t", one, idempotency_key="k")
    for request in (
        pb.PublishRequest(topic="t", idempotency_key="k" * 201),
        pb.PublishRequest(topic="t", idempotency_key="k", producer_id=5, partition=0),
        pb.PublishRequest(topic="t", idempotency_key="k", producer_epoch=5),
        pb.PublishRequest(topic="t", idempotency_key="k", content_mac=b"short"),
    ):
        request.records.add(value=b"v")
        with pytest.raises(comet.InvalidArgument):
            await cluster.call(PUBLISH, request)
    request = pb.PublishRequest(topic="t", idempotency_key="k", acks=ACKS_NONE)
    request.records.add(value=b"v")
    assert await cluster.call(PUBLISH, request) == pb.PublishResponse()
    assert sum(map(len, (await everything(cluster)).values())) <= 1
