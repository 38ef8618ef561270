"""Topics of one replica on several brokers: records pass without the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import comet
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, KeyValue, Put, RangeResult, TransactionResult
from comet_broker.ports import Clock
from tests.integration.local_cluster import LocalCluster

PARTITIONS = 4
RECORDS = 200  # of each partition
WITHIN_S = 10.0  # less than the leases of the brokers


class ClosableStore(MemoryStore):
    """Answers no call while `open` is not set. Watches stay, and see no change."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.open = asyncio.Event()
        self.open.set()

    async def get(self, key: str) -> KeyValue | None:
        await self.open.wait()
        return await super().get(key)

    async def range(self, prefix: str) -> RangeResult:
        await self.open.wait()
        return await super().range(prefix)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        await self.open.wait()
        return await super().transact(compares, operations)

    async def grant_lease(self, ttl_ms: int) -> int:
        await self.open.wait()
        return await super().grant_lease(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        await self.open.wait()
        return await super().keep_alive(lease)


async def test_records_are_written_and_read_while_the_store_answers_no_call(tmp_path: Path) -> None:
    stores: list[ClosableStore] = []

    def store(clock: Clock) -> MemoryStore:
        stores.append(ClosableStore(clock))
        return stores[-1]

    async with LocalCluster(tmp_path, brokers=2, store=store) as cluster:
        async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
            await admin.create_topic("t", partitions=PARTITIONS, replicas=1)
        await cluster.opened("t", partitions=PARTITIONS, replicas=1)
        assert sorted(cluster.leader("t", index) for index in range(PARTITIONS)) == [1, 1, 2, 2]
        before = stores[0].snapshot()
        stores[0].open.clear()
        async with asyncio.timeout(WITHIN_S):
            found = await _written_and_read(cluster)
        stores[0].open.set()
        assert stores[0].snapshot().revision == before.revision
    assert found == {index: [b"%d" % number for number in range(RECORDS)] for index in range(PARTITIONS)}


async def _written_and_read(cluster: LocalCluster) -> dict[int, list[bytes]]:
    """The values by partition, of clients that connect now."""
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    async with (
        comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer,
        comet.Consumer(cluster.addresses, "t", start="earliest", connect=cluster.network.connect) as consumer,
    ):
        for number in range(RECORDS):
            for index in range(PARTITIONS):
                await producer.send("t", b"%d" % number, partition=index)
        await producer.flush()
        while sum(map(len, found.values())) < PARTITIONS * RECORDS:
            record = await anext(consumer)
            found[record.partition].append(record.value)
    return found
