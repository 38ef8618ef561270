"""The backoff between retries: exponential with jitter, from a given source of randomness."""

from __future__ import annotations

from random import Random

from comet import limits


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
