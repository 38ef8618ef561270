"""Dead letters as documents: where they are, what became of them, and what to do with which of them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from comet_gateway.schemas.common import Int64, Model
from comet_gateway.schemas.lists import DRY_RUN_TEXT, PARTITION_MAX, Name, Strict
from comet_gateway.schemas.records_api import RECORD_IN

NAMED_MAX: Final = 1_000
RATE: Final = 100
_STATES: Final = "What they were redriven or discarded is known of those whose letters are still in the log."

StateName = Literal["pending", "redriven", "discarded"]


class Scanned(Model):
    """How much of the log is known. What is not complete goes on at the next request."""

    records: Int64 = Field(description="Of the topic, that are to be looked at: the newest, up to a limit.")
    looked: Int64 = Field(description="Of these, that were looked at.")
    older: Int64 = Field(description="Records before these, that are not looked at.")
    complete: bool


class CauseCounts(Model):
    """Letters of one group that died of the same."""

    group: str
    cause: str = Field(description="The reason, with # for its numbers.", examples=["ValueError: order # is late"])
    pending: int
    redriven: int
    discarded: int
    newest_us: Int64 = Field(description="Time of the newest event among them.")
    topics: list[str] = Field(description="Where the pending ones come from.")


class DeadLetterTopic(Model):
    topic: str
    pending: int
    redriven: int
    discarded: int = Field(description=_STATES)
    causes: list[CauseCounts] = Field(description="Most pending letters first.")
    causes_total: int
    scanned: Scanned


class DeadLetterTopics(Model):
    items: list[DeadLetterTopic]
    looked: int = Field(description="Topics that were looked at so far, to find those that hold dead letters.")
    topics: int = Field(description="That there are.")


class Letter(Model):
    """A dead letter. Its value is the record's at `partition` and `offset` of the dead-letter topic."""

    partition: int
    offset: Int64
    timestamp_us: Int64 = Field(description="Of the event.")
    state: StateName
    topic: str = Field(description="Where it was read.")
    source_partition: int
    source_offset: Int64
    group: str = Field(description="Who gave up on it.")
    attempts: int
    reason: str
    cause: str
    times: int = Field(description="That it was redriven before, and died again.")
    key: str | None = Field(description="Its beginning, as text.")
    bytes: Int64 = Field(description="Of the value.")
    to: str | None = Field(description="TOPIC/PARTITION/OFFSET of the record that it became.")
    by: str | None = Field(description="Who redrove or discarded it.")


class Letters(Model):
    items: list[Letter] = Field(description="The newest event first.")
    next: str | None = Field(description="`cursor` of the next page; null: that was all.")
    matched: int = Field(description="All that the filter lets through, on this page or not.")
    scanned: Scanned


class LetterPlace(Strict):
    partition: int = Field(ge=0, le=PARTITION_MAX)
    offset: Int64


class LetterFilter(Strict):
    """All pending letters that fit. What is left out does not matter."""

    group: str | None = Field(default=None, max_length=1_000)
    cause: str | None = Field(default=None, max_length=1_000, description="All of it, as the counts have it.")
    reason: str | None = Field(default=None, max_length=1_000, description="A part of it, in capitals or not.")
    topic: Name | None = Field(default=None, description="Where they come from.")
    from_us: Int64 | None = Field(default=None, description="Time of the event, from then on.")
    to_us: Int64 | None = Field(default=None, description="Time of the event, before then.")


class Chosen(Strict):
    letters: list[LetterPlace] | None = Field(default=None, min_length=1, max_length=NAMED_MAX)
    filter: LetterFilter | None = None
    rate: Annotated[float, Field(ge=0.001, le=1_000_000)] = Field(
        default=RATE, description="Letters a second at most.", json_schema_extra={"minimum": 0.001}
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Chosen:
        if (self.letters is None) == (self.filter is None):
            raise ValueError("give either letters or a filter; an empty filter is all that are pending")
        return self


def _written(record: dict[str, Any]) -> dict[str, Any]:
    """It is written anew, which not all can be that Python reads."""
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("a number that no float holds, or half of a surrogate pair") from None
    return record


class Redrive(Chosen):
    """Which letters to write again, and how."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"filter": {"group": "work", "cause": "ValueError: order # is late"}, "rate": 50},
                {"letters": [{"partition": 0, "offset": "17"}], "record": {"text": "order 17, on time"}},
            ]
        }
    )

    to: Name | None = Field(default=None, description="Another topic than the one that each comes from.")
    record: Annotated[dict[str, Any], AfterValidator(_written), WithJsonSchema(RECORD_IN)] | None = Field(
        default=None,
        description="What the one letter is written with, as a record that is written. Content, key or headers that "
        "are left out stay. `text` is kept byte for byte; `value` is JSON that is written anew.",
    )

    @model_validator(mode="after")
    def _of_one(self) -> Redrive:
        if self.record is not None and (self.letters is None or len(self.letters) != 1):
            raise ValueError("record: one letter can be edited at a time, by its place")
        return self


class Discard(Chosen):
    """Which letters to settle without writing them again. They stay in the log for as long as it keeps them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"filter": {"group": "work"}}]})


class Target(Model):
    topic: str
    letters: int
    exists: bool
    groups: list[str] = Field(description="All groups that read it: each of them gets the records.")


class SettlingPlan(Model):
    """What a request does, in numbers."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    letters: int = Field(description="That are settled.")
    settled: int = Field(description="Were meant, and are settled already.")
    unknown: list[LetterPlace] = Field(description="Were named, and are no letters.")
    targets: list[Target] = Field(description="Where they are written to; none where they are discarded.")
    bytes: Int64 = Field(description="Of their values.")
    seconds: float = Field(description="That it takes at this rate, at least.")
    rate: float
