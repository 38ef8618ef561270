"""Snapshots of compacted topics: a real session and a real broker that compacts when the test lets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import comet
from comet.encryption.keys import add_key
from comet_broker.config import BrokerConfig
from comet_broker.server import Server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LATER: dict[str, Any] = {"min_compaction_lag_ms": 3_600_000}
NOW: dict[str, Any] = {"min_compaction_lag_ms": 0}
SETTINGS: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": 64 << 10, "min_dirty_percent": 1, **LATER}


class Written(NamedTuple):
    """What a test has written, and is committed."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = BrokerConfig(
        data=tmp_path_factory.mktemp("broker"),
        port=0,
        drain_grace_ms=200,
        retention_check_ms=20,
        compaction_rate=1 << 30,
    )

    async def started() -> Server:
        return await Server(config).__aenter__()

    async def stopped() -> None:
        await one.__aexit__(None, None, None)

    one = comet.sync.call(started())
    yield one
    comet.sync.call(stopped())


@pytest.fixture
def topic(server: Server) -> Iterator[str]:
    with comet.sync.Admin(server.address) as admin:
        admin.create_topic("prices", partitions=2, **SETTINGS)
        yield "prices"
        admin.delete_topic("prices")


async def _write(server: Server, random: Random, count: int) -> list[Written]:
    """Records of few keys, tombstones among them, in and out of transactions; every third of these is aborted."""
    written = list[Written]()

    def drawn() -> dict[str, Any]:
        key = b"%d" % random.randrange(12)
        value = None if random.random() < 0.2 else b'{"n": %d, "pad": "%s"}' % (random.randrange(9), b"x" * 400)
        return {"key": key, "value": value, "partition": random.randrange(2)}

    async def sent(producer: Any, batch: list[dict[str, Any]]) -> None:
        receipts = await asyncio.gather(*[await producer.send("prices", **one) for one in batch])
        committed = [
            Written(receipt.partition, receipt.offset, one["key"], one["value"])
            for one, receipt in zip(batch, receipts, strict=True)
        ]
        if isinstance(producer, comet.Producer) or number % 3:
            written.extend(committed)

    async with comet.Producer(server.address) as plain, comet.TransactionalProducer(server.address, "tx") as producer:
        for number in range(count // 20):
            await sent(plain, [drawn() for _ in range(10)])
            with suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await sent(transaction, [drawn() for _ in range(10)])
                    if number % 3 == 0:
                        raise ZeroDivisionError
    return written


def write(server: Server, seed: int, count: int = 800) -> list[Written]:
    return comet.sync.call(_write(server, Random(seed), count))


def compact(server: Server) -> None:
    """Lets the broker compact all full segments, and waits for that."""
    with comet.sync.Admin(server.address) as admin:
        admin.alter_topic("prices", **NOW)
        partitions = list(server.broker.topics.by_name["prices"].partitions.values())
        ends = [one.log.segments.active.base_offset for one in partitions]
        assert all(ends), "a full segment"

        def done() -> bool:
            applied = [one.log.compaction.notes.applied for one in partitions]
            return all(one is not None and one.clean_end >= end for one, end in zip(applied, ends, strict=True))

        assert comet.sync.call(until(done, within_s=30))
        assert all(one.log.compaction.removed_records > 100 for one in partitions)
        admin.alter_topic("prices", **LATER)


def frame(spark: SparkSession, server: Server, **options: str) -> DataFrame:
    given = {"bootstrap": server.address, "subscribe": "prices", "snapshot": "true", **options}
    return spark.read.format("comet").options(**given).load()


def rows_of(found: Sequence[Row]) -> list[tuple[Any, ...]]:
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in found)


def last_of(written: Sequence[Written]) -> list[tuple[Any, ...]]:
    last = {(one.partition, one.key): one for one in sorted(written, key=lambda one: one.offset)}
    return sorted(tuple(one) for one in last.values() if one.value is not None)


def test_a_key_whose_last_record_has_expired_has_no_row(spark: SparkSession, server: Server, topic: str) -> None:
    with comet.sync.Producer(server.address) as producer:
        for key, ttl_ms in (("a", None), ("b", None), ("c", 3_600_000), ("b", 1)):
            past_us = time.time_ns() // 1000 - 1_000_000
            producer.publish(topic, b"of " + key.encode(), key=key, partition=0, timestamp_us=past_us, ttl_ms=ttl_ms)
    found = frame(spark, server).collect()
    assert sorted(row["value"] for row in found) == [b"of a", b"of c"], "nor an older record of it"


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_same_before_and_after_a_compaction_and_while_others_write(
    spark: SparkSession, server: Server, topic: str, seed: int
) -> None:
    expected = last_of(written := write(server, seed))
    snapshot = frame(spark, server)
    assert rows_of(snapshot.collect()) == expected
    assert snapshot.rdd.getNumPartitions() == 2
    compact(server)
    assert rows_of(snapshot.collect()) == expected, "its end is fixed"
    written += write(server, seed + 10, 60)
    assert rows_of(snapshot.collect()) == expected
    assert snapshot.where("value is not null").count() == len(expected)
    again = frame(spark, server, maxPartitions="1")
    assert rows_of(again.collect()) == last_of(written)
    assert again.rdd.getNumPartitions() == 1
    # A filter applies to the last records: a key whose last one does not match has no row.
    chosen = frame(spark, server, filter="n >= 6").collect()
    assert rows_of(chosen) == [one for one in last_of(written) if int(one[3][6:7]) >= 6]
    typed = frame(spark, server, schema="n int", filter="n >= 6").select("value.n").collect()
    assert sorted(row["n"] for row in typed) == sorted(int(row["value"][6:7]) for row in chosen)


def test_a_compaction_beyond_its_end_fails_it_and_says_what_to_do(
    spark: SparkSession, server: Server, topic: str
) -> None:
    written = write(server, 1)
    snapshot = frame(spark, server)
    assert rows_of(snapshot.collect()) == last_of(written)
    written += write(server, 2)
    compact(server)
    with pytest.raises(PySparkException, match=r"is compacted up to .* give the topic a min_compaction_lag_ms beyond"):
        snapshot.collect()
    assert rows_of(frame(spark, server).collect()) == last_of(written)
    early = '{"prices": {"0": 10, "1": 10}}'
    with pytest.raises(PySparkException, match="records below 10 may be gone"):
        frame(spark, server, endingOffsets=early).collect()
    assert frame(spark, server, endingOffsets=early, failOnDataLoss="false").count() <= 20


def test_an_open_transaction_is_behind_its_end(spark: SparkSession, server: Server, topic: str) -> None:
    frames = list[DataFrame]()

    async def transact() -> None:
        async with comet.TransactionalProducer(server.address, "tx") as producer:
            async with producer.transaction() as first:
                await first.send("prices", b"1", key="k", partition=0)
            async with producer.transaction() as second:
                await (await second.send("prices", b"2", key="k", partition=0))
                frames.append(await asyncio.to_thread(frame, spark, server))

    comet.sync.call(transact())
    assert [row[3] for row in rows_of(frames[0].collect())] == [b"1"]
    assert [row[3] for row in rows_of(frame(spark, server).collect())] == [b"2"]


def test_values_are_decrypted_if_they_are_the_last_ones(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    add_key(keys, "k1")
    add_key(others, "k2")
    for path, written in ((others, "ab"), (keys, "bc")):
        with comet.sync.Producer(server.address, encryption=comet.Keyring.from_file(path)) as producer:
            values = [b'{"n": 1}', b'{"n": 1}', None]
            producer.send_many("prices", values, keys=[*written, "d"], partition=0).result()
    with pytest.raises(PySparkException, match="does not have the key 'k2'"):
        frame(spark, server, keyring=str(keys)).collect()
    found = frame(spark, server, keyring=str(keys), mode="permissive").collect()
    assert [one[2:] for one in rows_of(found)] == [(b"a", None), (b"b", b'{"n": 1}'), (b"c", b'{"n": 1}')]
    with comet.sync.Producer(server.address) as producer:
        producer.publish("prices", None, key="a", partition=0)
    last = frame(spark, server, keyring=str(keys), filter="n = 1").collect()
    assert sorted(row["key"] for row in last) == [b"b", b"c"], "what was superseded needs no key"


def test_records_without_a_key_from_before_it_was_compacted_are_rows(
    spark: SparkSession, server: Server, topic: str
) -> None:
    with comet.sync.Admin(server.address) as admin, comet.sync.Producer(server.address) as producer:
        admin.alter_topic("prices", cleanup_policy="delete")
        with pytest.raises(PySparkException, match=r"topic 'prices' is not compacted.*cleanup_policy to compact"):
            frame(spark, server).collect()
        for value in (b"1", b"1", None):
            producer.publish("prices", value, partition=0)
        admin.alter_topic("prices", cleanup_policy="compact-delete")
        producer.publish("prices", b"2", key="k", partition=0)
    assert rows_of(frame(spark, server).collect()) == [
        (0, 0, None, b"1"),
        (0, 1, None, b"1"),
        (0, 2, None, None),
        (0, 3, b"k", b"2"),
    ]


def test_a_stream_has_no_snapshot(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    options = {"bootstrap": server.address, "subscribe": "prices", "snapshot": "true"}
    stream = spark.readStream.format("comet").options(**options).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match="snapshot is for"):
        query.awaitTermination(60)
