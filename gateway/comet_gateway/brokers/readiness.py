"""Readiness of the gateway: checked once a second at most, within a short timeout, however often it is requested."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from comet.errors import CometError
from comet_gateway.brokers.backend import Backend

FRESH_S: Final = 1.0
PATIENCE_S: Final = 2.0  # a broker that takes longer counts as unreachable


class Readiness:
    """The readiness check. One for an application; `backend` is set while its lifespan lasts."""

    def __init__(self, draining: asyncio.Event) -> None:
        self.backend: Backend | None = None
        self._draining = draining
        self._found: list[str] = []
        self._until = 0.0
        self._checking: asyncio.Task[None] | None = None

    async def reasons(self) -> list[str]:
        """Reasons why the gateway is not ready; empty: it is."""
        if self._draining.is_set():
            return ["the gateway is about to stop"]
        if self.backend is None:
            return ["the gateway has not started"]
        if monotonic() >= self._until:
            # One check for all callers; it continues if one of them gives up.
            if self._checking is None or self._checking.done():
                self._checking = asyncio.create_task(self._check(self.backend))
            await asyncio.shield(self._checking)
        return self._found

    async def _check(self, backend: Backend) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await backend.admin.find_topics(limit=1)
        except TimeoutError:
            self._found = [f"no broker answers at {backend.bootstrap} within {PATIENCE_S:.0f} s"]
        except CometError as error:
            self._found = [f"no broker can be reached at {backend.bootstrap}: {error.message}"]
        else:
            self._found = []
        self._until = monotonic() + FRESH_S

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
