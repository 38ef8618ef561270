"""The bound on how long a client may leave sent data unread.

Without it a client could hold the connection and its memory for ever, even after a close, which waits until everything
is sent."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    def get_write_buffer_size(self) -> int: ...


class Unread:
    """Measures how long the client of one connection has read nothing.

    Adds up the time between checks, not the clock's: after a pause of this process its clients are not blamed."""

    __slots__ = ("_bytes", "_s", "_s_max")

    def __init__(self, s_max: float) -> None:
        self._s_max = s_max
        self._bytes = 0
        self._s = 0.0

    def went_on(self) -> None:
        """The client has read enough to resume writing. What is written then hides that from the next check."""
        self._s = 0.0

    def too_long(self, transport: Transport, passed_s: float) -> bool:
        """Whether the client has read nothing for too long; `passed_s`: since the previous check."""
        waiting = transport.get_write_buffer_size()
        # Growth says nothing: heartbeats are written to a client that does not read, too.
        waits_still = 0 < self._bytes <= waiting
        self._s = self._s + passed_s if waits_still else 0.0
        self._bytes = waiting
        return self._s > self._s_max
