"""How far groups are behind, over time: a bounded history per group and topic, and the pace at which it changes.

    one point a second for five minutes, then every fifteenth for an hour

Pure.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

FINE_POINTS: Final = 300
COARSE_POINTS: Final = 240
COARSE_EVERY: Final = 15
PACE_S: Final = 10.0  # over which a pace is measured, at least

_COLUMNS: Final = "qqdqq"  # as Point


class Point(NamedTuple):
    time_us: int
    lag: int  # events, over all partitions
    age_s: float  # of the oldest event that is not committed
    committed: int  # sums over all partitions
    end: int


class Ring:
    """The last points, in columns: a tenth of what tuples would take."""

    def __init__(self, points_max: int) -> None:
        self._points_max = points_max
        self._columns: list[array[float]] = [array(kind) for kind in _COLUMNS]

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, point: Point) -> None:
        for column, value in zip(self._columns, point, strict=True):
            column.append(value)
        if len(self) >= 2 * self._points_max:  # now and then, rather than at each point
            for column in self._columns:
                del column[: -self._points_max]

    def points(self) -> list[Point]:
        rows = zip(*(column[-self._points_max :] for column in self._columns), strict=True)
        return [Point(int(time), int(lag), age, int(committed), int(end)) for time, lag, age, committed, end in rows]


class Series:
    """Of one topic in one group."""

    def __init__(self) -> None:
        self._fine = Ring(FINE_POINTS)
        self._coarse = Ring(COARSE_POINTS)
        self._added = 0

    def add(self, point: Point) -> None:
        self._fine.add(point)
        if self._added % COARSE_EVERY == 0:
            self._coarse.add(point)
        self._added += 1

    def points(self) -> list[Point]:
        """Oldest first: fine where there are fine ones, coarse before."""
        fine = self._fine.points()
        since = fine[0].time_us if fine else 0
        return [point for point in self._coarse.points() if point.time_us < since] + fine


class Pace:
    """How fast a lag falls, from what it was some seconds ago."""

    def __init__(self) -> None:
        self._older: tuple[float, int] | None = None
        self._newer: tuple[float, int] | None = None
        self._now: tuple[float, int] = (0.0, 0)

    def note(self, now: float, lag: int) -> None:
        self._now = now, lag
        if self._newer is None or now - self._newer[0] >= PACE_S:
            self._older, self._newer = self._newer, (now, lag)

    def drain_s(self) -> float | None:
        """How long until nothing is left, if it goes on so; None if it does not get less."""
        now, lag = self._now
        if lag == 0:
            return 0.0
        then, lag_then = self._older or self._newer or self._now
        if now <= then or lag >= lag_then:
            return None
        return lag * (now - then) / (lag_then - lag)
