"""Why a WebSocket ends: one table of close codes, and which of them mean "connect again".

A client that sees one of these with `again` connects anew, to any gateway, with the cursors it has; after the others it
would only meet the same end.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CloseCode(NamedTuple):
    """One row."""

    code: int
    again: bool
    reason: str  # goes on the wire; at most 123 bytes


class Close(Enum):
    """What ends a connection."""

    DONE = CloseCode(1000, again=False, reason="done")
    AWAY = CloseCode(1001, again=True, reason="going away, or no answer to a ping")  # also what browsers say
    PROTOCOL = CloseCode(1002, again=False, reason="not WebSocket")  # the server's library says it
    BINARY = CloseCode(1003, again=False, reason="frames are JSON text")
    NOT_TEXT = CloseCode(1007, again=False, reason="not UTF-8")  # the server's library says it
    # Also where the token is not good any more: `admission` ends what stays connected with it.
    GARBAGE = CloseCode(1008, again=False, reason="too many frames that make no sense")
    TOO_LARGE = CloseCode(1009, again=False, reason="a frame that is too large")
    BUG = CloseCode(1011, again=False, reason="a bug; it is in the gateway's log")
    MOVE = CloseCode(1012, again=True, reason="the gateway stops; connect again")
    SILENT = CloseCode(4408, again=False, reason="nothing was asked for in time")


AGAIN = frozenset(close.value.code for close in Close if close.value.again)

assert {1001, 1012} == AGAIN
assert len({close.value.code for close in Close}) == len(Close)
assert all(len(close.value.reason.encode()) <= 123 for close in Close)
