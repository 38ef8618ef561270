"""A cluster without brokers: what brokers, disks and the metadata store do is done by hand, and a real monitor watches.

One topic `t` with one partition. Each write is one batch, the same bytes on every broker that is named; what a broker
knows is set by `watermark`. Time is moved by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from comet import records
from comet.settings.topic import Consistency, Flush, TopicConfig
from comet_broker.core.cluster import BROKERS, BrokerRecord, PartitionState, TopicSpec, partition_key, topic_key
from comet_broker.core.cluster import defective_key as key_of_mark
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import KeyValue, WatchEvent
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, segment_name
from comet_broker.storage.memory import MemoryFiles
from comet_testing.simulation.host import Host, HostWatcher
from tests.sim.history import PartitionName, make_value
from tests.sim.losses import Where
from tests.sim.monitor import Monitor

LEASE_S: Final = 3.0
TOPIC: Final = "t"
TOPIC_ID: Final = "0f" * 16
TP: Final[PartitionName] = (TOPIC, 0)
WHERE: Final[Where] = (TOPIC_ID, 0)
LOG: Final = f"topics/{TOPIC_ID}/0/{segment_name(0)}"


@dataclass(eq=False)
class StagedPartition:
    committed: int = 0
    leader_epoch: int = 0
    leads: bool = False
    topic: str = TOPIC
    topic_id: bytes = bytes.fromhex(TOPIC_ID)
    index: int = 0


@dataclass(eq=False)
class StagedHost:
    """What the monitor sees of a host.Host."""

    broker_id: int
    disk: MemoryFiles = field(default_factory=lambda: MemoryFiles(Random(1)))
    broker_epoch: int = 0  # which process of the broker this is
    node: Any = None
    broker: Any = None
    watcher: HostWatcher | None = None
    partition: StagedPartition = field(default_factory=StagedPartition)
    ends: list[int] = field(default_factory=list)  # of the file, after each batch
    synced: int = 0  # of these

    def partitions(self) -> list[StagedPartition]:
        return [self.partition]

    @property
    def watch(self) -> HostWatcher:
        assert self.watcher is not None
        return self.watcher


def value_of(epoch: int, offset: int) -> bytes:
    return make_value(f"p{epoch}", offset, TP, 60)


class StagedCluster:
    def __init__(
        self,
        brokers: int = 3,
        *,
        min_insync: int = 2,
        flush: Flush = Flush.INTERVAL,
        consistency: Consistency = Consistency.CONSISTENT,
    ) -> None:
        self.now = 0.0
        self.revision = 0
        self.hosts = {number: StagedHost(number) for number in range(1, brokers + 1)}
        store = MemoryStore(cast("Any", SimpleNamespace(monotonic=lambda: self.now)))
        self.monitor = Monitor(store, [cast("Host", host) for host in self.hosts.values()], lambda: self.now, LEASE_S)
        config = TopicConfig(min_insync=min_insync, flush=flush, consistency=consistency)
        self._put(topic_key(TOPIC), TopicSpec(TOPIC_ID, 1, 0, config, brokers).encode())
        for number in self.hosts:
            host = self.hosts[number]
            host.disk.make_folder(LOG.rpartition("/")[0])
            file = host.disk.open(LOG, create=True)
            file.append((bytes(SEGMENT_HEADER_BYTES),))
            self.start(number)
        self.state(1, 1, list(self.hosts))

    @property
    def found(self) -> set[str]:
        """The invariants that the monitor has complained about."""
        return {name for name, complaints in self.monitor.complaints.items() if complaints}

    # ---- the metadata store

    def _event(self, key: str, item: KeyValue | None) -> None:
        self.monitor._event(WatchEvent(key, item, self.revision))

    def _put(self, key: str, value: bytes) -> None:
        self.revision += 1
        self._event(key, KeyValue(key, value, self.revision, self.revision))

    def gone(self, broker: int) -> None:
        """Its registration has ended."""
        self.revision += 1
        self._event(f"{BROKERS}{broker}", None)

    def unfit(self, broker: int) -> None:
        self._put(key_of_mark(broker, WHERE), b"damaged")

    def state(
        self, leader: int, epoch: int, in_sync: Sequence[int] | dict[int, int], eligible: dict[int, int] | None = None
    ) -> None:
        """Written down; the brokers that run, and are named, hear of it."""
        table = in_sync if isinstance(in_sync, dict) else {broker: self.as_(broker) for broker in in_sync}
        state = PartitionState(leader, epoch, tuple(self.hosts), table, eligible or {})
        self._put(partition_key(WHERE), state.encode())
        if leader:
            self.hear(leader, epoch, leads=True)

    def as_(self, broker: int) -> int:
        """The broker epoch that is registered, or was last."""
        return int(self.hosts[broker].broker.membership.broker_epoch)

    # ---- brokers

    def start(self, broker: int, *, noted: int = 0, epoch: int = 0) -> None:
        """A process begins, finds what is on its disk, a watermark too, and registers."""
        host = self.hosts[broker]
        host.broker_epoch += 1
        self._put(f"{BROKERS}{broker}", BrokerRecord("h", 1, "v", f"folder {broker}", 0).encode())
        host.node = SimpleNamespace(dead=False)
        host.partition = StagedPartition(noted, epoch)
        host.broker = SimpleNamespace(
            membership=SimpleNamespace(broker_epoch=self.revision),
            topics=SimpleNamespace(by_handle={1: host.partition}),
        )
        host.watch.opened(cast("Any", host.partition))
        host.watch.look()

    def kill(self, broker: int, *, power: bool = False) -> None:
        """Its process dies, or its machine, with all that was not synced. It stays registered until it is `gone`."""
        host = self.hosts[broker]
        host.node.dead = True
        if power:
            del host.ends[host.synced :]
            host.disk.open(LOG).truncate(host.ends[-1] if host.ends else SEGMENT_HEADER_BYTES)
        host.watch.died(power=power)

    def restart(self, broker: int, *, power: bool = False) -> None:
        self.kill(broker, power=power)
        self.gone(broker)
        self.start(broker)

    def hear(self, broker: int, epoch: int, *, leads: bool = False) -> None:
        partition = self.hosts[broker].partition
        partition.leader_epoch, partition.leads = epoch, leads
        self.hosts[broker].watch.look()

    def watermark(self, end: int, *brokers: int) -> None:
        for broker in brokers:
            self.hosts[broker].partition.committed = end
            self.hosts[broker].watch.look()

    # ---- logs

    def write(self, count: int, *brokers: int, epoch: int = 1, salt: int = 0) -> None:
        """So many records more, each a batch of its own; with another `salt` they are others."""
        for broker in brokers:
            host = self.hosts[broker]
            for _ in range(count):
                offset = len(host.ends)
                unstamped = b"".join(records.encode([value_of(epoch, offset)], timestamps=1 + salt))
                stamp = records.make_stamp(offset, 1, epoch, len(unstamped))
                file = host.disk.open(LOG)
                file.append((stamp, unstamped[records.STAMP_BYTES :]))
                host.ends.append(file.size)
                host.watch.changed(LOG, file.size)

    def sync(self, *brokers: int) -> None:
        for broker in brokers:
            self.hosts[broker].synced = len(self.hosts[broker].ends)

    def cut(self, end: int, *brokers: int) -> None:
        """What lies beyond that offset is taken away by the broker itself."""
        for broker in brokers:
            host = self.hosts[broker]
            del host.ends[end:]
            host.synced = min(host.synced, end)
            size = host.ends[-1] if host.ends else SEGMENT_HEADER_BYTES
            host.disk.open(LOG).truncate(size)
            host.watch.changed(LOG, size)

    def fail_sync(self, broker: int) -> None:
        """What was not synced is lost, which shows when the log is opened again."""
        host = self.hosts[broker]
        host.watch.sync_failed(LOG)
        del host.ends[host.synced :]
        host.disk.open(LOG).truncate(host.ends[-1] if host.ends else SEGMENT_HEADER_BYTES)


def right(end: int = 4, **more: object) -> StagedCluster:
    """Broker 1 leads; all three have so many records, of which two are on every disk, and know that they do."""
    cluster = StagedCluster(**more)  # type: ignore[arg-type]
    cluster.write(2, *cluster.hosts)
    cluster.sync(*cluster.hosts)
    cluster.write(end - 2, *cluster.hosts)
    for broker in list(cluster.hosts)[1:]:
        cluster.hear(broker, 1)
    cluster.watermark(end, *cluster.hosts)
    return cluster
