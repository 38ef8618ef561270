"""What the cluster agrees on: the keys of the metadata store, what stands in them, and the picture they make.

    cluster/id                               the cluster's id
    cluster/lineage                          who registered, in order: by it a store that went back in time is noticed
    cluster/controller                       the broker that holds the controller's role     (its lease)
    cluster/brokers/<id>                     a broker that is alive, and where it is         (its lease)
    cluster/topics/<name>                    a topic and its settings
    cluster/partitions/<topic id>/<index>    who holds a partition, who leads it, who is in sync
    cluster/deleted/<topic id>               a topic that was deleted, and who still has files of it
    cluster/unfit/<broker>/<topic id>/<index>  a replica that must not lead: damaged, or its disk failed
    cluster/conflicts/<broker>/<topic id>/<index>  a replica that does not follow: it would lose committed records
    cluster/ends/<broker>/<topic id>/<index>  how far the log of a replica goes, for an election     (its lease)
    cluster/drains/<broker>                  an operator wants this broker to lead nothing
    cluster/coordinators/<slot>              who coordinates the groups and transactions of a slot

The create_revision of a broker's key is its *broker epoch*: a number that no other start of any broker ever had. Who
is in sync is written down with it, so that a broker that comes back with less than it had is not taken for one that
never left.

Pure: what is decided from the picture is in `core.controller`, how it is followed in `comet_broker.cluster.view`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from comet.types import TopicConfig
from comet_broker.metadata.store import KeyValue

CLUSTER: Final = "cluster/"
ID: Final = "cluster/id"
LINEAGE: Final = "cluster/lineage"
CONTROLLER: Final = "cluster/controller"
BROKERS: Final = "cluster/brokers/"
TOPICS: Final = "cluster/topics/"
PARTITIONS: Final = "cluster/partitions/"
DELETED: Final = "cluster/deleted/"
UNFIT: Final = "cluster/unfit/"
CONFLICTS: Final = "cluster/conflicts/"
ENDS: Final = "cluster/ends/"
DRAINS: Final = "cluster/drains/"
COORDINATORS: Final = "cluster/coordinators/"

NOBODY: Final = 0  # no broker has this id

T = TypeVar("T")
Place = tuple[str, int]  # topic id, partition
Copy = tuple[int, str, int]  # broker, topic id, partition


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


class LineageEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the store's history; see core.lineage. `revision` is 0 in the newest one, as it is stored."""

    broker: int
    mark: str  # random
    revision: int = 0
    tick: bool = False  # no registration: written because partitions have changed since the last entry
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


class GivenUp(msgspec.Struct, frozen=True, array_like=True):
    """From which offset on a copy holds other records than the one that counts, and the checksum of the batch that
    belongs there: a copy that has it has been cut already."""

    offset: int
    checksum: int


class PartitionState(Stored, frozen=True):
    """Who holds a partition. Written by the controller and by the leader, each by compare-and-swap.

    in_sync    broker -> broker epoch of those that have everything below the high watermark
    eligible   as in_sync: they left while too few were in sync for the high watermark to move, so they still have all
    target     where the replicas are to be; empty when they are there
    handover   the leader is asked to pass leadership to this broker as soon as that has all the leader has
    folders    broker -> data folder in which its copy was in sync last
    deleted    (epoch, offset): what was written up to that epoch is deleted below the offset, for good
    loss_accepted  the epoch from whose start on an operator accepts that copies lose what its leader does not have
    given_up   broker -> what of its copy is cut before it follows in that epoch or a later one: it was written under a
               metadata store that was given up, in epochs that were given twice
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
    loss_accepted: int = 0
    given_up: dict[int, GivenUp] = {}

    @property
    def holders(self) -> tuple[int, ...]:
        """All brokers that keep a copy now: the replicas, and those that are to become replicas."""
        return tuple(dict.fromkeys((*self.replicas, *self.target)))

    def anew(self, broker: int, record: BrokerRecord) -> bool:
        """What was in sync lies in another folder than the broker has now, as when its disk was replaced: what it has
        of the partition began with nothing, and was never complete since."""
        return not record.adopted and self.folders.get(broker, record.folder) != record.folder


class Conflict(Stored, frozen=True):
    """A replica that does not follow its leader, because that would cut records that it knows to be committed.

    Its log ends at `log_end` with a record of `last_epoch`, and is committed up to `high_watermark`. To follow `leader`
    in `epoch`, it would have to be cut back to `offset`. `problem` says why the cut that an operator has accepted could
    not be made.
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
    """How far the log of one replica goes, for the election of a leader among replicas that may have lost records.
    Valid in that `epoch` of the partition, in which nobody leads, and for that start of the broker."""

    broker_epoch: int
    epoch: int
    last_epoch: int  # of its last record
    log_end: int
    high_watermark: int


class CoordinatorRecord(Stored, frozen=True):
    """Who has a slot; see core.slots. `epoch` is one more with each coordinator."""

    broker: int
    broker_epoch: int
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
    lineage: Versioned[Lineage] | None = None
    controller: ControllerRecord | None = None
    brokers: dict[int, Versioned[BrokerRecord]] = field(default_factory=dict)
    topics: dict[str, Versioned[TopicSpec]] = field(default_factory=dict)
    partitions: dict[Place, Versioned[PartitionState]] = field(default_factory=dict)
    deleted: dict[str, Versioned[Tombstone]] = field(default_factory=dict)
    unfit: dict[Copy, Versioned[bytes]] = field(default_factory=dict)
    conflicts: dict[Copy, Versioned[Conflict]] = field(default_factory=dict)
    ends: dict[Copy, Versioned[LogEnd]] = field(default_factory=dict)
    drains: dict[int, Versioned[bytes]] = field(default_factory=dict)
    coordinators: dict[int, Versioned[CoordinatorRecord]] = field(default_factory=dict)

    def broker_epoch(self, broker: int) -> int:
        """0 for a broker that is not alive."""
        found = self.brokers.get(broker)
        return 0 if found is None else found.create_revision

    def apply(self, key: str, item: KeyValue | None) -> None:
        """Takes over what a key holds now; None: it was deleted. Keys of other kinds are left alone."""
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
        elif key == ID and item is not None:
            self.cluster_id = item.value.decode()

    def marks(self) -> list[tuple[Copy, str, int]]:
        """What brokers have said of their replicas that outlives them: of which, its key and mod_revision."""
        unfit = [(copy, unfit_key(copy[0], copy[1:]), found.mod_revision) for copy, found in self.unfit.items()]
        parted = [(copy, conflict_key(copy[0], copy[1:]), found.mod_revision) for copy, found in self.conflicts.items()]
        return sorted([*unfit, *parted])

    @classmethod
    def of(cls, items: Iterable[KeyValue], revision: int) -> ClusterState:
        """The picture that a listing of `cluster/` makes."""
        state = cls(revision=revision)
        for item in items:
            state.apply(item.key, item)
        return state


def _versioned(item: KeyValue, decode: Callable[[bytes], T]) -> Versioned[T]:
    return Versioned(decode(item.value), item.mod_revision, item.create_revision)


def _place(key: str) -> Place:
    topic_id, _, index = key.partition("/")
    return topic_id, int(index)


def _copy(key: str) -> Copy:
    broker, topic_id, index = key.split("/")
    return int(broker), topic_id, int(index)


# What stands below a prefix: the table of ClusterState that it goes to, its key there, how its value is read.
_TABLES: Final[tuple[tuple[str, str, Callable[[str], Any], Callable[[bytes], Any]], ...]] = (
    (PARTITIONS, "partitions", _place, PartitionState.decode),
    (BROKERS, "brokers", int, BrokerRecord.decode),
    (TOPICS, "topics", str, TopicSpec.decode),
    (DELETED, "deleted", str, Tombstone.decode),
    (UNFIT, "unfit", _copy, bytes),
    (CONFLICTS, "conflicts", _copy, Conflict.decode),
    (ENDS, "ends", _copy, LogEnd.decode),
    (DRAINS, "drains", int, bytes),
    (COORDINATORS, "coordinators", int, CoordinatorRecord.decode),
)


def place_of(key: str) -> Place | None:
    """The one partition that a key is about; None for keys of other kinds."""
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


def partition_key(place: Place) -> str:
    return f"{PARTITIONS}{place[0]}/{place[1]}"


def coordinator_key(slot: int) -> str:
    return f"{COORDINATORS}{slot}"


def unfit_key(broker: int, place: Place) -> str:
    return f"{UNFIT}{broker}/{place[0]}/{place[1]}"


def conflict_key(broker: int, place: Place) -> str:
    return f"{CONFLICTS}{broker}/{place[0]}/{place[1]}"


def end_key(broker: int, place: Place) -> str:
    return f"{ENDS}{broker}/{place[0]}/{place[1]}"
