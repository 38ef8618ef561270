"""Tables of what the cluster answered. Pure. A sum with an unknown part is unknown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from comet.cli._values import brokers_text, format_age, format_rate
from comet.cli.topic import partition_state, topic_state
from comet.cli.tui.queries import RecentRecord, Snapshot
from comet.cli.tui.tables import FigureCell, FigureRow, FigureTable, figure, word
from comet.encryption.envelope import key_id_of
from comet.entities import TopicDetails, TopicInfo
from comet.errors import CometError, Timeout, Unavailable
from comet.types import GroupInfo, PartitionLag
from comet.units import count, format_bytes, time_text

TEXT_BYTES_MAX = 2048  # of a key or value; the screen shows fewer characters


def cluster_tables(found: Snapshot) -> list[FigureTable]:
    """Topics, groups and brokers."""
    return [_topics(found), _groups(found), _brokers(found)]


# ---- topics


def _topics(found: Snapshot) -> FigureTable:
    rows = tuple(_topic_row(topic, found.statistics) for topic in found.topics)
    columns = ("topic", "state", "partitions", "records", "size", "in", "out")
    return FigureTable("topics", columns, rows, f"{len(rows):,}", opens="topic")


def _topic_row(topic: TopicInfo, statistics: Mapping[int, Mapping[str, Any]]) -> FigureRow:
    leaders = {one.leader for one in topic.partitions}
    parts = [statistics.get(one or 0, {}).get("topics", {}).get(topic.name) for one in leaders]

    def total(name: str) -> float | None:
        values = [None if part is None else part.get(name) for part in parts]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    return FigureRow(
        topic.name,
        (
            word(topic.name),
            word(topic_state(topic)),
            figure(topic.partition_count),
            figure(total("records")),
            figure(total("bytes"), format_bytes),
            figure(total("in_rate"), format_rate),
            figure(total("out_rate"), format_rate),
        ),
    )


def topic_tables(topic: TopicDetails) -> list[FigureTable]:
    """The partitions of a topic."""
    columns = ("partition", "state", "leader", "in sync", "first", "next", "records", "size", "in")
    rows = tuple(
        FigureRow(
            str(one.partition),
            (
                figure(one.partition),
                word(partition_state(topic, one)),
                figure(one.leader),
                word(brokers_text(one.in_sync)),
                figure(one.log_start),
                figure(one.log_end),
                figure(one.records),
                figure(one.bytes, format_bytes),
                figure(one.in_rate, format_rate),
            ),
        )
        for one in topic.partitions
    )
    return [FigureTable("partitions", columns, rows, f"{len(rows):,}")]


# ---- groups


def _groups(found: Snapshot) -> FigureTable:
    summaries = {one["group"]: one for numbers in found.statistics.values() for one in numbers.get("groups", ())}
    rows = []
    lags = []
    for group in found.groups:
        summary = summaries.get(group.name, {})
        lag = summary.get("lag")
        lags.append(lag)
        cells = (
            word(group.name),
            word(group.state),
            figure(group.members),
            figure(lag),
            figure(summary.get("age_s") if lag else None, format_age),
            _drain(lag, summary.get("drain_s")),
            word(", ".join(group.topics)),
        )
        rows.append(FigureRow(group.name, cells))
    known = [lag for lag in lags if lag is not None]
    about = f"{len(rows):,}" + (f", lag {sum(known):,}" if known else "")
    columns = ("group", "state", "members", "lag", "age", "drained in", "topics")
    return FigureTable("groups", columns, tuple(rows), about, opens="group")


def _drain(lag: float | None, drain_s: float | None) -> FigureCell:
    """The time until nothing is left; never if the lag does not shrink."""
    if not lag:
        return figure(None)
    return FigureCell("never", math.inf) if drain_s is None else figure(drain_s, format_age)


def group_tables(group: GroupInfo) -> list[FigureTable]:
    """The partitions of a group, with the lag of each."""
    lags = tuple(FigureRow(f"{one.topic}/{one.partition}", _lag_cells(one)) for one in group.lags)
    columns = ("topic", "partition", "lag", "age", "drained in", "committed", "end", "member")
    about = f"{len(lags):,}, {group.summary.state} with {count(len(group.members), 'member')}"
    return [FigureTable("partitions", columns, lags, about)]


def _lag_cells(one: PartitionLag) -> tuple[FigureCell, ...]:
    return (
        word(one.topic),
        figure(one.partition),
        figure(one.lag),
        figure(one.age_s if one.lag else None, format_age),
        _drain(one.lag, one.drain_s),
        figure(one.committed),
        figure(one.end),
        word(one.member or ""),
    )


# ---- brokers


def _brokers(found: Snapshot) -> FigureTable:
    leading = Counter(one.leader for topic in found.topics for one in topic.partitions)
    registered = {one.id: one for one in found.cluster.brokers}
    holders = {broker for topic in found.topics for one in topic.partitions for broker in one.replicas}
    rows = []
    for id_ in sorted(registered.keys() | holders):
        numbers = found.statistics.get(id_, {})
        rates = numbers.get("rates") or {}
        broker = registered.get(id_)
        states = _broker_states(found, id_, numbers)
        cells = (
            figure(id_),
            word("; ".join(states) or "ok"),
            word("" if broker is None else f"{broker.host}:{broker.port}"),
            figure(leading[id_]),
            figure(rates.get("records_in"), format_rate),
            figure(rates.get("records_out"), format_rate),
            figure(numbers.get("disk_used"), format_bytes),
            word("" if broker is None else broker.version),
        )
        rows.append(FigureRow(str(id_), cells))
    columns = ("broker", "state", "address", "leads", "in", "out", "disk", "version")
    away = len(rows) - len(found.statistics)
    about = f"{len(rows):,}" + (f", {away:,} without figures" if away else "")
    return FigureTable("brokers", columns, tuple(rows), about)


def _broker_states(found: Snapshot, id_: int, numbers: Mapping[str, Any]) -> list[str]:
    if not any(one.id == id_ for one in found.cluster.brokers):
        return ["offline"]
    broker = found.cluster.broker(id_)
    states = [_failure(found.failures[id_])] if id_ in found.failures else []
    stopped = numbers.get("failed_count", 0)
    states += [f"{stopped} failed"] if stopped else []
    problems = numbers.get("problems") or ()
    states += [f"{count(len(problems), 'topic')} unavailable"] if problems else []
    states += ["draining"] if broker.draining else []
    return states + (["controller"] if broker.controller and not states else [])


def _failure(error: CometError) -> str:
    silent = isinstance(error, (Unavailable, Timeout))
    return "silent" if silent else error.code.lower().replace("_", " ")


# ---- records


def record_tables(records: Sequence[RecentRecord]) -> list[FigureTable]:
    """The last records of a topic, newest first."""
    columns = ("time (UTC)", "partition", "offset", "key", "value")
    rows = tuple(
        FigureRow(
            f"{one.partition}/{one.offset}",
            (
                FigureCell(_time(one.timestamp_us), one.timestamp_us),
                figure(one.partition),
                figure(one.offset),
                word(_text(one.key)),
                word(_value(one)),
            ),
        )
        for one in records
    )
    return [FigureTable("last records", columns, rows, f"{len(rows):,}")]


def _time(timestamp_us: int) -> str:
    try:
        return time_text(timestamp_us, "milliseconds")[11:23]
    except (ValueError, OverflowError, OSError):  # producers choose timestamps
        return str(timestamp_us)


def _value(record: RecentRecord) -> str:
    if record.problem:
        return f"({record.problem})"
    if record.value is None:
        return "(tombstone)"
    key_id = key_id_of(record.value)
    return _text(record.value) if key_id is None else f"(encrypted with key {key_id})"


def _text(data: bytes | None) -> str:
    return (data or b"")[:TEXT_BYTES_MAX].decode(errors="replace")
