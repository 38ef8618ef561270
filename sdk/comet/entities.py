"""The entities of a cluster: brokers, topics, partitions and replicas, for SDK, REST, command line and pages.

A list has each topic without its partitions; a described one (`...Details`) has all. `comet.admin.documents` has their
JSON form, which the annotations describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from comet.errors import BrokerNotFound, PartitionNotFound
from comet.settings.topic import SettingSource, TopicConfig, TopicDefaults
from comet.types import UNLISTED, Example, Int64, is_internal_topic


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker and the address at which clients reach it.

    >>> broker = BrokerInfo(id=1, host="localhost", port=9092, version="0.1.0")
    >>> f"{broker.host}:{broker.port}"
    'localhost:9092'
    """

    id: Annotated[int, Example(1)]
    host: str
    port: int
    version: str
    rack: str = ""
    draining: Annotated[bool, "Drains: it hands its partitions to other leaders."] = False
    controller: Annotated[bool, "It is the cluster's controller."] = False


@dataclass(frozen=True, slots=True)
class BrokerFailure:
    """A part of a broker that had an unexpected error.

    >>> BrokerFailure(1, "group", "engine", "writing", "KeyError(3)", since_us=0, count=1).stopped
    True
    """

    broker: int
    kind: Annotated[str, "`partition`, `slot`, `group`, `transaction`, `share`, `topic` or `task`."]
    name: str
    step: Annotated[str, "The operation that failed."]
    reason: str
    since_us: Int64
    count: Annotated[int, "Errors since the first one."]
    stopped: Annotated[bool, "Stopped until it is resumed or the broker restarts."] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDetails(BrokerInfo):
    """A broker and its most important numbers; its statistics have all.

    >>> BrokerDetails(
    ...     1, "localhost", 9092, "0.1.0", started_us=0, now_us=9, sessions=3, partitions=5, leading=2, bytes=7000,
    ...     free_bytes=1 << 30, tail_bytes=0, problems=(), failures=0, failed=()
    ... ).leading
    2
    """

    started_us: Int64
    now_us: Int64
    sessions: Annotated[int, "Clients with an open stream."]
    partitions: Annotated[int, "Replicas on it."]
    leading: Annotated[int, "Partitions that it leads."]
    bytes: Annotated[Int64, "Bytes of its logs."]
    free_bytes: Annotated[Int64, "On its disk."]
    tail_bytes: Annotated[Int64, "Bytes of recent records in memory."]
    problems: Annotated[tuple[str, ...], "Services that it cannot provide, and why."]
    failures: Annotated[int, "Unexpected errors since it started."]
    failed: Annotated[tuple[BrokerFailure, ...], "Entities with such an error, stopped ones first."]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `first` up to, not including, `end`.

    >>> OffsetRange(40, 42).end
    42
    """

    first: Int64
    end: Annotated[Int64, "Exclusive."]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """The figures of a replica's log, from its broker. All are None if that broker does not answer."""

    log_start: Annotated[Int64 | None, "Log start offset: the first that the log holds."] = None
    log_end: Annotated[Int64 | None, "Log end offset: that of the next record."] = None
    high_watermark: Annotated[Int64 | None, "Below it, records are committed and can be read."] = None
    last_stable_offset: Annotated[Int64 | None, "Last stable offset: below it, every transaction is decided."] = None
    bytes: Annotated[Int64 | None, "Bytes on the broker's disk."] = None
    segments: int | None = None
    failed: Annotated[bool | None, "The broker's disk has failed: no records can be written."] = None
    lost: Annotated[tuple[OffsetRange, ...] | None, "Ranges of offsets that are damaged on the broker."] = None
    last_us: Annotated[Int64 | None, "When the last batch was written; null: unknown."] = None
    in_rate: Annotated[float | None, "Records a second over the last 10 s; null, too, on a follower."] = None
    in_bytes_rate: Annotated[float | None, "Bytes a second over the last 10 s; null, too, on a follower."] = None

    @property
    def records(self) -> Int64 | None:
        """Offsets in the log: records and transaction markers."""
        return None if self.log_start is None or self.log_end is None else self.log_end - self.log_start


@dataclass(frozen=True, slots=True)
class ReplicaInfo(LogFigures):
    """A replica of a partition. Its figures are null if its broker does not answer.

    >>> replica = ReplicaInfo(2, leader=False, in_sync=True, log_start=40, log_end=100)
    >>> replica.records
    60
    """

    broker: int
    leader: bool
    in_sync: bool


@dataclass(frozen=True, slots=True)
class ReplicaConflict:
    """A replica that does not follow its leader: it would lose committed records. `comet topic elect` settles it.

    To follow broker `leader` in `epoch`, the replica on `broker` would have to be truncated to `offset`; it knows that
    records below `high_watermark` are committed. `problem` says why an accepted truncation failed.

    >>> from comet import ReplicaConflict
    >>> conflict = ReplicaConflict(2, leader=1, epoch=8, offset=600, high_watermark=1050, log_end=1050)
    >>> conflict.high_watermark - conflict.offset
    450
    """

    broker: Annotated[int, "The broker of the replica."]
    leader: Annotated[int, "The broker that it would have to follow."]
    epoch: int
    offset: Annotated[Int64, "The replica would have to be truncated to it."]
    high_watermark: Annotated[Int64, "The replica knows that records below it are committed."]
    log_end: Int64
    problem: Annotated[str, "Why an accepted truncation failed; empty: none was."] = ""


@dataclass(frozen=True, slots=True)
class PartitionInfo(LogFigures):
    """A partition: its leader and replicas, and the figures of its leader's log: null in a list of topics, and if the
    leader does not answer.

    >>> partition = PartitionInfo(0, leader=1, leader_epoch=4, replicas=(1, 2, 3), in_sync=(1, 3), log_end=100)
    >>> set(partition.replicas) - set(partition.in_sync), partition.under_replicated
    ({2}, True)
    """

    partition: int
    leader: Annotated[int | None, "Id of a broker; null: no leader.", Example(1)]
    leader_epoch: int
    replicas: Annotated[tuple[int, ...], "Ids of brokers, the preferred leader first."]
    in_sync: tuple[int, ...]
    conflicts: Annotated[tuple[ReplicaConflict, ...], "Replicas that do not follow the leader."] = ()
    target: Annotated[tuple[int, ...], "The replicas after a move under way; empty: there is none."] = ()

    @property
    def under_replicated(self) -> bool:
        """A replica is not in sync."""
        return not set(self.replicas).issubset(self.in_sync)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails(PartitionInfo):
    """A partition with its replicas. The figures are the leader's; null if it does not answer.

    >>> copies = (ReplicaInfo(1, leader=True, in_sync=True), ReplicaInfo(2, leader=False, in_sync=False))
    >>> one = PartitionDetails(0, 1, 0, (1, 2), (1,), topic="quotes", copies=copies)
    >>> [replica.broker for replica in one.copies if not replica.in_sync]
    [2]
    """

    topic: str
    copies: tuple[ReplicaInfo, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. Its id tells it from an earlier topic of the same name.

    >>> partition = PartitionInfo(0, leader=1, leader_epoch=0, replicas=(1, 2), in_sync=(1,))
    >>> topic = TopicInfo("quotes", bytes(16), (partition,), TopicConfig(), created_us=0)
    >>> topic.partition_count, topic.replicas, topic.under_replicated, topic.config.retention_ms
    (1, 2, 1, 604800000)
    """

    name: Annotated[str, Example("quotes")]
    id: Annotated[bytes, "Topic id; a topic that is created again has another one.", Example("0f8e" * 8)]
    partitions: Annotated[tuple[PartitionInfo, ...], UNLISTED]
    config: TopicConfig
    created_us: Int64
    sources: Annotated[
        Mapping[str, SettingSource],
        "Where values come from: set for this topic, the cluster's default when it was created or unset, or built in.",
    ] = field(default_factory=dict, hash=False)

    def source(self, name: str) -> SettingSource:
        """Where the value of a setting comes from."""
        return self.sources.get(name, SettingSource.BUILT_IN)

    def partition(self, index: int) -> PartitionInfo:
        """A partition by its number. Raises PartitionNotFound."""
        if index >= len(self.partitions):
            raise PartitionNotFound(
                f"topic {self.name!r} has the partitions 0 to {len(self.partitions) - 1}, not {index}"
            )
        return self.partitions[index]

    @property
    def internal(self) -> bool:
        """An internal topic of Comet: its name begins with two underscores."""
        return is_internal_topic(self.name)

    @property
    def partition_count(self) -> int:
        """The number of its partitions."""
        return len(self.partitions)

    @property
    def replicas(self) -> int:
        """Replicas of each partition; the maximum if they differ."""
        return max((len(one.replicas) for one in self.partitions), default=0)

    @property
    def in_sync(self) -> int:
        """In-sync replicas of the partition with fewest."""
        return min((len(one.in_sync) for one in self.partitions), default=0)

    @property
    def under_replicated(self) -> int:
        """Partitions with replicas that are not in sync."""
        return sum(one.under_replicated for one in self.partitions)

    @property
    def leaderless(self) -> int:
        """Partitions without a leader."""
        return sum(one.leader is None for one in self.partitions)


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """Sums over the partitions of a topic.

    >>> TopicTotals(records=3, bytes=99, complete=True).records
    3
    """

    records: Int64
    bytes: Int64
    complete: Annotated[bool, "False: some partitions could not be reached, and are not in these numbers."]


@dataclass(frozen=True, slots=True)
class TopicDetails(TopicInfo):
    """A topic with its partitions. A partition has the figures of its leader; null if that does not answer.

    >>> partition = PartitionInfo(0, 1, 0, (1,), (1,), log_start=40, log_end=100, bytes=7000)
    >>> topic = TopicDetails("quotes", bytes(16), (partition,), TopicConfig(), created_us=0)
    >>> topic.totals
    TopicTotals(records=60, bytes=7000, complete=True)
    """

    partitions: tuple[PartitionInfo, ...]
    defaults: Annotated[TopicConfig, "Values that settings get when they are unset."] = field(
        default_factory=TopicConfig
    )

    @property
    def totals(self) -> TopicTotals:
        """Sums over the partitions."""
        records = [one.records for one in self.partitions if one.records is not None]
        size = sum(one.bytes or 0 for one in self.partitions)
        return TopicTotals(sum(records), size, complete=len(records) == len(self.partitions))


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The brokers of a cluster and the size of their data.

    >>> broker = BrokerInfo(id=1, host="localhost", port=9092, version="0.1.0")
    >>> ClusterInfo("c0ffee", controller=1, brokers=(broker,), topics=2, partitions=5).brokers[0].port
    9092
    """

    cluster_id: str
    controller: Annotated[int | None, "Id of a broker; null: no controller now."]
    brokers: tuple[BrokerInfo, ...]
    topics: int
    partitions: int
    topic_defaults: Annotated[TopicDefaults, "Settings of new topics, as the broker that answered has them."] = field(
        default_factory=TopicDefaults, hash=False
    )

    def broker(self, id_: int) -> BrokerInfo:
        """A broker by its id. Raises BrokerNotFound."""
        for one in self.brokers:
            if one.id == id_:
                return one
        alive = ", ".join(str(one.id) for one in self.brokers)
        raise BrokerNotFound(f"broker {id_} does not exist; live brokers: {alive}")
