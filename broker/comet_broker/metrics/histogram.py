"""How long something took, counted in buckets that double: cheap enough for every acknowledgement."""

from __future__ import annotations

from typing import Any, Final

BUCKETS: Final = 26  # the last one from half a minute on


class Durations:
    """Bucket n holds those below 2**n microseconds that are in none before it. Owned by the broker, on its loop."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_us = 0

    def note(self, took_us: int) -> None:
        """A wall clock that was set back makes a negative one, which counts as nothing."""
        took_us = max(0, took_us)
        self.counts[min(took_us.bit_length(), BUCKETS - 1)] += 1
        self.sum_us += took_us

    def statistics(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "sum_us": self.sum_us}
