"""The time-out of batches: one timer for all partitions of a producer, set for the oldest batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from comet.producer.sender import PartitionSender


class Expiry:
    """Owned by a producer. Fails batches that are not acknowledged within `timeout_s`."""

    __slots__ = ("_senders", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float, senders: Callable[[], Iterable[PartitionSender]]) -> None:
        self._timeout_s = timeout_s
        self._senders = senders
        self._timer: asyncio.TimerHandle | None = None

    def deadline(self) -> float:
        """When a batch that begins now times out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)
        return deadline

    def _expire(self) -> None:
        """Fails late batches, and sets the timer for the next deadline."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now, senders = loop.time(), list(self._senders())
        for sender in senders:
            sender.expire(now)
        deadlines = [sender.accumulator.next_deadline() for sender in senders]
        waiting = [deadline for deadline in deadlines if deadline is not None]
        if waiting and self._timer is None:
            self._timer = loop.call_at(min(waiting), self._expire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
