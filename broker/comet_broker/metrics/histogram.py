"""A histogram of durations with buckets that double: cheap enough for every acknowledgement."""

from __future__ import annotations

from typing import Any, Final

BUCKETS: Final = 26  # the last one: half a minute and more


class Durations:
    """Bucket n holds those below 2**n microseconds that are in none before it. Owned by the broker, on its loop."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_us = 0

    def note(self, took_us: int) -> None:
        """Counts a duration; a negative one, after the wall clock was set back, counts as 0."""
        took_us = max(0, took_us)
        self.counts[min(took_us.bit_length(), BUCKETS - 1)] += 1
        self.sum_us += took_us

    def statistics(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "sum_us": self.sum_us}
