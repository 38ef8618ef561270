"""A group's lag as text: rows of tables, and a curve of bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from comet.cli._values import format_age
from comet.types import LagPoint, PartitionLag, TopicPartition
from comet.units import time_text

_BARS: Final = "▁▂▃▄▅▆▇█"
CURVE_CHARS: Final = 60


def lag_table(lags: Sequence[PartitionLag], *, shared: bool) -> tuple[list[str], list[list[object]]]:
    """Columns and rows; of a share group also the acquired and the redelivered records."""
    columns = ["topic", "partition", "member", "committed", "end", "lag", "age", "drained in"]
    return columns + (["in flight", "redelivered", "dead letters"] if shared else []), lag_rows(lags, shared=shared)


def lag_rows(lags: Sequence[PartitionLag], *, shared: bool) -> list[list[object]]:
    """One row for each partition."""
    return [
        [
            one.topic,
            one.partition,
            one.member or "-",
            "-" if one.committed is None else one.committed,
            one.end,
            one.lag,
            format_age(one.age_s),
            _drain(one),
            *([one.in_flight, one.redelivered, one.dead_lettered] if shared else []),
        ]
        for one in lags
    ]


def lag_totals(lags: Sequence[PartitionLag] | None) -> tuple[str, str, str]:
    """The lag of a group in records, the age of the oldest of them, and the time until all partitions are drained; as
    texts, "-" if it is unknown or there is none."""
    if lags is None:
        return "-", "-", "-"
    behind = [one for one in lags if one.lag]
    if not behind:
        return "0", "-", "-"
    drains = [one.drain_s for one in behind]
    known = [drain for drain in drains if drain is not None]
    drained = format_age(max(known)) if len(known) == len(drains) else "never"
    return str(sum(one.lag for one in behind)), format_age(max(one.age_s for one in behind)), drained


def unwritten(lags: Sequence[PartitionLag]) -> list[str]:
    """The reasons why dead letters are not written yet, one line each."""
    counts: dict[str, int] = {}
    for one in lags:
        if one.dead_problem:
            counts[one.dead_problem] = counts.get(one.dead_problem, 0) + one.dead_waiting
    return [f"dead letters not written yet: {count}: {why}" for why, count in counts.items()]


def _drain(lag: PartitionLag) -> str:
    if not lag.lag:
        return "-"
    return "never" if lag.drain_s is None else format_age(lag.drain_s)


def partitions_text(tps: Sequence[TopicPartition]) -> str:
    """Partitions by topic, adjacent ones as a range.

    >>> partitions_text([TopicPartition("quotes", 0), TopicPartition("quotes", 1), TopicPartition("quotes", 3)])
    'quotes 0-1,3'
    """
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(tps):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return "; ".join(f"{topic} {_ranges(indexes)}" for topic, indexes in by_topic.items()) or "-"


def _ranges(indexes: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def curve(values: Sequence[int], chars: int = CURVE_CHARS) -> str:
    """A bar for each value; if there are too many, for the highest of each equal share.

    >>> curve([0, 1, 2, 4, 8, 4, 0])
    '▁▁▂▄█▄▁'
    """
    if len(values) > chars:
        edges = [len(values) * at // chars for at in range(chars + 1)]
        values = [max(values[first:end]) for first, end in pairwise(edges)]
    top = max(values, default=0)
    return "".join(_BARS[value * (len(_BARS) - 1) // top if top else 0] for value in values)


def topic_trends(history: Sequence[LagPoint]) -> list[list[object]]:
    """For each topic: the lag now, the highest lag, the time span, and the curve."""
    by_topic: dict[str, list[LagPoint]] = {}
    for point in history:
        by_topic.setdefault(point.topic, []).append(point)
    return [
        [
            topic,
            points[-1].lag,
            max(point.lag for point in points),
            format_age((points[-1].time_us - points[0].time_us) / 1e6),
            curve([point.lag for point in points]),
        ]
        for topic, points in sorted(by_topic.items())
    ]


def history_rows(history: Sequence[LagPoint]) -> list[list[object]]:
    """One row for each moment and topic, oldest first. Moments without lag between others without are left out."""
    lags: dict[str, list[int]] = {}
    for point in history:
        lags.setdefault(point.topic, []).append(point.lag)
    indices: dict[str, int] = dict.fromkeys(lags, -1)
    shown = []
    for point in history:
        at = indices[point.topic] = indices[point.topic] + 1
        if any(lags[point.topic][max(at - 1, 0) : at + 2]):
            shown.append(point)
    return [
        [
            time_text(point.time_us),
            point.topic,
            point.lag,
            format_age(point.age_s),
            point.committed,
            point.end,
        ]
        for point in shown
    ]
