"""What a channel of the live socket has to do with the one who opened it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Who
from comet_gateway.http.problems import Problem

SAID_MAX: Final = 32  # that a channel has not listened to


class ChannelSession:
    """Lives as long as its channel. `said` and `hear` are for the channel, `tell` for the connection."""

    def __init__(self, sources: Sources, who: Who) -> None:
        self.sources = sources
        self.who = who
        self._said: deque[Mapping[str, Any]] = deque()
        self._told = asyncio.Event()

    def said(self) -> list[Mapping[str, Any]]:
        """What the client has said since the last time, oldest first."""
        found = list(self._said)
        self._said.clear()
        self._told.clear()
        return found

    async def hear(self) -> Mapping[str, Any]:
        """What the client says next."""
        while not self._said:
            self._told.clear()
            await self._told.wait()
        return self._said.popleft()

    def tell(self, said: Mapping[str, Any]) -> None:
        """Raises TOO_MANY_REQUESTS."""
        if len(self._said) >= SAID_MAX:
            raise Problem("TOO_MANY_REQUESTS", f"this channel has {SAID_MAX} unread messages, the limit; retry")
        self._said.append(said)
        self._told.set()
