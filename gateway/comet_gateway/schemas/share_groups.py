"""Models of share groups: requests to acquire records, and acknowledgements by token."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from comet_gateway.schemas.common import Model, ProblemDocument
from comet_gateway.schemas.lists import Name, PositionText, Strict
from comet_gateway.schemas.records_api import RECORD_OUT

RECORDS_MAX: Final = 1_000  # of one request, to acquire or to acknowledge
BYTES_MAX: Final = 4 << 20
WAIT_MS_MAX: Final = 30_000
LOCK_MS_MAX: Final = 12 * 3_600_000
ATTEMPTS_MAX: Final = 250
DELAY_MS_MAX: Final = 24 * 3_600_000
REASON_CHARS_MAX: Final = 200
TOKENS_MAX: Final = RECORDS_MAX
TOKEN_CHARS_MAX: Final = 1_000

_EXAMPLE: Final = "ARU7EMTvzauJZ0UjAQABAgMEBQYHCAkKCwwNDg8DAAAAKgAAAAAAAAAEd29ya3F1b3Rlcw"
Token = Annotated[str, Field(max_length=TOKEN_CHARS_MAX, pattern="^[A-Za-z0-9_-]+$")]


def _example(**members: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [members]})


class AcquireBody(Strict):
    """Records to acquire. The fields from `lock_ms` on are options of the group: all clients at the same time must give
    the same."""

    model_config = _example(topic="quotes", limit=10, wait_ms=5000, start="earliest", dead_letter="quotes-failed")

    topic: Name = Field(description="The topic.")
    limit: int = Field(100, ge=1, le=RECORDS_MAX, description="Records at most.")
    max_bytes: int = Field(
        1 << 20, ge=1, le=BYTES_MAX, description="Stored bytes at most, approximately; but at least one record."
    )
    wait_ms: int = Field(0, ge=0, le=WAIT_MS_MAX, description="Time to wait for the first record.")
    lock_ms: int = Field(30_000, ge=100, le=LOCK_MS_MAX, description="Duration of the acquisition locks.")
    deliveries_max: int = Field(
        5, ge=1, le=ATTEMPTS_MAX, description="Deliveries of a record before it becomes a dead letter."
    )
    dead_letter: Name | None = Field(None, description="The dead-letter topic; without one, dead letters are dropped.")
    by_key: bool = Field(False, description="Records of one key are delivered one after the other, in order.")
    start: PositionText = Field(
        "latest",
        max_length=100,
        description="Where a new group starts: earliest, latest, a time such as 2026-01-31T12:00:00Z, a time "
        "ago such as -15m, or an offset.",
    )
    filter: str = Field(
        "", max_length=2_000, description="Only records that match are delivered; the others are settled."
    )
    values: Literal["auto", "text", "base64"] = Field(
        "auto", description="Form of values. auto: JSON if they are JSON, text if they are UTF-8, otherwise base64."
    )


class Tokens(Strict):
    model_config = _example(tokens=[_EXAMPLE])

    tokens: list[Token] = Field(min_length=1, max_length=TOKENS_MAX, description="Tokens of acquired records.")


class Nack(Tokens):
    model_config = _example(tokens=[_EXAMPLE], delay_ms=5000)

    delay_ms: int = Field(0, ge=0, le=DELAY_MS_MAX, description="Time before the next delivery.")


class Reject(Tokens):
    model_config = _example(tokens=[_EXAMPLE], reason="no such symbol")

    reason: str = Field("", max_length=REASON_CHARS_MAX, description="Stored with the dead letter.")


class Acknowledged(Model):
    """The outcome for one token."""

    acknowledged: bool = Field(description="The acknowledgement is stored, and survives the broker.")
    problem: ProblemDocument | None = Field(None, description="Why it was not acknowledged.")


class Acknowledgements(Model):
    """Outcomes for each token, in order."""

    results: list[Acknowledged]


_ACQUIRED: Final[dict[str, Any]] = {
    **RECORD_OUT,
    "title": "AcquiredRecord",
    "properties": {
        **RECORD_OUT["properties"],
        "delivery_count": {
            "type": "integer",
            "minimum": 1,
            "description": "Deliveries of the record, this one included.",
        },
        "token": {"type": "string", "description": "To acknowledge the record, at any gateway. Opaque."},
    },
    "required": [*RECORD_OUT["required"], "delivery_count", "token"],
}
ACQUIRED: Final[dict[str, Any]] = {
    "description": "The records; empty if there was none in time.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object", "title": "AcquiredRecords", "required": ["records"], "additionalProperties": False,
                "properties": {"records": {"type": "array", "items": _ACQUIRED}},
            },
            "example": {
                "records": [
                    {
                        "partition": 0, "offset": "42", "timestamp_us": "1767225600000000", "key": "EURUSD",
                        "value": {"bid": 1.08}, "delivery_count": 1, "token": _EXAMPLE,
                    }
                ]
            },
        }
    },
}  # fmt: skip
