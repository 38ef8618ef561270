"""The page of all groups: their topics, members and lag."""

from __future__ import annotations

from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import UNKNOWN, Cell, Column, Document, Row
from comet_web.facts import Cluster, Group, Track
from comet_web.health import FRESH_S, falls_behind, keeps_up
from comet_web.page_request import PageRequest, path

COLUMNS: Final = (
    Column("group", "Group"),
    Column("state", "State"),
    Column("members", "Members", numeric=True),
    Column("topics", "Topics"),
    Column("lag", "Lag", unit="records", numeric=True, wide=False, title="Records written and not yet processed"),
    Column("trend", "Lag, 15 min", sortable=False),
    Column("drain", "Catch-up time", numeric=True, wide=False, title="At the current rate"),
    Column("age", "Behind", numeric=True, title="Age of the oldest unprocessed record"),
    Column("coordinator", "Coordinator", numeric=True, hidden=True),
    Column("commit", "Last commit", numeric=True),
)
TOPICS_SHOWN: Final = 3
COMMITS_US: Final = 60_000_000  # after a commit, until a group without members counts as one that is not read
_STATES: Final = {"stable": "good", "rebalancing": "warn", "empty": "muted"}
_KINDS: Final = {"share": "share group", "consumer": "consumer group"}


def view(cluster: Cluster, request: PageRequest) -> Document:
    groups = list(cluster.groups.values())
    lags = [group.lag for group in groups if group.lag is not None]
    stopped = sum(
        group.state == "empty" and bool(group.lag) and not commits_alone(group, cluster.time_us) for group in groups
    )
    growing = sum(map(falls_behind, groups))
    return Document(
        cluster.time_us,
        "Groups",
        fields={
            "count": numbers.count(len(groups)),
            "lag": numbers.count(sum(lags)) if lags else (UNKNOWN if groups else numbers.count(0)),
            "growing": numbers.count(growing, tone="warn" if growing else ""),
            "stopped": numbers.count(stopped, tone="warn" if stopped else ""),
        },
        tables={
            "groups": shaped(
                "groups",
                COLUMNS,
                (_row(group, cluster.time_us) for group in groups),
                request,
                sort="-lag",
                text=lambda row: f"{row.key} {row.cells[1].text} {row.cells[3].title or row.cells[3].text}",
            )
        },
    )


def _row(group: Group, now_us: int) -> Row:
    here = path("groups", group.name)
    cells = (
        Cell(group.name, href=here, title=_KINDS.get(group.kind, group.kind)),
        state(group, now_us),
        numbers.count(group.members),
        topics(group),
        lag(group.lag),
        spark(group.trend),
        drain(group, now_us),
        numbers.duration(group.age_s),
        Cell(str(group.coordinator), group.coordinator, href=path("brokers", group.coordinator))
        if group.coordinator
        else UNKNOWN,
        numbers.ago(group.last_commit_us, now_us),
    )
    return Row(group.name, cells, href=here)


def commits_alone(group: Group, now_us: int) -> bool:
    """Whether a program commits positions of the group without being a member, as Spark does."""
    committed_us = group.last_commit_us
    return group.members == 0 and committed_us is not None and now_us - committed_us < COMMITS_US


def state(group: Group, now_us: int) -> Cell:
    if commits_alone(group, now_us):
        return Cell(
            "no members", tone="good", title="a program commits its positions without being a member, as Spark does"
        )
    shared = ", shared" if group.kind == "share" else ""
    about = {
        "stable": "partitions are assigned",
        "empty": "no active members",
        "rebalancing": "partitions move between members",
    }
    return Cell(group.state + shared, tone=_STATES.get(group.state, ""), title=about.get(group.state, ""))


def topics(group: Group) -> Cell:
    if not group.topics:
        return Cell("none", tone="muted", title="no committed offsets and no members")
    shown, more = group.topics[:TOPICS_SHOWN], len(group.topics) - TOPICS_SHOWN
    text = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    return Cell(text, title=", ".join(group.topics) if more > 0 else "")


def lag(value: int | None) -> Cell:
    return numbers.count(value, tone="muted" if value == 0 else "")


def drain(group: Group, now_us: int) -> Cell:
    """The catch-up time of a group, or why there is none."""
    if group.lag is None:
        return UNKNOWN
    if group.lag == 0:
        return Cell("caught up", 0, tone="good")
    if keeps_up(group):
        return Cell("keeping up", 0, tone="good", title=f"the oldest unprocessed record is younger than {FRESH_S:g} s")
    if group.growing:
        return Cell("growing", tone="bad", title="records are written faster than processed")
    if group.drain_s is not None:
        return numbers.duration(group.drain_s)
    if group.members == 0 and not commits_alone(group, now_us):
        return Cell("stopped", tone="warn", title="no active members")
    return Cell("not shrinking", tone="warn", title="records are written as fast as processed, or neither")


def spark(track: Track | None) -> Cell:
    if track is None or all(value is None for value in track.values):
        return UNKNOWN
    return Cell("", spark=tuple(track.values), title="lag over the last 15 minutes")
