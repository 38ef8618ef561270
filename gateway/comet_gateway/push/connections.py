"""All WebSockets and event streams: told to reconnect when the gateway stops, and kept alive while idle.

One registry per application, and one task for all connections, which runs while there are any.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final, Protocol

from comet_gateway.config import Limits
from comet_gateway.http.shares import Shares

log = logging.getLogger(__name__)

MOVE_S: Final = 1.5  # over which clients are told to reconnect, so that they do not all do so at once
RECONNECT_MS_MAX: Final = 2_000


class Connection(Protocol):
    """A long-lived connection."""

    def move(self, reconnect_ms: int) -> None:
        """Tells the client to reconnect, as the gateway stops, and ends. Returns at once."""

    def beat(self, now: float) -> None:
        """Keeps an idle connection alive. Called regularly; returns at once."""


class Connections:
    """The registry of connections. Owned by the application; used on its loop."""

    def __init__(
        self, limits: Limits, draining: asyncio.Event, turned_away: Counter[str], random: Random | None = None
    ) -> None:
        self._limits = limits
        self._draining = draining
        self._random = random or Random()
        self._all: set[Connection] = set()
        self._watch: asyncio.Task[None] | None = None
        self.members = Shares("group members", "members_max", limits, turned_away)
        self.replays = Shares("replays", "replays_max", limits, turned_away)
        self.subscriptions = 0

    @contextmanager
    def holding(self, connection: Connection) -> Iterator[None]:
        """Registers the connection while it is open."""
        self._all.add(connection)
        if self._watch is None:
            self._watch = asyncio.create_task(self._watching())
            self._watch.add_done_callback(_log_error)
        try:
            if self._draining.is_set() and self._watch.done():
                connection.move(self._reconnect_ms())  # it was opened during the drain
            yield
        finally:
            self._all.discard(connection)
            if not self._all:
                self._watch.cancel()
                self._watch = None

    def statistics(self) -> dict[str, Any]:
        return {
            "connections": len(self._all),
            "subscriptions": self.subscriptions,
            "members": self.members.taken,
            "replays": self.replays.taken,
        }

    async def _watching(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._draining.is_set():
            try:
                async with asyncio.timeout(self._limits.heartbeat_s / 3):
                    await self._draining.wait()
            except TimeoutError:
                now = loop.time()
                for connection in list(self._all):
                    connection.beat(now)
        await self._move_all()

    async def _move_all(self) -> None:
        """Tells all clients to reconnect, a few at a time, in random order."""
        leaving = list(self._all)
        self._random.shuffle(leaving)
        pause_s = MOVE_S / max(len(leaving), 1)
        owed = 0.0
        for connection in leaving:
            if connection in self._all:
                connection.move(self._reconnect_ms())
            owed += pause_s
            if owed >= 0.01:
                await asyncio.sleep(owed)
                owed = 0.0
        # Connections that were opened meanwhile.
        for connection in self._all.difference(leaving):
            connection.move(self._reconnect_ms())

    def _reconnect_ms(self) -> int:
        return self._random.randrange(RECONNECT_MS_MAX)


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task of connections failed", exc_info=error)
