"""Events of a subscription, which `websocket` and `sse` write to their clients.

The bytes of `Records` are encoded once for each form, and shared by all subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Records(Protocol):
    """Records of one partition, in order."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def cursor(self) -> str:
        """The cursor behind the records."""

    def members(self) -> bytes:
        """For a JSON frame: `"topic":"quotes","partition":0,"records":[…],"cursor":"…"`, without the braces."""

    def sse(self) -> bytes:
        """One server-sent event for each record, with its own cursor as id."""


class Missing(NamedTuple):
    """Records [first, end) of a partition that the subscriber will never get."""

    partition: int
    first: int
    end: int
    reason: str  # "deleted", "truncated", "damaged": no longer in the log; "topic recreated"; "dropped": too slow


@dataclass(frozen=True, slots=True)
class Begun:
    """The first event, once per topic.

    `recovered` only if a cursor was given: nothing is missing since then. Without a cursor if a snapshot follows, which
    brings it. Of a topic that was created again, the end of the missing records is unknown: it is 2^63 - 1."""

    topic: str
    cursor: str
    recovered: bool | None = None
    missing: Sequence[Missing] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that this subscriber does not get: gone from the log, or it was too slow (drop_oldest)."""

    topic: str
    count: int
    missing: Sequence[Missing]
    cursor: str


@dataclass(frozen=True, slots=True)
class Latest:
    """Records of many partitions: a part of a snapshot, or of a tick for a conflating subscriber.

    Of several parts the last has `last`, and only that has a cursor to resume from: until then the previous cursor
    holds, and without one a client that reconnects requests the snapshot again.
    """

    topic: str
    count: int
    conflated: int  # records replaced by later ones of their keys, since the last time
    snapshot: bool
    last: bool
    complete: bool  # False: the table does not hold all keys of the topic
    cursor: str
    write_members: Callable[[], bytes]  # `"topic":"quotes","records":[…],"cursor":"…"`; encoded once, shared
    write_sse: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a topic of the subscription, or of all: deleted, or cannot be read.

    With a pattern also a topic that cannot be followed yet: it starts later."""

    code: str  # as in problems.py
    detail: str
    more: Mapping[str, str]
    retry_after_ms: int = 0
    topic: str = ""  # empty: all topics


Event = Records | Latest | Begun | Lost | Failed
