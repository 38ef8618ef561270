"""The page of a topic's consumer groups, with the lag of one group by partition. Pure.

`?group=NAME` selects the group; the default is the only group of the topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, Cell, Column, Document, Row
from comet_web.facts import Group, Lag, TopicConsumers
from comet_web.page_request import PageRequest, path
from comet_web.views import groups, topic

COLUMNS: Final = (
    Column("group", "Group", wide=False),
    Column("state", "State"),
    Column("members", "Members", numeric=True),
    Column("lag", "Lag", unit="records", numeric=True, wide=False, title="records of this topic not yet processed"),
    Column("trend", "Lag, 15 min", sortable=False, title="of all topics of the group"),
    Column("drain", "Catch-up time", numeric=True, title="of all topics of the group, at the current rate"),
    Column("commit", "Last commit", numeric=True),
    Column("partitions", "Detail", sortable=False, wide=False, title="lag by partition"),
)
LAGS: Final = (
    Column("partition", "Partition", wide=False),
    Column("committed", "Committed", numeric=True, title="committed offset: the next record to process"),
    Column("end", "End offset", numeric=True, title="log end offset: the next record gets it"),
    Column("lag", "Lag", unit="records", numeric=True, wide=False),
    Column("age", "Oldest", numeric=True, title="age of the oldest unprocessed record"),
    Column("member", "Member", title="member that the partition is assigned to"),
)


def view(found: TopicConsumers, request: PageRequest) -> Document:
    detail, name = found.detail, found.detail.topic.name
    reading = readers(found)
    rows = [_row(group, name, found.group, request) for group in reading]
    lags = [_lag(one, max((other.lag for other in found.lags), default=0), name) for one in found.lags]
    behind = [group.lags[name] for group in reading if name in group.lags]
    return Document(
        time_us=detail.cluster.time_us,
        title=name,
        fields={
            **topic.header(detail),
            "groups": numbers.count(len(reading)),
            "lag": numbers.count(max(behind)) if behind else Cell(DASH, tone="muted", title="no group reads it"),
            "chosen": Cell(found.group, href=path("groups", found.group)) if found.group else Cell(""),
        },
        tables={
            "consumers": shaped("consumers", COLUMNS, rows, request, sort="-lag"),
            "lags": shaped("lags", LAGS, lags, request, main=False, sort="partition"),
        },
    )


def readers(found: TopicConsumers) -> Sequence[Group]:
    name = found.detail.topic.name
    return [group for _, group in sorted(found.detail.cluster.groups.items()) if name in group.topics]


def _row(group: Group, name: str, chosen: str, request: PageRequest) -> Row:
    address = path("groups", group.name)
    shown = group.name == chosen
    return Row(
        key=group.name,
        href=address,
        cells=(
            Cell(group.name, href=address),
            groups.state(group, request.now_us),
            numbers.count(group.members),
            groups.lag(group.lags.get(name)),
            groups.spark(group.trend),
            groups.drain(group, request.now_us),
            numbers.ago(group.last_commit_us, request.now_us),
            Cell("below", tone="muted") if shown else Cell("show", href=request.link(group=group.name) + "#lags"),
        ),
    )


def _lag(one: Lag, most: int, topic_name: str) -> Row:
    at = one.log_start if one.committed is None else max(one.committed, one.log_start)
    records_href = f"{path('topics', topic_name, 'records')}?start=offset&partition={one.partition}&offset={at}"
    never = Cell("never", tone="muted", title="no committed offset")
    return Row(
        key=str(one.partition),
        label=f"partition {one.partition}",
        href=records_href,
        cells=(
            Cell(str(one.partition), one.partition, href=records_href, title="records not yet processed"),
            never if one.committed is None else numbers.count(one.committed),
            numbers.count(one.end),
            Cell(f"{one.lag:,}", one.lag, tone="" if one.lag else "muted", bar=one.lag / most if most else 0.0),
            numbers.duration(one.age_s) if one.lag else Cell(DASH, tone="muted", title="no lag"),
            Cell(one.member) if one.member else Cell("unassigned", tone="muted"),
        ),
    )
