"""The table of WebSocket close codes, and which of them mean "connect again".

After a code with `again` a client connects again, to any gateway, with its cursors; after the others it would be closed
for the same reason.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CloseCode(NamedTuple):
    """One row of the table."""

    code: int
    again: bool
    reason: str  # goes on the wire; at most 123 bytes


class Close(Enum):
    """Reasons to close a connection."""

    DONE = CloseCode(1000, again=False, reason="done")
    AWAY = CloseCode(1001, again=True, reason="going away, or no answer to a ping")  # browsers send it, too
    PROTOCOL = CloseCode(1002, again=False, reason="not WebSocket")  # sent by the server's library
    BINARY = CloseCode(1003, again=False, reason="frames are JSON text")
    NOT_TEXT = CloseCode(1007, again=False, reason="not UTF-8")  # sent by the server's library
    # Also if the token is no longer valid: admission ends its connections.
    GARBAGE = CloseCode(1008, again=False, reason="too many malformed frames")
    TOO_LARGE = CloseCode(1009, again=False, reason="frame too large")
    BUG = CloseCode(1011, again=False, reason="internal error; see the gateway's log")
    MOVE = CloseCode(1012, again=True, reason="gateway stopping; connect again")
    SILENT = CloseCode(4408, again=False, reason="no frame in time")


AGAIN = frozenset(close.value.code for close in Close if close.value.again)

assert {1001, 1012} == AGAIN
assert len({close.value.code for close in Close}) == len(Close)
assert all(len(close.value.reason.encode()) <= 123 for close in Close)
