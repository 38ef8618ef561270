"""The liveness of the broker at the other end of a connection: how long no frame came, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from comet import limits

_INTERVAL_S: Final = limits.HEARTBEAT_MS / 1000


class Verdict(Enum):
    ALIVE = "a frame has come"
    QUIET = "no frame; a fault only if an answer is due"
    PING = "silent for so long that it is to be pinged"
    SUSPECT = "it has not answered the ping yet"
    LOST = "it has not answered the ping in time"


def judge(silent_ms: int) -> Verdict:
    """The verdict on a broker after this time without a frame, in whole heartbeats.

    >>> judge(0), judge(limits.PING_AFTER_MS)
    (<Verdict.ALIVE: 'a frame has come'>, <Verdict.PING: 'silent for so long that it is to be pinged'>)
    """
    if not silent_ms:
        return Verdict.ALIVE
    if silent_ms < limits.PING_AFTER_MS:
        return Verdict.QUIET
    if silent_ms == limits.PING_AFTER_MS:
        return Verdict.PING
    return Verdict.LOST if silent_ms >= limits.PING_AFTER_MS + limits.PING_TIMEOUT_MS else Verdict.SUSPECT


class Liveness:
    """Judges every HEARTBEAT_MS whether frames come. Owned by a connection, from the Welcome until it fails."""

    def __init__(self, judged: Callable[[Verdict], None]) -> None:
        self.received = False  # a frame has come since the last check
        self.silent_ms = 0  # time without a frame, in whole heartbeats
        self._judged = judged
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_INTERVAL_S, self._due, loop.time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self, since: float) -> None:
        self.start()
        self.check(asyncio.get_running_loop().time() - since)

    def check(self, passed_s: float) -> None:
        """Judges the time since the last check. If this event loop was itself held up, the answers may lie unread in
        the socket: the broker gets another interval."""
        held_up = passed_s > 2 * _INTERVAL_S
        self.silent_ms = 0 if self.received or held_up else self.silent_ms + limits.HEARTBEAT_MS
        self.received = False
        self._judged(judge(self.silent_ms))
