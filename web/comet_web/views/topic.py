"""The page of a topic's partitions, and the header of all pages of a topic. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from comet.entities import PartitionInfo, ReplicaConflict
from comet_web.components import line_chart, numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Chart, Column, Document, Row
from comet_web.facts import WINDOW_S, Event, Topic, TopicDetail, Track
from comet_web.page_request import PageRequest, path
from comet_web.views import topics

_BARS_MAX: Final = 128

COLUMNS: Final = (
    Column("partition", "Partition", wide=False),
    Column("state", "State", wide=False),
    Column("leader", "Leader", numeric=True, wide=False, title="broker that serves writes and reads"),
    Column("replicas", "Replicas", title="brokers, the preferred leader first"),
    Column("in_sync", "In sync", title="in-sync replicas"),
    Column("first", "Start offset", numeric=True, title="log start offset"),
    Column("next", "End offset", numeric=True, title="log end offset: the next record gets it"),
    Column("records", "Records", numeric=True),
    Column("bytes", "Size", numeric=True, title="on the leader's disk"),
    Column("in", "In", unit="records/s", numeric=True, wide=False, title=f"over the last {WINDOW_S} seconds"),
    Column("skew", "Skew", numeric=True, title="incoming records relative to the average"),
    Column("last", "Last record", numeric=True, hidden=True),
    Column("epoch", "Epoch", numeric=True, hidden=True, title="leader epoch: counts the leaders"),
)


def header(detail: TopicDetail) -> dict[str, Cell]:
    """Fields of the header of every page of the topic."""
    topic = detail.topic
    return {
        "topic": Cell(topic.name),
        "health": topics.health(topic),
        "in": numbers.rate(topic.in_rate, what="records"),
        "out": numbers.rate(topic.out_rate, what="records"),
        "in_bytes": numbers.size(topic.in_bytes_rate),
        "records": numbers.count(topic.records),
        "size": numbers.size(topic.bytes),
        "retention": _retention(topic),
        "partitions": numbers.count(topic.partitions),
        "compacted": Cell("yes" if detail.compacted else ""),
    }


def _retention(topic: Topic) -> Cell:
    return Cell(topics.retention(topic).text, title=topics.cleanup(topic).title)


def view(detail: TopicDetail, request: PageRequest) -> Document:
    topic = detail.topic
    measure, by = _measure(detail.partitions)
    average = sum(measure.values()) / len(measure) if measure else 0.0
    largest = max(measure.values(), default=0.0)
    rows = [
        _row(topic.name, one, request.now_us, _skew(measure.get(one.partition), average, largest, by))
        for one in sorted(detail.partitions, key=lambda one: (_state(one)[0], one.partition))
    ]
    return Document(
        time_us=detail.cluster.time_us,
        title=topic.name,
        fields={
            **header(detail),
            "skew": _evenness(measure, average, by),
            "last": Cell(str(len(detail.partitions) - 1)),  # of the bars
        },
        tables={"partitions": shaped("partitions", COLUMNS, rows, request, text=_searched)},
        charts={
            "records": _flow("records", "records/s", detail),
            "bytes": _flow("bytes", "B/s", detail),
            "by_partition": _bars(measure, by),
        },
    )


def _state(one: PartitionInfo) -> tuple[int, Cell]:
    """The urgency of a partition's state, and its cell."""
    if one.leader is None:
        return 0, Cell("no leader", tone="bad", title="cannot be written or read")
    if one.failed:
        return 1, Cell("failed", tone="bad", title="the leader's disk has failed: no more writes")
    if one.conflicts:
        return 1, Cell("conflict", tone="bad", title="; ".join(map(_conflict, one.conflicts)))
    missing = [str(broker) for broker in one.replicas if broker not in one.in_sync]
    if missing:
        return 2, Cell("under-replicated", tone="warn", title=f"not in sync: broker {', '.join(missing)}")
    if one.log_end is None:
        return 3, Cell("silent", tone="warn", title="the leader does not answer")
    return 4, Cell("in sync", tone="good")


def _conflict(one: ReplicaConflict) -> str:
    problem = f" ({one.problem})" if one.problem else ""
    return (
        f"broker {one.broker} does not follow broker {one.leader}: it would lose committed records from offset"
        f" {one.offset:,} up to {one.high_watermark:,}{problem}"
    )


def _row(topic: str, one: PartitionInfo, now_us: int, skew: Cell) -> Row:
    address = f"{path('topics', topic, 'records')}?partition={one.partition}"
    missing = len(set(one.replicas) - set(one.in_sync))
    return Row(
        key=str(one.partition),
        href=address,
        label=f"partition {one.partition}",
        cells=(
            Cell(str(one.partition), one.partition, href=address, title="records of this partition"),
            _state(one)[1],
            Cell(DASH, tone="bad", title="no leader") if one.leader is None else _broker(one.leader),
            Cell(_list(one.replicas)),
            Cell(_list(one.in_sync) or DASH, tone="warn" if missing else ""),
            numbers.count(one.log_start),
            numbers.count(one.log_end),
            numbers.count(one.records),
            numbers.size(one.bytes),
            numbers.rate(one.in_rate, what="records"),
            skew,
            numbers.ago(one.last_us, now_us),
            numbers.count(one.leader_epoch),
        ),
    )


def _broker(id_: int) -> Cell:
    return Cell(str(id_), id_, href=path("brokers", id_))


def _list(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _searched(row: Row) -> str:
    """Text for the filter: `^3 ` finds a partition, `under` under-replicated ones, `leader 2` those of a leader."""
    index, state, leader, *_ = row.cells
    return f"{index.text} {state.text} leader {leader.text}"


# ---- how evenly records come in


def _measure(partitions: Iterable[PartitionInfo]) -> tuple[dict[int, float], str]:
    """The values to compare: incoming rates; without traffic, log end offsets."""
    rates = {one.partition: one.in_rate for one in partitions if one.in_rate is not None}
    if any(rates.values()):
        return rates, "records/s in"
    return {one.partition: float(one.log_end) for one in partitions if one.log_end is not None}, "records in total"


def _skew(value: float | None, average: float, largest: float, by: str) -> Cell:
    if value is None or not average:
        return UNKNOWN if value is None else Cell(DASH, tone="muted", title="nothing to compare")
    times = value / average
    return Cell(f"{times:.1f}×", round(times, 3), bar=value / largest, title=f"{times:.2f} times the average, {by}")


def _evenness(measure: Mapping[int, float], average: float, by: str) -> Cell:
    if not average or len(measure) < 2:
        return Cell(DASH, tone="muted", title="nothing to compare")
    index = max(measure, key=lambda one: measure[one])
    times = measure[index] / average
    tone = "warn" if times >= 3 else ""
    return Cell(f"{times:.1f}×", round(times, 3), tone=tone, title=f"partition {index} gets the most, {by}")


def _bars(measure: Mapping[int, float], by: str) -> Chart:
    """One bar for each partition, or for several if there are more than _BARS_MAX."""
    ordered = [measure[index] for index in sorted(measure)]
    each = -(-len(ordered) // _BARS_MAX) or 1
    bars = [sum(ordered[start : start + each]) for start in range(0, len(ordered), each)]
    if not bars:
        return Chart("by_partition", (), 1, 0, (), unit=by, kind="bar", summary="no data yet")
    most, least = max(measure, key=lambda one: measure[one]), min(measure, key=lambda one: measure[one])
    summary = (
        f"partition {most} gets most, {numbers.short(measure[most])}; {least} least, {numbers.short(measure[least])}"
        if measure[most] > measure[least]
        else f"all get the same, {numbers.short(measure[most])}"
    )
    return Chart("by_partition", (by,), 1, 0, (bars,), unit=by, kind="bar", summary=summary)


# ---- over time


def _flow(name: str, unit: str, detail: TopicDetail) -> Chart:
    of = (("in", f"{name}_in"), ("out", f"{name}_out"))
    marks = _marks(detail.cluster.events, detail.topic.name, detail.tracks.get("records_in"))
    return line_chart.chart(name, of, detail.tracks, detail.cluster.time_us, unit=unit, marks=marks)


def _marks(events: Iterable[Event], topic: str, track: Track | None) -> tuple[tuple[int, str], ...]:
    """Events of the topic in the time shown, oldest first."""
    if track is None:
        return ()
    since = track.end_us - len(track.values) * track.step_s * 1_000_000
    found = [(one.time_us, one.text) for one in events if one.topic == topic and since <= one.time_us <= track.end_us]
    return tuple(sorted(found))
