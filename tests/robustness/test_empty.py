"""`comet cluster empty`: a broker of four is emptied under load, and stopped for good."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import comet
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for
from tests.robustness.cluster_cycles import TOPIC, Report, consume, load
from tests.waiting import until_answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LEAVING = 4
RUN_S_MAX = 90.0


async def started(one: ClusterProcesses, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "comet.cli", "cluster", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COMET_BOOTSTRAP": ",".join(one.addresses)},
    )


async def ended(process: asyncio.subprocess.Process, code: int = 0) -> tuple[str, str]:
    async with asyncio.timeout(RUN_S_MAX):
        out, err = await process.communicate()
    assert process.returncode == code, (out, err)
    return out.decode(), err.decode()


async def run(one: ClusterProcesses, *words: str, code: int = 0) -> tuple[str, str]:
    return await ended(await started(one, *words), code)


async def held(one: ClusterProcesses) -> int:
    """Partitions with a replica on the broker that leaves, or on the way there."""
    async with comet.Admin(one.addresses) as admin:
        return sum(
            LEAVING in part.replicas or LEAVING in part.target
            for topic in await admin.list_topics()
            for part in topic.partitions
        )


async def moved_to(one: ClusterProcesses, name: str, index: int, replicas: tuple[int, ...]) -> None:
    async with comet.Admin(one.addresses) as admin:
        await admin.move_partition(name, index, replicas)

    async def there() -> bool:
        part = (await one.topic(name)).partitions[index]
        return part.replicas == replicas and set(part.in_sync) == set(replicas) and part.leader == replicas[0]

    assert await until_answered(there, within_s=RUN_S_MAX)


@contextlib.asynccontextmanager
async def loaded(one: ClusterProcesses) -> Any:
    """A topic of three replicas that the leaving broker leads, under load; yields the report."""
    await one.complete()
    async with comet.Admin(one.addresses) as admin:
        await admin.create_topic(TOPIC, replicas=3, segment_bytes=1 << 20)
        await admin.create_topic("many", partitions=70, replicas=2)
        await admin.create_topic("alone", replicas=1)
    await moved_to(one, TOPIC, 0, (LEAVING, 1, 2))
    await moved_to(one, "alone", 0, (LEAVING,))
    async with comet.Producer(one.addresses, acks="all") as producer:
        await producer.publish("alone", b"the only copy")
    report, stop = Report(), asyncio.Event()
    loading = asyncio.create_task(load(one.addresses, report, stop, Random(5)))
    reading = asyncio.create_task(consume(one.addresses, report))
    try:
        await wait_for(lambda: len(report.acked) > 50, "records are acknowledged")
        yield report
        more = len(report.acked) + 50
        await wait_for(lambda: len(report.acked) > more, "records are acknowledged still")
        stop.set()
        await loading
        await wait_for(lambda: len(report.consumed) >= len(report.acked), "the consumer has read everything")
    finally:
        for task in (loading, reading):
            task.cancel()
        await asyncio.wait([loading, reading])
    assert report.failed == 0 and report.reacked == 0
    assert dict(report.consumed) == report.acked and len(report.consumed) == len(report.acked) == report.sent
    assert not one.complaints()


async def test_a_broker_is_emptied_under_load_and_stopped_for_good(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=4) as one, loaded(one) as report:
        shown = json.loads((await run(one, "empty", str(LEAVING), "--dry-run", "--json"))[0])
        before = await held(one)
        assert shown["holds"] == before == len(shown["moves"]) > 30
        out, progress = await run(one, "empty", str(LEAVING), "--wait", "--timeout", "80s")
        assert out == f"broker {LEAVING} holds nothing; it can be stopped for good\n"
        assert f"broker {LEAVING} holds " in progress
        assert await held(one) == 0
        async with comet.Admin(one.addresses) as admin:
            for topic in await admin.list_topics():
                wanted = {TOPIC: 3, "many": 2, "alone": 1}[topic.name]
                assert all(len(part.replicas) == wanted for part in topic.partitions)
            for name in ("new", "newer"):
                made = await admin.create_topic(name, partitions=6, replicas=3)
                assert all(LEAVING not in part.replicas for part in made.partitions)
        assert await asyncio.to_thread(one.brokers[LEAVING].terminate) == 0
        sent = len(report.acked)
        await wait_for(lambda: len(report.acked) > sent + 50, "records are acknowledged without it")
        async with comet.Consumer(one.addresses, "alone", start="earliest") as consumer:
            async with asyncio.timeout(RUN_S_MAX):
                assert (await anext(aiter(consumer))).value == b"the only copy"
        assert (await run(one, "empty", str(LEAVING), code=3))[1].count("BROKER_NOT_FOUND") == 1


async def test_an_interrupted_command_is_repeated_and_undone(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=4) as one, loaded(one):
        process = await started(one, "empty", str(LEAVING), "--wait")
        assert process.stderr is not None
        await process.stderr.readline()  # it has begun
        process.send_signal(signal.SIGINT)
        _, said = await ended(process, code=130)
        assert "the moves under way go on" in said
        undone = json.loads((await run(one, "empty", str(LEAVING), "--undo", "--json"))[0])
        assert undone["broker"] == LEAVING
        async with comet.Admin(one.addresses) as admin:
            assert not any(broker.draining for broker in (await admin.describe_cluster()).brokers)
            assert not any(part.target for topic in await admin.list_topics() for part in topic.partitions)
        assert (await run(one, "empty", str(LEAVING), "--wait"))[0].startswith(f"broker {LEAVING} holds nothing")
        assert await held(one) == 0


async def test_a_broker_that_is_lost_is_emptied_while_it_is_away(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=4, options=("--session-ms", "3000")) as one:
        await one.complete()
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic("many", partitions=6, replicas=2)
        assert await held(one) > 0
        one.brokers[LEAVING].kill()
        assert "holds nothing" in (await run(one, "empty", str(LEAVING), "--wait"))[0]
        assert await held(one) == 0
        await one.well("many", replicas=2)


async def test_a_cluster_that_would_be_too_small_is_left_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path) as one:
        await one.complete()
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic("wide", partitions=2, replicas=3)
        _, said = await run(one, "empty", "2", code=2)
        assert "wide/0 has 3 replicas, and 2 other brokers stay" in said and "Add a broker" in said
        async with comet.Admin(one.addresses) as admin:
            assert not any(broker.draining for broker in (await admin.describe_cluster()).brokers)
