"""The cluster's state: the keys of the metadata store, their values, and the state that they make.

    cluster/id                               the cluster's id
    cluster/lineage                          the registrations, in order: they reveal a store that went back in time
    cluster/controller                       the broker that holds the controller's role     (its lease)
    cluster/brokers/<id>                     a broker that is alive, and its address         (its lease)
    cluster/topics/<name>                    a topic and its settings
    cluster/partitions/<topic id>/<index>    a partition's replicas, its leader, its in-sync replicas
    cluster/deleted/<topic id>               a deleted topic, and the brokers that still have files of it
    cluster/defective/<broker>/<topic id>/<index>  a replica that must not lead: damaged, or its disk failed
    cluster/conflicts/<broker>/<topic id>/<index>  a replica that does not follow: it would lose committed records
    cluster/ends/<broker>/<topic id>/<index>  the log end offset of a replica, for an election     (its lease)
    cluster/drains/<broker>                  an operator has drained this broker: it leads nothing
    cluster/coordinators/<slot>              the coordinator of the groups and transactions of a slot
    cluster/calendars/<name>                 a market calendar

The create_revision of a broker's key is its *broker epoch*: a number that no other start of any broker ever had.
In-sync replicas are stored with it, so that a broker that comes back with fewer records is not taken for one that never
left.

Pure: `core.controller` decides from the state, `comet_broker.cluster.view` follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from comet.settings.topic import SettingSource, TopicConfig
from comet_broker.metadata.decoders import decoder_of
from comet_broker.metadata.store import KeyValue

CLUSTER: Final = "cluster/"
ID: Final = "cluster/id"
LINEAGE: Final = "cluster/lineage"
CONTROLLER: Final = "cluster/controller"
BROKERS: Final = "cluster/brokers/"
TOPICS: Final = "cluster/topics/"
PARTITIONS: Final = "cluster/partitions/"
DELETED: Final = "cluster/deleted/"
DEFECTIVE: Final = "cluster/defective/"
CONFLICTS: Final = "cluster/conflicts/"
ENDS: Final = "cluster/ends/"
DRAINS: Final = "cluster/drains/"
COORDINATORS: Final = "cluster/coordinators/"
CALENDARS: Final = "cluster/calendars/"
RULES: Final = "cluster/rules"
ACCESS_KEYS: Final = "cluster/access_keys"
QUOTAS: Final = "cluster/quotas"

NO_BROKER: Final = 0  # no broker has this id

T = TypeVar("T")
PartitionId = tuple[str, int]  # topic id, partition
Copy = tuple[int, str, int]  # broker, topic id, partition


class Stored(msgspec.Struct, frozen=True):
    """A value in the store, as JSON. Unknown fields are ignored, missing ones take their default."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found: Self = decoder_of(cls).decode(data)
        return found


class BrokerRecord(Stored, frozen=True):
    """The registration of a broker that is alive, under the broker's lease."""

    host: str
    port: int
    version: str
    folder: str  # a random id that its data folder carries; another folder under the same broker id is refused
    lease: int  # so that another broker that is certain that this one is gone can end it
    rack: str = ""
    clean: bool = True  # none of the records that the cluster expects it to have can have been lost
    draining: bool = False  # it is about to stop
    adopted: bool = False  # the folder held data before it had an id: the cluster may know it by another
    brokers_host: str = ""  # where other brokers connect; empty: as clients do
    brokers_port: int = 0  # 0: as clients do
    wire_port: int = 0  # where clients connect over the wire; 0: nowhere
    wire_socket: str = ""  # path of the wire's Unix socket, for clients on its machine; empty: none
    brokers_wire_port: int = 0  # where other brokers do, if they have a listener of their own

    @property
    def brokers_address(self) -> str:
        """Where other brokers connect."""
        return f"{self.brokers_host or self.host}:{self.brokers_port or self.port}"

    @property
    def brokers_wire_address(self) -> str | None:
        """Where they connect over the wire."""
        port = self.brokers_wire_port if self.brokers_port else self.wire_port
        return f"{self.brokers_host or self.host}:{port}" if port else None


class LineageEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the store's history; see core.lineage. `revision` is 0 in the newest one, as it is stored."""

    broker: int
    mark: str  # random
    revision: int = 0
    tick: bool = False  # not a registration: written because partitions have changed since the last entry
    recovery: int = 0  # a number: an operator has accepted this history in place of another
    below: int = 0  # of a recovery: the highest revision of the earlier history that any folder knew


class Lineage(Stored, frozen=True):
    entries: tuple[LineageEntry, ...] = ()


class ControllerRecord(Stored, frozen=True):
    broker: int
    broker_epoch: int


class TopicSpec(Stored, frozen=True):
    id: str  # 32 hex digits
    partitions: int
    created_us: int
    config: TopicConfig
    replicas: int = 1
    sources: dict[str, SettingSource] = {}  # of the settings that are not built in


class GivenUp(msgspec.Struct, frozen=True, array_like=True):
    """The offset from which on a replica's records differ from the valid ones, and the checksum of the valid batch
    there: a replica that has this batch is truncated already."""

    offset: int
    checksum: int


class PartitionState(Stored, frozen=True):
    """The replicas of a partition. Written by the controller and by the leader, each by compare-and-swap.

    in_sync    broker -> broker epoch of those that have everything below the high watermark
    eligible   as in_sync: they left while too few were in sync for the high watermark to move, so they still have all
    target     the replicas after a reassignment; empty if none is under way
    handover   the leader passes leadership to this broker as soon as that has all of the leader's records
    folders    broker -> data folder in which its replica was in sync last
    deleted    (epoch, offset): records written up to that epoch are deleted below the offset, for good
    loss_accepted  the epoch from whose start on an operator accepts that replicas lose records that its leader lacks
    loss_settled   the holders that have been in sync or eligible since: for them that is over
    given_up   broker -> the part of its log that is truncated before it follows in that epoch or a later one: written
               under a metadata store that was given up, in epochs that were given twice
    """

    leader: int
    epoch: int
    replicas: tuple[int, ...]  # the preferred leader first
    in_sync: dict[int, int]
    eligible: dict[int, int] = {}
    target: tuple[int, ...] = ()
    handover: int = NO_BROKER
    folders: dict[int, str] = {}
    deleted: tuple[int, int] = (0, 0)
    loss_accepted: int = 0
    loss_settled: tuple[int, ...] = ()
    given_up: dict[int, GivenUp] = {}

    def __post_init__(self) -> None:
        if self.loss_accepted:
            since = {*self.loss_settled, *self.in_sync, *self.eligible}
            settled = tuple(sorted(since.intersection(self.holders)))
            msgspec.structs.force_setattr(self, "loss_settled", settled)

    def loss_accepted_of(self, broker: int) -> int:
        """`loss_accepted`, for the records of this replica. One that has been in sync since had all that counted: what
        it has is not given up a second time, for a later leader."""
        return 0 if broker in self.loss_settled else self.loss_accepted

    @property
    def holders(self) -> tuple[int, ...]:
        """All brokers that hold a copy now: the replicas, and those that are to become replicas."""
        return tuple(dict.fromkeys((*self.replicas, *self.target)))

    def folder_replaced(self, broker: int, record: BrokerRecord) -> bool:
        """Whether the replica was in sync in another folder than the broker has now, as after a change of its disk: its
        log began empty and has not been complete since."""
        return not record.adopted and self.folders.get(broker, record.folder) != record.folder


class Conflict(Stored, frozen=True):
    """A replica that does not follow its leader, because that would truncate committed records.

    Its log ends at `log_end` with a record of `last_epoch`, and is committed up to `high_watermark`. To follow `leader`
    in `epoch`, it would have to be truncated to `offset`. `problem` says why a truncation that an operator has accepted
    failed.
    """

    leader: int
    epoch: int
    offset: int
    log_end: int
    high_watermark: int
    last_epoch: int = 0
    problem: str = ""

    def __str__(self) -> str:
        found = (
            f"to follow broker {self.leader} in epoch {self.epoch} it would lose committed records from offset"
            f" {self.offset} up to {self.high_watermark} (its log ends at {self.log_end}, epoch {self.last_epoch})"
        )
        return f"{found}: {self.problem}" if self.problem else found


class LogEnd(Stored, frozen=True):
    """The log end of one replica, for the election of a leader among replicas that may have lost records.
    Valid in that `epoch` of the partition, in which there is no leader, and for that start of the broker."""

    broker_epoch: int
    epoch: int
    last_epoch: int  # of its last record
    log_end: int
    high_watermark: int


class CoordinatorRecord(Stored, frozen=True):
    """The coordinator of a slot; see core.slots. `epoch` grows by one with each coordinator."""

    broker: int
    broker_epoch: int
    epoch: int


class Tombstone(Stored, frozen=True):
    """A deleted topic. Each broker removes itself once its files are gone; then the controller removes the key."""

    name: str
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with the revisions that a compare-and-swap of it needs."""

    value: T
    mod_revision: int
    create_revision: int


@dataclass(slots=True)
class ClusterState:
    """The cluster's state at one revision. Changed only by `apply`, in the order of the store's revisions."""

    revision: int = 0
    cluster_id: str = ""
    lineage: Versioned[Lineage] | None = None
    rules: Versioned[bytes] | None = None  # see core.rules
    access_keys: Versioned[bytes] | None = None  # see core.access_keys
    quotas: Versioned[bytes] | None = None  # see core.quotas
    controller: ControllerRecord | None = None
    brokers: dict[int, Versioned[BrokerRecord]] = field(default_factory=dict)
    topics: dict[str, Versioned[TopicSpec]] = field(default_factory=dict)
    partitions: dict[PartitionId, Versioned[PartitionState]] = field(default_factory=dict)
    deleted: dict[str, Versioned[Tombstone]] = field(default_factory=dict)
    defective: dict[Copy, Versioned[bytes]] = field(default_factory=dict)
    conflicts: dict[Copy, Versioned[Conflict]] = field(default_factory=dict)
    ends: dict[Copy, Versioned[LogEnd]] = field(default_factory=dict)
    drains: dict[int, Versioned[bytes]] = field(default_factory=dict)
    coordinators: dict[int, Versioned[CoordinatorRecord]] = field(default_factory=dict)
    calendars: dict[str, Versioned[bytes]] = field(default_factory=dict)  # see core.calendars

    def broker_epoch(self, broker: int) -> int:
        """0 for a broker that is not alive."""
        found = self.brokers.get(broker)
        return 0 if found is None else found.create_revision

    def replicas_not_in_sync(self, broker: int) -> int:
        """The number of replicas of a live broker that are not in sync since it has registered."""
        epoch = self.broker_epoch(broker)
        held = (found.value for found in self.partitions.values() if broker in found.value.replicas)
        return sum(state.in_sync.get(broker) != epoch for state in held)

    def apply(self, key: str, item: KeyValue | None) -> None:
        """Applies the new value of a key; None: it was deleted. Keys of other kinds are ignored."""
        for prefix, name, key_of, decode in _TABLES:
            if key.startswith(prefix):
                table = getattr(self, name)
                if item is None:
                    table.pop(key_of(key.removeprefix(prefix)), None)
                else:
                    table[key_of(key.removeprefix(prefix))] = _versioned(item, decode)
                return
        if key == CONTROLLER:
            self.controller = None if item is None else ControllerRecord.decode(item.value)
        elif key == LINEAGE:
            self.lineage = None if item is None else _versioned(item, Lineage.decode)
        elif key == RULES:
            self.rules = None if item is None else _versioned(item, bytes)
        elif key == ACCESS_KEYS:
            self.access_keys = None if item is None else _versioned(item, bytes)
        elif key == QUOTAS:
            self.quotas = None if item is None else _versioned(item, bytes)
        elif key == ID and item is not None:
            self.cluster_id = item.value.decode()

    def marks(self) -> list[tuple[Copy, str, int]]:
        """The persistent marks of replicas, damaged or in conflict: each with its replica, key and mod_revision."""
        defective = [
            (copy, defective_key(copy[0], copy[1:]), found.mod_revision) for copy, found in self.defective.items()
        ]
        conflicts = [
            (copy, conflict_key(copy[0], copy[1:]), found.mod_revision) for copy, found in self.conflicts.items()
        ]
        return sorted([*defective, *conflicts])

    @classmethod
    def of(cls, items: Iterable[KeyValue], revision: int) -> ClusterState:
        """The state that a listing of `cluster/` makes."""
        state = cls(revision=revision)
        for item in items:
            state.apply(item.key, item)
        return state


def _versioned(item: KeyValue, decode: Callable[[bytes], T]) -> Versioned[T]:
    return Versioned(decode(item.value), item.mod_revision, item.create_revision)


def _partition(key: str) -> PartitionId:
    topic_id, _, index = key.partition("/")
    return topic_id, int(index)


def _copy(key: str) -> Copy:
    broker, topic_id, index = key.split("/")
    return int(broker), topic_id, int(index)


# Per prefix: the table of ClusterState for its keys, the key in that table, the decoder of the values.
_TABLES: Final[tuple[tuple[str, str, Callable[[str], Any], Callable[[bytes], Any]], ...]] = (
    (PARTITIONS, "partitions", _partition, PartitionState.decode),
    (BROKERS, "brokers", int, BrokerRecord.decode),
    (TOPICS, "topics", str, TopicSpec.decode),
    (DELETED, "deleted", str, Tombstone.decode),
    (DEFECTIVE, "defective", _copy, bytes),
    (CONFLICTS, "conflicts", _copy, Conflict.decode),
    (ENDS, "ends", _copy, LogEnd.decode),
    (DRAINS, "drains", int, bytes),
    (COORDINATORS, "coordinators", int, CoordinatorRecord.decode),
    (CALENDARS, "calendars", str, bytes),
)


def partition_of(key: str) -> PartitionId | None:
    """The partition that a key belongs to; None for keys of other kinds."""
    if key.startswith(PARTITIONS):
        topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
    elif key.startswith((ENDS, CONFLICTS)):
        *_, topic_id, index = key.split("/")
    else:
        return None
    return (topic_id, int(index)) if index.isdecimal() else None


def broker_key(broker: int) -> str:
    return f"{BROKERS}{broker}"


def topic_key(name: str) -> str:
    return TOPICS + name


def partition_key(partition: PartitionId) -> str:
    return f"{PARTITIONS}{partition[0]}/{partition[1]}"


def coordinator_key(slot: int) -> str:
    return f"{COORDINATORS}{slot}"


def defective_key(broker: int, partition: PartitionId) -> str:
    return f"{DEFECTIVE}{broker}/{partition[0]}/{partition[1]}"


def conflict_key(broker: int, partition: PartitionId) -> str:
    return f"{CONFLICTS}{broker}/{partition[0]}/{partition[1]}"


def end_key(broker: int, partition: PartitionId) -> str:
    return f"{ENDS}{broker}/{partition[0]}/{partition[1]}"
