"""The memory budget of a producer, with a queue of tasks that wait for free bytes."""

from __future__ import annotations

import asyncio
from collections import deque

from comet.errors import CometError


class Budget:
    """Owned by one producer. `used_bytes` may go over the limit by one record or slice: none is ever too large."""

    __slots__ = ("_error", "_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._error: CometError | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Waits until the budget has free bytes. Waiters are served in order."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self.used_bytes < self.limit_bytes:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
            while self.used_bytes >= self.limit_bytes:  # another task was faster; the place in the queue is kept
                self._waiting.remove(future)
                future = asyncio.get_running_loop().create_future()
                self._waiting.appendleft(future)
                await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
            self._admit()

    def release(self, size: int) -> None:
        """Gives bytes back."""
        self.used_bytes -= size
        assert self.used_bytes >= 0
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        """Lets the first waiter continue, which then admits the next one if there is room."""
        if self._waiting and self.used_bytes < self.limit_bytes and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    def close(self, error: CometError) -> None:
        """All waiting and later callers get the error."""
        self._error = error
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
