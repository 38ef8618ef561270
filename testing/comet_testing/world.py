"""The world of one simulated cluster: its network, metadata store and hosts, made from one seed.

Each part draws from a random source of its own, named after it, so that a change in one part does not shift the
others.
"""

from __future__ import annotations

import asyncio
from contextvars import Token
from random import Random
from typing import Any, Final

from comet.client import world as sdk
from comet.errors import InvalidArgument
from comet_broker.core.cluster import ClusterState, PartitionState
from comet_broker.metadata.memory import MemoryStore
from comet_testing.request_faults import RequestFaults
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.host import Host
from comet_testing.simulation.loop import Node
from comet_testing.simulation.network import Network, SimChannel
from comet_testing.transcript import Transcript
from comet_testing.virtual_time.virtual_loop import VirtualLoop

TEST: Final = "test"  # the name of the test's own clients on the network
RETENTION_CHECK_MS: Final = 5_000


class World:
    """Owned by a Cluster."""

    def __init__(self, loop: VirtualLoop, seed: int, brokers: int, settings: dict[str, Any]) -> None:
        self.loop = loop
        self.seed = seed
        self.complaints: list[str] = []
        self.transcript = Transcript(loop.elapsed_s)
        self.network = Network(loop, self.random("network"))
        self.network.complaints = self.complaints
        self.network.tap = self.transcript
        self.faults = RequestFaults(self.random("request faults"), self.transcript.note)
        self.network.gate = self.faults
        self.clock = SimClock(loop)
        self.store = MemoryStore(self.clock)
        self.processes: dict[str, Node] = {}  # of the test's applications
        chosen = {
            "etcd": ("store:2379",),
            "default_replicas": min(3, brokers),
            "retention_check_ms": RETENTION_CHECK_MS,
            **settings,
        }
        self.hosts = [
            Host(
                loop, self.random(f"broker {number}"), self.network, self.store, number, chosen,
                complaints=self.complaints,
            )
            for number in range(1, brokers + 1)
        ]  # fmt: skip
        self._turn = 0
        self._surrounding: Token[sdk.World | None] | None = None

    def random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.hosts]

    # ---- clients

    def surroundings(self, name: str) -> sdk.World:
        """The world of the clients of one process."""
        return sdk.World(lambda address: self._connect(name, address), self.random(f"{name}/sdk"), self.loop.wall_us)

    def enter(self) -> None:
        """From now on clients that the test makes are in this world."""
        self._surrounding = sdk.SURROUNDING.set(self.surroundings(TEST))

    def leave(self) -> None:
        assert self._surrounding is not None
        sdk.SURROUNDING.reset(self._surrounding)

    def _connect(self, client: str, address: str) -> SimChannel:
        """An address that no broker has stands for the cluster: it leads to brokers that run, in turn."""
        if address not in self.addresses:
            running = [host.address for host in self.hosts if host.up] or self.addresses
            self._turn += 1
            address = running[self._turn % len(running)]
        return SimChannel(self.network, client, address)

    def process(self, name: str) -> Node:
        """A new process of the user's, with clients of its own."""
        node = self.processes[name] = Node(self.loop, name)
        node.context.run(sdk.SURROUNDING.set, self.surroundings(name))
        return node

    # ---- brokers

    def host(self, broker: int) -> Host:
        return self.hosts[broker - 1]

    @property
    def running(self) -> list[Host]:
        return [host for host in self.hosts if host.node is not None and not host.node.dead]

    def acquainted(self) -> bool:
        """Whether every broker that runs, and is not paused, knows all the others."""
        running = {host.broker_id for host in self.running}
        views = [
            host.broker.view.state.brokers
            for host in self.running
            if host.broker is not None and host.node is not None and not host.node.paused
        ]
        return bool(views) and all(running <= set(view) for view in views)

    async def state(self) -> ClusterState:
        """The cluster's state, as the metadata store has it."""
        found = ClusterState()
        for item in (await self.store.range("")).items:
            found.apply(item.key, item)
        return found

    async def partition(self, topic: str, index: int) -> PartitionState | None:
        state = await self.state()
        spec = state.topics.get(topic)
        found = None if spec is None else state.partitions.get((spec.value.id, index))
        return None if found is None else found.value

    async def start(self) -> None:
        await asyncio.gather(*(host.start() for host in self.hosts))

    def stop(self) -> None:
        """Ends every process, without any order."""
        for node in self.processes.values():
            node.kill()
        for host in self.hosts:
            if host.node is not None and not host.node.dead:
                host.look_for_trouble()
                host.kill(power=False)


def world_loop() -> VirtualLoop:
    """The running loop. Raises InvalidArgument if its time is real."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise InvalidArgument(
            "a cluster of a test needs virtual time: run the coroutine with comet.testing.run, or let the pytest "
            "plugin run it by taking the fixture `comet`"
        )
    return loop
