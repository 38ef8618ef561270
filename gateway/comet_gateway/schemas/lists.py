"""Shared parameters: pages, filters, `dry_run`, and path parameters."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from comet.admin.documents import DRY_RUN
from comet.admin.parameters import BROKER, BROKER_MAX, GROUP, NAME_PATTERN, PARTITION, PARTITION_MAX, TOPIC
from comet_gateway.http.query_params import parse_position
from comet_gateway.schemas.common import DIGITS, Model

NAME_CHARS_MAX: Final = 249
PAGE: Final = 100
PAGE_MAX: Final = 1_000


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


class Strict(Model):
    """A request's body with strict numbers: "5" is refused. 5.0 is 5, as in JSON Schema."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {
            name: list(map(_whole, value)) if isinstance(value, list) else _whole(value)
            for name, value in given.items()
        }


def alone(name: str, *others: str, empty: str = "") -> dict[str, Any]:
    """The JSON Schema of a document with this member and without the others. Null is absent; `empty`: a list."""
    members: dict[str, Any] = {name: {"not": {"type": "null"}}, **{other: {"type": "null"} for other in others}}
    if empty:
        members[empty] = {"maxItems": 0}
    return {"required": [name], "properties": members}


def _integer(value: Any) -> Any:
    """Parses plain digits, and nothing else that Python would accept as a number."""
    digits = value.removeprefix("-") if isinstance(value, str) else ""
    if not digits.isascii() or not digits.isdecimal():
        raise ValueError("not a whole number")
    number = int(digits.lstrip("0")[:20] or "0")  # a number with more digits is out of bounds, too
    return number if digits == value else -number


def _boolean(value: Any) -> Any:
    if value not in ("true", "false"):
        raise ValueError("must be true or false")
    return value == "true"


# Comes after the bounds: before them, they would be bounds of the text, which OpenAPI cannot express.
Integer = BeforeValidator(_integer)
Boolean = BeforeValidator(_boolean)


def _position(value: str, info: ValidationInfo) -> str:
    parse_position(info.field_name or "position", value, time.time_ns() // 1000)
    return value


# A position in the OpenAPI. A time without its zone is taken, too, as the gateway's local time.
POSITION_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "anyOf": [
        {"pattern": f"^(earliest|beginning|latest|end|now|{DIGITS})$"},
        {"pattern": r"^-[0-9]{1,6}(\.[0-9]{1,6})?(us|ms|s|m|h|d)$"},
        {"format": "date-time"},
    ],
}

# The text of a position, which is parsed later. Raises Problem, CometError.
PositionText = Annotated[str, AfterValidator(_position), WithJsonSchema(POSITION_SCHEMA)]

Name = Annotated[str, Field(pattern=NAME_PATTERN)]

TopicName = Annotated[str, Path(pattern=NAME_PATTERN, description=TOPIC.about, examples=[TOPIC.example])]
GroupName = Annotated[str, Path(pattern=NAME_PATTERN, description=GROUP.about, examples=[GROUP.example])]
PartitionIndex = Annotated[
    int,
    Field(ge=0, le=PARTITION_MAX),
    Integer,
    Path(description=PARTITION.about, examples=[PARTITION.example]),
]
BrokerId = Annotated[
    int, Field(ge=1, le=BROKER_MAX), Integer, Path(description=BROKER.about, examples=[BROKER.example])
]

PATH_PARAMETERS: Final = {"topic": TopicName, "group": GroupName, "partition": PartitionIndex, "broker": BrokerId}

Limit = Annotated[int, Field(ge=1, le=PAGE_MAX), Integer, Query(description="Entries on one page at most.")]
After = Annotated[
    str, Query(max_length=NAME_CHARS_MAX, description="Only names after this one: `next` of the previous page.")
]
Filter = Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Only names that contain this text, in any case.")]
DryRun = Annotated[
    bool,
    Boolean,
    Query(description="Only compute the effect. The answer is the same document, with `dry_run` true."),
    WithJsonSchema({"type": "boolean"}),
]
DRY_RUN_TEXT: Final = DRY_RUN
