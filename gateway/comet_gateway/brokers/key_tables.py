"""The clients of topics as tables of keys: one for each topic that requests name, kept while it is used.

Owned by the backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import comet
from comet_gateway.http.problems import Problem

TABLES_MAX: Final = 64


class KeyTables:
    def __init__(self, bootstrap: list[str] | str) -> None:
        self._bootstrap = bootstrap
        self._tables: dict[str, comet.KV[bytes]] = {}  # the one that was used last at the end
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, topic: str) -> AsyncIterator[comet.KV[bytes]]:
        """The client of a topic. Raises a Problem while too many topics are in use."""
        if topic not in self._tables:
            await self._make_room()
        kv = self._tables.pop(topic, None) or comet.KV(self._bootstrap, topic, name="gateway")
        self._tables[topic] = kv
        self._users[topic] = self._users.get(topic, 0) + 1
        try:
            yield kv
        finally:
            self._users[topic] -= 1
            if not self._users[topic]:
                del self._users[topic]

    async def _make_room(self) -> None:
        if len(self._tables) < TABLES_MAX:
            return
        idle = next((name for name in self._tables if name not in self._users), None)
        if idle is None:
            raise Problem("LIMIT_EXCEEDED", f"the keys of {TABLES_MAX} topics are in use at this gateway, its limit")
        await self._tables.pop(idle).close()

    async def close(self) -> None:
        for kv in self._tables.values():
            await kv.close()
        self._tables.clear()
