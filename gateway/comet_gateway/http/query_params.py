"""Query parameters of raw routes: parsed and checked by name; an error names the parameter."""

from __future__ import annotations

import time
from collections.abc import Container
from enum import Enum
from typing import TypeVar
from urllib.parse import parse_qsl

from comet.types import Position, position
from comet_gateway.http.problems import Problem

E = TypeVar("E", bound=Enum)

_INT64_MAX = 2**63 - 1


class QueryParams:
    """The parameters by name. Unknown and repeated ones are refused, as on all routes."""

    __slots__ = ("_given", "_lists")

    def __init__(self, query_string: bytes, known: Container[str], lists: Container[str] = ()) -> None:
        """Parses the query. `lists` are the known parameters that may be repeated."""
        self._given: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {}
        if not query_string:
            return
        for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
            if name in lists:
                self._lists.setdefault(name, []).append(value)
                continue
            if name not in known or name in self._given:
                wrong = "stands twice" if name in self._given else "is not known"
                raise Problem("VALIDATION", f"the query parameter {name[:40]!r} {wrong}")
            self._given[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._given or name in self._lists

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name, default)

    def texts(self, name: str) -> list[str]:
        """The values of a repeatable parameter, in order."""
        return self._lists.get(name, [])

    def number(self, name: str, default: int, least: int, most: int) -> int:
        given = self._given.get(name)
        if given is None:
            return default
        return whole(name, given, least, most)

    def choice(self, name: str, default: E) -> E:
        """A member of the default's enumeration, by its value."""
        given = self._given.get(name)
        if given is None:
            return default
        for member in type(default):
            if member.value == given:
                return member
        raise Problem(
            "VALIDATION", f"{name} must be {' or '.join(str(one.value) for one in type(default))}, not {given[:40]!r}"
        )

    def position(self, name: str, default: str) -> Position:
        return parse_position(name, self._given.get(name, default), time.time_ns() // 1000)


def parse_position(name: str, given: str | int, now_us: int) -> Position:
    """Parses a position as comet.types.position does, within 64 bits. Raises Problem, CometError."""
    try:
        found = position(given, now_us=now_us)
    except (OverflowError, ValueError):  # CometErrors pass: their text is better
        raise _no_position(name, given, "the time is out of range") from None
    at = getattr(found, "timestamp_us", getattr(found, "offset", 0))
    if not -_INT64_MAX <= at <= _INT64_MAX:
        raise _no_position(name, given, "more than 64 bits")
    return found


def _no_position(name: str, given: str | int, why: str) -> Problem:
    return Problem("INVALID_ARGUMENT", f"{name}: {str(given)[:40]!r} is not a position: {why}")


def whole(name: str, given: str, least: int, most: int) -> int:
    """Parses a whole number. Raises Problem."""
    if given.isascii() and given.isdecimal() and len(given) <= 19 and least <= int(given) <= most:
        return int(given)
    raise Problem("VALIDATION", f"{name} must be a whole number from {least} to {most}, not {given[:40]!r}")
