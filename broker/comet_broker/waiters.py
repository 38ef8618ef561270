"""Waiting for a counter to reach a value, and for one callback."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from comet.errors import CometError


async def answered(register: Callable[[Callable[[CometError | None], None]], bool]) -> None:
    """Returns when `register` returns True, or its callback is called with None; raises the error it is called with."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: CometError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    if not register(settle):
        await done


class Progress:
    """A number that only grows, and its waiters."""

    def __init__(self) -> None:
        self.value = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._failed: BaseException | None = None

    def reach(self, value: int) -> None:
        if value <= self.value:
            return
        self.value = value
        while self._waiting and self._waiting[0][0] <= value:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Raises the error in all waiters, now and later: the number will not grow any more."""
        self._failed = error
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def wait(self, value: int) -> None:
        """Returns once the number is at least `value`."""
        if self.value >= value:
            return
        if self._failed is not None:
            raise self._failed
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (value, next(self._order), future))
        await future
