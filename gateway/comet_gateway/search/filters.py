"""Conditions of a request: limits, and the problem document of a syntax error."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import comet
from comet.errors import MalformedFilter
from comet.filters import Filter, all_of, parse
from comet.filters.parser import CHARS_MAX
from comet.filters.search_filters import Filters
from comet_gateway.http.problems import Problem

Batch = comet.RecordBatch[bytes]

NEEDLE_CHARS_MAX: Final = 1_000
FILTERS_MAX: Final = 8


def filters_of(key: str, value: str, header: str, texts: Sequence[str]) -> Filters:
    """Parses the conditions of a search. Raises Problem, with the position of a syntax error in a filter."""
    for name, needle in (("key", key), ("value", value), ("header", header)):
        if len(needle) > NEEDLE_CHARS_MAX:
            raise Problem("VALIDATION", f"{name} has more than {NEEDLE_CHARS_MAX} characters")
    return Filters(key, value, header, filter_of(texts))


def filter_of(texts: Sequence[str]) -> Filter | None:
    """Parses filters that must all match; None for none. Times ago are before now. Raises Problem."""
    if len(texts) > FILTERS_MAX:
        raise Problem("VALIDATION", f"more than {FILTERS_MAX} `filter` parameters")
    now_us = time.time_ns() // 1_000
    return all_of(_parsed(text, now_us) for text in texts)


def _parsed(text: str, now_us: int) -> Filter:
    try:
        return parse(text, now_us=now_us)
    except MalformedFilter as error:
        raise malformed("filter", text, error) from None


def malformed(name: str, text: str, error: MalformedFilter) -> Problem:
    """The problem document of a syntax error in a member or parameter."""
    at = int(error.details["position"])
    more = {"parameter": name, "filter": text[:CHARS_MAX], "position": at}
    return Problem("MALFORMED_FILTER", f"{name}, at character {at + 1}: {error.details['problem']}", more=more)
