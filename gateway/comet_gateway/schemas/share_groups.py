"""Locks of a share group's records as documents: what is asked for, and what becomes of each token."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from comet_gateway.schemas.common import Model, ProblemDocument
from comet_gateway.schemas.lists import Name, PositionText, Strict
from comet_gateway.schemas.records_api import RECORD_OUT

RECORDS_MAX: Final = 1_000  # of one lock; one acknowledgement takes as many
BYTES_MAX: Final = 4 << 20
WAIT_MS_MAX: Final = 30_000
LOCK_MS_MAX: Final = 12 * 3_600_000
ATTEMPTS_MAX: Final = 250
DELAY_MS_MAX: Final = 24 * 3_600_000
REASON_CHARS_MAX: Final = 200
TOKENS_MAX: Final = RECORDS_MAX
TOKEN_CHARS_MAX: Final = 1_000

_EXAMPLE: Final = "ARU7EMTvzauJZ0UjAQABAgMEBQYHCAkKCwwNDg8DAAAAKgAAAAAAAAAEd29ya3F1b3Rlcw"
Token = Annotated[str, Field(max_length=TOKEN_CHARS_MAX)]


def _example(**members: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [members]})


class AcquireBody(Strict):
    """What to acquire, and on which terms. Those from `lock_ms` on are the group's: whoever takes from it at the same
    time says the same."""

    model_config = _example(topic="quotes", limit=10, wait_ms=5000, start="earliest", dead_letter="quotes-failed")

    topic: Name = Field(description="The topic to take from.")
    limit: int = Field(100, ge=1, le=RECORDS_MAX, description="Records at most.")
    max_bytes: int = Field(
        1 << 20, ge=1, le=BYTES_MAX, description="About so many bytes, as they are stored; but one record at least."
    )
    wait_ms: int = Field(0, ge=0, le=WAIT_MS_MAX, description="How long to wait for the first record.")
    lock_ms: int = Field(30_000, ge=100, le=LOCK_MS_MAX, description="How long they are acquired for.")
    deliveries_max: int = Field(
        5, ge=1, le=ATTEMPTS_MAX, description="How often a record is given out; then it is a dead letter."
    )
    dead_letter: Name | None = Field(None, description="The topic for dead letters; without one they are dropped.")
    by_key: bool = Field(False, description="Records of one key go out one after the other, in order.")
    start: PositionText = Field(
        "latest",
        max_length=100,
        description="Where a group that is new begins: earliest, latest, a time such as 2026-01-31T12:00:00Z, a time "
        "ago such as -15m, or an offset.",
    )
    values: Literal["auto", "text", "base64"] = Field(
        "auto", description="How values stand in the answer: as JSON where they are JSON, else as text; or always so."
    )


class Tokens(Strict):
    model_config = _example(tokens=[_EXAMPLE])

    tokens: list[Token] = Field(min_length=1, max_length=TOKENS_MAX, description="As they came with the records.")


class Nack(Tokens):
    model_config = _example(tokens=[_EXAMPLE], delay_ms=5000)

    delay_ms: int = Field(0, ge=0, le=DELAY_MS_MAX, description="Not to be given out again before that.")


class Reject(Tokens):
    model_config = _example(tokens=[_EXAMPLE], reason="no such symbol")

    reason: str = Field("", max_length=REASON_CHARS_MAX, description="Goes with the dead letter.")


class Acknowledged(Model):
    """What became of one token."""

    acknowledged: bool = Field(description="It is kept: that survives the broker.")
    problem: ProblemDocument | None = Field(None, description="Why it is not.")


class Acknowledgements(Model):
    """One for each token, in order."""

    results: list[Acknowledged]


_ACQUIRED: Final[dict[str, Any]] = {
    **RECORD_OUT,
    "title": "AcquiredRecord",
    "properties": {
        **RECORD_OUT["properties"],
        "delivery_count": {
            "type": "integer",
            "minimum": 1,
            "description": "How often it was given out, with this time.",
        },
        "token": {"type": "string", "description": "What it takes to acknowledge it, at any gateway. Opaque."},
    },
    "required": [*RECORD_OUT["required"], "delivery_count", "token"],
}
ACQUIRED: Final[dict[str, Any]] = {
    "description": "The records; none where there was none in time.",
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
