"""Deadlines of leases: decided by the monotonic clock, checked by one timer on the event loop.

A timer may fire late, after a pause of the process or a busy loop. So the clock decides when a lease ends: a late
renewal is refused, whether or not the timer has fired yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from comet_broker.metadata.store import LEASE_TTL_MS_MAX, LeaseLost
from comet_broker.ports import Clock

TIMER_MIN_S: Final = 0.001  # clock and loop may differ by a rounding error; this keeps the timer from spinning


def check_ttl(ttl_ms: int) -> None:
    if not 0 < ttl_ms <= LEASE_TTL_MS_MAX:
        raise ValueError(f"a lease lives 1 to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}")


class LeaseTimer:
    """The deadlines of a store's leases. Calls `expired` once for each expired lease, on the loop."""

    def __init__(self, clock: Clock, expired: Callable[[int], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._ttl_ms: dict[int, int] = {}
        self._deadline: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def resume(self, leases: Mapping[int, int]) -> None:
        """Restarts leases found in a file: their holders could not renew them while the store was down."""
        for lease, ttl_ms in leases.items():
            self._ttl_ms[lease] = ttl_ms
            self._deadline[lease] = self._clock.monotonic() + ttl_ms / 1000

    def start(self, lease: int, ttl_ms: int) -> None:
        self._ttl_ms[lease] = ttl_ms
        self._deadline[lease] = self._clock.monotonic() + ttl_ms / 1000
        self.arm()

    def alive(self, lease: int) -> bool:
        return lease in self._deadline and self._clock.monotonic() < self._deadline[lease]

    def renew(self, lease: int) -> int:
        if not self.alive(lease):
            raise LeaseLost(f"lease {lease} has ended")
        # The deadline only moves back, so the timer may stay: it checks again when it fires.
        self._deadline[lease] = self._clock.monotonic() + self._ttl_ms[lease] / 1000
        return self._ttl_ms[lease]

    def drop(self, lease: int) -> None:
        self._deadline.pop(lease, None)
        self._ttl_ms.pop(lease, None)

    def forget(self) -> None:
        """Drops all leases."""
        self._ttl_ms.clear()
        self._deadline.clear()

    def arm(self) -> None:
        """Sets the timer to the earliest deadline. Cheap when it is set already."""
        if not self._deadline:
            return
        earliest = min(self._deadline.values())
        if self._timer is not None:
            if self._timer_at <= earliest:
                return
            self._timer.cancel()
        delay_s = max(earliest - self._clock.monotonic(), TIMER_MIN_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)
        self._timer_at = earliest

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadline.clear()

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        over = sorted((deadline, lease) for lease, deadline in self._deadline.items() if deadline <= now)
        for _, lease in over:
            self.drop(lease)
            self._expired(lease)
        self.arm()
