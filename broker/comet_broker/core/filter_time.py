"""The processor time that a broker has for filters of its readers.

A filter saves the broker the work of sending what does not match. So it is charged with what it takes longer than that:
a simple filter costs nothing, and is applied to everything.
"""

from __future__ import annotations

from typing import Final

from comet_broker.ports import Clock

BURST_S: Final = 2.0  # of processor time that may be saved up
PAUSE_S_MAX: Final = 0.1
SENT_BYTES_PER_S: Final = 2e9  # by one core; more than was measured, so that no filter is charged too little


class FilterTime:
    """The processor time of one broker for filters: a share of a core, and what was saved up. Owned by the broker."""

    def __init__(self, clock: Clock, percent: int) -> None:
        self.spent_s = 0.0  # in all, charged or not
        self.examined_bytes = 0
        self.examined_records = 0
        self.skipped_records = 0  # of them, those that were not sent
        self.unfiltered_batches = 0  # sent as they are, since no time was left
        self._clock = clock
        self._share = percent / 100
        self._left_s = BURST_S if percent else 0.0
        self._at = clock.monotonic()

    def now(self) -> float:
        return self._clock.monotonic()

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def allows(self) -> bool:
        now = self._clock.monotonic()
        self._left_s = min(self._left_s + (now - self._at) * self._share, BURST_S)
        self._at = now
        return self._left_s > 0

    def pause_s(self) -> float:
        """How long to wait before `allows` is worth another look."""
        return min(-self._left_s / self._share, PAUSE_S_MAX) if self._share and self._left_s <= 0 else PAUSE_S_MAX

    def statistics(self) -> dict[str, float]:
        return {
            "seconds": self.spent_s,
            "examined_bytes": self.examined_bytes,
            "examined_records": self.examined_records,
            "skipped_records": self.skipped_records,
            "unfiltered_batches": self.unfiltered_batches,
        }

    def spend(self, seconds: float, unsent_bytes: int = 0) -> None:
        """Charges the time that a filter took, less the time that sending `unsent_bytes` takes."""
        self.spent_s += seconds
        self._left_s -= max(seconds - unsent_bytes / SENT_BYTES_PER_S, 0.0)
