"""Requests with an idempotency key, while the leaders they go to are killed: repeated through other brokers until they
are answered, and there once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

import comet
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for

pytestmark = pytest.mark.slow

TOPIC = "orders"
PARTITIONS = 3
KILLS = 5
CLIENTS = 6
ATTEMPT_MS = 300


class Asked:
    """What all clients have asked for, and what they were told."""

    def __init__(self) -> None:
        self.records: dict[str, list[comet.NewRecord]] = {}
        self.receipts: dict[str, list[tuple[int, int]]] = {}
        self.attempts = 0
        self.found_again = 0


def orders(name: str, random: Random) -> list[comet.NewRecord]:
    return [
        comet.NewRecord(f"{name}/{at}", key=random.choice([None, "a", "b", "c"]), headers={"order": name})
        for at in range(random.randint(1, 6))
    ]


async def client(one: ClusterProcesses, asked: Asked, number: int, stop: asyncio.Event) -> None:
    """Asks through any broker, gives up soon, and asks through another, as who has no session does."""
    random = Random(number)
    count = 0
    while not stop.is_set():
        key = f"{number}-{count}"
        count += 1
        records = asked.records[key] = orders(key, random)
        while key not in asked.receipts:
            asked.attempts += 1
            async with comet.Producer(random.choice(one.addresses), acks="all") as producer:
                with contextlib.suppress(comet.Timeout, comet.Unavailable, comet.NotLeader, comet.NotEnoughReplicas):
                    receipts = await producer.publish_once(
                        TOPIC, records, idempotency_key=key, timeout_ms=random.choice([20, ATTEMPT_MS, 5 * ATTEMPT_MS])
                    )
                    asked.receipts[key] = where(receipts)
                    asked.found_again += any(receipt.duplicate for receipt in receipts)


def where(receipts: list[comet.Receipt]) -> list[tuple[int, int]]:
    return [(receipt.partition, receipt.offset) for receipt in receipts]


async def everything(one: ClusterProcesses) -> dict[tuple[int, int], bytes | None]:
    found: dict[tuple[int, int], bytes | None] = {}
    async with comet.Reader(one.addresses) as reader:
        for index in range(PARTITIONS):
            at, epoch = 0, None
            while (part := await reader.fetch(TOPIC, index, at, epoch=epoch, records_max=1_000)).batches:
                found |= {(index, record.offset): record.value for batch in part.batches for record in batch.records()}
                at, epoch = part.next_offset, part.epoch
    return found


async def test_leaders_that_are_killed_write_no_request_twice_and_lose_none(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, min_insync=2, segment_bytes=64 << 10)
        await one.well(TOPIC)
        asked, stop, random = Asked(), asyncio.Event(), Random(1)
        clients = [asyncio.create_task(client(one, asked, number, stop)) for number in range(CLIENTS)]
        for _ in range(KILLS):
            done = len(asked.receipts)
            await wait_for(lambda done=done: len(asked.receipts) > done + 20, "requests are answered")  # type: ignore[misc]
            leader = await one.leader(TOPIC, random.randrange(PARTITIONS))
            one.brokers[leader].kill()
            done = len(asked.receipts)
            await wait_for(lambda done=done: len(asked.receipts) > done + 20, "they are without it, too")  # type: ignore[misc]
            await one.restart(leader)
            await one.well(TOPIC)
        stop.set()
        await asyncio.gather(*clients)
        for address in one.addresses:
            async with comet.Producer(address, acks="all") as producer:
                for key, records in asked.records.items():
                    again = await producer.publish_once(TOPIC, records, idempotency_key=key)
                    assert all(receipt.duplicate for receipt in again), key
                    assert where(again) == asked.receipts[key], key
        found = await everything(one)
        print(f"{len(asked.records)} requests, {asked.attempts} attempts, {asked.found_again} were there already")
        wanted = {
            record_id: str(record.value).encode()
            for key, records in asked.records.items()
            for record_id, record in zip(asked.receipts[key], records, strict=True)
        }
        assert found == wanted
        assert asked.found_again, "some answers were lost"
        assert not one.complaints()
