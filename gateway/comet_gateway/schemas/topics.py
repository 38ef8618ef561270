"""Topics and their partitions as documents."""

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
    """All that a topic is set to."""

    retention_ms: Int64 = Field(description=f"How long records are kept. {_NO_LIMIT}", examples=["604800000"])
    retention_bytes: Int64 = Field(description=f"Of one partition. {_NO_LIMIT}", examples=["-1"])
    retention_records: Int64 = Field(description=f"Of one partition. {_NO_LIMIT}", examples=["-1"])
    flush: Flush = Field(
        description="When the log is forced to disk: before each acknowledgement, at an interval, at the system's will."
    )
    flush_interval_ms: int
    record_bytes_max: int
    segment_bytes: Int64
    segment_ms: Int64
    min_insync: int = Field(description="acks=all needs as many replicas in sync.")
    consistency: Consistency


class TopicChanges(Strict):
    """Settings. What is left out, or null, stays as it is, or takes the default of the broker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"retention_ms": "3600000"}]})

    retention_ms: Int64 | None = Field(default=None, description=f"How long records are kept. {_NO_LIMIT}")
    retention_bytes: Int64 | None = Field(default=None, description=f"Of one partition. {_NO_LIMIT}")
    retention_records: Int64 | None = Field(default=None, description=f"Of one partition. {_NO_LIMIT}")
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
    replicas: int = Field(default=0, ge=0, le=REPLICAS_MAX, description="Of each partition; 0: the default.")
    config: TopicChanges = TopicChanges()


class Topic(Model):
    """A topic, in short."""

    name: str = Field(examples=["quotes"])
    id: str = Field(description="A topic that is made again has another one.", examples=["0f8e" * 8])
    internal: bool = Field(description="Made by Comet for itself: its name begins with two underscores.")
    created_us: Int64
    partition_count: int
    replicas: int = Field(description="That each partition is to have; the most, where they differ.")
    in_sync: int = Field(description="That are in sync in the partition where they are fewest.")
    under_replicated: int = Field(description="Partitions with replicas that are not in sync.")
    leaderless: int = Field(description="Partitions that nobody leads now.")
    config: TopicSettings


class TopicList(Model):
    items: list[Topic]
    next: str | None = Field(description="`after` of the next page; null: that was all.")
    total: int = Field(description="All that the filters let through, on this page or not.")


class OffsetRange(Model):
    first: Int64
    end: Int64 = Field(description="One past the last.")


class Partition(Model):
    """One partition, as its leader has it; what only the leader knows is null while it cannot be asked."""

    partition: int
    leader: int | None = Field(description="Id of a broker; null: nobody leads now.", examples=[1])
    leader_epoch: int
    replicas: list[int] = Field(description="Ids of brokers, the preferred leader first.")
    in_sync: list[int]
    log_start: Int64 | None = Field(description="The first record that can be read.")
    log_end: Int64 | None = Field(description="The offset that the next record gets.")
    high_watermark: Int64 | None = Field(description="Records below it can be read.")
    stable_end: Int64 | None = Field(description="Below it, every transaction is decided.")
    records: Int64 | None = Field(description="Offsets in the log: records, and marks of transactions.")
    bytes: Int64 | None = Field(description="On the leader's disk.")
    segments: int | None
    failed: bool | None = Field(description="The leader's disk has failed it: it takes no more records.")
    lost: list[OffsetRange] | None = Field(description="Ranges that are damaged on the leader.")


class TopicTotals(Model):
    records: Int64
    bytes: Int64
    complete: bool = Field(description="False: some partitions could not be asked, and are not in these numbers.")


class TopicDetails(Topic):
    partitions: list[Partition]
    totals: TopicTotals


class Replica(Model):
    """What one broker holds of a partition; null where it cannot be asked."""

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
    complete: bool = Field(description="False: some partitions could not be asked, and hold more than these numbers.")
    groups: list[Reading] = Field(description="Groups that read it; their committed offsets in it go with it.")


class TopicAlteration(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    changed: list[str] = Field(description="Settings that are not as before.", examples=[["retention_ms"]])
    before: TopicSettings
    after: TopicSettings
    records: Int64 = Field(
        description="About so many go because retention is shorter; whole segments do, and the newest one never."
    )


class PartitionsWanted(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"total": 6}]})

    total: int = Field(ge=1, le=PARTITIONS_MAX, description="How many there shall be.")


class PartitionsAdded(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    before: int
    after: int
    keys_moved: float = Field(
        description="The share of keys that map to another partition from then on.", examples=[0.5]
    )


Index = Annotated[int, Field(ge=0, le=PARTITION_MAX)]


class RecordsBefore(Strict):
    partition: Index
    before: Int64 = Field(description="The first offset to keep.")


class RecordsDeletion(Strict):
    """Either `before`, for all `partitions` or those that are named, or `offsets`."""

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
            raise ValueError("partitions goes with before; each of offsets names its own")
        return self


class PartitionTruncation(Model):
    partition: int
    log_start: Int64 | None = Field(description="Where it begins then; null: it was left as it is.")
    records: Int64 = Field(description="Offsets that go.")
    error: ProblemDocument | None = Field(description="What kept it from being done.")


class RecordsDeleted(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    records: Int64 = Field(description="All together.")
    partitions: list[PartitionTruncation]


class Move(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"replicas": [2, 3, 1]}]})

    replicas: list[Annotated[int, Field(ge=1, le=BROKER_MAX)]] = Field(
        min_length=1, max_length=REPLICAS_MAX, description="Ids of brokers, the preferred leader first."
    )


class Moved(Model):
    """A move is decided when it is answered; the partition shows when it is done."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    partition: int
    before: list[int]
    after: list[int]
    added: list[int] = Field(description="Brokers that copy the partition.")
    removed: list[int] = Field(description="Brokers that delete their copy, once those are in sync.")
    bytes: Int64 | None = Field(description="To be copied, all together; null: the leader cannot be asked.")


class Election(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"broker": 2, "accept_loss": True}]})

    broker: int = Field(ge=1, le=BROKER_MAX, description="Who is to lead, whatever it lacks.")
    accept_loss: bool = Field(
        default=False, description="What it does not have is lost for good. Without this nothing is done."
    )


class Elected(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    partition: int
    broker: int
    lost: Int64 | None = Field(
        description="Records that others are known to have and it lacks; null: it cannot be asked."
    )
    copies: list[Replica]
