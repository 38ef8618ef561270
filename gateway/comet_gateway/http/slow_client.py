"""How long a client may leave alone what waits for it in its connection. Without a bound it keeps the connection and
the memory for as long as it likes, even after we closed it: closing waits until everything is sent."""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    def get_write_buffer_size(self) -> int: ...


class Unread:
    """Of one connection, which looks every now and then. Counts the time between looks, not the clock's: a process that
    was stopped does not blame its clients."""

    __slots__ = ("_bytes", "_s", "_s_max")

    def __init__(self, s_max: float) -> None:
        self._s_max = s_max
        self._bytes = 0
        self._s = 0.0

    def went_on(self) -> None:
        """It has taken so much that more may be written. What is written then hides that from the next look."""
        self._s = 0.0

    def too_long(self, transport: Transport, passed_s: float) -> bool:
        """Whether it has taken nothing for longer than it may; `passed_s`: since the look before."""
        waiting = transport.get_write_buffer_size()
        # That it is more says nothing: heartbeats are written to whoever does not read, too.
        waits_still = 0 < self._bytes <= waiting
        self._s = self._s + passed_s if waits_still else 0.0
        self._bytes = waiting
        return self._s > self._s_max
