"""What the cluster agrees on: the keys of the metadata store, what stands in them, and the picture they make.

    cluster/id                               the cluster's id
    cluster/controller                       the broker that holds the controller's role     (its lease)
    cluster/brokers/<id>                     a broker that is alive, and where it is         (its lease)
    cluster/topics/<name>                    a topic and its settings
    cluster/partitions/<topic id>/<index>    who holds a partition, who leads it, who is in sync
    cluster/deleted/<topic id>               a topic that was deleted, and who still has files of it
    cluster/unfit/<broker>/<topic id>/<index>  a replica that must not lead: damaged, or its disk failed
    cluster/drains/<broker>                  an operator wants this broker to lead nothing
    cluster/coordinators/<slot>              who coordinates the groups and transactions of a slot

The create_revision of a broker's key is its *incarnation*: a number that no other start of any broker ever had. Who
is in sync is written down with it, so that a broker that comes back with less than it had is not taken for one that
never left.

Pure: what is decided from the picture is in `core.controller`, how it is followed in `comet_broker.view`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeVar

import msgspec

from comet.types import TopicConfig
from comet_broker.metadata.store import KeyValue

CLUSTER: Final = "cluster/"
ID: Final = "cluster/id"
CONTROLLER: Final = "cluster/controller"
BROKERS: Final = "cluster/brokers/"
TOPICS: Final = "cluster/topics/"
PARTITIONS: Final = "cluster/partitions/"
DELETED: Final = "cluster/deleted/"
UNFIT: Final = "cluster/unfit/"
DRAINS: Final = "cluster/drains/"
COORDINATORS: Final = "cluster/coordinators/"

NOBODY: Final = 0  # no broker has this id

S = TypeVar("S", bound="Stored")
T = TypeVar("T")
Place = tuple[str, int]  # topic id, partition


class Stored(msgspec.Struct, frozen=True):
    """A value in the store, as JSON. Unknown fields are kept out, missing ones take their default."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return msgspec.json.decode(data, type=cls)


class BrokerRecord(Stored, frozen=True):
    """A broker that is alive: it stands under the broker's lease."""

    host: str
    port: int
    version: str
    folder: str  # a random id that its data folder carries; another folder under the same broker id is refused
    lease: int  # so that whoever knows for certain that the broker is gone can end it
    rack: str = ""
    clean: bool = True  # nothing that it is written down to have can have been lost
    draining: bool = False  # it is about to stop
    adopted: bool = False  # the folder held data before it had an id: the cluster may know it by another


class ControllerRecord(Stored, frozen=True):
    broker: int
    incarnation: int


class TopicSpec(Stored, frozen=True):
    id: str  # 32 hex digits
    partitions: int
    created_us: int
    config: TopicConfig
    replicas: int = 1


class PartitionState(Stored, frozen=True):
    """Who holds a partition. Written by the controller and by the leader, each by compare-and-swap.

    in_sync    broker -> incarnation of those that have everything below the high watermark
    eligible   as in_sync: they left while too few were in sync for the high watermark to move, so they still have all
    target     where the replicas are to be; empty when they are there
    handover   the leader is asked to pass leadership to this broker as soon as that has all the leader has
    folders    broker -> data folder in which its copy was in sync last
    deleted    (epoch, offset): what was written up to that epoch is deleted below the offset, for good
    """

    leader: int
    epoch: int
    replicas: tuple[int, ...]  # the preferred leader first
    in_sync: dict[int, int]
    eligible: dict[int, int] = {}
    target: tuple[int, ...] = ()
    handover: int = NOBODY
    folders: dict[int, str] = {}
    deleted: tuple[int, int] = (0, 0)

    @property
    def holders(self) -> tuple[int, ...]:
        """All brokers that keep a copy now: the replicas, and those that are to become replicas."""
        return tuple(dict.fromkeys((*self.replicas, *self.target)))

    def anew(self, broker: int, record: BrokerRecord) -> bool:
        """What was in sync lies in another folder than the broker has now, as when its disk was replaced: what it has
        of the partition began with nothing, and was never complete since."""
        return not record.adopted and self.folders.get(broker, record.folder) != record.folder


class CoordinatorRecord(Stored, frozen=True):
    """Who has a slot; see core.slots. `epoch` is one more with each coordinator."""

    broker: int
    incarnation: int
    epoch: int


class Tombstone(Stored, frozen=True):
    """A deleted topic. Each broker takes itself out once its files are gone; then the controller removes the key."""

    name: str
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with what a compare-and-swap of it needs."""

    value: T
    mod_revision: int
    create_revision: int


@dataclass(slots=True)
class ClusterState:
    """The picture at one revision. Changed only by `apply`, in the order of the store's revisions."""

    revision: int = 0
    cluster_id: str = ""
    controller: ControllerRecord | None = None
    brokers: dict[int, Versioned[BrokerRecord]] = field(default_factory=dict)
    topics: dict[str, Versioned[TopicSpec]] = field(default_factory=dict)
    partitions: dict[Place, Versioned[PartitionState]] = field(default_factory=dict)
    deleted: dict[str, Versioned[Tombstone]] = field(default_factory=dict)
    unfit: dict[tuple[int, str, int], Versioned[bytes]] = field(default_factory=dict)
    drains: dict[int, Versioned[bytes]] = field(default_factory=dict)
    coordinators: dict[int, Versioned[CoordinatorRecord]] = field(default_factory=dict)

    def incarnation(self, broker: int) -> int:
        """0 for a broker that is not alive."""
        found = self.brokers.get(broker)
        return 0 if found is None else found.create_revision

    def apply(self, key: str, item: KeyValue | None) -> None:
        """Takes over what a key holds now; None: it was deleted. Keys of other kinds are left alone."""
        if key.startswith(PARTITIONS):
            topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
            _put(self.partitions, (topic_id, int(index)), item, PartitionState)
        elif key.startswith(BROKERS):
            _put(self.brokers, int(key.removeprefix(BROKERS)), item, BrokerRecord)
        elif key.startswith(TOPICS):
            _put(self.topics, key.removeprefix(TOPICS), item, TopicSpec)
        elif key.startswith(DELETED):
            _put(self.deleted, key.removeprefix(DELETED), item, Tombstone)
        elif key.startswith(UNFIT):
            broker, topic_id, index = key.removeprefix(UNFIT).split("/")
            _put_raw(self.unfit, (int(broker), topic_id, int(index)), item)
        elif key.startswith(DRAINS):
            _put_raw(self.drains, int(key.removeprefix(DRAINS)), item)
        elif key.startswith(COORDINATORS):
            _put(self.coordinators, int(key.removeprefix(COORDINATORS)), item, CoordinatorRecord)
        elif key == CONTROLLER:
            self.controller = None if item is None else ControllerRecord.decode(item.value)
        elif key == ID and item is not None:
            self.cluster_id = item.value.decode()

    @classmethod
    def of(cls, items: Iterable[KeyValue], revision: int) -> ClusterState:
        """The picture that a listing of `cluster/` makes."""
        state = cls(revision=revision)
        for item in items:
            state.apply(item.key, item)
        return state


K = TypeVar("K")


def _put(table: dict[K, Versioned[S]], key: K, item: KeyValue | None, kind: type[S]) -> None:
    if item is None:
        table.pop(key, None)
    else:
        table[key] = Versioned(kind.decode(item.value), item.mod_revision, item.create_revision)


def _put_raw(table: dict[K, Versioned[bytes]], key: K, item: KeyValue | None) -> None:
    if item is None:
        table.pop(key, None)
    else:
        table[key] = Versioned(item.value, item.mod_revision, item.create_revision)


def broker_key(broker: int) -> str:
    return f"{BROKERS}{broker}"


def topic_key(name: str) -> str:
    return TOPICS + name


def partition_key(place: Place) -> str:
    return f"{PARTITIONS}{place[0]}/{place[1]}"


def coordinator_key(slot: int) -> str:
    return f"{COORDINATORS}{slot}"


def unfit_key(broker: int, place: Place) -> str:
    return f"{UNFIT}{broker}/{place[0]}/{place[1]}"
