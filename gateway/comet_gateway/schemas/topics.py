"""Models of topics and partitions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from comet_gateway.schemas.common import Int64, Model, ProblemDocument
from comet_gateway.schemas.lists import BROKER_MAX, DRY_RUN_TEXT, PARTITION_MAX, Name, PositionText, Strict

REPLICAS_MAX = 15
PARTITIONS_MAX = 1_000
_NO_LIMIT = "-1: no limit."

Flush = Literal["always", "interval", "os"]
Consistency = Literal["consistent", "available"]


class TopicSettings(Model):
    """The settings of a topic."""

    retention_ms: Int64 = Field(description=f"Age up to which records are kept. {_NO_LIMIT}", examples=["604800000"])
    retention_bytes: Int64 = Field(description=f"Bytes of a partition that are kept. {_NO_LIMIT}", examples=["-1"])
    retention_records: Int64 = Field(description=f"Records of a partition that are kept. {_NO_LIMIT}", examples=["-1"])
    flush: Flush = Field(
        description="When the log is synced to disk: before each acknowledgement, at an interval, or by the system."
    )
    flush_interval_ms: int
    record_bytes_max: int
    segment_bytes: Int64
    segment_ms: Int64
    min_insync: int = Field(description="In-sync replicas that acks=all needs.")
    consistency: Consistency


class TopicChanges(Strict):
    """Settings to change. Absent or null ones stay, or get the broker's default in a new topic."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"retention_ms": "3600000"}]})

    retention_ms: Int64 | None = Field(default=None, description=f"Age up to which records are kept. {_NO_LIMIT}")
    retention_bytes: Int64 | None = Field(default=None, description=f"Bytes of a partition that are kept. {_NO_LIMIT}")
    retention_records: Int64 | None = Field(
        default=None, description=f"Records of a partition that are kept. {_NO_LIMIT}"
    )
    flush: Flush | None = None
    flush_interval_ms: Annotated[int, Field(ge=1, le=60_000)] | None = None
    record_bytes_max: Annotated[int, Field(ge=1, le=7 << 20)] | None = None
    segment_bytes: Int64 | None = Field(default=None, description="From 65536 to 1073741824.")
    segment_ms: Int64 | None = Field(default=None, description="From 100 on.")
    min_insync: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    consistency: Consistency | None = None


class TopicCreation(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "quotes", "partitions": 3, "config": {"retention_ms": "3600000"}}]}
    )

    name: Name
    partitions: int = Field(default=1, ge=1, le=PARTITIONS_MAX)
    replicas: int = Field(default=0, ge=0, le=REPLICAS_MAX, description="Replicas of each partition; 0: the default.")
    config: TopicChanges = TopicChanges()


class Topic(Model):
    """A topic in a list."""

    name: str = Field(examples=["quotes"])
    id: str = Field(description="Topic id; a topic that is created again has another one.", examples=["0f8e" * 8])
    internal: bool = Field(description="An internal topic of Comet: its name begins with two underscores.")
    created_us: Int64
    partition_count: int
    replicas: int = Field(description="Replicas of each partition; the maximum if they differ.")
    in_sync: int = Field(description="In-sync replicas of the partition with fewest.")
    under_replicated: int = Field(description="Partitions with replicas that are not in sync.")
    leaderless: int = Field(description="Partitions without a leader.")
    config: TopicSettings


class TopicList(Model):
    items: list[Topic]
    next: str | None = Field(description="`after` of the next page; null: this is the last page.")
    total: int = Field(description="Matches on all pages.")


class OffsetRange(Model):
    first: Int64
    end: Int64 = Field(description="Exclusive.")


class Partition(Model):
    """One partition. Fields that only the leader knows are null while it cannot be reached."""

    partition: int
    leader: int | None = Field(description="Id of a broker; null: no leader.", examples=[1])
    leader_epoch: int
    replicas: list[int] = Field(description="Ids of brokers, the preferred leader first.")
    in_sync: list[int]
    log_start: Int64 | None = Field(description="Log start offset: the first that the log holds.")
    log_end: Int64 | None = Field(description="Log end offset: that of the next record.")
    high_watermark: Int64 | None = Field(description="Below it, records are committed and can be read.")
    last_stable_offset: Int64 | None = Field(description="Last stable offset: below it, every transaction is decided.")
    records: Int64 | None = Field(description="Offsets in the log: records and transaction markers.")
    bytes: Int64 | None = Field(description="Bytes on the leader's disk.")
    segments: int | None
    failed: bool | None = Field(description="The leader's disk has failed: no records can be written.")
    lost: list[OffsetRange] | None = Field(description="Ranges of offsets that are damaged on the leader.")


class TopicTotals(Model):
    records: Int64
    bytes: Int64
    complete: bool = Field(description="False: some partitions could not be reached, and are not in these numbers.")


class TopicDetails(Topic):
    partitions: list[Partition]
    totals: TopicTotals


class Replica(Model):
    """One replica. Fields are null if its broker cannot be reached."""

    broker: int
    leader: bool
    in_sync: bool
    log_start: Int64 | None
    log_end: Int64 | None
    high_watermark: Int64 | None
    bytes: Int64 | None
    segments: int | None
    failed: bool | None


class PartitionDetails(Partition):
    topic: str
    copies: list[Replica]


class PartitionOffset(Model):
    partition: int
    offset: Int64


class TopicOffsets(Model):
    topic: str
    at: str
    partitions: list[PartitionOffset]


class Reading(Model):
    """A group that reads a topic."""

    group: str
    state: str
    members: int


class TopicDeletion(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    partitions: int
    records: Int64
    bytes: Int64
    complete: bool = Field(description="False: a broker did not answer, so there may be more records and groups.")
    groups: list[Reading] = Field(description="Groups that read it; their committed offsets in it are deleted, too.")


class TopicAlteration(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    changed: list[str] = Field(description="Settings that changed.", examples=[["retention_ms"]])
    before: TopicSettings
    after: TopicSettings
    records: Int64 = Field(
        description="Records that shorter retention deletes at its next check: whole segments, by append time, never "
        "the newest one."
    )
    bytes: Int64 = Field(description="Bytes of these records on the leaders' disks.")
    complete: bool = Field(description="False: a leader did not answer, and may delete more.")


class PartitionsWanted(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"total": 6}]})

    total: int = Field(ge=1, le=PARTITIONS_MAX, description="Partitions after the change.")


class PartitionsAdded(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    before: int
    after: int
    keys_moved: float = Field(description="Share of keys that map to another partition afterwards.", examples=[0.5])


Index = Annotated[int, Field(ge=0, le=PARTITION_MAX)]


class RecordsBefore(Strict):
    partition: Index
    before: Int64 = Field(description="The first offset to keep.")


class RecordsDeletion(Strict):
    """Records to delete: either `before`, for all or the given `partitions`, or `offsets`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"before": "-1h"},
                {"before": "latest", "partitions": [0, 2]},
                {"offsets": [{"partition": 0, "before": "1042"}]},
            ]
        }
    )

    before: PositionText | None = Field(
        default=None,
        max_length=100,
        description="A time (2026-01-31T12:00:00Z), a time ago (-1h), latest; or an offset, of a single partition.",
    )
    partitions: list[Annotated[int, Field(ge=0, le=PARTITION_MAX)]] | None = Field(
        default=None, max_length=PARTITIONS_MAX
    )
    offsets: list[RecordsBefore] | None = Field(default=None, max_length=PARTITIONS_MAX)

    @model_validator(mode="after")
    def _one_of_both(self) -> RecordsDeletion:
        if (self.before is None) == (self.offsets is None):
            raise ValueError("give either before or offsets")
        if self.offsets is not None and self.partitions is not None:
            raise ValueError("partitions goes with before only: each of offsets names its own partition")
        return self


class PartitionTruncation(Model):
    partition: int
    log_start: Int64 | None = Field(description="New log start offset; null: unchanged.")
    records: Int64 = Field(description="Offsets that are deleted.")
    error: ProblemDocument | None = Field(description="Why no records were deleted.")


class RecordsDeleted(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    records: Int64 = Field(description="Offsets that are deleted, all partitions together.")
    partitions: list[PartitionTruncation]


class Move(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"replicas": [2, 3, 1]}]})

    replicas: list[Annotated[int, Field(ge=1, le=BROKER_MAX)]] = Field(
        min_length=1, max_length=REPLICAS_MAX, description="Ids of brokers, the preferred leader first."
    )


class Moved(Model):
    """A reassignment, which has started; the partition shows its progress."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    partition: int
    before: list[int]
    after: list[int]
    added: list[int] = Field(description="Brokers that get a replica.")
    removed: list[int] = Field(description="Brokers that delete their replica once the new ones are in sync.")
    bytes: Int64 | None = Field(description="Bytes to copy, all together; null: the leader cannot be reached.")


class Election(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"broker": 2, "accept_loss": True}]})

    broker: int = Field(ge=1, le=BROKER_MAX, description="The new leader; it may lack committed records.")
    accept_loss: bool = Field(
        default=False, description="Confirms that records which the new leader lacks are lost for good."
    )


class Elected(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    partition: int
    broker: int
    lost: Int64 | None = Field(description="Records that other replicas have and this one lacks; null: unknown.")
    copies: list[Replica]
