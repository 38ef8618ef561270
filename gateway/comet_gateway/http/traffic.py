"""Counts requests, bytes of bodies and long-lived connections in progress, and bounds them by `Limits`.

A request that waits for the rest of its body counts as a waiting body instead: slow clients take no place of requests
that can be answered. Clients have shares of those places, see `shares`.

Not thread-safe; used on the loop's thread only, with no await between a check and what it allows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import BODIES_PERCENT, Holder, Shares


class Traffic:
    """The counters. One for an application."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.requests = 0
        self.body_bytes = 0
        self.streams = 0  # server-sent events
        self.sockets = 0  # WebSockets
        self.turned_away: Counter[str] = Counter()
        self._connections = Shares("connections", "connections_max", limits, self.turned_away)
        self.waiting = Shares("waiting requests", "requests_max", limits, self.turned_away)  # with `wait_ms`
        self._bodies = Shares("waiting bodies", "bodies_max", limits, self.turned_away, BODIES_PERCENT)
        self._of_address: Counter[str] = Counter()

    @property
    def bodies(self) -> int:
        """Requests that wait for the rest of their body."""
        return self._bodies.taken

    def begin(self) -> None:
        """Counts a request in. Raises OVERLOADED; otherwise `end` follows."""
        if self.requests >= self._limits.requests_max:
            self.turned_away["requests"] += 1
            raise Problem("OVERLOADED", f"limit of {self.requests} requests at once reached")
        self.requests += 1

    def end(self) -> None:
        self.requests -= 1

    def await_body(self, holder: Holder) -> None:
        """Counts a request as a waiting body. Raises OVERLOADED, TOO_MANY_REQUESTS; otherwise `resume` follows."""
        self._bodies.take(holder)
        self.requests -= 1

    def resume(self, holder: Holder) -> None:
        """Counts a request whose body has arrived, or has ended, as a request again."""
        self._bodies.give_back(holder)
        self.requests += 1

    def hold(self, size: int) -> None:
        """Counts bytes of a body in memory. Raises OVERLOADED; otherwise `release` follows."""
        if self.body_bytes + size > self._limits.request_bytes_max:
            self.turned_away["bytes"] += 1
            raise Problem("OVERLOADED", f"{self.body_bytes} bytes of requests are in memory, near the limit")
        self.body_bytes += size

    def release(self, size: int) -> None:
        self.body_bytes -= size

    def connect(self, holder: Holder, *, socket: bool) -> None:
        """Counts a long-lived connection in. Raises OVERLOADED, TOO_MANY_REQUESTS; otherwise `disconnect` follows."""
        own = self._limits.client_connections_max
        if own and self._of_address[holder.address] >= own:
            self.turned_away["client_connections"] += 1
            raise Problem("TOO_MANY_REQUESTS", f"limit of {own} connections from this address reached")
        self._connections.take(holder)
        self._of_address[holder.address] += 1
        if socket:
            self.sockets += 1
        else:
            self.streams += 1

    def disconnect(self, holder: Holder, *, socket: bool) -> None:
        if socket:
            self.sockets -= 1
        else:
            self.streams -= 1
        self._connections.give_back(holder)
        self._of_address[holder.address] -= 1
        if not self._of_address[holder.address]:
            del self._of_address[holder.address]

    def statistics(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "bodies": self.bodies,
            "body_bytes": self.body_bytes,
            "streams": self.streams,
            "sockets": self.sockets,
            "turned_away": dict(self.turned_away),
        }
