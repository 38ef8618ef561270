"""Retries: their backoff, exponential with jitter from a given source of randomness, and calls that are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from comet import limits
from comet.errors import CometError, NotLeader, Unavailable

T = TypeVar("T")


class Backoff:
    """Counts tries in a row and gives the wait after each; `reset` after a success.

    The first `free` tries need no wait. The next wait is between half and the whole of BACKOFF_FIRST_MS, every further
    one twice that, up to `max_ms`: clients that lost the same broker come back spread out, and within a second.
    """

    __slots__ = ("_free", "_max_ms", "_random", "tries")

    def __init__(self, random: Random, *, max_ms: int = limits.BACKOFF_MAX_MS, free: int = 0) -> None:
        self._random = random
        self._max_ms = max_ms
        self._free = free
        self.tries = 0

    def next_s(self, advice_ms: int = 0) -> float:
        """Seconds to wait now; at least what the broker advised."""
        self.tries += 1
        doubled = self.tries - self._free - 1
        if doubled < 0:
            return advice_ms / 1000
        ceiling_ms = min(limits.BACKOFF_FIRST_MS << min(doubled, 16), self._max_ms)
        return max(ceiling_ms * (0.5 + self._random.random() / 2), advice_ms) / 1000

    def reset(self) -> None:
        self.tries = 0


def is_advised(error: CometError) -> bool:
    """Whether a broker that is unavailable says when a retry helps."""
    return isinstance(error, Unavailable) and error.retry_after_ms > 0


def is_refused_for_now(error: CometError) -> bool:
    """Also whether a broker does not lead what the call is about: it has changed nothing, and another one will."""
    return is_advised(error) or error.code == NotLeader.code


async def repeat(
    once: Callable[[int], Awaitable[T]],
    timeout_ms: int,
    random: Random,
    *,
    again: Callable[[CometError], bool] = is_advised,
) -> T:
    """The result of `once`, which gets the milliseconds that are left. Calls it again, until the time-out, while its
    error is one of those."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout_ms / 1000
    backoff = Backoff(random)
    left_ms = timeout_ms
    while True:
        try:
            return await once(left_ms)
        except CometError as error:
            wait_s = backoff.next_s(error.retry_after_ms)
            left_ms = int((give_up - loop.time() - wait_s) * 1000)
            if not again(error) or left_ms <= 0:
                raise
        await asyncio.sleep(wait_s)
