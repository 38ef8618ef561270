"""A counter that many clients raise by compare-and-set, while the leaders of its partition are killed: it loses no
increment, and no client is refused its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import comet
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for

pytestmark = pytest.mark.slow

TOPIC = "counters"
KEY = "orders"
CLIENTS = 50
KILLS = 5


class Counted:
    def __init__(self) -> None:
        self.raised = 0  # acknowledged
        self.refused = 0
        self.unknown = 0  # may or may not have been written
        self.revisions: set[int] = set()
        self.failed: list[str] = []


async def client(one: ClusterProcesses, counted: Counted, stop: asyncio.Event) -> None:
    async with comet.KV(one.addresses, TOPIC, type=int, timeout_ms=60_000) as kv:
        while not stop.is_set():
            found = await kv.get(KEY)
            assert found is not None
            assert found.value is not None
            try:
                revision = await kv.update(KEY, found.value + 1, found.revision)
            except comet.RevisionMismatch as error:
                counted.refused += 1
                if error.revision <= found.revision:
                    counted.failed.append(f"{error.revision} after {found.revision}")
            except comet.CometError as error:
                counted.unknown += error.outcome_unknown
            else:
                counted.raised += 1
                if revision in counted.revisions:
                    counted.failed.append(f"revision {revision} was given twice")
                counted.revisions.add(revision)


async def test_a_counter_loses_no_increment(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic(TOPIC, replicas=3, min_insync=2)
        await one.well(TOPIC)
        counted, stop = Counted(), asyncio.Event()
        async with comet.KV(one.addresses, TOPIC, type=int, timeout_ms=60_000) as kv:
            await kv.create(KEY, 0)
            clients = [asyncio.create_task(client(one, counted, stop)) for _ in range(CLIENTS)]
            for _ in range(KILLS):
                leader = await one.leader(TOPIC)
                one.brokers[leader].kill()
                raised = counted.raised
                await wait_for(lambda raised=raised: counted.raised > raised + 50, "it rises without", within_s=60)  # type: ignore[misc]
                await one.restart(leader)
                await one.well(TOPIC)
            stop.set()
            await asyncio.gather(*clients)
            found = await kv.get(KEY)
            history = await kv.history(KEY)
        print(f"{counted.raised} increments, {counted.refused} refused, {counted.unknown} unknown")
        assert found is not None
        assert found.value is not None
        assert counted.failed == []
        assert counted.raised <= found.value <= counted.raised + counted.unknown
        assert [entry.value for entry in history] == list(range(found.value, found.value - len(history), -1))
        assert not one.complaints()
