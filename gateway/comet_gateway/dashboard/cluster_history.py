"""Figures over time of all brokers, combined. Pure.

Brokers measure in steps of the wall clock, so figures of one step add up. If a broker has no value, the sum is that of
the others; if none has, it is unknown. Figures that do not add up use the maximum: a cluster is as slow as its slowest
broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import comet
from comet_web.facts import Track

SERIES_MAX: Final = 20_000  # of one book
LATE_STEPS: Final = 3  # that a broker may be behind the others
Values = list[float | None]
Rule = Callable[[Sequence[float]], float]


class FigureSeries(NamedTuple):
    """A figure of a topic, of a group, or, with both empty, of a broker."""

    topic: str
    group: str
    figure: str


class Timeline:
    """One figure of one broker: the last `length` steps up to number `end` of its clock."""

    __slots__ = ("_length", "end", "values")

    def __init__(self, length: int) -> None:
        self._length = length
        self.end = 0
        self.values: Values = []

    def take(self, end: int, values: Sequence[float | None]) -> None:
        """Adds new values; they win even if the clock was set back. Steps left out are unknown."""
        first = end - len(values) + 1
        start = self.end - len(self.values) + 1
        if not self.values or first - self.end > self._length or end < start:
            self.values = list(values[-self._length :])
        else:
            values, first = values[max(0, start - first) :], max(first, start)
            before, overlap = self.values[: max(0, first - start)], self.values[max(0, first - start) :]
            gap: Values = [None] * max(0, first - self.end - 1)
            # A restarted broker no longer knows its earlier values.
            merged = [old if new is None else new for old, new in zip(overlap, values, strict=False)]
            self.values = [*before, *gap, *merged, *values[len(merged) :]][-self._length :]
        self.end = end

    def span(self, first: int, count: int) -> Values:
        """The values of `count` steps from number `first` on."""
        start = self.end - len(self.values) + 1
        before, skipped = min(count, max(0, start - first)), max(0, first - start)
        found = self.values[skipped : skipped + count - before]
        return [None] * before + found + [None] * (count - before - len(found))


class Book:
    """The timelines of all brokers for one length of steps. Owned by the sampler."""

    def __init__(self, step_s: int, length: int) -> None:
        self.step_s = step_s
        self.length = length
        self._lines: dict[FigureSeries, dict[int, Timeline]] = {}
        self._ends: dict[int, int] = {}  # the last known step of each broker
        self._set_back: set[int] = set()  # brokers whose clock is before their last known step

    def take(
        self, broker: int, tracks: Collection[comet.HistoryTrack], wanted: Callable[[FigureSeries], bool] | None = None
    ) -> None:
        """Adds the answer of a broker to a query from `since_us`."""
        if tracks:
            self._set_back.discard(broker)
        else:
            self._set_back.add(broker)
        for track in tracks:
            if track.step_s != self.step_s or not track.values:
                continue
            series = FigureSeries(track.topic, track.group, track.figure)
            if wanted is not None and not wanted(series):
                continue
            lines = self._lines.get(series)
            if lines is None:
                if len(self._lines) >= SERIES_MAX:
                    continue
                lines = self._lines[series] = {}
            line = lines.get(broker)
            if line is None:
                line = lines[broker] = Timeline(self.length)
            end = track.end_us // (self.step_s * 1_000_000)
            line.take(end, track.values)
            self._ends[broker] = end

    def since_us(self, broker: int) -> int:
        """The time to query the broker from; its last steps are fetched again, as they may change. After an empty
        answer its clock was set back, and everything is fetched."""
        end = None if broker in self._set_back else self._ends.get(broker)
        return 0 if end is None else max(0, end - 2) * self.step_s * 1_000_000

    def forget(self, broker: int) -> None:
        self._ends.pop(broker, None)
        self._set_back.discard(broker)
        for lines in self._lines.values():
            lines.pop(broker, None)

    def keep(self, wanted: Callable[[FigureSeries], bool]) -> None:
        """Drops all other series."""
        for series in [one for one in self._lines if not wanted(one)]:
            del self._lines[series]

    def figures(self, topic: str = "", group: str = "") -> set[str]:
        return {series.figure for series in self._lines if series.topic == topic and series.group == group}

    def measured(self, figure: str) -> list[str]:
        """Topics with a series of this figure."""
        return [series.topic for series in self._lines if series.figure == figure and series.topic]

    def topics(self, group: str) -> set[str]:
        """Topics with a series of this group."""
        return {series.topic for series in self._lines if series.group == group and series.topic}

    def end(self, alive: Iterable[int]) -> int:
        """The last step that all answering brokers know, except those more than LATE_STEPS behind."""
        ends = [self._ends[broker] for broker in alive if broker in self._ends]
        if not ends:
            return max(self._ends.values(), default=0)
        latest = max(ends)
        return min(end for end in ends if latest - end <= LATE_STEPS)

    def track(
        self, series: FigureSeries, end: int, count: int, rule: Rule = sum, *, broker: int | None = None
    ) -> Track:
        """The last `count` steps up to `end`, of all brokers or of one."""
        lines = self._lines.get(series, {})
        chosen = list(lines.values()) if broker is None else [lines[broker]] if broker in lines else []
        spans = [line.span(end - count + 1, count) for line in chosen]
        end_us = end * self.step_s * 1_000_000
        if not spans:
            return Track(self.step_s, end_us, [None] * count)
        if len(spans) == 1:
            return Track(self.step_s, end_us, spans[0])
        return Track(self.step_s, end_us, [_together(column, rule) for column in zip(*spans, strict=True)])


def _together(column: Sequence[float | None], rule: Rule) -> float | None:
    known = [value for value in column if value is not None]
    return rule(known) if known else None
