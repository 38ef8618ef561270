"""The overview: health, traffic, the groups with the highest lag, events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from comet_web.components import line_chart, numbers, sparkline
from comet_web.components.table import shaped
from comet_web.document import UNKNOWN, Cell, Chart, Column, Document, Row, Table
from comet_web.facts import Cluster, Event, Group, Topic, Track
from comet_web.health import judged
from comet_web.page_request import PageRequest, path
from comet_web.views import groups, topics
from comet_web.views.topics import total

TOP: Final = 5
EVENTS: Final = 8
MARKED: Final = {"broker", "conflict", "drain", "election", "offline"}
MARKS_MAX: Final = 20

# id, title, unit, lines
CHARTS: Final = (
    ("records", "records/s", (("in", "records_in"), ("out", "records_out"))),
    ("bytes", "B/s", (("in", "bytes_in"), ("out", "bytes_out"))),
    ("produce", "ms", (("p50", "ack_p50_ms"), ("p95", "ack_p95_ms"), ("p99", "ack_p99_ms"))),
    ("deliver", "ms", (("p50", "deliver_p50_ms"), ("p95", "deliver_p95_ms"), ("p99", "deliver_p99_ms"))),
    ("errors", "errors/s", (("errors", "errors"),)),
    ("lag", "records", (("all groups", "lag"),)),
)
REASONS: Final = (Column("reason", "Reason", sortable=False),)
LAGGING: Final = (
    Column("group", "Group", sortable=False),
    Column("topic", "Topic", sortable=False),
    Column("lag", "Lag", numeric=True, sortable=False, wide=False, title="records not yet processed"),
    Column("trend", "15 min", sortable=False),
    Column("drain", "Catch-up time", numeric=True, sortable=False, wide=False, title="at the current rate"),
)
BUSIEST: Final = (
    Column("topic", "Topic", sortable=False),
    Column("in", "In", "records/s", numeric=True, sortable=False, wide=False),
    Column("bytes", "In", "B/s", numeric=True, sortable=False),
    Column("trend", "15 min", sortable=False),
    Column("size", "Size", numeric=True, sortable=False),
)
EVENT: Final = (
    Column("time", "When", sortable=False),
    Column("kind", "Kind", sortable=False),
    Column("text", "Event", sortable=False, wide=False),
)


def view(cluster: Cluster, request: PageRequest) -> Document:
    health = judged(cluster)
    reasons = [Row(each.key, (Cell(each.text, tone=each.tone, href=each.href),)) for each in health.reasons]
    tables = (
        _plain("reasons", REASONS, reasons, request),
        _plain("lagging", LAGGING, _lagging(cluster), request),
        _plain("busiest", BUSIEST, _busiest(cluster), request),
        _plain("events", EVENT, [_event(event, request.now_us) for event in cluster.events[:EVENTS]], request),
    )
    return Document(
        time_us=cluster.time_us,
        title="Overview",
        fields={"health": Cell(health.word, tone=health.tone), **_tiles(cluster)},
        tables={table.id: table for table in tables},
        charts={name: _chart(name, unit, of, cluster) for name, unit, of in CHARTS},
    )


def _plain(id_: str, columns: tuple[Column, ...], rows: list[Row], request: PageRequest) -> Table:
    return shaped(id_, columns, rows, request, main=False)


# ---- tiles


def _tiles(cluster: Cluster) -> dict[str, Cell]:
    brokers, shown = cluster.brokers, _shown(cluster)
    up = sum(broker.up for broker in brokers)
    tracks = cluster.tracks
    lags = [group.lag for group in cluster.groups.values()]
    return {
        "brokers": Cell(f"{up} / {len(brokers)}", up, tone="warn" if up < len(brokers) else "") if brokers else UNKNOWN,
        "topics": numbers.count(len(shown)),
        "offline": _wrong(sum(topic.offline for topic in cluster.topics.values()), "bad"),
        "under": _wrong(sum(topic.under_replicated for topic in cluster.topics.values()), "warn"),
        "in": _sparked(numbers.rate(total(each.in_rate for each in brokers), what="records"), tracks, "records_in"),
        "out": _sparked(numbers.rate(total(each.out_rate for each in brokers), what="records"), tracks, "records_out"),
        "bytes_in": _sparked(numbers.size(total(each.in_bytes_rate for each in brokers)), tracks, "bytes_in"),
        "bytes_out": _sparked(numbers.size(total(each.out_bytes_rate for each in brokers)), tracks, "bytes_out"),
        "lag": _sparked(_lag(lags), tracks, "lag"),
    }


def _lag(lags: list[int | None]) -> Cell:
    found = total(lags)
    if lags and found is None:
        return UNKNOWN
    return Cell(
        numbers.short(found or 0),
        found or 0,
        title=f"{found or 0:,.0f} records of {numbers.counted(len(lags), 'group')}",
    )


def _wrong(count: int, tone: str) -> Cell:
    return numbers.count(count, tone=tone if count else "")


def _sparked(cell: Cell, tracks: Mapping[str, Track], name: str) -> Cell:
    values = sparkline.thinned(sparkline.begun(tracks[name].values)) if name in tracks else []
    return replace(cell, spark=values)


# ---- charts


def _chart(name: str, unit: str, of: tuple[tuple[str, str], ...], cluster: Cluster) -> Chart:
    return line_chart.chart(name, of, cluster.tracks, cluster.time_us, unit=unit, marks=tuple(_marks(cluster)))


def _marks(cluster: Cluster) -> Iterator[tuple[int, str]]:
    """Events that may explain a dent in a chart: brokers that joined or left, elections."""
    marked = [event for event in cluster.events if event.kind in MARKED][:MARKS_MAX]
    yield from ((event.time_us, event.text) for event in reversed(marked))


# ---- tables


def _shown(cluster: Cluster) -> list[Topic]:
    return [topic for topic in cluster.topics.values() if not topic.internal]


def _lagging(cluster: Cluster) -> list[Row]:
    behind = [group for group in cluster.groups.values() if group.lag]
    behind.sort(key=lambda group: (-(group.lag or 0), group.name))
    return [_group(group, cluster.time_us) for group in behind[:TOP]]


def _group(group: Group, now_us: int) -> Row:
    worst = max(group.lags, key=lambda name: group.lags[name], default="")
    more = len(group.topics) - 1
    topic = Cell(worst or "–", href=path("topics", worst) if worst else "")
    if worst and more > 0:
        topic = Cell(f"{worst} and {more} more", href=path("groups", group.name), title=", ".join(group.topics))
    cells = (
        Cell(group.name),
        topic,
        groups.lag(group.lag),
        groups.spark(group.trend),
        groups.drain(group, now_us),
    )
    return Row(group.name, cells, href=path("groups", group.name))


def _busiest(cluster: Cluster) -> list[Row]:
    """The topics with the highest rate; if nothing is written, the largest ones."""
    found = sorted(_shown(cluster), key=lambda each: (-(each.in_rate or 0), -(each.bytes or 0), each.name))
    return [_topic(topic) for topic in found[:TOP]]


def _topic(topic: Topic) -> Row:
    cells = (
        Cell(topic.name),
        numbers.rate(topic.in_rate, what="records"),
        numbers.size(topic.in_bytes_rate),
        topics.sparkline(topic.trend, "records/s"),
        numbers.size(topic.bytes),
    )
    return Row(topic.name, cells, href=path("topics", topic.name))


def _event(event: Event, now_us: int) -> Row:
    href = path("topics", event.topic) if event.topic else "" if event.broker is None else path("brokers", event.broker)
    key = f"{event.time_us} {event.kind} {event.text}"
    cells = (
        numbers.ago(event.time_us, now_us),
        Cell(event.kind),
        Cell(event.text, title=event.text),
    )
    return Row(key, cells, href=href)
