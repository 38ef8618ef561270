"""The page of all topics: size, rates, groups and health of each. Pure.

Internal topics are left out without `?internal=1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Column, Document, Row
from comet_web.facts import WINDOW_S, Cluster, Topic, Track
from comet_web.page_request import PageRequest, path

_LIMITED: Final = {"ms": "age", "bytes": "size", "records": "count"}  # by the unit of the limit
_LEFT_OUT: Final = Cell("")

COLUMNS: Final = (
    Column("name", "Topic", wide=False),
    Column("partitions", "Partitions", numeric=True),
    Column(
        "replication",
        "In sync",
        numeric=True,
        title="in-sync replicas of all replicas, in the partition with the fewest",
    ),
    Column("records", "Records", numeric=True),
    Column("in", "In", unit="records/s", numeric=True, wide=False, title=f"over the last {WINDOW_S} seconds"),
    Column(
        "out",
        "Out",
        unit="records/s",
        numeric=True,
        hidden=True,
        title=f"to consumers, over the last {WINDOW_S} seconds",
    ),
    Column("bytes", "Size", numeric=True, title="of one replica of each partition"),
    Column("retention", "Retention", numeric=True, title="how long records are kept"),
    Column("cleanup", "Cleanup", hidden=True, title="what deletes old records"),
    Column("groups", "Groups", numeric=True, title="groups that read the topic"),
    Column("lag", "Max lag", numeric=True, wide=False, title="records, of the group furthest behind"),
    Column("last", "Last record", numeric=True),
    Column("trend", "In, 15 min", sortable=False),
)


def view(cluster: Cluster, request: PageRequest) -> Document:
    internal = request.query.get("internal") == "1"
    shown = [topic for _, topic in sorted(cluster.topics.items()) if internal or not topic.internal]
    hidden = sum(topic.internal for topic in cluster.topics.values())
    sort = request.query.get("sort", "name").removeprefix("-")
    rows = [_row(topic, request.now_us, only=sort) for topic in shown]
    table = shaped("topics", COLUMNS, rows, request, sort="name")
    found = tuple(_row(cluster.topics[row.key], request.now_us) for row in table.rows)
    return Document(
        time_us=cluster.time_us,
        title="Topics",
        fields={
            "topics": numbers.count(len(shown)),
            "partitions": numbers.count(sum(topic.partitions for topic in shown)),
            "in": numbers.rate(total(topic.in_rate for topic in shown), what="records"),
            "size": numbers.size(total(topic.bytes for topic in shown)),
            "health": _all_well(shown),
            "internal": _toggle(hidden, internal, request),
        },
        tables={"topics": replace(table, rows=found)},
    )


def total(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if all are unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known or not found else None


_CELLS: Final[Mapping[str, Callable[[Topic, int], Cell]]] = {
    "name": lambda topic, _: Cell(topic.name, tone="muted" if topic.internal else ""),
    "partitions": lambda topic, _: numbers.count(topic.partitions),
    "replication": lambda topic, _: replication(topic),
    "records": lambda topic, _: numbers.count(topic.records),
    "in": lambda topic, _: numbers.rate(topic.in_rate, what="records"),
    "out": lambda topic, _: numbers.rate(topic.out_rate, what="records"),
    "bytes": lambda topic, _: numbers.size(topic.bytes),
    "retention": lambda topic, _: retention(topic),
    "cleanup": lambda topic, _: cleanup(topic),
    "groups": lambda topic, _: _groups(topic),
    "lag": lambda topic, _: _lag(topic),
    "last": lambda topic, now_us: numbers.ago(topic.last_us, now_us),
    "trend": lambda topic, _: sparkline(topic.trend, "records/s"),
}
assert [column.key for column in COLUMNS] == list(_CELLS)


def _row(topic: Topic, now_us: int, only: str = "") -> Row:
    """A row. `only` names the one column to build, for sorting: a page shows a part of the topics."""
    make = {only: _CELLS[only], "name": _CELLS["name"]} if only in _CELLS else _CELLS
    cells = tuple(make[key](topic, now_us) if key in make else _LEFT_OUT for key in _CELLS)
    return Row(key=topic.name, cells=cells, href=path("topics", topic.name))


# ---- cells that other pages share


def health(topic: Topic) -> Cell:
    if topic.offline:
        text = f"{_of(topic.offline, topic.partitions)} without a leader"
        return Cell(text, tone="bad", title="cannot be written or read until an in-sync or eligible replica is back")
    if topic.conflicts:
        text = f"{_of(topic.conflicts, topic.partitions)} with a replica in conflict"
        title = "a replica would lose committed records if it followed; choose one with comet topic elect"
        return Cell(text, tone="bad", title=title)
    if topic.under_replicated:
        text = f"{_of(topic.under_replicated, topic.partitions)} under-replicated"
        return Cell(text, tone="warn", title="some replicas are behind or down")
    return Cell("healthy", tone="good", title="each partition has a leader and all its replicas in sync")


def replication(topic: Topic) -> Cell:
    """In-sync replicas of all replicas in the worst partition; sorted by the share."""
    tone = "bad" if topic.offline else "warn" if topic.under_replicated else ""
    share = topic.in_sync / topic.replicas if topic.replicas else 0.0
    return Cell(f"{topic.in_sync}/{topic.replicas}", round(share, 4), tone=tone, title=health(topic).text)


def retention(topic: Topic) -> Cell:
    """The retention time; unlimited sorts last."""
    age_ms = topic.retention.get("ms")
    if age_ms is None:
        return Cell("unlimited", float(2**53), title="records are not deleted by age")
    return Cell(numbers.duration_text(age_ms / 1000), age_ms, title=f"{age_ms:,} ms")


def cleanup(topic: Topic) -> Cell:
    if not topic.retention:
        return Cell("never", tone="muted", title="records are never deleted")
    kinds = ", ".join(_LIMITED[unit] for unit in topic.retention)
    limits = ", ".join(_limit(unit, value) for unit, value in topic.retention.items())
    return Cell(
        f"by {kinds}", title=f"deleted beyond {limits}" + (" per partition" if len(topic.retention) > 1 else "")
    )


def _limit(unit: str, value: int) -> str:
    match unit:
        case "ms":
            return numbers.duration_text(value / 1000)
        case "bytes":
            return numbers.size_text(value)
    return f"{value:,} {unit}"


def sparkline(track: Track | None, unit: str) -> Cell:
    """A sparkline, with its range in the title."""
    known = [] if track is None else [value for value in track.values if value is not None]
    if track is None or not known:
        return UNKNOWN
    span = numbers.duration_text(len(track.values) * track.step_s)
    title = f"from {numbers.short(min(known))} to {numbers.short(max(known))} {unit} in {span}"
    return Cell("", round(known[-1], 3), title=title, spark=track.values)


def _lag(topic: Topic) -> Cell:
    return numbers.count(topic.lag_max) if topic.groups else Cell(DASH, tone="muted", title="no group reads it")


def _groups(topic: Topic) -> Cell:
    if not topic.groups:
        return Cell("0", 0, tone="muted")
    names = ", ".join(topic.groups[:10]) + (f" and {len(topic.groups) - 10} more" if len(topic.groups) > 10 else "")
    return Cell(str(len(topic.groups)), len(topic.groups), title=names, href=path("topics", topic.name, "consumers"))


def _of(some: int, all_: int) -> str:
    return f"{some:,} of {all_:,} partition{'s' if all_ != 1 else ''}"


def _all_well(topics: Sequence[Topic]) -> Cell:
    offline = sum(topic.offline > 0 for topic in topics)
    behind = sum(topic.under_replicated > 0 for topic in topics)
    if offline:
        return Cell(f"{offline} with offline partitions", tone="bad")
    if behind:
        return Cell(f"{behind} under-replicated", tone="warn")
    return Cell("all healthy", tone="good") if topics else Cell("")


def _toggle(hidden: int, shown: bool, request: PageRequest) -> Cell:
    if not hidden:
        return Cell("")
    if shown:
        return Cell("Hide internal", href=request.link(internal=None, page=None))
    return Cell(f"Show {hidden} internal", href=request.link(internal=1, page=None))
