"""Models of dead letters, and of requests to redrive and discard them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from comet.admin.parameters import PARTITION_MAX
from comet_gateway.schemas.common import Int64, Model, Offset
from comet_gateway.schemas.lists import DRY_RUN_TEXT, Name, Strict, alone
from comet_gateway.schemas.records_api import RECORD_EDIT

NAMED_MAX: Final = 1_000
RATE: Final = 100
_STATES: Final = "Redriven and discarded ones are counted while they are in the log."

StateName = Literal["pending", "redriven", "discarded"]


class Scanned(Model):
    """Progress of the scan of a topic. The next request continues it."""

    records: Int64 = Field(description="Records to scan: the newest of the topic, up to a limit.")
    done: Int64 = Field(description="Records scanned so far.")
    older: Int64 = Field(description="Older records, which are not scanned.")
    complete: bool


class CauseCounts(Model):
    """Counts of the dead letters of one group with the same cause."""

    group: str
    cause: str = Field(description="The reason, with # for its numbers.", examples=["ValueError: order # is late"])
    pending: int
    redriven: int
    discarded: int
    newest_us: Int64 = Field(description="Timestamp of the newest of these records.")
    topics: list[str] = Field(description="Source topics of the pending ones.")


class DeadLetterTopic(Model):
    topic: str
    pending: int
    redriven: int
    discarded: int = Field(description=_STATES)
    causes: list[CauseCounts] = Field(description="Those with most pending dead letters first.")
    causes_total: int
    scanned: Scanned


class DeadLetterTopics(Model):
    items: list[DeadLetterTopic]
    scanned: int = Field(description="Topics inspected so far, to find those with dead letters.")
    topics: int = Field(description="Number of topics.")


class DeadLetterItem(Model):
    """A dead letter. Its value is the record's at `partition` and `offset` of the dead-letter topic."""

    partition: int
    offset: Int64
    timestamp_us: Int64 = Field(description="Timestamp of the record.")
    state: StateName
    topic: str = Field(description="Source topic.")
    source_partition: int
    source_offset: Int64
    group: str = Field(description="The group that gave up.")
    attempts: int
    reason: str
    cause: str
    times: int = Field(description="Earlier redrives after which it became a dead letter again.")
    key: str | None = Field(description="The beginning of the key, as text.")
    bytes: Int64 = Field(description="Size of the value.")
    to: str | None = Field(description="TOPIC/PARTITION/OFFSET of the redriven record.")
    by: str | None = Field(description="The user that redrove or discarded it.")


class DeadLetterList(Model):
    items: list[DeadLetterItem] = Field(description="The newest record first.")
    next: str | None = Field(description="`cursor` of the next page; null: this is the last page.")
    matched: int = Field(description="Matches on all pages.")
    scanned: Scanned


class DeadLetterId(Strict):
    partition: int = Field(ge=0, le=PARTITION_MAX)
    offset: Offset


class DeadLetterFilter(Strict):
    """A filter of pending dead letters. Absent fields match all."""

    group: str | None = Field(default=None, max_length=1_000)
    cause: str | None = Field(default=None, max_length=1_000, description="The whole cause, as in the counts.")
    reason: str | None = Field(default=None, max_length=1_000, description="A part of the reason, in any case.")
    topic: Name | None = Field(default=None, description="Source topic.")
    from_us: Int64 | None = Field(default=None, description="Timestamp of the record, from this on.")
    to_us: Int64 | None = Field(default=None, description="Timestamp of the record, before this.")


_CHOICE: Final[list[Any]] = [alone("dead_letters", "filter"), alone("filter", "dead_letters")]
_EDIT: Final[dict[str, Any]] = {
    "if": {"required": ["record"], "properties": {"record": {"not": {"type": "null"}}}},
    "then": {"required": ["dead_letters"], "properties": {"dead_letters": {"type": "array", "maxItems": 1}}},
}


class Chosen(Strict):
    dead_letters: list[DeadLetterId] | None = Field(default=None, min_length=1, max_length=NAMED_MAX)
    filter: DeadLetterFilter | None = None
    rate: Annotated[float, Field(ge=0.001, le=1_000_000)] = Field(
        default=RATE,
        description="Dead letters a second at most; not more than the gateway's `dead_letter_rate_max`.",
        json_schema_extra={"minimum": 0.001},
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Chosen:
        if (self.dead_letters is None) == (self.filter is None):
            raise ValueError("give either dead_letters or a filter; an empty filter matches all pending ones")
        return self


def _written(record: dict[str, Any]) -> dict[str, Any]:
    """Checks that the record can be encoded again, which is not true for all that Python decodes."""
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise ValueError("a number outside the range of a float, or half of a surrogate pair") from None
    return record


class Redrive(Chosen):
    """Dead letters to redrive, and changes to them."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": _CHOICE,
            **_EDIT,
            "examples": [
                {"filter": {"group": "work", "cause": "ValueError: order # is late"}, "rate": 50},
                {"dead_letters": [{"partition": 0, "offset": "17"}], "record": {"text": "order 17, on time"}},
            ],
        }
    )

    to: Name | None = Field(default=None, description="Target topic instead of each source topic.")
    record: Annotated[dict[str, Any], AfterValidator(_written), WithJsonSchema(RECORD_EDIT)] | None = Field(
        default=None,
        description="New content of the single dead letter, as in a record to write. Absent content, key or headers "
        "stay. `text` is kept byte for byte; `value` is JSON that is encoded again.",
    )

    @model_validator(mode="after")
    def _of_one(self) -> Redrive:
        if self.record is not None and (self.dead_letters is None or len(self.dead_letters) != 1):
            raise ValueError("record: only a single dead letter can be edited, given by partition and offset")
        return self


class Discard(Chosen):
    """Dead letters to discard without writing them again. They stay in the log until its retention deletes them."""

    model_config = ConfigDict(json_schema_extra={"oneOf": _CHOICE, "examples": [{"filter": {"group": "work"}}]})


class Target(Model):
    topic: str
    dead_letters: int
    exists: bool
    groups: list[str] = Field(description="Groups that read the topic: each of them gets the records.")


class SettlingPlan(Model):
    """The effect of a request, in numbers."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    topic: str
    dead_letters: int = Field(description="Dead letters to redrive or discard.")
    settled: int = Field(description="Selected, but redriven or discarded already.")
    unknown: list[DeadLetterId] = Field(description="Named, but not dead letters.")
    targets: list[Target] = Field(description="Target topics; empty if discarded.")
    bytes: Int64 = Field(description="Bytes of their values.")
    seconds: float = Field(description="Duration at this rate, at least.")
    rate: float
