"""A compacted topic on three brokers: every replica keeps the same records, and every reader finds the last ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import comet
from comet import records
from comet_broker.key_values.table import KeyRecord, KeyTable
from comet_broker.partitions.partition import Partition
from tests import waiting
from tests.integration.local_cluster import LocalCluster, until

SETTINGS: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 64 << 10, "min_dirty_percent": 1}
KEYS = 20
Latest = dict[bytes, bytes | None]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, retention_check_ms=20, compaction_rate=1 << 30) as one:
        async with comet.Admin(one.addresses, connect=one.network.connect) as admin:
            await admin.create_topic("t", replicas=3, **SETTINGS)
        await one.opened("t")
        yield one


async def write(cluster: LocalCluster, random: Random, latest: Latest, count: int = 600) -> None:
    async with comet.Producer(cluster.addresses, connect=cluster.network.connect, acks="all", linger_ms=0) as producer:
        for _ in range(count // 10):
            for _ in range(10):
                key = b"%d" % random.randrange(KEYS)
                value = None if random.random() < 0.1 else random.randbytes(400)
                await producer.send("t", value, key=key)
                latest[key] = value
            await producer.flush()


def offsets_of(partition: Partition, end: int) -> list[int]:
    log, found, offset = partition.log, list[int](), partition.log.log_start
    while offset < end:
        extent = log.extent(offset)
        buffer = memoryview(bytearray(4 << 20))
        result = extent.read(buffer, wait=True)
        extent.release()
        assert result is not None
        for one in records.iterate(buffer[: result.size]):
            found += [] if one.header.control else [at for at in one.offsets if at < end]
        offset = result.next_offset
    return found


async def read(cluster: LocalCluster) -> dict[bytes | None, list[bytes | None]]:
    """Every record of the topic, by key, as a consumer from the start gets them."""
    found: dict[bytes | None, list[bytes | None]] = {}
    end = cluster.replicas("t")[cluster.leader("t")].high_watermark
    async with comet.Reader(cluster.addresses, connect=cluster.network.connect) as reader:
        async for part in reader.read("t", 0, 0, end):
            assert isinstance(part, comet.RecordBatch), part
            for key, value in zip(part.keys, part.values, strict=True):
                found.setdefault(key, []).append(value)
    seen: dict[bytes | None, list[bytes | None]] = {}
    async with comet.Consumer(cluster.addresses, "t", start="earliest", connect=cluster.network.connect) as consumer:
        async with asyncio.timeout(30):
            while consumer.positions().get(0, 0) < end:
                batch = await consumer.get_batch(timeout_s=0.05)
                if batch is not None:
                    for key, value in zip(batch.keys, batch.values, strict=True):
                        seen.setdefault(key, []).append(value)
    # A round may come between the two.
    assert {key: values[-1] for key, values in seen.items()} == {key: values[-1] for key, values in found.items()}
    return found


async def compacted(cluster: LocalCluster) -> None:
    """Until every replica has compacted what is in full segments of the leader now."""
    await until(lambda: cluster.leader("t") != 0, "a leader")
    end = cluster.replicas("t")[cluster.leader("t")].log.segments.active.base_offset
    assert end > 0

    def done(partition: Partition) -> bool:
        applied = partition.log.compaction.notes.applied
        return applied is not None and applied.clean_end >= end

    await until(lambda: all(map(done, cluster.replicas("t").values())), "every plan is carried out")


async def test_every_replica_keeps_the_same_and_readers_find_the_last_of_each_key(cluster: LocalCluster) -> None:
    latest: Latest = {}
    random = Random(1)
    for _ in range(3):
        await write(cluster, random, latest)
        await compacted(cluster)
    found = await read(cluster)
    assert {key: values[-1] for key, values in found.items()} == latest
    assert sum(map(len, found.values())) < 700, "most of 1800 records are gone"
    replicas = list(cluster.replicas("t").values())
    end = min(one.log.compaction.notes.applied.clean_end for one in replicas)  # type: ignore[union-attr]
    assert end > 1000
    kept = [offsets_of(one, end) for one in replicas]
    assert kept[0] == kept[1] == kept[2]
    applied = [one.log.compaction.notes.applied for one in replicas]
    assert len({(one.offset, one.digest) for one in applied if one is not None}) == 1
    for broker in cluster.brokers.values():
        [found] = broker.statistics()["partitions"]
        assert found["compaction_behind_s"] == 0
        assert found["compaction_read_bytes"] > found["compacted_records"] * 400
        assert KEYS <= found["compaction_remaining_records"] < 700


async def test_a_follower_that_was_away_and_one_without_a_disk_catch_up(cluster: LocalCluster) -> None:
    latest: Latest = {}
    random = Random(2)
    await write(cluster, random, latest)
    away, gone = [number for number in cluster.replicas("t") if number != cluster.leader("t")]
    await cluster.stop(away)
    await write(cluster, random, latest)
    await compacted(cluster)
    await cluster.stop(gone)
    cluster.replace_disk(gone)
    await cluster.start(away)
    await cluster.start(gone)
    await until(lambda: len(cluster.state("t").in_sync) == 3, "all are in sync")
    await write(cluster, random, latest)
    await compacted(cluster)
    for leader in (away, gone):
        others = [number for number in cluster.replicas("t") if number != leader]
        for other in others:
            await cluster.stop(other)
        await until(lambda: cluster.leader("t") == leader, "it leads")  # noqa: B023
        found = await read(cluster)
        assert {key: values[-1] for key, values in found.items()} == latest
        for other in others:
            await cluster.start(other)
        await until(lambda: len(cluster.state("t").in_sync) == 3, "all are in sync")


async def delete_and_compact(cluster: LocalCluster, kv: comet.KV[int], *, take_in: bool) -> None:
    """Puts and deletes keys, and has their tombstones compacted away."""
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as admin:
        await admin.alter_topic("t", delete_retention_ms=0)
    for number in range(KEYS):
        await kv.put(f"key-{number}", number)
        await kv.delete(f"key-{number}")
    if take_in:
        assert await kv.get("key-1") is None
    for seed in range(3):
        await write(cluster, Random(seed), {})
        await compacted(cluster)
        if take_in:
            assert await kv.get("key-1") is None


async def test_a_deleted_key_stays_deleted_where_its_tombstone_was_never_taken_in(cluster: LocalCluster) -> None:
    """The last tombstone is compacted away before the table of keys is asked for again."""
    async with comet.KV(cluster.addresses, "t", type=int, connect=cluster.network.connect) as kv:
        await delete_and_compact(cluster, kv, take_in=False)
        for number in range(KEYS):
            assert await kv.get(f"key-{number}") is None
        assert await kv.keys("key-") == []
        await kv.create("key-1", 5)


async def test_tombstones_that_were_compacted_away_leave_the_table_of_keys(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[KeyTable] = []
    last = KeyTable.last

    def noted(table: KeyTable, key: bytes) -> KeyRecord | None:
        asked.append(table)
        return last(table, key)

    monkeypatch.setattr(KeyTable, "last", noted)
    async with comet.KV(cluster.addresses, "t", type=int, connect=cluster.network.connect) as kv:
        await delete_and_compact(cluster, kv, take_in=True)

        async def forgotten() -> bool:
            assert await kv.get("key-1") is None
            return not asked[-1].range(b"key-", None, 100)

        assert await waiting.until_answered(forgotten, within_s=30)
        await kv.create("key-1", 5)


async def test_aborted_records_are_gone_and_committed_ones_are_plain(cluster: LocalCluster) -> None:
    addresses, connect = cluster.addresses, cluster.network.connect
    latest: Latest = {}
    async with comet.TransactionalProducer(addresses, "tx", connect=connect) as producer:
        for number in range(40):
            key = b"%d" % (number % 3)
            try:
                async with producer.transaction() as transaction:
                    await transaction.send("t", b"%d" % number * 1000, key=key)
                    if number % 4 == 3:
                        raise RuntimeError
            except RuntimeError:
                continue
            latest[key] = b"%d" % number * 1000
    await write(cluster, Random(3), latest, 400)
    await compacted(cluster)
    found = await read(cluster)
    assert {key: values[-1] for key, values in found.items()} == latest
    log = cluster.replicas("t")[cluster.leader("t")].log
    end = log.compaction.notes.applied.clean_end  # type: ignore[union-attr]
    assert end > 50
    extent = log.extent(0, 50)
    buffer = memoryview(bytearray(1 << 20))
    result = extent.read(buffer, wait=True)
    extent.release()
    assert result is not None
    assert not any(one.header.transactional for one in records.iterate(buffer[: result.size]))


async def test_a_record_without_a_key_is_refused(cluster: LocalCluster) -> None:
    async with comet.Producer(cluster.addresses, connect=cluster.network.connect) as producer:
        with pytest.raises(comet.InvalidArgument, match="give every record a key"):
            await producer.publish("t", b"no key")


async def test_a_replica_that_kept_other_records_fetches_its_leaders(cluster: LocalCluster) -> None:
    latest: Latest = {}
    random = Random(4)
    await write(cluster, random, latest)
    await compacted(cluster)
    wrong = next(one for number, one in cluster.replicas("t").items() if number != cluster.leader("t"))
    notes = wrong.log.compaction.notes
    assert notes.applied is not None
    notes.applied = msgspec.structs.replace(notes.applied, digest=notes.applied.digest ^ 1)
    before = wrong.log
    await write(cluster, random, latest)
    await until(
        lambda: (
            wrong.log.log_end == before.log_end and notes.planned is not None and bool(notes.planned.plan.checked >= 0)
        ),
        "the leader's digest has come",
    )
    await compacted(cluster)
    await until(lambda: len(cluster.state("t").in_sync) == 3, "all are in sync")
    leader = cluster.replicas("t")[cluster.leader("t")]
    end = leader.log.segments.active.base_offset
    assert not wrong.log.lost
    assert offsets_of(wrong, end) == offsets_of(leader, end)


async def test_keys_are_read_and_compared_while_they_are_compacted(cluster: LocalCluster) -> None:
    latest: Latest = {}
    random = Random(5)
    async with comet.KV(cluster.addresses, "t", connect=cluster.network.connect) as kv:
        for _ in range(3):
            await write(cluster, random, latest, 300)
            async with comet.TransactionalProducer(
                cluster.addresses, "tx", connect=cluster.network.connect
            ) as producer:
                for number in range(4):
                    with suppress(RuntimeError):
                        async with producer.transaction() as transaction:
                            await transaction.send("t", b"%d" % number, key=b"tx")
                            if number == 3:
                                raise RuntimeError
            latest[b"tx"] = b"2"
            for key, value in latest.items():
                entry = await kv.get(key)
                assert (None if entry is None else entry.value) == value
                if entry is not None and entry.value is not None:
                    revision = await kv.update(key, entry.value + b"+", entry.revision)
                    with pytest.raises(comet.RevisionMismatch):
                        await kv.update(key, b"late", entry.revision)
                    latest[key] = entry.value + b"+"
                    assert (await kv.history(key))[0].revision == revision
            await compacted(cluster)
    found = await read(cluster)
    assert {key: values[-1] for key, values in found.items()} == latest
