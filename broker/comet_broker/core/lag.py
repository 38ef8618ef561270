"""The lag of groups over time: a bounded history per group and topic, and the pace at which it changes.

    one point a second for a quarter of an hour, one a minute for a day; see core.history

Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from comet_broker import limits
from comet_broker.core.history import COARSE_POINTS, FINE_POINTS, MINUTE_S, NAN, Gauge, Reduce, Values

PACE_S: Final = 10.0  # over which a pace is measured, at least
SERIES_BYTES: Final = limits.HISTORY_POINTS * (8 + 4 + 8 + 8)

assert SERIES_BYTES * limits.SLOT_LAG_SERIES_MAX <= limits.SLOT_LAG_BYTES_MAX
assert SERIES_BYTES * limits.LAG_SERIES_MAX <= limits.LAG_BYTES_MAX


class Point(NamedTuple):
    time_us: int
    lag: int  # records, over all partitions
    age_s: float  # of the oldest record that is not committed
    committed: int  # sums over all partitions
    end: int


class Series:
    """The lag of one group in one topic. The value of a minute is its last one."""

    def __init__(self) -> None:
        self.lag, self._age = Gauge(Reduce.LAST), Gauge(Reduce.LAST, "f")
        self._committed, self._end = Gauge(Reduce.LAST), Gauge(Reduce.LAST)
        self._columns = (self.lag, self._age, self._committed, self._end)

    @property
    def end(self) -> int:
        """The last second with a point."""
        return self.lag.end

    def add(self, second: int, lag: int, age_s: float, committed: int, end: int) -> None:
        """Adds the values at the end of that second."""
        for column, value in zip(self._columns, (lag, age_s, committed, end), strict=True):
            column.put(second, value)

    def points(self) -> list[Point]:
        """Oldest first: fine where there are fine ones, coarse before."""
        fine = self._points(1, self.end - FINE_POINTS + 1, self.end)
        since = fine[0].time_us // 1_000_000 if fine else self.end
        minute = (since - 1) // MINUTE_S
        return self._points(MINUTE_S, minute - COARSE_POINTS + 1, minute) + fine

    def _points(self, step_s: int, first: int, last: int) -> list[Point]:
        rows = zip(*(column.read(step_s, first, last) for column in self._columns), strict=True)
        return [
            Point((first + at) * step_s * 1_000_000, int(lag), age, int(committed), int(end))
            for at, (lag, age, committed, end) in enumerate(rows)
            if lag == lag  # noqa: PLR0124 - all but NaN
        ]

    def tracks(self, step_s: int, first: int, last: int) -> dict[str, Values]:
        return {"lag": self.lag.read(step_s, first, last), "age_s": self._age.read(step_s, first, last)}


def added_up(columns: Sequence[Values]) -> Values:
    """Sums of the columns, value by value, over the known ones."""
    found = []
    for row in zip(*columns, strict=True):
        seen = [value for value in row if value == value]  # noqa: PLR0124 - all but NaN
        found.append(sum(seen) if seen else NAN)
    return array("d", found)


class Pace:
    """The rate at which a lag falls, against its value some seconds ago."""

    def __init__(self) -> None:
        self._older: tuple[float, int] | None = None
        self._newer: tuple[float, int] | None = None
        self._now: tuple[float, int] = (0.0, 0)

    def note(self, now: float, lag: int) -> None:
        self._now = now, lag
        if self._newer is None or now - self._newer[0] >= PACE_S:
            self._older, self._newer = self._newer, (now, lag)

    def drain_s(self) -> float | None:
        """Seconds until the lag is 0 at the present pace; None if it does not fall."""
        now, lag = self._now
        if lag == 0:
            return 0.0
        then, lag_then = self._older or self._newer or self._now
        if now <= then or lag >= lag_then:
            return None
        return lag * (now - then) / (lag_then - lag)

    def growing(self) -> bool | None:
        """Whether the lag grows; None while that is unknown."""
        now, lag = self._now
        then, lag_then = self._older or self._newer or self._now
        return None if now <= then else lag > lag_then
