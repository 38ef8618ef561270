"""Counts requests, bytes of bodies and long-lived connections in progress, and bounds them by `Limits`.

A request that waits for the rest of its body counts as a waiting body instead: slow clients take no place of requests
that can be answered. A sender has a share of those places, so that it cannot take those of others.

Not thread-safe; used on the loop's thread only, with no await between a check and what it allows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.quotas import Holder, Quota

# Shares of `bodies_max`. Without a token only forms of a few bytes are read.
_OF_PRINCIPAL: Final = 3 / 4
_OF_ADDRESS: Final = 1 / 8
_OF_ALL_ADDRESSES: Final = 1 / 4


class Sender(NamedTuple):
    """The sender of a body: a principal, or an address without one."""

    name: str
    anonymous: bool


class Traffic:
    """The counters. One for an application."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.requests = 0
        self.bodies = 0  # requests that wait for the rest of their body
        self.body_bytes = 0
        self.streams = 0  # server-sent events
        self.sockets = 0  # WebSockets
        self.turned_away: Counter[str] = Counter()
        self._connections = Quota("connections", "connections_max", limits, self.turned_away)
        self.waiting = Quota("waiting requests", "requests_max", limits, self.turned_away)  # with `wait_ms`
        self._of_address: Counter[str] = Counter()
        self._anonymous_bodies = 0
        self._bodies_of: Counter[Sender] = Counter()

    def begin(self) -> None:
        """Counts a request in. Raises OVERLOADED; otherwise `end` follows."""
        if self.requests >= self._limits.requests_max:
            self.turned_away["requests"] += 1
            raise Problem("OVERLOADED", f"limit of {self.requests} requests at once reached")
        self.requests += 1

    def end(self) -> None:
        self.requests -= 1

    def await_body(self, sender: Sender) -> None:
        """Counts a request as a waiting body. Raises OVERLOADED, TOO_MANY_REQUESTS; otherwise `resume` follows."""
        most = self._limits.bodies_max
        if self.bodies >= most or (sender.anonymous and self._anonymous_bodies >= _share(most, _OF_ALL_ADDRESSES)):
            self.turned_away["bodies"] += 1
            raise Problem("OVERLOADED", f"{self.bodies} requests wait for the rest of their body, the limit")
        if self._bodies_of[sender] >= _share(most, _OF_ADDRESS if sender.anonymous else _OF_PRINCIPAL):
            self.turned_away["client_bodies"] += 1
            detail = f"{self._bodies_of[sender]} requests of {sender.name} wait for the rest of their body, the limit"
            raise Problem("TOO_MANY_REQUESTS", detail)
        self._count_body(sender, 1)

    def resume(self, sender: Sender) -> None:
        """Counts a request whose body has arrived, or has ended, as a request again."""
        self._count_body(sender, -1)
        if not self._bodies_of[sender]:
            del self._bodies_of[sender]

    def _count_body(self, sender: Sender, change: int) -> None:
        self.requests -= change
        self.bodies += change
        self._anonymous_bodies += change if sender.anonymous else 0
        self._bodies_of[sender] += change

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


def _share(most: int, part: float) -> int:
    return max(1, int(most * part))
