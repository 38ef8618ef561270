"""Models of topics and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model, model_validator

import comet
from comet.admin.parameters import PARTITION_MAX, PARTITIONS_MAX
from comet.settings.topic import REPLICAS_MAX, TOPIC_SETTINGS, SettingSource, TopicSetting, plain
from comet_gateway.schemas.common import Int64, Model, Offset, ProblemDocument, int64_between
from comet_gateway.schemas.derived import SettingName, model_of
from comet_gateway.schemas.lists import DRY_RUN_TEXT, Name, PositionText, Strict, alone

_literal: Any = Literal


def _kind(row: TopicSetting) -> Any:
    """The type of a setting in a document. JSON numbers lose digits in browsers: 64 bits are a string."""
    if row.words:
        return _literal[row.words]
    return Int64 if row.bits == 64 else int


def _example(row: TopicSetting) -> Any:
    return str(row.default) if row.bits == 64 and not row.words else plain(row.default)


def _requested(row: TopicSetting) -> Any:
    kind = _kind(row)
    if not row.words:
        kind = int64_between(row.low, row.high) if row.bits == 64 else Annotated[kind, Field(ge=row.low, le=row.high)]
    bounds = "" if row.words else f" From {row.low} to {row.high}."
    return kind | None, Field(default=None, description=row.about + (" -1: no limit." if row.unlimited else bounds))


if TYPE_CHECKING:
    Source = str
    _SettingsGiven = Strict
    Topic = Any
    TopicDetails = Any
    TopicSettings = Any
    PartitionDetails = Any
    Replica = Any
else:
    Source = _literal[tuple(source.value for source in SettingSource)]
    # The SDK's types.
    Topic, TopicDetails, TopicSettings, PartitionDetails, Replica = map(
        model_of,
        (comet.TopicInfo, comet.TopicDetails, comet.TopicConfig, comet.PartitionDetails, comet.ReplicaInfo),
    )
    # A field for each row of the table of settings.
    _SettingsGiven = create_model(
        "_SettingsGiven", __base__=Strict, **{name: _requested(row) for name, row in TOPIC_SETTINGS.items()}
    )


# One setting with its value, for examples in the documentation.
SETTINGS_EXAMPLE = {name: _example(row) for name, row in [*TOPIC_SETTINGS.items()][:1]}


class TopicSettingsGiven(_SettingsGiven):
    """Settings of a new topic. Absent or null ones get the cluster's default."""

    def settings(self) -> dict[str, Any]:
        return {name: value for name in TOPIC_SETTINGS if (value := getattr(self, name)) is not None}


class TopicChanges(TopicSettingsGiven):
    """Settings to change. Absent or null ones stay."""

    model_config = ConfigDict(json_schema_extra={"examples": [SETTINGS_EXAMPLE, {"unset": [*SETTINGS_EXAMPLE]}]})

    unset: list[SettingName] = Field(
        default=[],
        max_length=len(TOPIC_SETTINGS),
        description="Settings that get the cluster's default again; none that the same request sets.",
    )

    @model_validator(mode="after")
    def _set_or_unset(self) -> TopicChanges:
        for name in self.unset:
            if name in self.settings():
                raise ValueError(f"{name} is both set and unset; choose one")
        return self


class TopicSettingRow(Model):
    """A setting that topics have, and its value in a new topic."""

    name: str = Field(examples=[*SETTINGS_EXAMPLE])
    label: str = Field(examples=["Retention time"])
    about: str
    unit: str = Field(description="ms, bytes, another noun, or empty: it takes one of `words`.", examples=["ms"])
    words: list[str]
    low: Int64 = Field(description="The lowest number; 0 for words.")
    high: Int64 = Field(description="The highest number; 0 for words.")
    unlimited: bool = Field(description="-1 stands for no limit.")
    default: str = Field(description="Value in a new topic with `replicas` replicas.", examples=["604800000"])
    default_replicated: str | None = Field(
        description="Built-in default with three or more replicas; null: the same.", examples=["2"]
    )
    source: Source = Field(description="Of the default: cluster, if the brokers were given it.")
    since: str = Field(description="First version of Comet that has it.", examples=["0.1.0"])


class TopicSettingList(Model):
    """The settings that topics have, with the defaults of the broker that answers."""

    items: list[TopicSettingRow]
    replicas: int = Field(description="Replicas of each partition of a new topic.")


class TopicCreation(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "quotes", "partitions": 3, "config": SETTINGS_EXAMPLE}]}
    )

    name: Name
    partitions: int = Field(default=1, ge=1, le=PARTITIONS_MAX)
    replicas: int = Field(default=0, ge=0, le=REPLICAS_MAX, description="Replicas of each partition; 0: the default.")
    config: TopicSettingsGiven = TopicSettingsGiven()


class TopicList(Model):
    items: list[Topic]
    next: str | None = Field(description="`after` of the next page; null: this is the last page.")
    total: int = Field(description="Matches on all pages.")


_SOURCES_TEXT = (
    "Where values come from: set for this topic, the cluster's default when it was created or unset, or built in."
)


class PartitionOffset(Model):
    partition: int
    offset: Int64


class TopicOffsets(Model):
    topic: str
    at: str
    partitions: list[PartitionOffset]


class TopicAlteration(Model):
    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    changed: list[str] = Field(description="Settings whose value or source changed.", examples=[[*SETTINGS_EXAMPLE]])
    before: TopicSettings
    after: TopicSettings
    sources: dict[SettingName, Source] = Field(description=_SOURCES_TEXT)
    records: Int64 = Field(
        description="Records that shorter retention deletes at its next check: whole segments, by append time, never "
        "the newest one."
    )
    bytes: Int64 = Field(description="Bytes of these records on the leaders' disks.")
    complete: bool = Field(description="False: a leader did not answer, and may delete more.")


Index = Annotated[int, Field(ge=0, le=PARTITION_MAX)]


class RecordsBefore(Strict):
    partition: Index
    before: Offset = Field(description="The first offset to keep.")


class RecordsDeletion(Strict):
    """Records to delete: either `before`, for all or the given `partitions`, or `offsets`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [alone("before", "offsets"), alone("offsets", "before", "partitions")],
            "examples": [
                {"before": "-1h"},
                {"before": "latest", "partitions": [0, 2]},
                {"offsets": [{"partition": 0, "before": "1042"}]},
            ],
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
