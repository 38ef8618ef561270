"""The sessions of clients on this broker, and the bytes of ended ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from comet.errors import CometError, LimitExceeded, Unavailable
from comet.records.expiry import has_expired
from comet.wire.liveness import OF_CLIENTS, Liveness
from comet_broker import limits
from comet_broker.access.client_access import ClientAccess
from comet_broker.access.control import Restricted
from comet_broker.access.quotas import Quotas
from comet_broker.failures import Failures, Kind
from comet_broker.ports import Clock
from comet_broker.streams.context import StreamClient
from comet_broker.streams.session import Session

LISTED_MAX: Final = 1_000  # sessions that have statistics of their own


class Sessions:
    """Owned by the broker; on its loop.

    make   creates the session of a client, which calls back at its end
    """

    def __init__(
        self,
        make: Callable[[StreamClient, Callable[[Session], None]], Session],
        quotas: Quotas,
        failures: Failures,
        clock: Clock,
    ) -> None:
        self._make = make
        self._quotas = quotas
        self._failures = failures
        self._clock = clock
        self._open: dict[int, Session] = {}
        self._next_number = 1
        self._bytes_of_gone = Counter(received=0, sent=0)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, peer: str, access: ClientAccess, transport: str) -> Session:
        if len(self._open) >= limits.SESSIONS_MAX:
            raise LimitExceeded(f"limit of {limits.SESSIONS_MAX} streams reached on this broker", retry_after_ms=1000)
        usage = self._quotas.usage(access.principal)
        usage.open_stream()
        liveness = Liveness(OF_CLIENTS, self._clock.monotonic())
        session = self._make(StreamClient(self._next_number, peer, access, usage, liveness, transport), self._closed)
        self._open[session.client.number] = session
        self._next_number += 1
        return session

    async def watch(self) -> None:
        """Sends heartbeats, and ends the streams of silent clients. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(OF_CLIENTS.check_s)
            now = self._clock.monotonic()
            for session in list(self._open.values()):
                with self._failures.guard(Kind.TASK, f"stream {session.client.number}", "watch"):
                    session.look(now)

    def end_restricted(self, restricted: Restricted) -> None:
        """Ends the streams of principals that may do less than before. Their clients come back, and are refused only
        what they may not do any more."""
        changed = Unavailable("the rules of access have changed; connect again", retry_after_ms=100)
        enforced = [session for session in self._open.values() if session.client.access.enforced]
        _end([session for session in enforced if restricted(session.client.access)], changed)

    def end_holders(self, credentials: frozenset[str]) -> None:
        """Ends the streams of credentials that are taken no longer. Clients that have another one come back."""
        ended = Unavailable("the access key or token is taken no longer; connect again", retry_after_ms=100)
        _end([session for session in self._open.values() if session.client.access.credential in credentials], ended)

    def end_expired(self, now_us: int) -> None:
        """The same for credentials that have expired."""
        ended = Unavailable("the access key or token has expired; connect again", retry_after_ms=100)
        _end(
            [session for session in self._open.values() if has_expired(session.client.access.expires_us, now_us)], ended
        )

    # ---- when memory is short, see memory.guard.Sheddable

    def end_unfinished(self, error: CometError) -> int:
        """Ends the streams that have sent no whole frame: a client sends its Hello at once."""
        found = [session for session in self._open.values() if not session.received_bytes]
        return _end(found, error)

    def end_some(self, error: CometError) -> int:
        """Ends a quarter of the streams: first those of the connections, then of the addresses, with most of them."""
        connections = Counter(session.client.peer for session in self._open.values())
        addresses = Counter(_address(session.client.peer) for session in self._open.values())

        def share(session: Session) -> tuple[int, int]:
            return connections[session.client.peer], addresses[_address(session.client.peer)]

        found = sorted(self._open.values(), key=share, reverse=True)
        return _end(found[: -(-len(found) // 4)], error)

    def _closed(self, session: Session) -> None:
        if self._open.pop(session.client.number, None) is not None:
            session.client.usage.close_stream()
            self._bytes_of_gone["received"] += session.received_bytes
            self._bytes_of_gone["sent"] += session.sent_bytes

    def go_away(self) -> None:
        """Tells all clients that the broker is about to stop."""
        for session in list(self._open.values()):
            session.go_away("the broker is stopping")

    def close(self) -> None:
        for session in list(self._open.values()):
            with self._failures.guard(Kind.TASK, f"stream {session.client.number}", "close"):
                session.close()

    @property
    def received_bytes(self) -> int:
        """Of all sessions since the start."""
        return self._bytes_of_gone["received"] + sum(one.received_bytes for one in self._open.values())

    @property
    def sent_bytes(self) -> int:
        """Deliveries to all sessions since the start."""
        return self._bytes_of_gone["sent"] + sum(one.sent_bytes for one in self._open.values())

    def statistics(self) -> list[dict[str, Any]]:
        return [session.statistics() for session in list(self._open.values())[:LISTED_MAX]]


def _address(peer: str) -> str:
    """A peer without its port."""
    return peer.rpartition(":")[0]


def _end(sessions: list[Session], error: CometError) -> int:
    for session in sessions:
        session.writer.end_call(error)
    return len(sessions)
