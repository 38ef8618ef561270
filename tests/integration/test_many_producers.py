"""Many producers of one partition: a batch whose answer was lost is written once, however many write meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import comet
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL
from comet_broker.core import producers
from tests.integration.local_cluster import LocalCluster, until

OTHERS = 1_100
FIRST = 7  # the producer whose answer is lost


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("t", partitions=1, replicas=3, min_insync=2)
        await one.opened("t")
        yield one


async def publish(cluster: LocalCluster, producer: int, *, sequence: int = 0, epoch: int = 0) -> int:
    """As a client without the SDK does. Returns the offset."""
    request = pb.PublishRequest(
        topic="t", partition=0, records=[pb.Record(value=b"%d" % producer)], acks=ACKS_ALL, producer_id=producer,
        producer_epoch=epoch, sequence=sequence,
    )  # fmt: skip
    answer = await cluster.call("comet.v1.Comet/Publish", request, on=cluster.leader("t"))
    assert isinstance(answer, pb.PublishResponse)
    return answer.receipts[0].offset


async def values(cluster: LocalCluster) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with comet.Reader(cluster.addresses, connect=cluster.network.connect) as reader:
        part = await reader.fetch("t", 0)
        while part.batches:
            found += [value for batch in part.batches for value in batch.values]
            part = await reader.fetch("t", 0, part.next_offset, epoch=part.epoch)
    return found


async def moved(cluster: LocalCluster) -> None:
    """The leader stops, and starts again."""
    before = cluster.leader("t")
    await cluster.stop(before)
    await until(lambda: cluster.leader("t") not in (0, before), "another broker leads")
    await cluster.start(before)
    await until(lambda: len(cluster.state("t").in_sync) == 3, "all are in sync")


async def test_a_first_batch_is_written_once_though_1100_others_write_before_its_retry(cluster: LocalCluster) -> None:
    offset = await publish(cluster, FIRST)  # and the answer is lost
    for other in range(1_000, 1_000 + OTHERS):
        await publish(cluster, other)
    assert await publish(cluster, FIRST) == offset
    await moved(cluster)
    assert await publish(cluster, FIRST) == offset, "its successor knows it, too"
    assert (await values(cluster)).count(b"%d" % FIRST) == 1


async def test_a_batch_of_a_producer_that_is_forgotten_is_refused(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(producers, "KNOWN_MAX", 16)
    await publish(cluster, FIRST)
    for other in range(1_000, 1_020):
        await publish(cluster, other)
    for again in range(2):
        for sequence in (0, 1):
            with pytest.raises(comet.UnknownProducer, match="it is unknown whether"):
                await publish(cluster, FIRST, sequence=sequence)
        if not again:
            await moved(cluster)
    assert (await values(cluster)).count(b"%d" % FIRST) == 1
    await publish(cluster, FIRST, epoch=1)
    assert (await values(cluster)).count(b"%d" % FIRST) == 2, "that was the next epoch"
