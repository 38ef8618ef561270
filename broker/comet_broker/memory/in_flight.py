"""The quota of bytes in flight: requests that are not answered, and answers that are not written, of all clients.

    full      ─► streams are not read until there is room; unary calls are refused, to be repeated
    reserve   ─► large answers wait for their turn, within half of the quota, so that they never make it full

Owned by the broker, on its loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from comet.errors import LimitExceeded
from comet_broker import limits

RETRY_MS: Final = 200


class InFlight:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.full = False  # or the process is short of memory
        self.refused = 0  # calls, since the start
        self.waiting = 0  # calls that wait for records
        self.waiting_max = max(1, min(limits.WAITING_CALLS_MAX, bytes_max // 4 // limits.CALL_BYTES))
        self._reserved_bytes = 0
        self._pressed = False
        self._paused: list[asyncio.Future[None]] = []
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    # ---- what is held

    def hold(self, size: int) -> None:
        self.held_bytes += size
        if self.held_bytes >= self.bytes_max:
            self.full = True

    def release(self, size: int) -> None:
        self.held_bytes -= size
        assert self.held_bytes >= 0
        if self.full:
            self._relieve()
        if self._queue:
            self._grant()

    def press(self, *, pressed: bool) -> None:
        """Counts as full while the process is short of memory, however little is held."""
        self._pressed = pressed
        self.full = self.full or pressed
        self._relieve()

    def _relieve(self) -> None:
        if self._pressed or self.held_bytes >= self.bytes_max:
            return
        self.full = False
        paused, self._paused = self._paused, []
        for future in paused:
            if not future.done():
                future.set_result(None)

    async def relieved(self) -> None:
        """Waits until it is not full."""
        while self.full:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._paused.append(future)
            await future

    def check(self) -> None:
        """Raises the error that refuses a call while it is full."""
        if self.full:
            self.refused += 1
            raise self.refusal()

    def refusal(self) -> LimitExceeded:
        held = f"its requests and answers hold {self.held_bytes} of {self.bytes_max} bytes"
        why = "the process is short of memory" if self._pressed else held
        return LimitExceeded(f"the broker is overloaded: {why}; repeat the request", retry_after_ms=RETRY_MS)

    # ---- large answers, in turn

    async def reserve(self, size: int) -> None:
        """Holds that much when its turn has come; to be given back."""
        if self._queue or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(size)
                raise
        else:
            self._take(size)

    def give_back(self, size: int) -> None:
        self._reserved_bytes -= size
        assert self._reserved_bytes >= 0
        self.release(size)

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncIterator[None]:
        await self.reserve(size)
        try:
            yield
        finally:
            self.give_back(size)

    @property
    def reserving(self) -> bool:
        """Whether large answers are sent, or wait for their turn."""
        return self._reserved_bytes > 0 or bool(self._queue)

    def _fits(self, size: int) -> bool:
        """Whether it fits beside the others; one that is larger than all room is alone."""
        return not self._reserved_bytes or self._reserved_bytes + size <= self.bytes_max // 2

    def _take(self, size: int) -> None:
        self._reserved_bytes += size
        self.hold(size)

    def _grant(self) -> None:
        while self._queue:
            size, turn = self._queue[0]
            if not turn.done():  # it may have been cancelled
                if not self._fits(size):
                    return
                self._take(size)
                turn.set_result(None)
            self._queue.popleft()

    # ---- calls that wait for records

    @contextmanager
    def waiting_call(self) -> Iterator[None]:
        """Counts a call that waits for records. Raises LimitExceeded beyond the limit."""
        if self.waiting >= self.waiting_max:
            self.refused += 1
            raise LimitExceeded(f"{self.waiting} calls wait for records at this broker, its limit", retry_after_ms=1000)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def statistics(self) -> dict[str, Any]:
        return {
            "bytes": self.held_bytes,
            "bytes_max": self.bytes_max,
            "full": self.full,
            "refused": self.refused,
            "waiting": self.waiting,
            "waiting_max": self.waiting_max,
        }
