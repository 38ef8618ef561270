"""Everything one simulated run consists of, made from one seed.

Each part draws from a random source of its own, named after it, so that a change in one part does not shift what all
the others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, cast

from comet_broker.metadata.memory import MemoryStore
from comet_broker.ports import Files
from comet_broker.storage.checkpoint import read_checkpoint
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.host import Host
from comet_testing.simulation.loop import Node, SimLoop
from comet_testing.simulation.network import Network
from tests.sim.durable import Durable
from tests.sim.history import History, Outcome, PartitionName, Produce, Read
from tests.sim.loss_journal import LossJournal
from tests.sim.planting import PlantedError


class World:
    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.history = History()
        self.network = Network(loop, self.random("network"))
        self.network.wire_random = self.random("wire")
        self.network.complaints = self.history.complaints
        self.clock = SimClock(loop)  # of the clients
        self.store = MemoryStore(self.clock)
        self.hosts = [self.new_host("host")]
        self.stopping = False  # clients finish what they have begun and send nothing new
        self.clients: dict[str, Node] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.damaged: set[str] = set()  # segments: two damaged batches may hide what lies between them
        self.log: list[str] = []  # what was done to the world, for -v

    @property
    def host(self) -> Host:
        return self.hosts[0]

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.hosts]

    def new_host(self, name: str, broker_id: int = 1, settings: dict[str, Any] | None = None) -> Host:
        return Host(
            self.loop,
            self.random(name),
            self.network,
            self.store,
            broker_id,
            settings,
            complaints=self.history.complaints,
            journal=LossJournal(self.history, self.now),
            pardoned=(PlantedError.__name__,),
        )

    def wrote(self, operation: Produce) -> None:
        """A producer was told that its record is written."""

    def standing(self, tp: PartitionName) -> tuple[int, int]:
        """What `told` compares an answer with."""
        return 0, 0

    def told(self, tp: PartitionName, broker: int, end: int, before: tuple[int, int]) -> None:
        """A broker said where a partition ends, to a client that had asked when `standing` was this."""

    def saw(self, read: Read) -> None:
        """A consumer was given a record."""

    def random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def now(self) -> float:
        return self.loop.time()

    def note(self, text: str) -> None:
        self.log.append(f"{self.now():10.4f}  {text}")

    def client(self, name: str, work: Coroutine[Any, Any, None]) -> Node:
        """Starts a client process."""
        node = self.clients[name] = Node(self.loop, name)
        node.spawn(work, "main")
        return node

    def busy(self, name: str) -> bool:
        """Whether a client process still runs."""
        return not self.clients[name].dead and any(task.node is self.clients[name] for task in self.loop.tasks())

    def stuck(self, name: str) -> list[str]:
        return [line for line in self.loop.waiting() if line.strip().startswith(f"{name}:")]

    def kill_client(self, name: str) -> None:
        """A client process dies: its links are reset, and nobody knows what became of what it had under way."""
        self.clients[name].kill()
        self.network.forsake(name, silent=False)
        for operation in self.history.produces:
            if operation.process == name and operation.outcome is Outcome.PENDING:
                operation.outcome, operation.code, operation.completed = Outcome.UNKNOWN, "TIMEOUT", self.now()

    def safe_segments(self) -> list[tuple[PartitionName, str, int]]:
        """Segments with the partition each belongs to, and the offset below which the log is known to be on disk: what
        a checkpoint says that is itself on disk."""
        found = []
        disk = self.host.disk
        for partition in self.host.partitions():
            folder = f"topics/{partition.topic_id.hex()}/{partition.index}"
            checkpoint = read_checkpoint(cast("Files", Durable(disk)), folder)
            if checkpoint is not None:
                names = [name for name in disk.list(folder) if name.endswith(".log")]
                tp = (partition.topic, partition.index)
                found += [(tp, f"{folder}/{name}", checkpoint.synced_end) for name in names]
        return found

    async def sleep(self, random: Random, mean_s: float) -> None:
        await asyncio.sleep(min(random.expovariate(1 / mean_s), mean_s * 10))
