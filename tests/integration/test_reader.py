"""Parts of partitions, read one by one: what comes is what was asked for, wherever the leader is by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Literal

import pytest

import comet
from comet import records
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from tests.integration.local_cluster import LocalCluster, until

COMPRESSIONS: list[Literal["none", "lz4", "zstd"]] = ["none", "lz4", "zstd"]
Written = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, brokers=1) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("t", partitions=2)
        yield one


@pytest.fixture
async def reader(cluster: LocalCluster) -> AsyncIterator[comet.Reader]:
    async with comet.Reader(cluster.addresses, connect=cluster.network.connect) as one:
        yield one


async def write(cluster: LocalCluster, random: Random, batches: int) -> Written:
    """Batches of many shapes, with what is to be read of them."""
    written: Written = []
    for _ in range(batches):
        values: list[bytes | None] = [
            None if random.random() < 0.1 else b"v" * random.choice([0, 7, 300]) for _ in range(random.randint(1, 60))
        ]
        keys = [random.choice([None, b"k", b"key" * 20]) for _ in values] if random.random() < 0.5 else None
        compression = random.choice(COMPRESSIONS)
        async with comet.Producer(
            cluster.addresses, connect=cluster.network.connect, compression=compression, acks="all"
        ) as producer:
            bulk = await producer.send_many("t", values, keys=keys, partition=0)
            await bulk
        written += [(len(written) + at, keys[at] if keys else None, value) for at, value in enumerate(values)]
    return written


def contents(found: comet.Fetched) -> Written:
    return [(record.offset, record.key, record.value) for batch in found.batches for record in batch.records()]


def size_of(part: Written) -> int:
    return sum(len(key or b"") + len(value or b"") for _, key, value in part)


@pytest.mark.parametrize("seed", range(4))
async def test_ranges_are_those_of_a_list(cluster: LocalCluster, reader: comet.Reader, seed: int) -> None:
    random = Random(seed)
    written = await write(cluster, random, batches=12)
    end = len(written)
    for _ in range(60):
        start, records_max = random.randrange(end + 1), random.choice([1, 2, 17, 100, 5000])
        bytes_max = random.choice([1, 50, 2_000, 1 << 20])
        found = await reader.fetch("t", 0, start, records_max=records_max, bytes_max=bytes_max)
        got = contents(found)
        assert got == written[start : start + len(got)]
        assert (found.first_offset, found.next_offset) == (start, start + len(got))
        assert (found.log_start, found.log_end) == (0, end)
        assert len(got) <= records_max and (size_of(got) <= bytes_max or len(got) == 1)
        assert got or start == end
        assert sum(map(len, found.batches)) == len(got)
        assert [batch.to_arrow()["value"].to_pylist() for batch in found.batches] == [
            list(batch.values) for batch in found.batches
        ]


@pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
async def test_one_call_after_the_other_reads_everything_once(
    cluster: LocalCluster, reader: comet.Reader, bytes_max: int
) -> None:
    written = await write(cluster, Random(7), batches=6)
    got: Written = []
    at, epoch = 0, None
    while at < len(written):
        found = await reader.fetch("t", 0, at, epoch=epoch, records_max=13, bytes_max=bytes_max)
        got += contents(found)
        assert found.epoch is not None and {batch.epoch for batch in found.batches} == {found.epoch}
        at, epoch = found.next_offset, found.epoch
    assert got == written


async def test_many_at_once_do_not_disturb_each_other(cluster: LocalCluster, reader: comet.Reader) -> None:
    written = await write(cluster, Random(3), batches=4)
    waits = [asyncio.create_task(reader.fetch("t", 1, "latest", wait_ms=20_000)) for _ in range(20)]
    starts = [at % len(written) for at in range(200)]
    for start, found in zip(
        starts, await asyncio.gather(*(reader.fetch("t", 0, start, records_max=5) for start in starts)), strict=True
    ):
        assert contents(found) == written[start : start + len(contents(found))] != []
    assert not any(wait.done() for wait in waits)
    async with comet.Producer(cluster.addresses, connect=cluster.network.connect) as producer:
        await producer.publish("t", b"at last", partition=1)
    for found in await asyncio.gather(*waits):
        assert contents(found) == [(0, None, b"at last")]


async def test_waiting_ends_with_nothing_where_nothing_comes(cluster: LocalCluster, reader: comet.Reader) -> None:
    found = await reader.fetch("t", 0, "latest", wait_ms=30)
    assert found == comet.Fetched([], 0, 0, None, 0, 0)


async def test_what_does_not_count_is_left_out(cluster: LocalCluster, reader: comet.Reader) -> None:
    addresses, connect = cluster.addresses, cluster.network.connect
    async with comet.TransactionalProducer(addresses, "tx", connect=connect) as producer:
        for number in range(6):
            with suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await (await transaction.send("t", b"%d" % number, partition=0))
                    if number % 3:
                        raise ZeroDivisionError
        committed = [(0, None, b"0"), (6, None, b"3")]
        found = await reader.fetch("t", 0)
        assert (contents(found), found.next_offset, found.log_end) == (committed, 12, 12)
        assert contents(await reader.fetch("t", 0, 1)) == committed[1:]
        everything = await reader.fetch("t", 0, isolation="uncommitted")
        assert [value for _, _, value in contents(everything)] == [b"%d" % number for number in range(6)]

        # The end of the log is aborted: nothing is there, and it takes no wait to say so.
        assert await reader.fetch("t", 0, 8) == comet.Fetched([], 8, 12, found.epoch, 0, 12, epochs=((8, 1),))
        waiting = asyncio.create_task(reader.fetch("t", 0, 8, wait_ms=20_000))
        async with producer.transaction() as transaction:
            await (await transaction.send("t", b"open", partition=0))
            assert (await reader.fetch("t", 0, 8)).log_end == 12, "an open transaction is not to be seen"
            assert not waiting.done()
        got = await waiting
        assert (contents(got), got.first_offset) == ([(12, None, b"open")], 8)


async def test_what_is_not_there_is_said(cluster: LocalCluster, reader: comet.Reader) -> None:
    written = await write(cluster, Random(5), batches=2)
    end = len(written)
    with pytest.raises(comet.OffsetOutOfRange) as beyond:
        await reader.fetch("t", 0, end + 1)
    assert beyond.value.details == {"log_start": "0", "log_end": str(end)}
    with pytest.raises(comet.Truncated) as cut:
        await reader.fetch("t", 0, end, epoch=99)
    assert cut.value.details["log_end"] == str(end - 1)
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
        await admin.delete_records("t", 0, end)
    with pytest.raises(comet.OffsetOutOfRange) as before:
        await reader.fetch("t", 0, 1)
    assert before.value.details == {"log_start": str(end), "log_end": str(end)}
    assert (await reader.fetch("t", 0)).first_offset == end
    with pytest.raises(comet.TopicNotFound):
        await reader.fetch("u", 0)
    with pytest.raises(comet.PartitionNotFound):
        await reader.fetch("t", 2)
    for wrong in (
        {"records_max": 0}, {"bytes_max": 0}, {"wait_ms": -1}, {"epoch": 1, "start": "latest"}, {"epoch": -1},
        {"start": 1 << 63}, {"start": -1}, {"isolation": "none"}, {"partition": -1},
    ):  # fmt: skip
        with pytest.raises(comet.InvalidArgument):
            await reader.fetch(**{"topic": "t", "partition": 0, "start": 0} | wrong)  # type: ignore[arg-type]
    await reader.close()
    with pytest.raises(comet.Closed):
        await reader.fetch("t", 0)


async def test_reading_goes_on_while_brokers_come_and_go(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        addresses, connect = cluster.addresses, cluster.network.connect
        async with comet.Admin(addresses, connect=connect) as admin:
            await admin.create_topic("t", replicas=3, min_insync=2)
        over = asyncio.Event()

        async def read() -> tuple[list[bytes | None], set[int]]:
            got: list[bytes | None] = []
            epochs: set[int] = set()
            at, epoch = 0, None
            async with comet.Reader(addresses, connect=connect, timeout_ms=30_000) as reader:
                while not over.is_set() or got[-1:] != [b"end"]:
                    found = await reader.fetch("t", 0, at, epoch=epoch, records_max=3, wait_ms=500)
                    got += [value for batch in found.batches for value in batch.values]
                    at, epoch = found.next_offset, found.epoch
                    epochs.update(batch.epoch for batch in found.batches)
            return got, epochs

        reading = asyncio.create_task(read())
        async with comet.Producer(addresses, acks="all", connect=connect) as producer:
            for number in (1, 2, 3):
                await cluster.stop(number)
                for one in range(5):
                    await producer.publish("t", b"%d.%d" % (number, one))
                await cluster.start(number)
                await until(lambda: len(cluster.state("t").in_sync) == 3, "all are in sync again")
            await producer.publish("t", b"end")
        over.set()
        got, epochs = await reading
        assert got == [b"%d.%d" % (number, one) for number in (1, 2, 3) for one in range(5)] + [b"end"]
        assert len(epochs) > 1


async def test_another_topic_of_the_name_is_not_read_for_the_one_that_is_meant(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
            first = await admin.create_topic("t", replicas=3)
            await admin.delete_topic("t")
            second = await admin.create_topic("t", replicas=3)
        async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
            await producer.publish("t", b"1")
        async with comet.Reader(cluster.addresses, connect=cluster.network.connect) as reader:
            for meant in (b"", second.id):
                found = await reader.fetch("t", 0, topic_id=meant)
                assert [list(batch.values) for batch in found.batches] == [[b"1"]]
            with pytest.raises(comet.TopicNotFound, match="deleted and recreated"):
                await reader.fetch("t", 0, topic_id=first.id)
        for number in cluster.brokers:
            for whole in (False, True):
                request = pb.FetchRequest(topic="t", topic_id=first.id, whole_batches=whole)
                with pytest.raises(comet.TopicNotFound):
                    await cluster.call("comet.v1.Comet/Fetch", request, on=number)


async def test_any_broker_passes_a_range_on(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
            await admin.create_topic("t", replicas=3)
        async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
            await (await producer.send_many("t", [b"1", b"2", b"3"]))
        await until(lambda: cluster.leader("t") != 0, "it is led")
        for number in cluster.brokers:
            request = pb.FetchRequest(topic="t", start=types.Position(offset=1), whole_batches=True, records_max=1)
            answer = await cluster.call("comet.v1.Comet/Fetch", request, on=number)
            assert isinstance(answer, pb.FetchResponse)
            (batch,) = records.iterate(answer.batches)
            assert list(batch.values) == [b"1", b"2", b"3"]
            assert (answer.first_offset, answer.next_offset, answer.readable_end) == (1, 3, 3)
            assert answer.leader_epoch == cluster.state("t").epoch
            request.forwarded = True
            if number != cluster.leader("t"):
                with pytest.raises(comet.NotLeader):
                    await cluster.call("comet.v1.Comet/Fetch", request, on=number)
