"""The guard of the process's memory: sheds load before the kernel ends the broker.

gRPC's core holds the parts of a message that has not come whole, and no code of the broker sees them: a stream whose
message is unfinished looks like one that is idle. So the guard looks at the process, and ends calls:

    UNFINISHED_SHARE   calls that have sent no whole message yet
    FULL_SHARE         and takes nothing new: the quota of bytes in flight counts as full
    STREAMS_SHARE      and a quarter of all streams, those of the connections and addresses with most streams first;
                       also each second after FULL_S_MAX above FULL_SHARE

A client gets a typed error, and connects or asks again. Owned by the broker; on its loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from comet.errors import CometError, LimitExceeded
from comet_broker import limits
from comet_broker.memory.in_flight import InFlight
from comet_broker.ports import Process, Worker

log = logging.getLogger(__name__)

UNFINISHED_SHARE: Final = 0.65
FULL_SHARE: Final = 0.75
STREAMS_SHARE: Final = 0.80
CALM_SHARE: Final = 0.95  # of FULL_SHARE, below which new requests are taken again
# The next look is due before memory can be full: the share of it that is free, at this rate.
FILL_BYTES_PER_S: Final = 2 << 30
LOOK_S_MIN: Final = 0.01
LOOK_S_MAX: Final = 0.5
TRIM_S: Final = 0.1  # between two attempts to give freed memory back to the system
WARN_S: Final = 10.0
FULL_S_MAX: Final = 3.0
FULL_END_S: Final = 1.0


class Sheddable(Protocol):
    """Calls that can be ended to free memory."""

    def end_unfinished(self, error: CometError, /) -> int:
        """Ends the calls that have sent no whole message; their number."""

    def end_some(self, error: CometError, /) -> int:
        """Ends some of the other calls, the most expensive ones first; their number."""


class MemoryGuard:
    def __init__(
        self, process: Process, worker: Worker, bytes_max: int, in_flight: InFlight, calls: Sequence[Sheddable]
    ) -> None:
        self.ended = 0  # calls, since the start
        self._process = process
        self._worker = worker
        self._bytes_max = bytes_max
        self._in_flight = in_flight
        self._calls = calls
        self._pressed = False
        self._trim_at = self._warn_at = 0.0
        self._end_at = 0.0  # when it is full, and calls are to be ended

    async def run(self) -> None:
        """A task of its own."""
        loop = asyncio.get_running_loop()
        while True:
            used = self._process.memory_bytes()
            if used is None:
                return
            if self.look(used):
                await self._trim(loop.time())
            free = UNFINISHED_SHARE * self._bytes_max - used
            await asyncio.sleep(min(max(free / FILL_BYTES_PER_S, LOOK_S_MIN), LOOK_S_MAX))

    def look(self, used: int) -> bool:
        """Sheds if so much memory is too much; whether it is."""
        share = used / self._bytes_max
        if share >= FULL_SHARE or (self._pressed and share < FULL_SHARE * CALM_SHARE):
            if not self._pressed:
                self._end_at = asyncio.get_running_loop().time() + FULL_S_MAX
            self._pressed = share >= FULL_SHARE
            self._in_flight.press(pressed=self._pressed)
        if share < UNFINISHED_SHARE:
            return False
        error = LimitExceeded("the broker is short of memory, and ends calls; try again", retry_after_ms=1000)
        ended = sum(calls.end_unfinished(error) for calls in self._calls)
        if share >= STREAMS_SHARE or self._full_for_long():
            ended += sum(calls.end_some(error) for calls in self._calls)
        self.ended += ended
        self._warn(used, ended)
        return True

    def look_now(self) -> None:
        """Looks at once: after a large message the loop may be late for the next look."""
        used = self._process.memory_bytes()
        if used is not None:
            self.look(used)

    def _full_for_long(self) -> bool:
        now = asyncio.get_running_loop().time()
        if not self._pressed or now < self._end_at:
            return False
        self._end_at = now + FULL_END_S
        return True

    def _warn(self, used: int, ended: int) -> None:
        now = asyncio.get_running_loop().time()
        if ended or now >= self._warn_at:
            self._warn_at = now + WARN_S
            log.warning(
                "memory is short: %d of %d bytes used; %d calls ended",
                used,
                self._bytes_max,
                ended,
                extra={"used_bytes": used, "max_bytes": self._bytes_max, "calls_ended": ended},
            )

    async def _trim(self, now: float) -> None:
        if now >= self._trim_at:
            await self._worker.run(self._process.trim_memory)
            self._trim_at = asyncio.get_running_loop().time() + TRIM_S

    def statistics(self) -> dict[str, Any]:
        return {"bytes_max": self._bytes_max, "used": self._process.memory_bytes(), "ended": self.ended}


assert UNFINISHED_SHARE < FULL_SHARE * CALM_SHARE < FULL_SHARE < STREAMS_SHARE < 1
assert limits.IN_FLIGHT_SHARE < UNFINISHED_SHARE
