"""A picture of a cluster, made by hand, and what the controller makes of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from comet.settings.topic import Consistency, TopicConfig
from comet_broker.core.cluster import (
    BrokerRecord,
    ClusterState,
    LogEnd,
    PartitionId,
    PartitionState,
    Stored,
    TopicSpec,
    broker_key,
    end_key,
    partition_key,
    topic_key,
)
from comet_broker.core.controller import Change, decide
from comet_broker.metadata.store import KeyValue, Put

TOPIC = "a" * 32
TP = (TOPIC, 0)


@dataclass
class Picture:
    """Makes a ClusterState, and applies changes to it."""

    state: ClusterState = field(default_factory=ClusterState)

    def put(self, key: str, value: Stored | bytes = b"", *, created: int = 0) -> None:
        self.state.revision += 1
        data = value.encode() if isinstance(value, Stored) else value
        revision = self.state.revision
        self.state.apply(key, KeyValue(key, data, created or revision, revision))

    def brokers(
        self,
        *alive: int,
        lossy: tuple[int, ...] = (),
        draining: tuple[int, ...] = (),
        life: int = 1,
        folder: str = "f",
        adopted: bool = False,
    ) -> None:
        """Registered with the broker epoch <id>0<life>, such as 101 for the first life of broker 1."""
        for broker in alive:
            record = BrokerRecord(
                "h", broker, "1", f"{folder}{broker}", 0, "", broker not in lossy, broker in draining, adopted
            )
            self.put(broker_key(broker), record, created=broker_epoch(broker, life))

    def topic(
        self,
        *,
        partitions: int = 1,
        replicas: int = 3,
        min_insync: int = 1,
        available: bool = False,
        topic: str = TOPIC,
    ) -> None:
        consistency = Consistency.AVAILABLE if available else Consistency.CONSISTENT
        config = TopicConfig(min_insync=min_insync, consistency=consistency)
        self.put(topic_key(topic[:1]), TopicSpec(topic, partitions, 0, config, replicas))

    def partition(self, state: PartitionState, where: PartitionId = TP) -> None:
        """As it is with all that were ever in sync having the folders that they had first."""
        folders = {broker: f"f{broker}" for broker in (*state.holders, *state.in_sync)}
        self.put(partition_key(where), replace(state, folders=state.folders or folders))

    def ends(self, told: dict[int, tuple[int, int]], *, life: int = 1, epoch: int = 8) -> None:
        """What brokers say of their logs: epoch of the last record, end."""
        for broker, (last_epoch, log_end) in told.items():
            end = LogEnd(broker_epoch(broker, life), epoch, last_epoch, log_end, 0)
            self.put(end_key(broker, TP), end)

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            for operation in change.operations:
                if isinstance(operation, Put):
                    self.put(operation.key, operation.value)
                else:
                    self.state.apply(operation.key, None)

    def decided(
        self, *, rebalance: bool = False, last_resort: bool = True, waited: Collection[PartitionId] | None = None
    ) -> PartitionState:
        """What the partition is once the controller has done all it wants, but for the folders; and that then it wants
        nothing more."""
        self.apply(decide(self.state, rebalance=rebalance, last_resort=last_resort, waited=waited))
        assert not decide(self.state, rebalance=rebalance, last_resort=last_resort, waited=waited)
        return replace(self.state.partitions[TP].value, folders={})

    @property
    def folders(self) -> dict[int, str]:
        return self.state.partitions[TP].value.folders


def broker_epoch(broker: int, life: int = 1) -> int:
    return 100 * broker + life


def members(*brokers: int, life: int = 1) -> dict[int, int]:
    return {broker: broker_epoch(broker, life) for broker in brokers}


REPLICAS = (1, 2, 3)
ALL = PartitionState(1, 7, REPLICAS, members(1, 2, 3))
