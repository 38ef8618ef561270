"""Models of groups: members, assignments, lag and committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

import comet
from comet.admin.parameters import PARTITION_MAX
from comet.types import GroupState
from comet_gateway.schemas.common import Int64, Model, Offset, ProblemDocument
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.lists import DRY_RUN_TEXT, Name, PositionText, Strict, alone

OFFSETS_MAX = 10_000
_ONCE = "Each partition once."

if TYPE_CHECKING:
    Group = Any
    Member = Any
    Lag = Any
    CommittedOffset = Any
    ResetPartition = Any
else:  # the SDK's types
    Group, Member, Lag, CommittedOffset, ResetPartition = map(
        model_of,
        (
            comet.GroupSummary,
            comet.GroupMember,
            comet.PartitionLag,
            comet.CommittedOffset,
            comet.ResetPartition,
        ),
    )


class GroupList(Model):
    items: list[Group]
    next: str | None = Field(description="`after` of the next page; null: this is the last page.")
    total: int = Field(description="Matches on all pages.")


class GroupDetails(Model):
    name: str = Field(examples=["engine"])
    kind: Literal["consumer", "share"]
    state: GroupState
    coordinator: int
    generation: int
    topics: list[str]
    assignment: str = Field(
        description="Assignment strategy, that of most members: sticky, range or rack; empty in a share group.",
        examples=["sticky"],
    )
    members: list[Member]
    partitions: list[Lag]
    lag: Int64 = Field(description="Records, all partitions together.")
    age_s: float = Field(description="Age of the oldest unprocessed record in seconds.")


class CommittedOffsets(Model):
    group: str
    offsets: list[CommittedOffset]


class OffsetToCommitIn(Strict):
    topic: Name
    partition: int = Field(ge=0, le=PARTITION_MAX)
    offset: Offset


def _each_once(offsets: list[OffsetToCommitIn]) -> None:
    if len({(one.topic, one.partition) for one in offsets}) < len(offsets):
        raise ValueError("name each partition once")


class CommitBody(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offsets": [{"topic": "quotes", "partition": 0, "offset": "1042"}]}]}
    )

    offsets: list[OffsetToCommitIn] = Field(min_length=1, max_length=OFFSETS_MAX, description=_ONCE)

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
            "oneOf": [
                alone("to", "shift", "offsets"),
                alone("shift", "to", "offsets"),
                alone("offsets", "to", "shift", empty="topics"),
            ],
            "examples": [
                {"to": "earliest", "topics": ["quotes"]},
                {"to": "-15m"},
                {"shift": "-1000", "topics": [{"topic": "quotes", "partitions": [0, 1]}]},
                {"offsets": [{"topic": "quotes", "partition": 0, "offset": "1042"}]},
            ],
        }
    )

    to: PositionText | None = Field(
        default=None,
        max_length=100,
        description="earliest, latest, an offset, a time (2026-01-31T12:00:00Z) or a time ago (-15m).",
    )
    shift: Int64 | None = Field(default=None, description="Records to move forward; negative: back.")
    offsets: list[OffsetToCommitIn] | None = Field(
        default=None, min_length=1, max_length=OFFSETS_MAX, description=_ONCE
    )
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


class ResetOutcome(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    group: str
    partitions: list[ResetPartition]
    skipped: Int64 = Field(description="Records that are skipped, all partitions together.")
    repeated: Int64 = Field(description="Records that are read again, all partitions together.")
