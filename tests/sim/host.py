"""A machine with a broker on it: starts, drains, dies, comes back, over one disk that it keeps.

What is lost when: a killed process loses nothing that it wrote; a power cut loses what was not synced; an fsync that
failed counts as a power cut for its partition, because nobody knows any more what is on disk. The host writes both
into the history, since they are what excuses a loss.
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
from tests.sim.clock import SimClock
from tests.sim.disk import HostFiles
from tests.sim.history import History, PartitionName, Recovered
from tests.sim.loop import Node, SimLoop
from tests.sim.network import Network, PeerNetwork
from tests.sim.store import SimStore, StoreWeather
from tests.sim.worker import SimWorker, WorkerPace
from tests.waiting import until

DRAIN_GRACE_S: Final = 5.0
RESTART_S_MIN: Final = 0.05  # longer than any frame takes to arrive
START_S_MAX: Final = 30.0


class PlantedError(Exception):
    """What the simulation has a broker's own code raise."""


class HostWatcher(Protocol):
    """Somebody who is told at once what becomes of a host's disk and its logs."""

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
        history: History,
        store: MemoryStore,
        broker_id: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` of a broker in a cluster, which reaches the store over the network; None: it has one to itself."""
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
        self.away_until = 0.0  # nobody starts it before
        self.stopping = False  # an orderly stop is under way: the keeper waits
        self._loop = loop
        self._random = random
        self._network = network
        self._history = history
        self._store = store
        self._settings = settings
        self._boots = 1
        self._lossy_since: dict[PartitionName, float] = {}
        self._disk_failed = False  # a sync has: a broker that says so is right
        self._open: dict[PartitionName, None] = {}  # in this process
        self._last_open: dict[PartitionName, float] = {}  # what it held then may not be on disk; nothing came later
        self._synced_at: dict[PartitionName, float] = {}
        self._names: dict[str, str] = {}  # of topics, by the folder they are in
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who waits must hear of it
            if not started.done():
                started.set_exception(error)

    def _config(self) -> BrokerConfig:
        host, _, port = self.address.partition(":")
        return BrokerConfig(
            Path("data"),
            host=host,
            port=int(port),
            broker_id=self.broker_id,
            retention_check_ms=self._random.randint(200, 2000),
            **(self._settings or {}),
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
            for tp in self._tps():
                self._lose(tp)
        self._shut()
        self.disk.crash(power=power)
        if self.watcher is not None:
            self.watcher.died(power=power)
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
        for tp in self._tps():
            self._lose(tp)
        self.disk.crash()
        if self.watcher is not None:
            self.watcher.died(power=True)

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
            self._shut()
            self.disk.crash(power=False)
            if self.watcher is not None:
                self.watcher.died(power=False)

    async def _drain(self, broker: Broker, stopped: asyncio.Future[None]) -> None:
        try:
            listener = self._network.listener(self.address)
            await broker.drain()
            if listener is not None:
                await until(lambda: not listener.links, within_s=DRAIN_GRACE_S)
            self._network.unlisten(self.address, silent=False)
            await broker.close()
            for partition in broker.topics.by_handle.values():
                if partition.log.failed is None:
                    self._synced_at[partition.topic, partition.index] = self._loop.time()
        finally:
            if not stopped.done():
                stopped.set_result(None)

    def crash_in(self, operations: int, *, after: bool, power: bool) -> None:
        """The process will die at the so-manieth change to its disk from now."""
        if self.files is None or self.node is None or self.node.dead:
            return
        point = self.files.point
        point.operations, point.after = operations, after
        point.strike = lambda: self.kill(power=power)

    # ---- what excuses a loss

    def _tps(self) -> list[PartitionName]:
        known = {opened.tp: None for opened in self._history.recovered}
        return list(known)

    def _lose(self, tp: PartitionName) -> None:
        """What was not synced of a log is gone: what it held now, or when it was last open."""
        now = self._loop.time()
        self._lossy_since.setdefault(tp, now if tp in self._open else self._last_open.get(tp, now))

    def _shut(self) -> None:
        self._last_open.update(dict.fromkeys(self._open, self._loop.time()))
        self._open.clear()

    def _opened(self, partition: Partition) -> None:
        tp = (partition.topic, partition.index)
        self._names[partition.topic_id.hex()] = partition.topic
        self._open[tp] = None
        if self.watcher is not None:
            self.watcher.opened(partition)
        self._history.recovered.append(
            Recovered(
                tp,
                self._loop.time(),
                partition.log.log_start,
                partition.log.log_end,
                self._lossy_since.pop(tp, None),
                self._synced_at.get(tp, -1.0),
            )
        )

    def _sync_failed(self, path: str) -> None:
        """What was written to that log since its last good sync may be gone."""
        self._disk_failed = True
        if self.watcher is not None:
            self.watcher.sync_failed(path)
        parts = path.split("/")
        if len(parts) >= 3 and parts[1] in self._names:
            self._lose((self._names[parts[1]], int(parts[2])))

    # ---- looking in

    def look_for_trouble(self) -> None:
        """Notes what must never be: a dead background task, a queue beyond its limit."""
        if self.broker is None:
            return
        numbers = self.broker.statistics()
        complain = self._history.complaints.append
        for task in numbers["failed_tasks"]:
            if PlantedError.__name__ in task or (self._disk_failed and LogFailed.__name__ in task):
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
