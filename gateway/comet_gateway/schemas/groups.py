"""Groups as documents: members, what they own, how far they are behind, and where they go on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from comet_gateway.schemas.common import Int64, Model, ProblemDocument
from comet_gateway.schemas.lists import DRY_RUN_TEXT, PARTITION_MAX, Name, PositionText, Strict

OFFSETS_MAX = 10_000
State = Literal["empty", "stable", "rebalancing"]


class Group(Model):
    """A group, in short."""

    name: str = Field(examples=["engine"])
    kind: Literal["consumer", "share"] = Field(description="Partitions to members, or single records.")
    state: State
    members: int
    coordinator: int = Field(description="Id of the broker that coordinates it.")
    generation: int
    topics: list[str]


class GroupList(Model):
    items: list[Group]
    next: str | None = Field(description="`after` of the next page; null: that was all.")
    total: int = Field(description="All that the filters let through, on this page or not.")


class Places(Model):
    topic: str
    partitions: list[int]


class Member(Model):
    id: str
    instance: str = Field(description="Of a static member, that may be restarted within its session; else empty.")
    client: str = Field(description="What it calls itself.", examples=["engine-1"])
    owned: list[Places]
    release: list[Places] = Field(description="What it was asked to give up.")
    silent_ms: int = Field(description="Since it was last heard of.")
    session_timeout_ms: int


class Lag(Model):
    """How far a group is behind in one partition."""

    topic: str
    partition: int
    member: str | None = Field(description="Who owns it; null: nobody.")
    committed: Int64 | None = Field(description="The next record to handle; null: nothing was ever committed.")
    log_start: Int64
    end: Int64
    lag: Int64 = Field(description="Events.")
    age_s: float = Field(description="Of the oldest event that is not handled, in seconds; 0: there is none.")
    drain_s: float | None = Field(description="How long it takes at the pace of late; null: it does not get less.")
    in_flight: Int64 = Field(description="Of a share group: acquired now.")
    redelivered: Int64 = Field(description="Of a share group.")
    dead_lettered: Int64 = Field(description="Of a share group.")
    dead_waiting: Int64 = Field(description="Of a share group: dead letters that could not be written yet.")
    dead_problem: str = Field(description="Why not; empty: none waits, or nothing is in the way.")


class GroupDetails(Model):
    name: str = Field(examples=["engine"])
    kind: Literal["consumer", "share"]
    state: State
    coordinator: int
    generation: int
    topics: list[str]
    members: list[Member]
    partitions: list[Lag]
    lag: Int64 = Field(description="Events, all partitions together.")
    age_s: float = Field(description="Of the oldest event that is not handled, in seconds.")


class LagPoint(Model):
    """How far a group was behind in one topic, all partitions together."""

    time_us: Int64
    topic: str
    lag: Int64
    age_s: float
    committed: Int64
    end: Int64


class LagHistory(Model):
    group: str
    now: list[Lag]
    history: list[LagPoint] = Field(description="Oldest first, as far back as the coordinator remembers.")


class CommittedOffset(Model):
    topic: str
    partition: int
    offset: Int64 = Field(description="The next record to read.")
    epoch: int | None = Field(description="Leader epoch of the record before it, where it is known.")


class CommittedOffsets(Model):
    group: str
    offsets: list[CommittedOffset]


class OffsetToCommitIn(Strict):
    topic: Name
    partition: int = Field(ge=0, le=PARTITION_MAX)
    offset: Int64


def _each_once(offsets: list[OffsetToCommitIn]) -> None:
    if len({(one.topic, one.partition) for one in offsets}) < len(offsets):
        raise ValueError("name each partition once")


class CommitBody(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offsets": [{"topic": "quotes", "partition": 0, "offset": "1042"}]}]}
    )

    offsets: list[OffsetToCommitIn] = Field(min_length=1, max_length=OFFSETS_MAX)

    @model_validator(mode="after")
    def _check(self) -> CommitBody:
        _each_once(self.offsets)
        return self


class CommitOutcome(Model):
    topic: str
    partition: int
    offset: Int64 | None = Field(description="What is committed now: never less than before. null: see `error`.")
    error: ProblemDocument | None


class CommitOutcomes(Model):
    group: str
    offsets: list[CommitOutcome]


class TopicSelection(Strict):
    topic: Name
    partitions: list[Annotated[int, Field(ge=0, le=PARTITION_MAX)]] = Field(min_length=1, max_length=1_000)


class Reset(Strict):
    """Where to: `to`, `shift` or `offsets`. With `topics` only those, or partitions of them; else all that the group
    has offsets of. A group that does not exist is made by naming topics."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"to": "earliest", "topics": ["quotes"]},
                {"to": "-15m"},
                {"shift": "-1000", "topics": [{"topic": "quotes", "partitions": [0, 1]}]},
                {"offsets": [{"topic": "quotes", "partition": 0, "offset": "1042"}]},
            ]
        }
    )

    to: PositionText | None = Field(
        default=None,
        max_length=100,
        description="earliest, latest, an offset, a time (2026-01-31T12:00:00Z) or a time ago (-15m).",
    )
    shift: Int64 | None = Field(default=None, description="So many events forward, or back where it is negative.")
    offsets: list[OffsetToCommitIn] | None = Field(default=None, min_length=1, max_length=OFFSETS_MAX)
    topics: list[Name | TopicSelection] = Field(default=[], max_length=1_000)

    @model_validator(mode="after")
    def _check(self) -> Reset:
        if [self.to, self.shift, self.offsets].count(None) != 2:
            raise ValueError("give either to, shift or offsets")
        if self.offsets is not None:
            if self.topics:
                raise ValueError("each of offsets names its own topic")
            _each_once(self.offsets)
        return self


class ResetPartition(Model):
    topic: str
    partition: int
    before: Int64 | None
    after: Int64
    skipped: Int64 = Field(description="Events that are not read; negative: that are read again.")
    note: str = Field(examples=["the log starts at 40: 12 records from 28 on are deleted"])


class ResetOutcome(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    group: str
    partitions: list[ResetPartition]
    skipped: Int64 = Field(description="Events that are not read, all together.")
    repeated: Int64 = Field(description="Events that are read again, all together.")


class GroupDeletion(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    group: str
    offsets: int = Field(description="Partitions whose offsets are forgotten.")
    lag: Int64 = Field(description="Events that it has not handled.")
