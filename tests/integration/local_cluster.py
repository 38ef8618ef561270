"""Three brokers in one process, on real disks and a store in memory: what the tests of replication run against."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec
from google.protobuf.message import Message

from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import PartitionState
from comet_broker.metadata.memory import MemoryStore
from comet_broker.partitions.partition import Partition
from comet_broker.rpc.local_channel import LocalNetwork
from comet_broker.storage.data_folder import FILE, IdentityRecord
from comet_broker.storage.files import RealFiles
from comet_broker.system import ThreadWorker
from tests import waiting
from tests.integration.held_clock import HeldClock
from tests.logs import bytes_of

WAIT_S_MAX = 30.0


class LocalCluster:
    """Owned by one test; an async context manager."""

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        network: LocalNetwork | None = None,
        racks: Mapping[int, str] | None = None,
        store: Callable[[HeldClock], MemoryStore] = MemoryStore,
        **settings: Any,
    ) -> None:
        self.network = network or LocalNetwork()
        self.brokers: dict[int, Broker] = {}
        self._folder = folder
        self._racks = racks or {}
        self._settings = settings
        self._wanted = range(1, brokers + 1)
        self.clock = HeldClock()  # of all brokers and the store
        self._worker = ThreadWorker(4)
        self._store = store(self.clock)

    async def __aenter__(self) -> Self:
        for broker in self._wanted:
            await self.start(broker)
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in list(self.brokers):
            await self.stop(broker)
        await self._store.close()
        self._worker.close()

    def address(self, broker: int) -> str:
        return f"broker-{broker}:9092"

    @property
    def addresses(self) -> list[str]:
        return [self.address(broker) for broker in self._wanted]

    async def start(self, number: int, files: Callable[[Path], RealFiles] = RealFiles) -> Broker:
        folder = self._folder / str(number)
        folder.mkdir(exist_ok=True)
        broker = Broker(
            BrokerConfig(
                data=folder,
                host=f"broker-{number}",
                broker_id=number,
                etcd=("memory:0",),
                session_ms=20_000,  # nobody is lost because the machine had something else to do
                replica_lag_ms=1_000,
                default_replicas=min(3, len(self._wanted)),
                rebalance_ms=200,
                rack=self._racks.get(number, ""),
                **self._settings,
            ),
            files=files(folder),
            store=self._store,
            clock=self.clock,
            worker=self._worker,
            random=Random(number),
            network=self.network,
            boot_id="boot",
        )
        await broker.start()
        self.network.brokers[self.address(number)] = broker
        await broker.join()
        self.brokers[number] = broker
        return broker

    async def stop(self, number: int) -> None:
        """As SIGTERM does."""
        broker = self.brokers.pop(number)
        await broker.drain()
        del self.network.brokers[self.address(number)]
        await broker.close()
        assert not broker.env.tasks.failed, broker.env.tasks.failed

    def replace_disk(self, number: int) -> None:
        """Nothing is left of what a stopped broker had."""
        assert number not in self.brokers
        shutil.rmtree(self._folder / str(number))

    async def call(self, path: str, request: Message, *, on: int | None = None) -> Message:
        broker = self.brokers[on] if on is not None else next(iter(self.brokers.values()))
        return await {method.path: method for method in broker.methods}[path](request)

    def replicas(self, topic: str, index: int = 0) -> dict[int, Partition]:
        return {
            number: broker.topics.by_name[topic].partitions[index]
            for number, broker in self.brokers.items()
            if topic in broker.topics.by_name and index in broker.topics.by_name[topic].partitions
        }

    def state(self, topic: str, index: int = 0) -> PartitionState:
        """What the metadata store says of a partition, as one of the brokers sees it."""
        view = next(iter(self.brokers.values())).view.state
        return view.partitions[view.topics[topic].value.id, index].value

    async def opened(self, topic: str, *, partitions: int = 1, replicas: int = 3) -> None:
        """Until a topic that was made just now is open wherever it is to be, and all there know who leads: until then
        calls are refused, or passed on to be refused."""

        def open_everywhere(index: int) -> bool:
            found, leader = self.replicas(topic, index).values(), self.leader(topic, index)
            known = all(one.state is not None and one.state.leader == leader for one in found)
            return leader != 0 and len(found) == replicas and known

        await until(lambda: all(map(open_everywhere, range(partitions))), f"{topic} is open")

    def identity(self, number: int) -> IdentityRecord:
        """What a stopped broker has left in its folder."""
        _, _, data = (self._folder / str(number) / FILE).read_bytes().partition(b" ")
        return msgspec.json.decode(data, type=IdentityRecord)

    def leader(self, topic: str, index: int = 0) -> int:
        """The broker that leads; 0 while there is none."""
        leading = [number for number, partition in self.replicas(topic, index).items() if partition.leads]
        assert len(leading) <= 1, f"{leading} all lead {topic}/{index}"
        return leading[0] if leading else 0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Lets everything run until the condition holds."""
    assert await waiting.until(condition, within_s=WAIT_S_MAX, every_s=0.002), f"it never came to this: {what}"


def log_bytes(partition: Partition) -> bytes:
    """All that the log of a replica holds."""
    return bytes_of(partition.log)
