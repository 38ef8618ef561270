"""The link between a channel and its client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.auth import Principal
from comet_gateway.http.problems import Problem

UNREAD_MAX: Final = 32  # control frames of the client


class ChannelSession:
    """Lives as long as its channel. `received` and `receive` are for the channel, `deliver` for the connection."""

    def __init__(self, sources: Sources, principal: Principal) -> None:
        self.sources = sources
        self.principal = principal
        self._unread: deque[Mapping[str, Any]] = deque()
        self._arrived = asyncio.Event()

    def received(self) -> list[Mapping[str, Any]]:
        """The unread messages of the client, oldest first."""
        found = list(self._unread)
        self._unread.clear()
        self._arrived.clear()
        return found

    async def receive(self) -> Mapping[str, Any]:
        """The next message of the client."""
        while not self._unread:
            self._arrived.clear()
            await self._arrived.wait()
        return self._unread.popleft()

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Raises TOO_MANY_REQUESTS."""
        if len(self._unread) >= UNREAD_MAX:
            raise Problem("TOO_MANY_REQUESTS", f"this channel has {UNREAD_MAX} unread control frames, the limit; retry")
        self._unread.append(message)
        self._arrived.set()
