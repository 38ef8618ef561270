"""What a subscriber asks for: parsed and checked, the same from a WebSocket's frame and an SSE's query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from comet.types import Latest, Position
from comet_gateway.cursor import Cursor


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
class Asked:
    """One subscription to topics. Either `topics` or `pattern`."""

    topics: tuple[str, ...] = ()
    pattern: str = ""  # of names of topics, also of those made later
    partitions: frozenset[int] | None = None  # None: all, also those added later
    start: Position = field(default_factory=Latest)
    cursors: Mapping[str, Cursor] = field(default_factory=dict)  # by topic; where there is one, in place of `start`
    values: Values = Values.AUTO
    policy: Policy = Policy.BLOCK
    buffer: int = 10_000  # records, of drop_oldest
    interval_ms: int = 250  # of conflate
    snapshot: bool = False  # first the latest record of each key, then what comes after
    permits: int | None = (
        None  # records that may be sent before more are permitted; None: as many as the connection takes
    )
