"""What a subscription gives, one at a time; `websocket` and `sse` write it to their clients.

The bytes of `Records` are made once for each form and shared by everyone who gets them.
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
        """Where to go on behind them."""

    def members(self) -> bytes:
        """For a JSON frame: `"topic":"quotes","partition":0,"records":[…],"cursor":"…"`, without the braces."""

    def sse(self) -> bytes:
        """One server-sent event for each record, with its own cursor as id."""


class Missing(NamedTuple):
    """Records [first, end) of a partition that the subscriber will never get."""

    partition: int
    first: int
    end: int
    reason: str  # "deleted", "truncated", "damaged": the log has them no more; "topic made again"; "dropped": too slow


@dataclass(frozen=True, slots=True)
class Begun:
    """The first event, once per topic. `recovered` only where a cursor was given: nothing is missing since then. No
    cursor, where a snapshot follows: it comes with that. Of a topic that was made again, what is missing has no end
    that anybody knows: it is 2^63 - 1."""

    topic: str
    cursor: str
    recovered: bool | None = None
    missing: Sequence[Missing] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that this subscriber does not get: they are gone from the log, or it was too slow (drop_oldest)."""

    topic: str
    count: int
    missing: Sequence[Missing]
    cursor: str


@dataclass(frozen=True, slots=True)
class Latest:
    """Records of many partitions: a part of a snapshot, or what a conflating subscriber gets at a tick.

    Where it is cut into several, the last has `last`, and only that has a cursor to come back with: until then the
    one before counts, and where there was none, who comes back asks for a snapshot again.
    """

    topic: str
    count: int
    conflated: int  # records that later ones of their keys took the place of, since the last time
    snapshot: bool
    last: bool
    complete: bool  # False: the table could not hold all keys of the topic
    cursor: str
    write_members: Callable[[], bytes]  # `"topic":"quotes","records":[…],"cursor":"…"`; made once, shared
    write_sse: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Failed:
    """A topic of the subscription, or all of it, is over: it is gone, or cannot be read. Of a pattern, a topic that
    cannot be followed yet: it begins later."""

    code: str  # as in problems.py
    detail: str
    more: Mapping[str, str]
    retry_after_ms: int = 0
    topic: str = ""  # which; empty: all of them


Event = Records | Latest | Begun | Lost | Failed
