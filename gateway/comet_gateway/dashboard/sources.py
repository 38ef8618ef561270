"""The sources of facts, and the state kept between two requests. One per application.

Each part of the dashboard with state has a class for it, created on first use and closed with the gateway:
`sources.part(QuoteFeeds)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from inspect import isawaitable
from typing import Any, Final, TypeVar

import comet
from comet_gateway.alerts.service import Alerts
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import GatewayConfig
from comet_gateway.dashboard.sampler import Sampler
from comet_gateway.http.auth import Gatekeeper
from comet_gateway.http.traffic import Traffic
from comet_gateway.metrics import Metrics
from comet_gateway.push.hub import Hub

T = TypeVar("T")

RECENT_MAX: Final = 500  # cached answers


class Sources:
    """Created and closed by the application's lifespan."""

    def __init__(
        self,
        config: GatewayConfig,
        backend: Backend,
        hub: Hub,
        *,
        gatekeeper: Gatekeeper,
        traffic: Traffic,
        metrics: Metrics,
    ) -> None:
        self.config = config
        self.backend = backend
        self.hub = hub
        self.gatekeeper = gatekeeper
        self.traffic = traffic
        self.metrics = metrics
        self.alerts: Alerts | None = None  # set by the lifespan, unless they are off
        self.sampler = Sampler(backend.bootstrap, backend.admin, lambda address: comet.Admin(address, name="dashboard"))
        self._parts: dict[Callable[[Sources], Any], Any] = {}
        self._recent: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    @property
    def admin(self) -> comet.Admin:
        return self.backend.admin

    def part(self, kind: Callable[[Sources], T]) -> T:
        """The instance of that kind, created on first use."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)
        made: T = found
        return made

    def renew(self) -> None:
        """Drops cached answers after a change, so that pages show it."""
        self._recent.clear()
        self.sampler.renew()

    def statistics(self) -> dict[str, Any]:
        """Statistics of the sampler and of the parts that have any."""
        found = {"pages": 0, **self.sampler.statistics()}
        for one in self._parts.values():
            if (statistics := getattr(one, "statistics", None)) is not None:
                found |= statistics()
        return found

    async def recently(self, key: Hashable, seconds: float, fetch: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """An answer of at most that age, fetched once for all callers. Errors are not cached."""
        now = asyncio.get_running_loop().time()
        for old in [one for one, (until, _) in self._recent.items() if until < now]:
            del self._recent[old]
        known = self._recent.get(key)
        if known is None:
            if len(self._recent) >= RECENT_MAX:
                del self._recent[next(iter(self._recent))]
            task: asyncio.Task[T] = asyncio.create_task(fetch(), name=f"dashboard: {key}")
            task.add_done_callback(lambda _: self._drop_failed(key, task))
            known = self._recent[key] = (now + seconds, task)
        found: T = await asyncio.shield(known[1])
        return found

    def _drop_failed(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        """Drops a failed answer. Reading its error keeps asyncio quiet if no caller waits any more."""
        if task.cancelled() or task.exception() is not None:
            known = self._recent.get(key)
            if known is not None and known[1] is task:
                del self._recent[key]

    async def close(self) -> None:
        running = [task for _, task in self._recent.values() if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        while self._parts:
            _, one = self._parts.popitem()
            close = getattr(one, "close", None)
            if close is not None and isawaitable(closing := close()):
                await closing
        await self.sampler.close()
