"""Readiness of the gateway: checked once a second at most, within a short timeout, however often it is requested."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Final

from comet.errors import CometError
from comet_gateway.brokers.backend import Backend

log = logging.getLogger(__name__)

FRESH_S: Final = 1.0
PATIENCE_S: Final = 2.0  # a broker that takes longer counts as unreachable
NO_BROKER: Final = "no broker can be reached; the gateway's log has the address and the reason"


class Readiness:
    """The readiness check. One for an application; `backend` is set while its lifespan lasts.

    /readyz needs no token. So where tokens are configured its reasons name no broker, and the log has the rest."""

    def __init__(self, draining: asyncio.Event, *, names_brokers: bool) -> None:
        self.backend: Backend | None = None
        self._draining = draining
        self._names_brokers = names_brokers
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
        reason = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await backend.admin.find_topics(limit=1)
        except TimeoutError:
            reason = f"no broker answers at {backend.bootstrap} within {PATIENCE_S:.0f} s"
        except CometError as error:
            reason = f"no broker can be reached at {backend.bootstrap}: {error.message}"
        if reason and not self._found:
            log.warning("not ready: %s; retrying", reason)
        self._found = [reason if self._names_brokers else NO_BROKER] if reason else []
        self._until = monotonic() + FRESH_S

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
