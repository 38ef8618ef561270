"""Limits searches and exports at once: of all clients together, and of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from comet_gateway.config import GatewayConfig, Limits
from comet_gateway.http.auth import UNRESTRICTED, Principal
from comet_gateway.http.problems import Problem


def share_key(principal: Principal) -> str:
    """The name that a slot is counted for; empty without authentication."""
    return "" if principal is UNRESTRICTED else principal.name


class HasConfig(Protocol):
    """Has the gateway's configuration, as the sources of an application do."""

    @property
    def config(self) -> GatewayConfig: ...


class Slots:
    """The slots. One for an application, owned by its sources; used on its loop."""

    what: ClassVar[str] = "searches and exports are under way"

    def __init__(self, sources: HasConfig) -> None:
        self._most = self.most(sources.config.limits)
        self._own_most = max(1, self._most * 3 // 4)  # of one client: the rest is for others
        self._own: Counter[str] = Counter()
        self.taken = 0
        self.refused = 0

    def most(self, limits: Limits) -> int:
        return limits.searches_max

    def check(self, name: str) -> None:
        """Checks for a free slot. Raises TOO_MANY_REQUESTS."""
        own = self._own[name] if name else 0
        if self.taken < self._most and own < self._own_most:
            return
        self.refused += 1
        count, of = (self.taken, "") if self.taken >= self._most else (own, f" for {name}")
        hint = "Wait for one to end, or stop one."
        raise Problem("TOO_MANY_REQUESTS", f"{count} {self.what}{of}, the limit", hint=hint)

    @contextmanager
    def take(self, name: str) -> Iterator[None]:
        """Holds a slot. Raises TOO_MANY_REQUESTS."""
        self.check(name)
        self.taken += 1
        self._own[name] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._own[name] -= 1
            self._own += Counter()  # drops zero counts
