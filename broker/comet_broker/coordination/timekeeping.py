"""Timeouts of the transactions of one slot: one timer for all of them, set to the next deadline.

        open for too long                            aborted, for the readers that wait
        over for a second, and no other has begun    stored as over, so that the next coordinator need not end it again
        every minute                                 ids that are not used any more are forgotten

A late timer means that this process was stopped: requests of that time are still unread, so no deadline counts it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from comet_broker.core.deadlines import Deadlines
from comet_broker.ports import Clock

log = logging.getLogger(__name__)

TIDY_S: Final = 1.0
FORGET_S: Final = 60.0
LATE_S: Final = 1.0


class DeadlineJudge(Protocol):
    """Acts on expired deadlines."""

    def timed_out(self, name: str) -> None: ...
    def tidy(self, name: str) -> bool:
        """False when it cannot be stored now."""

    def forget_idle(self, now: float) -> None: ...


class Timekeeper:
    """Owned by the slot's transactions, which are its `judge`."""

    def __init__(self, clock: Clock, judge: DeadlineJudge) -> None:
        self._clock = clock
        self._judge = judge
        self._limits: dict[str, float] = {}  # of those that are open, in seconds
        self._deadlines = Deadlines()
        self._untidy: dict[str, float] = {}  # the time at which each is stored, in order
        self._forget_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the timer rings
        self._closed = False

    def start(self) -> None:
        self._forget_at = self._clock.monotonic() + FORGET_S
        self._arm()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # ---- what is timed

    def opened(self, name: str, limit_s: float) -> None:
        self._limits[name] = limit_s
        self._deadlines.set(name, self._clock.monotonic() + limit_s)
        self._arm()

    def decided(self, name: str) -> None:
        self._limits.pop(name, None)
        self._deadlines.drop(name)

    def retry_timeout(self, name: str) -> None:
        """Sets a new deadline for a transaction that could not be ended now."""
        self._deadlines.set(name, self._clock.monotonic() + TIDY_S)

    def over(self, name: str) -> None:
        """Schedules the storing of an ended transaction."""
        self._untidy[name] = self._clock.monotonic() + TIDY_S
        self._arm()

    def stored(self, name: str) -> None:
        self._untidy.pop(name, None)

    # ---- the timer

    def _arm(self) -> None:
        if self._closed or not self._forget_at:
            return
        due = min(self._forget_at, self._deadlines.next or self._forget_at)
        if self._untidy:
            due = min(due, next(iter(self._untidy.values())))
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        delay_s = max(0.0, due - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        try:
            if now - self._due > LATE_S:
                for name, limit_s in self._limits.items():
                    self._deadlines.set(name, now + limit_s)
            for name in self._deadlines.pop(now):
                self._end(name)
            self._tidy(now)
            if now >= self._forget_at:
                self._forget_at = now + FORGET_S
                self._judge.forget_idle(now)
        finally:
            self._arm()

    def _end(self, name: str) -> None:
        try:
            self._judge.timed_out(name)
        except Exception:  # unexpected: the deadlines of other transactions still count
            log.exception("transactional id %s: the timeout failed", name, extra={"transactional_id": name})
            self.retry_timeout(name)

    def _tidy(self, now: float) -> None:
        while self._untidy:
            name, due = next(iter(self._untidy.items()))
            if due > now:
                return
            del self._untidy[name]
            if not self._judge.tidy(name):
                self._untidy[name] = now + TIDY_S
                return
