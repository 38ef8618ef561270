"""Brokers that do not get far, and what the next start may say of them."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import threading
from pathlib import Path
from random import Random

import pytest

from comet.errors import Unavailable
from comet.settings.topic import TopicConfig
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import PartitionState, TopicSpec, partition_key, topic_key
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import KeyValue, MetadataStore, Put, StoreUnavailable
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.server import Server, _serve
from comet_broker.storage.files import RealFiles
from comet_broker.storage.log import Log
from comet_broker.system import SystemClock, ThreadWorker

TOPIC_ID = "a" * 32


class OneOfMany:
    """Broker 1 of a cluster in which nobody else runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock)
        self.worker = ThreadWorker(2)

    def broker(self, files: RealFiles | None = None) -> Broker:
        self.folder.mkdir(exist_ok=True)
        return Broker(
            BrokerConfig(data=self.folder, broker_id=1, etcd=("memory:0",), session_ms=2_000, replica_lag_ms=1_000),
            files=files or RealFiles(self.folder),
            store=self.store,
            clock=self.clock,
            worker=self.worker,
            random=Random(1),
            network=LocalNetwork(),
            boot_id="boot",
        )

    async def close(self) -> None:
        await self.store.close()
        self.worker.close()


async def test_a_start_that_did_not_get_far_does_not_hide_that_all_was_lost(tmp_path: Path) -> None:
    one = OneOfMany(tmp_path / "1")
    first = one.broker()
    await first.start()
    await first.join()
    state = PartitionState(leader=0, epoch=1, replicas=(1, 2), in_sync={1: first.membership.broker_epoch})
    spec = TopicSpec(id=TOPIC_ID, partitions=1, created_us=1, config=TopicConfig(), replicas=2)
    await one.store.transact(
        [], [Put(topic_key("t"), spec.encode()), Put(partition_key((TOPIC_ID, 0)), state.encode())]
    )
    await first.close()
    shutil.rmtree(one.folder)
    stopped = one.broker()
    await stopped.start()  # and SIGTERM comes before it has joined
    await stopped.close()
    third = one.broker()
    await third.start()
    assert not third.folder.identity.clean
    await third.close()
    await one.close()


async def test_after_a_taken_port_the_next_start_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=r"cannot listen on .*: Address already in use") as caught:
            async with Server(BrokerConfig(data=tmp_path, port=port)):
                raise AssertionError
    assert caught.value.details["hint"] == "choose another --port"
    assert capfd.readouterr().err == "", "no line of gRPC's own"
    async with Server(BrokerConfig(data=tmp_path, port=port)) as server:
        assert server.serving
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


class SilentStore(MemoryStore):
    """As if there were none."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.asked = asyncio.Event()

    async def get(self, key: str) -> KeyValue | None:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError(key)


class SilentServer(Server):
    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config)
        self.silent = SilentStore()

    async def _open_store(self, clock: SystemClock) -> MetadataStore:
        return self.silent


class NoStoreServer(Server):
    async def _open_store(self, clock: SystemClock) -> MetadataStore:
        raise StoreUnavailable("nobody is there")


async def test_a_broker_that_waits_for_its_metadata_store_can_be_stopped(tmp_path: Path) -> None:
    config = BrokerConfig(data=tmp_path, port=0)
    server = SilentServer(config)
    serving = asyncio.get_running_loop().create_task(_serve(server, None))
    await server.silent.asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(10):
        await serving
    assert not serving.cancelled()
    async with Server(config):
        pass  # and it has left its folder


async def test_a_server_without_a_store_leaves_its_folder(tmp_path: Path) -> None:
    config = BrokerConfig(data=tmp_path, port=0)
    with pytest.raises(StoreUnavailable):
        async with NoStoreServer(config):
            raise AssertionError("it has no store")
    async with Server(config):
        pass


class HeldFiles(RealFiles):
    """Lets a test change the world in the middle of the opening of a log."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opening = threading.Event()
        self.go_on = threading.Event()

    def make_folder(self, path: str) -> None:
        if path.startswith("topics/"):
            self.opening.set()
            assert self.go_on.wait(10)
        super().make_folder(path)


async def test_a_partition_that_is_moved_on_while_it_is_opened_does_not_stay(tmp_path: Path) -> None:
    one = OneOfMany(tmp_path / "1")
    files = HeldFiles(one.folder)
    broker = one.broker(files)
    await broker.start()
    spec = TopicSpec(id=TOPIC_ID, partitions=1, created_us=1, config=TopicConfig(), replicas=1)
    key = partition_key((TOPIC_ID, 0))
    here = PartitionState(leader=0, epoch=1, replicas=(1,), in_sync={})
    await one.store.transact([], [Put(topic_key("t"), spec.encode()), Put(key, here.encode())])
    await asyncio.get_running_loop().run_in_executor(None, files.opening.wait, 10)
    gone = PartitionState(leader=0, epoch=2, replicas=(2,), in_sync={})
    moved = await one.store.transact([], [Put(key, gone.encode())])
    await broker.view.applied.wait(moved.revision)
    files.go_on.set()
    await broker.topics.applied.wait(moved.revision)
    assert not broker.topics.by_handle
    assert not files.exists(f"topics/{TOPIC_ID}/0")
    await broker.close()
    await one.close()


async def test_a_broker_that_stops_closes_several_logs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneOfMany(tmp_path / "1")
    broker = one.broker()
    await broker.start()
    spec = TopicSpec(id=TOPIC_ID, partitions=10, created_us=1, config=TopicConfig(), replicas=1)
    here = PartitionState(leader=0, epoch=1, replicas=(1,), in_sync={})
    states = [Put(partition_key((TOPIC_ID, index)), here.encode()) for index in range(10)]
    made = await one.store.transact([], [Put(topic_key("t"), spec.encode()), *states])
    await broker.topics.applied.wait(made.revision)
    meeting, closing = threading.Barrier(2, timeout=30), Log.close
    closed: list[Log] = []

    def close(log: Log) -> None:
        meeting.wait()
        closing(log)
        closed.append(log)

    monkeypatch.setattr(Log, "close", close)
    await broker.close()
    assert len(set(map(id, closed))) == len(closed) == 10
    await one.close()
