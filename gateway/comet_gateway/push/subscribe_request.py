"""What a subscriber asks for: parsed and checked, the same from a WebSocket's frame and an SSE's query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from comet.types import Latest, Position, check_topic_name
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.records.cursor import Cursor

INTERVAL_MS_MIN: Final = 10
INTERVAL_MS_MAX: Final = 60_000
PERMITS_MAX: Final = 2**31 - 1


class Policy(StrEnum):
    """What becomes of a subscriber that is slower than the stream."""

    BLOCK = "block"  # it gets everything, later: what left the gateway's memory is read from the log
    DROP_OLDEST = "drop_oldest"  # it is never more than `buffer` records behind; what it missed is counted and said
    CONFLATE = "conflate"  # the latest record of each key, at most every `interval_ms`, with a count of the others


class Values(StrEnum):
    """How a record's value is written in JSON."""

    AUTO = "auto"  # as JSON where it is JSON, else as text where it is UTF-8, else as base64
    TEXT = "text"  # as text where it is UTF-8, else as base64
    BASE64 = "base64"


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """One subscription to topics. Either `topics` or `pattern`."""

    topics: tuple[str, ...] = ()
    # Of names of topics, also of those made later, which are begun at the earliest; so is one that has no cursor where
    # others have: it was made since.
    pattern: str = ""
    partitions: frozenset[int] | None = None  # None: all, also those added later
    start: Position = field(default_factory=Latest)
    cursors: Mapping[str, Cursor] = field(default_factory=dict)  # by topic; where there is one, in place of `start`
    values: Values = Values.AUTO
    policy: Policy = Policy.BLOCK
    buffer: int = 10_000  # records, of drop_oldest
    interval_ms: int = 250  # of conflate
    # First the latest record of each key, then what comes after, whatever the start. Not where there is a cursor:
    # who comes back had it.
    snapshot: bool = False
    permits: int | None = (
        None  # records that may be sent before more are permitted; None: as many as the connection takes
    )


def check(asked: SubscribeRequest, limits: Limits) -> None:
    """Raises Problem for what makes no sense."""
    if bool(asked.topics) == bool(asked.pattern):
        raise Problem("INVALID_ARGUMENT", "give topics or a pattern")
    for topic in asked.topics:
        check_topic_name(topic)
    if len(set(asked.topics)) < len(asked.topics):
        raise Problem("INVALID_ARGUMENT", "a topic is named twice")
    if asked.partitions is not None and not asked.partitions:
        raise Problem("INVALID_ARGUMENT", "no partition is asked for")
    for name, low, high in (
        ("buffer", 1, limits.buffer_max),
        ("interval_ms", INTERVAL_MS_MIN, INTERVAL_MS_MAX),
        ("permits", 0, PERMITS_MAX),
    ):
        value = getattr(asked, name)
        if value is not None and not low <= value <= high:
            raise Problem("INVALID_ARGUMENT", f"{name} must be from {low} to {high}, not {value}")
