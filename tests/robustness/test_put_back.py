"""Real brokers whose disks lie: a data folder is put back from a copy, a log has lost its end."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import comet
from comet.entities import TopicInfo
from comet.errors import CometError, InvalidArgument
from comet_broker.core.cluster import BROKERS, PARTITIONS
from comet_broker.metadata.etcd.store import EtcdStore
from comet_broker.storage.checkpoint import read_checkpoint
from comet_broker.storage.files import RealFiles
from comet_broker.system import SystemClock
from tests.robustness.cluster import ClusterProcesses, cluster, wait_for

pytestmark = pytest.mark.slow

TOPIC = "orders"
OPTIONS = ("--session-ms", "2s", "--replica-lag-ms", "1s")


async def publish(one: ClusterProcesses, first: int, count: int) -> list[bytes]:
    values = [b"record %d" % number for number in range(first, first + count)]
    async with comet.Producer(one.addresses, acks="all") as producer:
        await asyncio.gather(*(producer.publish(TOPIC, value) for value in values))
    return values


async def read_all(one: ClusterProcesses, count: int) -> set[bytes]:
    found: set[bytes] = set()
    async with asyncio.timeout(30), comet.Consumer(one.addresses, TOPIC, start="earliest") as consumer:
        async for record in consumer:
            found.add(record.value)
            if len(found) == count:
                return found
    raise AssertionError


async def conflicts_of(one: ClusterProcesses, brokers: set[int]) -> TopicInfo:
    """The topic when these replicas are in conflict."""
    async with asyncio.timeout(60):
        while True:
            try:
                info = await one.topic(TOPIC)
            except CometError:
                continue
            if {conflict.broker for conflict in info.partitions[0].conflicts} == brokers:
                return info


async def restart_alone(one: ClusterProcesses, number: int, before: TopicInfo) -> None:
    """All are away for longer than they are waited for, and nobody was there to take one out of those in sync."""
    await registrations_end(one)
    epoch = before.partitions[0].leader_epoch
    one.brokers[number].launch()
    await asyncio.to_thread(one.brokers[number].wait_ready)
    async with comet.Admin(one.brokers[number].address) as admin, asyncio.timeout(60):
        while True:
            found = (await admin.describe_topic(TOPIC)).partitions[0]
            if found.leader == number and found.leader_epoch > epoch:
                return


async def registrations_end(one: ClusterProcesses) -> None:
    store = await EtcdStore.open([one.etcd.endpoint], prefix="/comet/comet/", clock=SystemClock())
    try:
        async with asyncio.timeout(60):
            while (await store.range(BROKERS)).items:
                pass  # a look takes long enough
        assert (await store.range(PARTITIONS)).items
    finally:
        await store.close()


async def settle(one: ClusterProcesses, lying: int, values: list[bytes]) -> None:
    """The others come back, follow nobody, and one of them is chosen: everything is there again."""
    others = set(one.brokers) - {lying}
    for number in others:
        await one.restart(number)
    info = await conflicts_of(one, others)
    conflict = info.partitions[0].conflicts[0]
    assert conflict.leader == lying and conflict.offset < conflict.high_watermark <= conflict.log_end == len(values)
    async with comet.Admin(one.addresses) as admin:
        with pytest.raises(InvalidArgument, match="in conflict"):
            await admin.elect_leader(TOPIC, 0, min(others))
        await admin.elect_leader(TOPIC, 0, min(others), accept_loss=True)
    await one.well(TOPIC)
    assert not (await one.topic(TOPIC)).partitions[0].conflicts
    assert await read_all(one, len(values)) == set(values)


@pytest.mark.timeout(240)
async def test_a_folder_that_is_put_back_from_a_copy_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, options=OPTIONS) as one:
        async with comet.Admin(one.addresses) as admin:
            info = await admin.create_topic(TOPIC, replicas=3)
        await one.well(TOPIC)
        values = await publish(one, 0, 200)
        broker, copy = one.brokers[1], tmp_path / "copy"
        await asyncio.to_thread(broker.terminate)
        shutil.copytree(broker.data, copy)
        await one.restart(1)
        await one.well(TOPIC)
        values += await publish(one, 200, 300)
        await wait_for(lambda: noted(one, info, len(values)), "what is committed is noted on all disks")
        before = await one.topic(TOPIC)
        one.kill()
        shutil.rmtree(broker.data)
        shutil.copytree(copy, broker.data)
        await restart_alone(one, 1, before)
        await settle(one, 1, values)


@pytest.mark.timeout(240)
async def test_a_folder_that_is_put_back_while_the_others_are_there_mends_itself(tmp_path: Path) -> None:
    async with cluster(tmp_path, options=OPTIONS) as one:
        async with comet.Admin(one.addresses) as admin:
            await admin.create_topic(TOPIC, replicas=3, flush="os")
        await one.well(TOPIC)
        values = await publish(one, 0, 200)
        broker, copy = one.brokers[1], tmp_path / "copy"
        await asyncio.to_thread(broker.terminate)
        shutil.copytree(broker.data, copy)
        await one.restart(1)
        await one.well(TOPIC)
        values += await publish(one, 200, 300)
        one.kill()
        shutil.rmtree(broker.data)
        shutil.copytree(copy, broker.data)
        await one.start()
        await one.well(TOPIC)
        assert not (await one.topic(TOPIC)).partitions[0].conflicts
        assert await read_all(one, len(values)) == set(values)


@pytest.mark.timeout(240)
async def test_a_log_that_came_back_short_with_flush_os_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, options=OPTIONS) as one:
        async with comet.Admin(one.addresses) as admin:
            info = await admin.create_topic(TOPIC, replicas=3, flush="os")
        await one.well(TOPIC)
        values = await publish(one, 0, 1)
        values += await publish(one, 1, 100)
        (log,) = (one.brokers[1].data / "topics" / info.id.hex() / "0").glob("*.log")
        values += await publish(one, 101, 400)
        await wait_for(lambda: noted(one, info, len(values)), "what is committed is noted on all disks")
        before = await one.topic(TOPIC)
        one.kill()
        with log.open("rb+") as file:
            file.truncate(log.stat().st_size // 2)
        await restart_alone(one, 1, before)
        await settle(one, 1, values)


def noted(one: ClusterProcesses, info: TopicInfo, end: int) -> bool:
    """Every broker has noted on its disk that all is committed."""
    folder = f"topics/{info.id.hex()}/0"
    found = [read_checkpoint(RealFiles(broker.data), folder) for broker in one.brokers.values()]
    return all(checkpoint is not None and checkpoint.high_watermark >= end for checkpoint in found)
