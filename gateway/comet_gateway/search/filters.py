"""Filters of a request: limits, and the problem document of a syntax error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import comet
from comet.search.conditions import Malformed, Where, parse_all
from comet.search.filters import Filters
from comet_gateway.http.problems import Problem

Batch = comet.RecordBatch[bytes]

NEEDLE_CHARS_MAX: Final = 1_000
WHERES_MAX: Final = 8


def filters_of(key: str, value: str, header: str, wheres: Sequence[str]) -> Filters:
    """Parses filters. Raises Problem, with the position of a syntax error in a `where`."""
    for name, needle in (("key", key), ("value", value), ("header", header)):
        if len(needle) > NEEDLE_CHARS_MAX:
            raise Problem("VALIDATION", f"{name} has more than {NEEDLE_CHARS_MAX} characters")
    if len(wheres) > WHERES_MAX:
        raise Problem("VALIDATION", f"more than {WHERES_MAX} `where` parameters")
    return Filters(key, value, header, tuple(one for text in wheres for one in _parsed(text)))


def _parsed(text: str) -> list[Where]:
    try:
        return parse_all(text)
    except Malformed as malformed:
        raise Problem(
            "MALFORMED_WHERE",
            f"where, at character {malformed.position + 1}: {malformed}",
            more={"where": text[:500], "position": malformed.position},
        ) from None
