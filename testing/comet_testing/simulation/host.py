"""A machine with a broker on it: starts, drains, dies, comes back, over one disk that it keeps.

A killed process loses nothing that it wrote; a power cut loses what was not synced; after a failed fsync it is unknown
what is on disk. A journal is told of all three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from comet.errors import CometError, LogFailed
from comet_broker import limits
from comet_broker.broker import Broker
from comet_broker.config import BrokerConfig
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import MetadataStore, StoreUnavailable
from comet_broker.partitions.partition import Partition
from comet_broker.storage.memory import MemoryFiles
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.disk import HostFiles
from comet_testing.simulation.loop import Node, SimLoop
from comet_testing.simulation.network import Listener, Network, PeerNetwork
from comet_testing.simulation.store import SimStore, StoreWeather
from comet_testing.simulation.worker import SimWorker, WorkerPace

DRAIN_GRACE_S: Final = 5.0
LOOK_S: Final = 0.05
RESTART_S_MIN: Final = 0.05  # longer than any frame takes to arrive
START_S_MAX: Final = 30.0


class HostWatcher(Protocol):
    """Sees at once what becomes of a host's disk and its logs."""

    def changed(self, path: str, size: int) -> None:
        """A file has been appended to, cut to `size`, or with -1 removed."""

    def opened(self, partition: Partition) -> None: ...
    def sync_failed(self, path: str) -> None: ...
    def damaged(self, path: str, base: int) -> None:
        """A bit of the batch that begins there was flipped."""

    def lies(self, folder: str) -> None:
        """The log in this folder is not what its broker left there."""

    def look(self) -> None:
        """A callback of the broker has run."""

    def died(self, *, power: bool) -> None: ...


class HostJournal(Protocol):
    """Notes what a host's logs went through, from one process to the next."""

    def opened(self, partition: Partition) -> None: ...
    def closed(self, partition: Partition) -> None:
        """In good order, by a broker that drains."""

    def sync_failed(self, path: str) -> None: ...
    def died(self, *, power: bool) -> None: ...


class OpenPartitions(dict[int, Partition]):
    """The broker's table of partitions, which tells when a log was opened: before anything is appended to it."""

    def __init__(self, opened: Callable[[Partition], None]) -> None:
        super().__init__()
        self._opened = opened

    def __setitem__(self, handle: int, partition: Partition) -> None:
        super().__setitem__(handle, partition)
        self._opened(partition)


class Host:
    """Owned by the world. At most one process of the broker lives at a time."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        network: Network,
        store: MemoryStore,
        broker_id: int = 1,
        settings: Mapping[str, Any] | None = None,
        *,
        complaints: list[str],
        journal: HostJournal | None = None,
        pardoned: Sequence[str] = (),
    ) -> None:
        """`settings` of a broker in a cluster, which reaches the store over the network; None: it has one to itself.
        `complaints` gets what must never be; `pardoned` are errors that a test makes on purpose, by name."""
        self.address = f"10.0.0.{broker_id}:9092"
        self.broker_id = broker_id
        self.weather = StoreWeather()
        self.watcher: HostWatcher | None = None
        self.clock = SimClock(loop)
        self.pace = WorkerPace()
        self.disk = MemoryFiles(Random(random.getrandbits(64)), cold=random.choice((0.0, 0.05, 0.5)))
        self.broker: Broker | None = None
        self.node: Node | None = None
        self.files: HostFiles | None = None
        self.broker_epoch = 0
        self.trouble = ""  # why the last start failed
        self.away_until = 0.0  # it is not started before
        self.stopping = False  # an orderly stop is under way: the keeper waits
        self._loop = loop
        self._random = random
        self._network = network
        self._complaints = complaints
        self._journal = journal
        self._pardoned = pardoned
        self._store = store
        self._settings = settings
        self._boots = 1
        self._disk_failed = False  # a sync has: a broker that says so is right
        self._ended: asyncio.Future[None] | None = None

    @property
    def up(self) -> bool:
        return self._network.listener(self.address) is not None

    # ---- life

    async def start(self) -> bool:
        """Starts the broker; False if it died before it could take requests."""
        assert self.node is None or self.node.dead
        self.broker_epoch += 1
        self.broker = None
        self.trouble = ""
        node = self.node = Node(self._loop, f"broker-{self.broker_id}.{self.broker_epoch}")
        self.files = HostFiles(self.disk, node, self._sync_failed)
        if self.watcher is not None:
            self.files.changed = self.watcher.changed
            node.after = self.watcher.look
        self._network.power_on(self.address)
        ended = self._ended = self._loop.create_future()
        node.spawn(self._run(node, self.files, ended), "start")
        # In a cluster it waits for the metadata store, however long that takes.
        async with asyncio.timeout(START_S_MAX if self._settings is None else None):
            await asyncio.wait([ended])
        if node.dead:
            return False
        ended.result()
        return True

    async def _run(self, node: Node, files: HostFiles, started: asyncio.Future[None]) -> None:
        try:
            broker = Broker(self._config(), files=files, clock=self.clock, **self._parts())
            broker.topics.by_handle = OpenPartitions(self._opened)
            await broker.start()
            self.broker = broker
            self._network.listen(self.address, node, broker)
            await broker.join()
            if not started.done():
                started.set_result(None)
        except (StoreUnavailable, OSError, CometError) as error:
            self.trouble = repr(error)
            self.kill(power=False)  # it says why and ends, to be started again
        except Exception as error:  # noqa: BLE001 - it is raised by `start`
            if not started.done():
                started.set_exception(error)

    def _config(self) -> BrokerConfig:
        host, _, port = self.address.partition(":")
        return BrokerConfig(
            Path("data"),
            host=host,
            port=int(port),
            broker_id=self.broker_id,
            **{"retention_check_ms": self._random.randint(200, 2000), **(self._settings or {})},
        )

    def _parts(self) -> dict[str, Any]:
        """What a process of the broker is given of the world."""
        store: MetadataStore = self._store
        if self._settings is not None:
            store = SimStore(self._store, self._network, self.address, self.weather, self._chance())
        return {
            "store": store,
            "worker": SimWorker(self._chance(), self.pace),
            "random": self._chance(),
            "network": PeerNetwork(self._network, self.address),
            "boot_id": f"boot {self._boots}",
        }

    def _chance(self) -> Random:
        return Random(self._random.getrandbits(64))

    def kill(self, *, power: bool) -> None:
        """The process is gone between two instructions; with `power`, so is all that was not synced."""
        if self.node is None or self.node.dead:
            return
        self.look_for_trouble()
        self.node.kill()
        self._network.unlisten(self.address, silent=power)
        self._network.forsake(self.address, silent=power)
        if power:
            self._boots += 1
        self._dies(power=power)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def put_back(self, copy: Mapping[str, bytes], folders: Sequence[str], *, whole: bool) -> None:
        """The process dies, and what is in these folders of logs, or on the whole disk, becomes an old copy of it."""
        self.kill(power=False)
        for below in [""] if whole else folders:
            self.disk.put_back(copy, below)
        self._lied(folders)

    def cut_short(self, path: str, size: int) -> None:
        """The process dies, and the end of a log is gone."""
        self.kill(power=False)
        self.disk.cut(path, size)
        self._lied([path.rpartition("/")[0]])

    def _lied(self, folders: Sequence[str]) -> None:
        for folder in folders:
            if self.watcher is not None:
                self.watcher.lies(folder)

    def lose_power(self) -> None:
        """The power fails while no broker runs."""
        assert self.node is None or self.node.dead
        self._boots += 1
        self._dies(power=True)

    def _dies(self, *, power: bool) -> None:
        if self._journal is not None:
            self._journal.died(power=power)
        self.disk.crash(power=power)
        if self.watcher is not None:
            self.watcher.died(power=power)

    async def drain(self) -> None:
        """Stops the broker as SIGTERM does."""
        node, broker = self.node, self.broker
        if node is None or node.dead or broker is None or self.stopping:
            return
        starting = self._ended  # a start may be under way still
        stopped = self._ended = self._loop.create_future()
        self.stopping = True
        node.spawn(self._drain(broker, stopped), "drain")
        await asyncio.wait([stopped])
        self.stopping = False
        if starting is not None and not starting.done():
            starting.set_result(None)
        if not node.dead:
            self.look_for_trouble()
            node.kill()
            self._network.forsake(self.address, silent=False)
            self._dies(power=False)

    async def _drain(self, broker: Broker, stopped: asyncio.Future[None]) -> None:
        try:
            listener = self._network.listener(self.address)
            await broker.drain()
            if listener is not None:
                await self._left(listener)
            self._network.unlisten(self.address, silent=False)
            await broker.close()
            for partition in broker.topics.by_handle.values():
                if self._journal is not None and partition.log.failed is None:
                    self._journal.closed(partition)
        finally:
            if not stopped.done():
                stopped.set_result(None)

    async def _left(self, listener: Listener) -> None:
        """Returns when all clients have left a broker that drains, or their time is over."""
        deadline = self._loop.time() + DRAIN_GRACE_S
        while listener.links and self._loop.time() < deadline:
            await asyncio.sleep(LOOK_S)

    def crash_in(self, operations: int, *, after: bool, power: bool) -> None:
        """Kills the process after this number of further changes to its disk."""
        if self.files is None or self.node is None or self.node.dead:
            return
        point = self.files.point
        point.operations, point.after = operations, after
        point.strike = lambda: self.kill(power=power)

    def _opened(self, partition: Partition) -> None:
        if self.watcher is not None:
            self.watcher.opened(partition)
        if self._journal is not None:
            self._journal.opened(partition)

    def _sync_failed(self, path: str) -> None:
        self._disk_failed = True
        if self.watcher is not None:
            self.watcher.sync_failed(path)
        if self._journal is not None:
            self._journal.sync_failed(path)

    # ---- looking in

    def look_for_trouble(self) -> None:
        """Notes what must never be: a dead background task, a queue beyond its limit."""
        if self.broker is None:
            return
        numbers = self.broker.statistics()
        complain = self._complaints.append
        for task in numbers["failed_tasks"]:
            if any(name in task for name in self._pardoned) or (self._disk_failed and LogFailed.__name__ in task):
                continue
            complain(f"{self.node and self.node.name} at {self._loop.time():.4f} s: task {task}")
        if numbers["tail_bytes"] > limits.TAIL_TOTAL_BYTES_MAX:
            complain(f"the tails hold {numbers['tail_bytes']} bytes")
        for session in numbers["sessions"]:
            if session["owed"] > limits.SESSION_ANSWERS_MAX + 1:
                complain(f"{session['peer']} is owed {session['owed']} answers, more than the limit")

    def partitions(self) -> list[Partition]:
        return [] if self.broker is None else list(self.broker.topics.by_handle.values())

    def failed(self) -> bool:
        """Whether a disk failed under one of the logs, so that only a restart brings it back."""
        return any(partition.log.failed is not None for partition in self.partitions())

    def statistics(self) -> dict[str, Any]:
        return {} if self.broker is None else self.broker.statistics()
