"""The streams of this broker's followers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from comet.errors import CometError, LimitExceeded
from comet_broker.failures import Failures, Kind
from comet_broker.replication.leader import ReplicaSession

REPLICA_SESSIONS_MAX: Final = 1_000


class ReplicaSessions:
    """Owned by the broker; on its loop.

    make      creates the session of a number, a peer and its certified broker, which calls back at its end
    vanished  called with the follower whose stream is over
    """

    def __init__(
        self,
        make: Callable[[int, str, Callable[[ReplicaSession], None], int | None], ReplicaSession],
        failures: Failures,
        vanished: Callable[[int], None],
    ) -> None:
        self._make = make
        self._failures = failures
        self._vanished = vanished
        self._open: set[ReplicaSession] = set()
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._open)

    def open(self, peer: str, certified: int | None = None) -> ReplicaSession:
        if len(self._open) >= REPLICA_SESSIONS_MAX:
            raise LimitExceeded(f"limit of {REPLICA_SESSIONS_MAX} followers reached", retry_after_ms=1000)
        session = self._make(self._next_number, peer, self._closed, certified)
        self._next_number += 1
        self._open.add(session)
        return session

    def _closed(self, session: ReplicaSession) -> None:
        self._open.discard(session)
        if session.follower:
            self._vanished(session.follower)

    # ---- when memory is short, see memory.guard.Sheddable

    def end_unfinished(self, error: CometError) -> int:
        """Ends the streams that have not said which follower they are."""
        found = [session for session in self._open if not session.follower]
        for session in found:
            session.writer.end_call(error)
        return len(found)

    def end_some(self, _: CometError) -> int:
        return 0  # followers keep their streams: without them nothing is acknowledged

    def close(self) -> None:
        for session in list(self._open):
            with self._failures.guard(Kind.TASK, f"stream {session.number} of a follower", "close"):
                session.close()

    def statistics(self) -> list[dict[str, Any]]:
        return [session.statistics() for session in self._open]
