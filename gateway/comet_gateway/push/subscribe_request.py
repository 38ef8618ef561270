"""A subscription request, parsed and checked: the same from a WebSocket's frame and an SSE query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from comet.filters import Filter
from comet.types import Latest, Position, check_topic_name
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.records.cursor import Cursor
from comet_gateway.records.record_json import Values

INTERVAL_MS_MIN: Final = 10
INTERVAL_MS_MAX: Final = 60_000
PERMITS_MAX: Final = 2**31 - 1
PASSED_MAX: Final = 10_000  # records that a filter passes over without an event


class Policy(StrEnum):
    """The policy for a subscriber that is slower than the topic."""

    BLOCK = "block"  # it gets everything, later: old records are read from the log
    DROP_OLDEST = "drop_oldest"  # its lag is at most `buffer` records; dropped records are reported
    CONFLATE = "conflate"  # the latest record of each key, at most every `interval_ms`; others are counted


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A request to subscribe. Either `topics` or `pattern`."""

    topics: tuple[str, ...] = ()
    # A pattern of topic names. Topics created later are read from the earliest record, as are topics without a cursor
    # if others have one.
    pattern: str = ""
    partitions: frozenset[int] | None = None  # None: all, with those added later
    start: Position = field(default_factory=Latest)
    cursors: Mapping[str, Cursor] = field(default_factory=dict)  # by topic; instead of `start`
    values: Values = Values.AUTO
    policy: Policy = Policy.BLOCK
    buffer: int = 10_000  # records, of drop_oldest
    interval_ms: int = 250  # of conflate
    # First the latest record of each key, then later records, instead of `start`. Not with a cursor: a client that
    # reconnects has had it.
    snapshot: bool = False
    permits: int | None = None  # records that may be sent before a permit; None: no limit
    filter: Filter | None = None  # others are passed over


def check(request: SubscribeRequest, limits: Limits) -> None:
    """Checks a request. Raises Problem."""
    if bool(request.topics) == bool(request.pattern):
        raise Problem("INVALID_ARGUMENT", "give topics or a pattern")
    for topic in request.topics:
        check_topic_name(topic)
    if len(set(request.topics)) < len(request.topics):
        raise Problem("INVALID_ARGUMENT", "a topic is given twice")
    if request.partitions is not None and not request.partitions:
        raise Problem("INVALID_ARGUMENT", "`partitions` is empty")
    for name, low, high in (
        ("buffer", 1, limits.buffer_max),
        ("interval_ms", INTERVAL_MS_MIN, INTERVAL_MS_MAX),
        ("permits", 0, PERMITS_MAX),
    ):
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise Problem("INVALID_ARGUMENT", f"{name} must be from {low} to {high}, not {value}")
