"""Two brokers, of which the only one in sync loses its disk, or does not come back: real processes, killed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from subprocess import run

import pytest

import comet
from comet.entities import TopicInfo
from tests.integration.test_cli_flows import COMET
from tests.robustness.cluster import WELL_S_MAX, ClusterProcesses, cluster

pytestmark = pytest.mark.slow
RECORDS = 20
ALONE = 5  # records that only the last leader has


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[ClusterProcesses, int, int]]:
    """The brokers, both dead; the one that was alone in sync; the other, which has less."""
    async with cluster(tmp_path, brokers=2) as one:
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic("t", replicas=2, min_insync=1)
        await one.well("t")
        last = await one.leader("t")
        other = 3 - last
        async with comet.Producer(one.addresses, acks="all") as producer:
            await write(producer, RECORDS)
            one.brokers[other].kill()
            await partition(one, lambda found: found.partitions[0].in_sync == (last,))
            await write(producer, ALONE)
        one.brokers[last].kill()
        yield one, last, other


async def write(producer: comet.Producer, count: int) -> None:
    for number in range(count):
        await producer.publish("t", b"%d" % number)


async def partition(one: ClusterProcesses, holds: Callable[[TopicInfo], bool]) -> None:
    """Waits until what the brokers say of the topic is so."""
    async with asyncio.timeout(WELL_S_MAX), comet.Admin(one.addresses) as admin:
        while not holds(await admin.describe_topic("t")):
            pass  # a look takes long enough


async def test_an_empty_disk_takes_nothing_from_the_copy_that_is_left(
    pair: tuple[ClusterProcesses, int, int],
) -> None:
    one, last, other = pair
    shutil.rmtree(one.brokers[last].data)
    await one.restart(last)
    await partition(one, lambda found: found.partitions[0].leader is None)
    await one.restart(other)
    await partition(one, lambda found: found.partitions[0].leader == other)
    await one.well("t")
    async with comet.Admin(one.addresses) as admin:
        (status,) = (await admin.describe_topic("t")).partitions
    assert (status.log_start, status.log_end) == (0, RECORDS)
    assert not one.complaints()


async def test_an_operator_has_the_copy_lead_that_is_left(pair: tuple[ClusterProcesses, int, int]) -> None:
    one, last, other = pair
    await one.restart(other)
    await partition(one, lambda found: found.partitions[0].leader is None)
    words = [*COMET, "topic", "elect", "t", "0", str(other), "--bootstrap", one.brokers[other].address]
    told = await asyncio.to_thread(run, words, capture_output=True, text=True, check=False)
    assert told.returncode == 2 and f"broker {other}: {RECORDS}" in told.stderr, told
    done = await asyncio.to_thread(run, [*words, "--accept-loss"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"t/0 is now led by broker {other}" in done.stdout, done
    async with comet.Producer(one.addresses, acks="all") as producer:
        assert (await producer.publish("t", b"goes on")).offset == RECORDS
    await one.restart(last)
    await one.well("t")
    async with comet.Admin(one.addresses) as admin:
        (status,) = (await admin.describe_topic("t")).partitions
    assert status.log_end == RECORDS + 1
    assert not one.complaints()
