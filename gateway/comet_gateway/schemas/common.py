"""Types that all models share."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


def _up_to(most: int) -> str:
    """A regular expression for the digits of a number up to a maximum."""
    digits = str(most)
    lower = [
        f"{digits[:at]}[0-{int(digit) - 1}][0-9]{{{len(digits) - at - 1}}}"
        for at, digit in enumerate(digits[:-1])
        if digit != "0"
    ]
    return "|".join([f"[0-9]{{1,{len(digits) - 1}}}", *lower, f"{digits[:-1]}[0-{digits[-1]}]"])


# A number of 63 bits without its sign, for checks and schemas.
DIGITS: Final = _up_to(INT64_MAX)
NATURAL_TEXT: Final = f"^({DIGITS})$"
INT64_TEXT: Final = f"^-?({DIGITS})$"
_text: Final = re.compile(INT64_TEXT)


def _int64(value: Any) -> Any:
    """A string of digits, or a number: JSON numbers lose digits in browsers, but exact ones are accepted."""
    return int(value) if isinstance(value, str) and _text.fullmatch(value) else value


# 64-bit numbers are strings in every answer, and strings or numbers in requests.
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
                {"type": "string", "format": "int64", "pattern": INT64_TEXT},
                # Bounds that are exact as floats, as FastAPI writes them.
                {"type": "integer", "format": "int64", "minimum": INT64_MIN, "exclusiveMaximum": INT64_MAX + 1},
            ],
            "examples": ["1042"],
        },
        "validation",
    ),
]  # fmt: skip


def int64_between(low: int, high: int) -> Any:
    """An Int64 of a request, with these bounds; 0 or more, or -1 for no limit."""
    # Bounds that are exact as floats, as FastAPI writes them.
    most = {"exclusiveMaximum": high + 1} if high == INT64_MAX else {"maximum": high}
    digits = f"{'-1|' if low < 0 else ''}{digits_between(max(low, 0), high)}"
    return Annotated[
        Int64,
        Field(ge=low, le=high),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "format": "int64", "pattern": f"^({digits})$"},
                    {"type": "integer", "format": "int64", "minimum": low, **most},
                ],
            },
            "validation",
        ),
    ]


def digits_between(low: int, high: int) -> str:
    """A regular expression for the digits of the numbers from `low` to `high`.

    >>> digits_between(64, 1500)
    '6[4-9]|[7-9][0-9]|[1-9][0-9][0-9]|1[0-4][0-9][0-9]|1500'
    """
    found = []
    while low <= high:
        # The largest block of numbers that begins here and differs in its last digits alone.
        free = 0
        while low % 10 ** (free + 1) == 0 and low + 10 ** (free + 1) - 1 <= high and low:
            free += 1
        block = 10**free
        head = low // block
        steps = min(9 - head % 10, (high + 1) // block - 1 - head)
        digit = str(head % 10) if not steps else f"[{head % 10}-{head % 10 + steps}]"
        found.append(f"{head // 10 or ''}{digit}{'[0-9]' * free}")
        low = (head + steps + 1) * block
    return "|".join(found)


# An offset in a request.
Offset = int64_between(0, INT64_MAX)


class Model(BaseModel):
    """A request or an answer. Unknown fields are refused: a mistake, or of another version."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemDocument(BaseModel):
    """A problem (RFC 9457). Some have more members, for programs, such as `log_start` and `leader`."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:comet:problem:TOPIC_NOT_FOUND"])
    title: str
    status: int
    code: str = Field(description="Stable; for programs.", examples=["TOPIC_NOT_FOUND"])
    detail: str
    hint: str | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None
