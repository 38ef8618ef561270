"""Fields of JSON values as columns of a list: `price,user.name,legs[0].size`; see `comet.filters.paths`. Pure.

Numbers keep their digits. A value that is too large to be decoded for a list, or no JSON, has no fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from comet.encryption.envelope import MAGIC
from comet.errors import MalformedFilter
from comet.filters.paths import Part, follow, parse_paths, text_of_path
from comet_gateway.http.problems import Problem

FIELDS_MAX: Final = 12  # columns
SUGGESTED_MAX: Final = 40
SUGGESTED_OF_MAX: Final = 50  # records that are searched for fields
NAME_CHARACTERS_MAX: Final = 100
DECODED_BYTES_MAX: Final = 256 << 10
TEXT_CHARACTERS_MAX: Final = 240  # of one field


class _Number(str):
    """A number with a fraction, as it is written."""

    __slots__ = ()


_decode: Final = msgspec.json.Decoder(float_hook=_Number).decode
ABSENT: Final = ("absent", "")


@dataclass(frozen=True, slots=True)
class Fields:
    """The chosen fields, in order."""

    paths: tuple[tuple[Part, ...], ...] = ()

    @classmethod
    def of(cls, text: str) -> Fields:
        """Parses paths separated by commas. Raises Problem."""
        if not text.strip():
            return cls()
        try:
            paths = parse_paths(text)
        except MalformedFilter as error:
            raise Problem(
                "INVALID_ARGUMENT",
                f"fields, {error.message}",
                more={"parameter": "fields"},
            ) from None
        if len(paths) > FIELDS_MAX:
            raise Problem("INVALID_ARGUMENT", f"more than {FIELDS_MAX} fields", more={"parameter": "fields"})
        return cls(tuple(dict.fromkeys(paths)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(text_of_path, self.paths))

    def found(self, value: bytes | None) -> tuple[tuple[str, str], ...]:
        """Kind and text of each field: text, number, other (true, null), json (a list or object); absent."""
        if not self.paths:
            return ()
        document = decoded(value)
        return tuple(ABSENT if document is None else _shown(follow(document[0], path)) for path in self.paths)


def decoded(value: bytes | None) -> tuple[Any] | None:
    """The value as JSON, in a tuple; None: it is none, or too large."""
    if value is None or len(value) > DECODED_BYTES_MAX or value.startswith(MAGIC):
        return None
    try:
        return (_decode(value),)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def suggested(values: Iterable[bytes | None]) -> tuple[str, ...]:
    """The names of fields in these values, two levels deep, in the order in which they appear."""
    found: dict[str, None] = {}
    for _, value in zip(range(SUGGESTED_OF_MAX), values, strict=False):
        document = decoded(value)
        if document is None or not isinstance(document[0], dict):
            continue
        for path in _paths(document[0]):
            if len(found) >= SUGGESTED_MAX:
                return tuple(found)
            found[text_of_path(path)] = None
    return tuple(found)


def _paths(document: dict[str, Any]) -> Iterator[tuple[Part, ...]]:
    for name, value in document.items():
        if len(name) > NAME_CHARACTERS_MAX:
            continue
        if isinstance(value, dict) and value:
            yield from ((name, inner) for inner in value if len(inner) <= NAME_CHARACTERS_MAX)
        else:
            yield (name,)


def _shown(found: list[Any]) -> tuple[str, str]:
    if not found:
        return ABSENT
    if len(found) > 1:
        return "json", _cut(_json(found))
    value = found[0]
    match value:
        case _Number():
            return "number", str(value)
        case bool() | None:
            return "other", json.dumps(value)
        case int():
            return "number", str(value)
        case str():
            return "text", _cut(value)
    return "json", _cut(_json(value))


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """With numbers as numbers."""
    match value:
        case _Number():
            return float(value)
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
    return value


def _cut(text: str) -> str:
    return text[:TEXT_CHARACTERS_MAX] + "…" if len(text) > TEXT_CHARACTERS_MAX else text
