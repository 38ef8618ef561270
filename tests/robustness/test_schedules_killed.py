"""Schedules while the leaders of their partitions are killed: a hundred are due each second, and each fires once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import comet
from comet.types import SCHEDULES_TOPIC
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for
from tests.waiting import pace

pytestmark = pytest.mark.slow

TOPIC = "reminders"
KILLS = 3
A_SECOND = 100
AHEAD_MS = 2_000


async def send(one: ClusterProcesses, stored: set[str], stop: asyncio.Event) -> None:
    """Stores a hundred records each second, due about two seconds later."""
    random = Random(1)
    number = 0
    async with comet.Producer(one.addresses, timeout_ms=60_000) as producer:
        waiting = set[asyncio.Task[None]]()

        async def store(name: str) -> None:
            delay_s = (AHEAD_MS + random.randrange(1_000)) / 1000
            await producer.publish(TOPIC, name, key=name, delay=delay_s, schedule_id=name)
            stored.add(name)

        while not stop.is_set():
            for _ in range(A_SECOND // 10):
                number += 1
                waiting.add(asyncio.create_task(store(f"s-{number}")))
            await pace(0.1)
        await asyncio.gather(*waiting)


async def count(one: ClusterProcesses, fired: Counter[str]) -> None:
    async with comet.Consumer(one.addresses, TOPIC, start="earliest", type=str) as consumer:
        async for record in consumer:
            fired[record.value] += 1


async def test_each_schedule_fires_once_over_kills(tmp_path: Path) -> None:
    stored, fired, stop = set[str](), Counter[str](), asyncio.Event()
    async with cluster(tmp_path) as one:
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic(TOPIC, partitions=3, replicas=3, min_insync=2)
        await one.well(TOPIC)
        await one.complete()
        sender = asyncio.create_task(send(one, stored, stop))
        counter = asyncio.create_task(count(one, fired))
        await wait_for(lambda: len(fired) > A_SECOND, "they fire", within_s=60)
        for number in range(KILLS):
            leader = await one.leader(SCHEDULES_TOPIC, number % 4)
            one.brokers[leader].kill()
            before = len(fired)
            await wait_for(lambda before=before: len(fired) > before + A_SECOND, "they fire without it", within_s=60)  # type: ignore[misc]
            await one.restart(leader)
            await one.well(SCHEDULES_TOPIC)
        stop.set()
        await sender
        await wait_for(lambda: stored <= fired.keys(), "all have fired", within_s=60)
        async with comet.Admin(one.addresses) as admin:
            assert (await admin.schedules.list_schedules()).schedules == ()
        counter.cancel()
        print(f"{len(stored)} schedules over {KILLS} kills")
        assert [name for name, times in fired.items() if times > 1] == []
        assert fired.keys() == stored
        assert not one.complaints()
