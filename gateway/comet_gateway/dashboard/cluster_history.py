"""Figures over time, of every broker, put together. Pure.

Brokers measure in steps of the wall clock, so that what they say of one step adds up. Where one says nothing of a step,
the sum is that of the others; where none does, it is unknown. Of what does not add up, the largest counts: a cluster is
as slow as its slowest broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import comet
from comet_web.facts import Track

SERIES_MAX: Final = 20_000  # of one book
LATE_STEPS: Final = 3  # that a broker may be behind the others before they do not wait for it any more
Values = list[float | None]
Rule = Callable[[Sequence[float]], float]


class FigureSeries(NamedTuple):
    """What is measured: of a topic, of a group, or, where both are empty, of a broker."""

    topic: str
    group: str
    figure: str


class Timeline:
    """One figure of one broker: the last `length` steps up to number `end`, which its clock has given it."""

    __slots__ = ("_length", "end", "values")

    def __init__(self, length: int) -> None:
        self._length = length
        self.end = 0
        self.values: Values = []

    def take(self, end: int, values: Sequence[float | None]) -> None:
        """What is new counts, also where the clock was set back; what was left out in between is unknown."""
        first = end - len(values) + 1
        start = self.end - len(self.values) + 1
        if not self.values or first - self.end > self._length or end < start:
            self.values = list(values[-self._length :])
        else:
            values, first = values[max(0, start - first) :], max(first, start)
            kept, again = self.values[: max(0, first - start)], self.values[max(0, first - start) :]
            gap: Values = [None] * max(0, first - self.end - 1)
            # A broker that was started again no longer knows what it has told.
            told = [old if new is None else new for old, new in zip(again, values, strict=False)]
            self.values = [*kept, *gap, *told, *values[len(told) :]][-self._length :]
        self.end = end

    def span(self, first: int, count: int) -> Values:
        """`count` steps from number `first` on."""
        start = self.end - len(self.values) + 1
        before, skipped = min(count, max(0, start - first)), max(0, first - start)
        found = self.values[skipped : skipped + count - before]
        return [None] * before + found + [None] * (count - before - len(found))


class Book:
    """Timelines of all brokers with steps of one length. Owned by the sampler."""

    def __init__(self, step_s: int, length: int) -> None:
        self.step_s = step_s
        self.length = length
        self._lines: dict[FigureSeries, dict[int, Timeline]] = {}
        self._ends: dict[int, int] = {}  # of each broker: the last step that it has told of
        self._set_back: set[int] = set()  # brokers that have yet to come to the steps that they have told of

    def take(
        self, broker: int, tracks: Collection[comet.HistoryTrack], wanted: Callable[[FigureSeries], bool] | None = None
    ) -> None:
        """An answer to a question for what is new, `since_us`."""
        if tracks:
            self._set_back.discard(broker)
        else:
            self._set_back.add(broker)
        for told in tracks:
            if told.step_s != self.step_s or not told.values:
                continue
            series = FigureSeries(told.topic, told.group, told.figure)
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
            end = told.end_us // (self.step_s * 1_000_000)
            line.take(end, told.values)
            self._ends[broker] = end

    def since_us(self, broker: int) -> int:
        """What that broker was heard of up to; the last steps may be told again, more exactly. Who has not even those
        to tell has had its clock set back, and is asked for everything."""
        end = None if broker in self._set_back else self._ends.get(broker)
        return 0 if end is None else max(0, end - 2) * self.step_s * 1_000_000

    def forget(self, broker: int) -> None:
        self._ends.pop(broker, None)
        self._set_back.discard(broker)
        for lines in self._lines.values():
            lines.pop(broker, None)

    def keep(self, wanted: Callable[[FigureSeries], bool]) -> None:
        """Forgets all other series."""
        for series in [one for one in self._lines if not wanted(one)]:
            del self._lines[series]

    def figures(self, topic: str = "", group: str = "") -> set[str]:
        return {series.figure for series in self._lines if series.topic == topic and series.group == group}

    def measured(self, figure: str) -> list[str]:
        """Topics that there are series of this figure of."""
        return [series.topic for series in self._lines if series.figure == figure and series.topic]

    def topics(self, group: str) -> set[str]:
        """That there are series of this group and a topic of."""
        return {series.topic for series in self._lines if series.group == group and series.topic}

    def end(self, alive: Iterable[int]) -> int:
        """The last step that all who answer have told of, but for those that are far behind."""
        ends = [self._ends[broker] for broker in alive if broker in self._ends]
        if not ends:
            return max(self._ends.values(), default=0)
        latest = max(ends)
        return min(end for end in ends if latest - end <= LATE_STEPS)

    def track(
        self, series: FigureSeries, end: int, count: int, rule: Rule = sum, *, broker: int | None = None
    ) -> Track:
        """The last `count` steps up to `end`, of all brokers together or of one."""
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
