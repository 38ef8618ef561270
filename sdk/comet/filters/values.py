"""What a comparison says about values: True, False, or None where it is unknown. Pure.

document    the decoded JSON of a value; NO_JSON where it is none
value       what is found at a path; a list counts entry by entry
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from operator import ge, gt, le, lt
from typing import Any, Final

import msgspec

from comet.filters.nodes import Comparison, Literal
from comet.filters.paths import Path, entries, follow, number_in

ORDERED: Final[dict[str, Callable[[Any, Any], bool]]] = {">": gt, ">=": ge, "<": lt, "<=": le}
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # a ValidationError is a DecodeError
_WORDS: Final = {None: "null", True: "true", False: "false"}
_decode: Final = msgspec.json.Decoder().decode


class _NoJson:
    """The document of a value that is not JSON: every comparison of it is unknown."""


NO_JSON: Final = _NoJson()


class _OutOfRange:
    """A number that no float holds, such as 1e400: of no type that a comparison knows."""


_OUT_OF_RANGE: Final = _OutOfRange()


def decoded(value: bytes | None) -> Any:
    """The JSON of a value, or NO_JSON. Text that is not UTF-8, half surrogate pairs, NaN and nesting that is too deep
    to be decoded are not JSON."""
    if value is None:
        return NO_JSON
    try:
        return _decode(value)
    except msgspec.ValidationError:
        return _with_large_numbers(value)
    except UNDECODABLE:
        return NO_JSON


def _with_large_numbers(value: bytes) -> Any:
    """The same for a value with a number that the decoder refuses for its size: only that number is unknown."""
    try:
        document = json.loads(value.decode(), parse_float=_float, parse_int=_int, parse_constant=_refuse)
        json.dumps(document, ensure_ascii=False, default=_null).encode()
    except (ValueError, RecursionError):  # half of a surrogate pair does not encode
        return NO_JSON
    return document


def _float(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else _OUT_OF_RANGE


def _int(text: str) -> Any:
    try:
        return int(text)
    except ValueError:  # more digits than Python reads
        return _OUT_OF_RANGE


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _null(_: object) -> None:
    return None


# ---- one value


def any_of(found: Iterable[bool | None]) -> bool | None:
    """Whether one of several holds; unknown if none does, and one is unknown."""
    unknown = False
    for one in found:
        if one:
            return True
        unknown = unknown or one is None
    return None if unknown else False


def of_document(test: Comparison, path: Path, document: Any) -> bool | None:
    """What a comparison says about the values at a path of a document."""
    if document is NO_JSON:
        return None
    found = follow(document, path)
    if test.operator == "exists":
        return bool(found)
    return of_values(test, found)


def of_values(test: Comparison, found: list[Any]) -> bool | None:
    """What a comparison says about the values that a path has found."""
    if not found:
        return None
    return any_of(of_value(test, value) for value in entries(found))


def of_value(test: Comparison, value: Any) -> bool | None:
    """What a comparison says about one value that is not a list."""
    literal = test.literals[0]
    match test.operator:
        case "=":
            return _equals(literal, value)
        case "in":
            return any_of(_equals(one, value) for one in test.literals)
    if test.operator in ORDERED:
        ordered, number = ORDERED[test.operator], literal.number
        if number is None:
            return ordered(value, literal.text) if isinstance(value, str) else None
        found = number_in(value)
        return None if found is None else ordered(found, number)
    if not isinstance(value, str):
        return None
    match test.operator:
        case "^=":
            return value.startswith(literal.text)
        case "$=":
            return value.endswith(literal.text)
    return literal.text.casefold() in value.casefold()


def _equals(literal: Literal, value: Any) -> bool | None:
    if isinstance(value, str):
        return value == literal.text
    if not literal.bare:
        return None
    if literal.text == "null":
        return value is None
    if isinstance(value, bool):
        return _WORDS[value] == literal.text if literal.number is None else None
    number = literal.number
    return value == number if number is not None and isinstance(value, int | float) else None
