"""The timer for the next lock that ends: one for all locks of a share group in a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LockTimer:
    """Rings at the earliest of the times that were set."""

    def __init__(self, clock: Callable[[], float], ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def set(self, due: float | None) -> None:
        if due is None or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._rings)

    def _rings(self) -> None:
        self._timer = None
        self._ring()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
