"""The page of one group: lag over time and by partition, and its members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Chart, Column, Document, Row
from comet_web.facts import GroupDetail, Lag, Member, Track
from comet_web.page_request import ADMIN, OPERATOR, PageRequest, path
from comet_web.views import groups

LINES_MAX: Final = 8  # topics in the chart; the others with less lag are one line
MARKS_MAX: Final = 50
TOPICS_SHOWN: Final = 4

_PARTITION: Final = (
    Column("topic", "Topic"),
    Column("partition", "Partition", numeric=True, wide=False),
    Column("committed", "Committed", numeric=True, title="Committed offset: the next record to process"),
    Column("end", "End offset", numeric=True, title="Log end offset: the next record gets it"),
    Column("lag", "Lag", unit="records", numeric=True, wide=False),
    Column("age", "Oldest", numeric=True, title="Age of the oldest unprocessed record"),
    Column("drain", "Catch-up time", numeric=True, title="At the current rate"),
)
_OWNED: Final = (
    Column("member", "Member", title="Member that the partition is assigned to"),
    Column("id", "Member id", hidden=True),
)
_SHARED: Final = (
    Column("in_flight", "In flight", numeric=True, title="Acquired and not yet acknowledged"),
    Column("redelivered", "Redelivered", numeric=True),
    Column("dead", "Dead letters", numeric=True, title="Rejected, or out of deliveries"),
)
MEMBERS: Final = (
    Column("client", "Member"),
    Column("instance", "Instance", title="Of a static member, which may restart within its session timeout"),
    Column("partitions", "Partitions", numeric=True),
    Column("assignment", "Assignment", sortable=False, wide=False),
    Column("rack", "Rack", hidden=True),
    Column("silent", "Last seen", numeric=True),
    Column("session", "Session timeout", numeric=True),
    Column("id", "Id", hidden=True),
)


def view(detail: GroupDetail, request: PageRequest) -> Document:
    group, now_us = detail.group, detail.cluster.time_us
    shared = group.kind == "share"
    clients = {member.id: member.client for member in detail.members}
    last = _SHARED if shared else _OWNED
    columns = (*_PARTITION, *last)
    most = max((lag.lag for lag in detail.lags), default=0)
    rows = [_partition(lag, shared, clients, most) for lag in detail.lags]
    ages = [lag.age_s for lag in detail.lags]
    fields = {
        "name": Cell(group.name),
        "state": groups.state(group, now_us),
        "lag": groups.lag(_now(detail)),
        "drain": groups.drain(group, now_us),
        "age": numbers.duration(max(ages)) if ages else UNKNOWN,
        "members": numbers.count(len(detail.members)),
        "topics": groups.topics(group),
        "coordinator": Cell(f"broker {group.coordinator}", group.coordinator, href=path("brokers", group.coordinator))
        if group.coordinator
        else UNKNOWN,
        "commit": numbers.ago(group.last_commit_us, now_us),
        "held": Cell(held(detail, request)),
        "delete_held": Cell(delete_held(detail, request)),
        "join": Cell(f"comet consume {next(iter(group.topics), 'TOPIC')} --group {group.name}"),
    }
    if detail.assignment:
        fields["assignment"] = _strategy(detail)
    if shared:
        dead_letters = f"/dead-letters?{urlencode({'filter': group.name})}"
        fields |= {
            name: numbers.count(sum(getattr(lag, name) for lag in detail.lags), href=href)
            for name, href in (("in_flight", ""), ("redelivered", ""), ("dead_lettered", dead_letters))
        }
        fields["waiting"] = Cell(waiting(detail.lags), tone="warn")
    return Document(
        now_us,
        group.name,
        fields=fields,
        tables={
            "partitions": shaped(
                "partitions",
                columns,
                rows,
                request,
                sort="-lag",
                text=lambda row: f"{row.key} {row.cells[7].text}",
            ),
            "members": shaped("members", MEMBERS, map(_member, detail.members), request, main=False, sort="client"),
        },
        charts={"lag": _chart(detail)},
    )


def held(detail: GroupDetail, request: PageRequest) -> str:
    """Why the committed offsets cannot be reset now; empty: they can."""
    if refusal := request.refusal(OPERATOR):
        return refusal
    if detail.group.kind == "share":
        return "share groups have no committed offsets"
    return _active(detail)


def delete_held(detail: GroupDetail, request: PageRequest) -> str:
    """Why the group cannot be deleted now; empty: it can."""
    return request.refusal(ADMIN) or _active(detail)


def _active(detail: GroupDetail) -> str:
    if detail.reset_allowed or not detail.members:
        return ""
    names = sorted({member.client or member.id for member in detail.members})
    shown, more = ", ".join(names[:3]), len(names) - 3
    return f"active members: {shown}{f' and {more} more' if more > 0 else ''}; stop them first"


def waiting(lags: Iterable[Lag]) -> str:
    """Why dead letters wait to be written; empty: none do."""
    counts: dict[str, int] = {}
    for lag in lags:
        if lag.dead_problem:
            counts[lag.dead_problem] = counts.get(lag.dead_problem, 0) + lag.dead_waiting
    return "; ".join(f"{numbers.counted(n, 'dead letter')} not written yet: {why}" for why, n in counts.items())


def _dead(lag: Lag) -> Cell:
    if not lag.dead_problem:
        return numbers.count(lag.dead_lettered, tone="warn" if lag.dead_lettered else "")
    text = f"{lag.dead_lettered:,} + {lag.dead_waiting:,} waiting"
    return Cell(text, lag.dead_lettered + lag.dead_waiting, tone="bad", title=lag.dead_problem)


def _partition(lag: Lag, shared: bool, clients: Mapping[str, str], most: int) -> Row:
    at = lag.log_start if lag.committed is None else max(lag.committed, lag.log_start)
    href = f"{path('topics', lag.topic, 'records')}?{urlencode({'partition': lag.partition, 'offset': at})}"
    if lag.lag == 0:
        drain = Cell("caught up", 0, tone="good")
    elif lag.drain_s is None:
        drain = Cell("not shrinking", tone="warn", title="lag does not shrink at the current rate")
    else:
        drain = numbers.duration(lag.drain_s)
    committed = Cell("never", tone="muted") if lag.committed is None else numbers.count(lag.committed, href=href)
    cells: tuple[Cell, ...] = (
        Cell(lag.topic, href=path("topics", lag.topic)),
        Cell(str(lag.partition), lag.partition),
        committed,
        numbers.count(lag.end),
        Cell(f"{lag.lag:,}", lag.lag, tone="" if lag.lag else "muted", bar=lag.lag / most if most else 0.0),
        numbers.duration(lag.age_s) if lag.lag else Cell(DASH, 0, tone="muted", title="no lag"),
        drain,
    )
    if shared:
        cells += (
            numbers.count(lag.in_flight),
            numbers.count(lag.redelivered),
            _dead(lag),
        )
    else:
        unassigned = Cell("unassigned", "", tone="muted")
        name = clients.get(lag.member) or lag.member
        cells += (Cell(name, title=lag.member) if name else unassigned, Cell(lag.member) if lag.member else unassigned)
    return Row(f"{lag.topic}/{lag.partition}", cells, label=f"{lag.topic} partition {lag.partition}")


def _member(member: Member) -> Row:
    count = sum(map(len, member.owned.values()))
    owned = [f"{topic} {ranges(indexes)}" for topic, indexes in sorted(member.owned.items()) if indexes]
    text = ", ".join(owned[:TOPICS_SHOWN]) + (
        f" and {len(owned) - TOPICS_SHOWN} more topics" if len(owned) > TOPICS_SHOWN else ""
    )
    late = member.silent_ms > member.session_timeout_ms / 2
    cells = (
        Cell(member.client or member.id),
        Cell(member.instance) if member.instance else Cell(DASH, tone="muted", title="dynamic member"),
        numbers.count(count, tone="" if count else "muted"),
        Cell(text, title=", ".join(owned)) if text else Cell("none", tone="muted"),
        Cell(member.rack) if member.rack else Cell(DASH, tone="muted", title="unknown"),
        Cell(
            f"{numbers.duration_text(member.silent_ms / 1000)} ago",
            member.silent_ms,
            tone="warn" if late else "",
            title="close to the session timeout" if late else "",
        ),
        Cell(numbers.duration_text(member.session_timeout_ms / 1000), member.session_timeout_ms),
        Cell(member.id),
    )
    return Row(member.id, cells)


def _strategy(detail: GroupDetail) -> Cell:
    """The assignment strategy, and whether members ask for another one."""
    others = sum(member.assignment != detail.assignment for member in detail.members)
    if not others:
        return Cell(detail.assignment)
    title = f"{numbers.counted(others, 'member')} of {len(detail.members)} ask for another strategy; most decide"
    return Cell(detail.assignment, tone="warn", title=title)


def ranges(indexes: Sequence[int]) -> str:
    """0-3, 7."""
    found: list[list[int]] = []
    for index in sorted(indexes):
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _now(detail: GroupDetail) -> int:
    return detail.group.lag if detail.group.lag is not None else sum(lag.lag for lag in detail.lags)


# ---- lag over time


def _chart(detail: GroupDetail) -> Chart:
    tracks = {topic: track for topic, track in detail.tracks.items() if track.values}
    if not tracks:
        summary = f"{numbers.counted(_now(detail), 'record')} behind, no history yet"
        return Chart("lag", (), 1, detail.cluster.time_us, (), unit="records", kind="area", summary=summary)
    step_s = min(track.step_s for track in tracks.values())
    end_us = max(track.end_us for track in tracks.values() if track.step_s == step_s)
    count = max(len(track.values) for track in tracks.values())
    lines = {topic: _aligned(track, step_s, end_us, count) for topic, track in tracks.items() if track.step_s == step_s}
    order = sorted(lines, key=lambda topic: (-_last(lines[topic]), topic))
    names, values = order[:LINES_MAX], [lines[topic] for topic in order[:LINES_MAX]]
    if len(order) > LINES_MAX:
        names.append("others")
        values.append(_sum([lines[topic] for topic in order[LINES_MAX:]]))
    begin_us = end_us - count * step_s * 1_000_000
    marks = tuple((at, "rebalance") for at in detail.rebalances_us if begin_us <= at <= end_us)[-MARKS_MAX:]
    total = _sum(list(lines.values()))
    known = [value for value in total if value is not None]
    summary = f"{numbers.counted(_now(detail), 'record')} behind, "
    summary += f"max {max(known):,.0f}" if known else "no history yet"
    if marks:
        summary += f", {len(marks)} {'rebalance' if len(marks) == 1 else 'rebalances'}"
    return Chart("lag", tuple(names), step_s, end_us, tuple(values), "records", "area", summary, marks)


def _aligned(track: Track, step_s: int, end_us: int, count: int) -> list[float | None]:
    """The values, padded so that the last step ends at `end_us`."""
    late = max(0, round((end_us - track.end_us) / (step_s * 1_000_000)))
    values = [*track.values, *[None] * late][-count:]
    return [None] * (count - len(values)) + values


def _sum(lines: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [
        None if all(value is None for value in at) else sum(value for value in at if value is not None)
        for at in zip(*lines, strict=True)
    ]


def _last(values: Sequence[float | None]) -> float:
    return next((value for value in reversed(values) if value is not None), 0.0)
