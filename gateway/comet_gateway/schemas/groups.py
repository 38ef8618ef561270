"""Models of groups: members, assignments, lag and committed offsets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from comet_gateway.schemas.common import Int64, Model, ProblemDocument
from comet_gateway.schemas.lists import DRY_RUN_TEXT, PARTITION_MAX, Name, PositionText, Strict

OFFSETS_MAX = 10_000
State = Literal["empty", "stable", "rebalancing"]
_ASSIGNMENT = "Assignment strategy, that of most members: sticky, range or rack; empty in a share group."


class Group(Model):
    """A group in a list."""

    name: str = Field(examples=["engine"])
    kind: Literal["consumer", "share"] = Field(description="consumer: members share partitions; share: records.")
    state: State
    members: int
    coordinator: int = Field(description="Id of the broker that is its coordinator.")
    generation: int
    topics: list[str]
    assignment: str = Field(description=_ASSIGNMENT, examples=["sticky"])


class GroupList(Model):
    items: list[Group]
    next: str | None = Field(description="`after` of the next page; null: this is the last page.")
    total: int = Field(description="Matches on all pages.")


class TopicPartitions(Model):
    topic: str
    partitions: list[int]


class Member(Model):
    id: str
    instance: str = Field(description="Instance id of a static member; otherwise empty.")
    client: str = Field(description="The client's name.", examples=["engine-1"])
    owned: list[TopicPartitions]
    release: list[TopicPartitions] = Field(description="Partitions being revoked.")
    silent_ms: int = Field(description="Milliseconds since its last heartbeat.")
    session_timeout_ms: int
    assignment: str = Field(description="The assignment strategy that it asks for; empty in a share group.")
    rack: str = Field(description="Its rack; empty: unknown.")


class Lag(Model):
    """Lag of a group in one partition."""

    topic: str
    partition: int
    member: str | None = Field(description="The member to which it is assigned; null: none.")
    committed: Int64 | None = Field(description="Committed offset; null: none.")
    log_start: Int64
    end: Int64
    lag: Int64 = Field(description="Events.")
    age_s: float = Field(description="Age of the oldest unprocessed record in seconds; 0: none.")
    drain_s: float | None = Field(description="Time to process the lag at the recent rate; null: it does not shrink.")
    in_flight: Int64 = Field(description="Share groups: records acquired now.")
    redelivered: Int64 = Field(description="Share groups: records delivered more than once.")
    dead_lettered: Int64 = Field(description="Share groups: records that became dead letters.")
    dead_waiting: Int64 = Field(description="Share groups: dead letters that could not be written yet.")
    dead_problem: str = Field(description="Why they could not be written; empty: no error.")


class GroupDetails(Model):
    name: str = Field(examples=["engine"])
    kind: Literal["consumer", "share"]
    state: State
    coordinator: int
    generation: int
    topics: list[str]
    assignment: str = Field(description=_ASSIGNMENT, examples=["sticky"])
    members: list[Member]
    partitions: list[Lag]
    lag: Int64 = Field(description="Records, all partitions together.")
    age_s: float = Field(description="Age of the oldest unprocessed record in seconds.")


class LagPoint(Model):
    """Lag of a group in one topic at a time, all partitions together."""

    time_us: Int64
    topic: str
    lag: Int64
    age_s: float
    committed: Int64
    end: Int64


class LagHistory(Model):
    group: str
    now: list[Lag]
    history: list[LagPoint] = Field(description="Oldest first, as far back as the coordinator has it.")


class CommittedOffset(Model):
    topic: str
    partition: int
    offset: Int64 = Field(description="The next record to read.")
    epoch: int | None = Field(description="Leader epoch of the record before it, if known.")


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
    offset: Int64 | None = Field(description="Committed offset now, never less than before; null: see `error`.")
    error: ProblemDocument | None


class CommitOutcomes(Model):
    group: str
    offsets: list[CommitOutcome]


class TopicSelection(Strict):
    topic: Name
    partitions: list[Annotated[int, Field(ge=0, le=PARTITION_MAX)]] = Field(min_length=1, max_length=1_000)


class Reset(Strict):
    """New committed offsets: `to`, `shift` or `offsets`.

    With `topics` only for those topics or partitions, otherwise for all in which the group has offsets. A group that
    does not exist is created if topics are given."""

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
    shift: Int64 | None = Field(default=None, description="Records to move forward; negative: back.")
    offsets: list[OffsetToCommitIn] | None = Field(default=None, min_length=1, max_length=OFFSETS_MAX)
    topics: list[Name | TopicSelection] = Field(default=[], max_length=1_000)

    @model_validator(mode="after")
    def _check(self) -> Reset:
        if [self.to, self.shift, self.offsets].count(None) != 2:
            raise ValueError("give one of to, shift and offsets")
        if self.offsets is not None:
            if self.topics:
                raise ValueError("topics does not go with offsets: each of them names its own topic")
            _each_once(self.offsets)
        return self


class ResetPartition(Model):
    topic: str
    partition: int
    before: Int64 | None
    after: Int64
    skipped: Int64 = Field(description="Records that are skipped; negative: read again.")
    note: str = Field(examples=["the log starts at 40: 12 records from 28 on are deleted"])


class ResetOutcome(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    group: str
    partitions: list[ResetPartition]
    skipped: Int64 = Field(description="Records that are skipped, all partitions together.")
    repeated: Int64 = Field(description="Records that are read again, all partitions together.")


class GroupDeletion(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    group: str
    offsets: int = Field(description="Partitions whose committed offsets are deleted.")
    lag: Int64 = Field(description="Records that it has not processed.")
