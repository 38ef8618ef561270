"""Time series of figures: rings of values in step with the wall clock, so that those of several brokers add up.

    second 1767225601 ─► fine     a value a second, a quarter of an hour
                      └► coarse   a value a minute, a day

The value of second s stands for the second that ended then; minute m ends at second 60 * m. Nothing is interpolated: a
second without a sample has no value, and reads as NaN. After the clock is set back, later values are dropped.

    Gauge     sampled each second: NaN if there was no value
    Flow      counted: a second without an entry counts as 0 if the Presence has it, so an idle figure costs nothing

Pure. Owned by a MetricsStore, or by the owner of a single series.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias

from comet_broker import limits

FINE_POINTS: Final = 900
COARSE_POINTS: Final = 1_440
MINUTE_S: Final = 60
STEP_S_MAX: Final = 3_600
# Stored beyond the points that are read, so that the first step is complete at every step length.
FINE_STORED: Final = FINE_POINTS + MINUTE_S
COARSE_STORED: Final = COARSE_POINTS + STEP_S_MAX // MINUTE_S
assert FINE_STORED + COARSE_STORED == limits.HISTORY_POINTS
WINDOW_S: Final = 10  # that rates are taken over
NAN: Final = math.nan

Values: TypeAlias = "array[float]"


class Ring:
    """The values of the last steps; `blank` for a step without a value."""

    __slots__ = ("_blank", "_points", "_values", "end")

    def __init__(self, points: int, kind: str, blank: float) -> None:
        self.end = 0  # the number of the last step; 0: there is none yet
        self._points = points
        self._blank = array(kind, [blank])
        self._values = self._blank * points

    def put(self, step: int, value: float) -> None:
        if step != self.end:
            self.reach(step)
        self._values[step % self._points] = value

    def add(self, step: int, value: float) -> None:
        if step == self.end:
            self._values[step % self._points] += value
        else:
            self.put(step, value)

    def get(self, step: int) -> float:
        if not self.end - self._points < step <= self.end:
            return self._blank[0]
        return self._values[step % self._points]

    def reach(self, step: int) -> None:
        """Makes `step` the last one; it and the skipped ones are blank."""
        assert step > self.end
        points = self._points
        if not self.end or step >= self.end + points:
            self._values = self._blank * points
        else:
            first, after = (self.end + 1) % points, step % points + 1
            if first < after:
                self._values[first:after] = self._blank * (after - first)
            else:  # over the end of the ring
                self._values[first:] = self._blank * (points - first)
                self._values[:after] = self._blank * after
        self.end = step

    def cut(self, step: int) -> None:
        """Drops the values after that step."""
        points = self._points
        for gone in range(max(step, self.end - points) + 1, self.end + 1):
            self._values[gone % points] = self._blank[0]
        self.end = min(step, self.end)

    def slice(self, first: int, last: int) -> Values:
        """The values of the steps from `first` to `last`, both included."""
        points = self._points
        start, stop = max(first, self.end - points + 1), min(last, self.end)
        if start > stop:
            return self._blank * max(0, last - first + 1)
        at, after = start % points, stop % points + 1
        known = self._values[at:after] if at < after else self._values[at:] + self._values[:after]
        if start == first and stop == last:
            return known
        return self._blank * (start - first) + known + self._blank * (last - stop)


class Reduce(Enum):
    """How the value of a longer step is computed."""

    MEAN = "mean"
    MAX = "max"
    LAST = "last"


def reduced(values: Sequence[float], how: Reduce) -> float:
    """One value for several, unknown ones left out; NaN if all are unknown."""
    known = [value for value in values if value == value]  # noqa: PLR0124 - all but NaN
    if not known:
        return NAN
    if how is Reduce.MEAN:
        return math.fsum(known) / len(known)
    return max(known) if how is Reduce.MAX else known[-1]


class Gauge:
    """A sampled figure."""

    __slots__ = ("_coarse", "_fine", "_how")

    def __init__(self, how: Reduce = Reduce.MEAN, kind: str = "d") -> None:
        self._how = how
        self._fine = Ring(FINE_STORED, kind, NAN)
        self._coarse = Ring(COARSE_STORED, kind, NAN)

    @property
    def end(self) -> int:
        """The last second with an entry."""
        return self._fine.end

    def put(self, second: int, value: float) -> None:
        """Adds a value. A second that is not after the last one means that the clock was set back."""
        if second <= self._fine.end:
            self._fine.cut(second - 1)
            self._coarse.cut(minute_of(second) - 1)
        self._fine.put(second, value)
        minute = minute_of(second)
        if self._how is not Reduce.LAST or value != value:  # noqa: PLR0124 - a NaN
            value = reduced(self._fine.slice(MINUTE_S * (minute - 1) + 1, second), self._how)
        self._coarse.put(minute, value)

    def read(self, step_s: int, first: int, last: int) -> Values:
        ring, each = (self._fine, step_s) if step_s < MINUTE_S else (self._coarse, step_s // MINUTE_S)
        values = ring.slice(first * each - each + 1, last * each)
        if each == 1:
            return values
        return array("d", [reduced(values[at : at + each], self._how) for at in range(0, len(values), each)])


class Presence:
    """The seconds that were sampled. All reads are in step with it."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine = Ring(FINE_STORED, "B", 0)
        self._coarse = Ring(COARSE_STORED, "B", 0)

    @property
    def end(self) -> int:
        return self._fine.end

    def put(self, second: int) -> None:
        """Adds a sampled second, after its values."""
        minute = minute_of(second)
        if second <= self._fine.end:
            self._fine.cut(second - 1)
            self._coarse.cut(minute)
            self._coarse.put(minute, sum(self._fine.slice(MINUTE_S * (minute - 1) + 1, second - 1)))
        self._fine.put(second, 1)
        self._coarse.add(minute, 1)

    def read(self, step_s: int, first: int, last: int) -> list[int]:
        """The number of sampled seconds of each step."""
        ring, each = (self._fine, step_s) if step_s < MINUTE_S else (self._coarse, step_s // MINUTE_S)
        values = ring.slice(first * each - each + 1, last * each)
        return [int(sum(values[at : at + each])) for at in range(0, len(values), each)]

    def seconds(self, first: int, last: int) -> int:
        return int(sum(self._fine.slice(first, last)))

    def steps(self, step_s: int, since_us: int = 0) -> tuple[int, int]:
        return steps(self.end, step_s, since_us)


class Flow:
    """A figure that is counted per second."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self, kind: str = "d") -> None:
        self._fine = Ring(FINE_STORED, kind, 0)
        self._coarse = Ring(COARSE_STORED, kind, 0)

    @property
    def end(self) -> int:
        """The last second with a count."""
        return self._fine.end

    def put(self, second: int, value: float) -> None:
        assert second > self._fine.end, "the clock was set back, and `cut` was not called"
        self._fine.put(second, value)
        self._coarse.add(minute_of(second), value)

    def cut(self, second: int, oldest: int) -> None:
        """Drops the counts after that second; before `oldest` it is unknown which seconds were sampled."""
        if second >= self._fine.end:
            return
        minute = minute_of(second)
        self._fine.cut(second)
        self._coarse.cut(minute)
        if self._coarse.end == minute:
            first = max(oldest, MINUTE_S * (minute - 1) + 1)
            self._coarse.put(minute, math.fsum(self._fine.slice(first, second)))

    def read(self, step_s: int, first: int, last: int, seconds: Sequence[int]) -> Values:
        """The rate per second in each step; `seconds` is the Presence's `read` of the same steps."""
        ring, each = (self._fine, step_s) if step_s < MINUTE_S else (self._coarse, step_s // MINUTE_S)
        values = ring.slice(first * each - each + 1, last * each)
        if each == 1:
            sums: Sequence[float] = values
        else:
            sums = [sum(values[at : at + each]) for at in range(0, len(values), each)]
        return array("d", [total / number if number else NAN for total, number in zip(sums, seconds, strict=True)])

    def rate(self, presence: Presence) -> float:
        """The rate per second over the last WINDOW_S."""
        end = presence.end
        seconds = presence.seconds(end - WINDOW_S + 1, end)
        return math.fsum(self._fine.slice(end - WINDOW_S + 1, end)) / seconds if seconds else NAN


def steps(end: int, step_s: int, since_us: int = 0) -> tuple[int, int]:
    """The first and the last step that are complete at second `end`, end after `since_us`, and may have a value."""
    assert step_s <= MINUTE_S or step_s % MINUTE_S == 0
    last = end // step_s
    points = FINE_POINTS // step_s if step_s < MINUTE_S else COARSE_POINTS * MINUTE_S // step_s
    return max(last - points + 1, since_us // (step_s * 1_000_000) + 1), last


def known(value: float) -> float | None:
    """None for a NaN."""
    return value if value == value else None  # noqa: PLR0124


def minute_of(second: int) -> int:
    """The minute of a second, which is named by its end."""
    return (second + MINUTE_S - 1) // MINUTE_S


def percentile_ms(counts: Sequence[int], share: float) -> float:
    """A percentile of durations from buckets as in `metrics.histogram`: bucket n has those from 2**(n-1) up to 2**n
    microseconds, which are taken to be spread evenly."""
    total = sum(counts)
    if total <= 0:
        return NAN
    rank = share * total
    below = 0
    for power, number in enumerate(counts):
        if number > 0 and below + number >= rank:
            low = (1 << power) >> 1
            return (low + ((1 << power) - low) * max(0.0, rank - below) / number) / 1000
        below += number
    raise AssertionError("the rank is within the total")
