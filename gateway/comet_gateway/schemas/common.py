"""What all of them are made of."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def _int64(value: Any) -> Any:
    """A string of digits, or a number: JSON numbers lose digits in browsers, but are taken where they did not."""
    if isinstance(value, str) and 0 < len(value) <= 20 and value.removeprefix("-").isascii():
        return int(value) if value.removeprefix("-").isdecimal() else value
    return value


# 64-bit numbers are strings in every answer, and may be either in a request.
Int64 = Annotated[
    int,
    BeforeValidator(_int64),
    Field(ge=INT64_MIN, le=INT64_MAX, strict=True),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema(
        {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$", "examples": ["1042"]}, "serialization"
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,18}$"},
                {"type": "integer", "format": "int64", "minimum": INT64_MIN, "maximum": INT64_MAX},
            ],
            "examples": ["1042"],
        },
        "validation",
    ),
]  # fmt: skip


class Model(BaseModel):
    """A request or an answer. A field that is not known is refused: it is a mistake, or for another version."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemDocument(BaseModel):
    """RFC 9457. Some have more members, for programs: `log_start`, `leader` and the like."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:comet:problem:TOPIC_NOT_FOUND"])
    title: str
    status: int
    code: str = Field(description="Stable; what a program looks at.", examples=["TOPIC_NOT_FOUND"])
    detail: str
    hint: str | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None
