"""Writes the golden data folder of this version: data_VERSION.tar.xz, and data_VERSION.json, what readers find in it.

    python -m tests.golden.make_data

A release adds its own; what is there is never written again, because brokers in use have such folders. It has what the
formats on disk differ by: codecs, headers, missing keys and values, a compacted topic, transactions with both outcomes,
an idempotency key, committed offsets, a schedule.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import comet
from comet.settings.topic import CleanupPolicy, TopicConfig
from comet.wire.version import VERSION
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

FOLDER: Final = Path(__file__).parent
GROUP: Final = "billing"
IMPORT: Final = "import-7/1"
ONCE: Final = comet.NewRecord(b"once")


class Undone(Exception):
    """Ends a transaction without a commit."""


async def write(address: str) -> None:
    """Fills an empty broker."""
    kept = TopicConfig(retention_ms=-1)
    async with comet.Admin(address) as admin, comet.Producer(address, compression="zstd") as producer:
        await admin.create_topic("orders", partitions=2, config=kept)
        await admin.create_topic("plain", partitions=1, config=kept)
        await admin.create_topic("accounts", partitions=1, config=TopicConfig(cleanup_policy=CleanupPolicy.COMPACT))
        for number in range(200):
            order = b'{"number": %d}' % number
            await producer.publish("orders", order, key=f"k{number % 7}", headers={"trace": b"\x00\xff"})
        await producer.publish("plain", None, key="nothing")
        await producer.publish("plain", b"no key")
        await producer.publish_once("plain", [ONCE], idempotency_key=IMPORT)
        async with comet.Producer(address, compression="lz4") as other:
            await other.publish("plain", b"x" * 500)
        await admin.schedules.put_schedule("plain", "far", "at 2199-01-01T00:00:00Z", value=b"later")
    async with comet.KV(address, "accounts") as accounts:
        for number in range(30):
            await accounts.put(f"a{number % 5}", b"%d" % number)
        await accounts.delete("a4")
    async with comet.TransactionalProducer(address, "ledger") as ledger:
        async with ledger.transaction() as tx:
            await tx.send("plain", b"committed")
        with contextlib.suppress(Undone):
            async with ledger.transaction() as tx:
                await tx.send("plain", b"aborted")
                raise Undone
    async with comet.GroupConsumer(address, "orders", group=GROUP, start="earliest") as consumer:
        for _ in range(50):
            await consumer.commit(await consumer.get())


async def facts(address: str) -> dict[str, Any]:
    """What readers find."""
    async with comet.Admin(address) as admin, comet.KV(address, "accounts") as accounts:
        topics = {topic.name: topic for topic in await admin.list_topics() if not topic.internal}
        group = await admin.describe_group(GROUP)
        schedules = await admin.schedules.list_schedules()
        return {
            # Compaction may remove records of the others at any time.
            "topics": {name: await _records(address, name) for name in ("orders", "plain")},
            "settings": {name: topics[name].config.retention_ms for name in sorted(topics)},
            "group": sorted([one.topic, one.partition, one.committed] for one in group.lags),
            "schedules": [[one.topic, one.id, one.spec] for one in schedules.schedules],
            "accounts": {f"a{number}": await _account(accounts, f"a{number}") for number in range(5)},
        }


async def _account(accounts: comet.KV[bytes], name: str) -> str | None:
    found = await accounts.get(name)
    return None if found is None else _text(found.value)


async def _records(address: str, topic: str) -> list[list[Any]]:
    """All records that are delivered, with their offsets."""
    async with comet.Admin(address) as admin:
        ends = {one.partition: one.log_end for one in (await admin.describe_topic(topic)).partitions}
    found: list[list[Any]] = []
    async with comet.Reader(address) as reader:
        for partition, end in ends.items():
            assert end is not None
            position = 0
            while position < end:
                part = await reader.fetch(topic, partition, position)
                position = part.next_offset
                for batch in part.batches:
                    found += [_record(batch.record(index)) for index in range(len(batch))]
    return sorted(found, key=lambda one: (one[0], one[1]))


def _record(one: comet.Record[bytes]) -> list[Any]:
    headers = [[name, _text(value)] for name, value in one.headers]
    return [one.partition, one.offset, one.timestamp_us, _text(one.key), _text(one.value), headers]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


async def make() -> None:
    target = FOLDER / f"data_{VERSION}.tar.xz"
    assert not target.exists(), f"{target.name} is frozen: a release adds its own"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        async with Server(BrokerConfig(data=data, port=0, drain_grace_ms=0)) as server:
            await write(server.address)
            found = await facts(server.address)
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(data.rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(data))
    target.with_suffix("").with_suffix(".json").write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    asyncio.run(make())
