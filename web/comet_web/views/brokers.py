"""The page of all brokers: status, leaders and load of each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Column, Document, Row
from comet_web.facts import WINDOW_S, Broker, Cluster
from comet_web.health import security
from comet_web.page_request import PageRequest, path

_WINDOW = f"over the last {WINDOW_S} s"

COLUMNS = (
    Column("broker", "Broker"),
    Column("status", "Status", wide=False),
    Column("address", "Address"),
    Column("leading", "Leaders", numeric=True, wide=False, title="partitions that the broker leads"),
    Column("skew", "Leader share", title="relative to an even share of all brokers that are up"),
    Column("replicas", "Replicas", numeric=True),
    Column("in", "In", "/s", numeric=True, title=f"records {_WINDOW}"),
    Column("out", "Out", "/s", numeric=True, title=f"records {_WINDOW}"),
    Column("in_bytes", "In", "B/s", numeric=True, title=_WINDOW, hidden=True),
    Column("out_bytes", "Out", "B/s", numeric=True, title=_WINDOW, hidden=True),
    Column("disk", "Logs", numeric=True, title="disk space used by logs"),
    Column("free", "Free", numeric=True, title="free disk space"),
    Column("cpu", "CPU", numeric=True, title="of a core"),
    Column("memory", "Memory", numeric=True),
    Column("ack", "Ack p99", "ms", numeric=True, title=_WINDOW),
    Column("sessions", "Clients", numeric=True, title="client connections", hidden=True),
    Column("rack", "Rack", hidden=True),
    Column("uptime", "Uptime", numeric=True),
    Column("version", "Version", hidden=True),
)

NOTICES: Final = (Column("notice", "Notice", sortable=False),)


def view(cluster: Cluster, request: PageRequest) -> Document:
    fair = even_share(cluster.brokers)
    rows = [_row(broker, cluster, fair, request) for broker in cluster.brokers]
    table = shaped(
        "brokers", COLUMNS, rows, request, sort="broker", text=lambda row: f"{row.cells[0].text} {row.label}"
    )
    fields = {
        "summary": _summary(cluster),
        "skew": _skew(cluster.brokers),
        "draining": _draining(cluster.brokers),
        "can_move": Cell("yes" if sum(one.up for one in cluster.brokers) > 1 else "no"),
    }
    notices = [Row(one.key, (Cell(one.text, tone=one.tone, href=one.href),)) for one in security(cluster)]
    tables = {"brokers": table, "notices": shaped("notices", NOTICES, notices, request, main=False)}
    return Document(cluster.time_us, "Brokers", fields, tables)


def even_share(brokers: Sequence[Broker]) -> float | None:
    """The number of partitions per broker if leaders were spread evenly over eligible brokers."""
    able = [one for one in brokers if one.up and not one.draining]
    known = [one.leading for one in brokers if one.leading is not None]
    return sum(known) / len(able) if able and known else None


def status(broker: Broker, since: int | None = None) -> Cell:
    """The status of a broker; `since` is the time at which it went down."""
    if not broker.up:
        title = "does not answer" + (f" since {numbers.moment_text(since)}" if since else "")
        return Cell(f"down since {numbers.moment_text(since)[11:19]}" if since else "down", tone="bad", title=title)
    stopped = [f"{one.kind} {one.name}: {one.reason}" for one in broker.failed if one.stopped]
    if stopped:
        return Cell("failed", tone="bad", title="; ".join([*broker.problems, *stopped]))
    if broker.problems:
        return Cell("problem", tone="bad", title="; ".join(broker.problems))
    if broker.draining:
        left = f": {numbers.short(broker.leading)} left" if broker.leading else ""
        return Cell(f"draining{left}" if left else "drained", tone="warn", title="leadership moves to other brokers")
    return Cell("controller" if broker.controller else "up", tone="good", title=_role(broker))


def _role(broker: Broker) -> str:
    return "elects leaders and places partitions" if broker.controller else "answers"


def down_since(cluster: Cluster, broker: Broker) -> int | None:
    """The time at which the broker went down, if known."""
    newest = next((event for event in cluster.events if event.kind == "broker" and event.broker == broker.id), None)
    return None if newest is None or broker.up else newest.time_us


def _row(broker: Broker, cluster: Cluster, fair: float | None, request: PageRequest) -> Row:
    now_us = cluster.time_us or request.now_us
    uptime = UNKNOWN
    if broker.up and broker.started_us is not None:
        seconds = max(0, now_us - broker.started_us) // 1_000_000
        uptime = Cell(numbers.duration_text(float(seconds)), seconds, title=numbers.moment_text(broker.started_us))
    cells = (
        Cell(str(broker.id), broker.id),
        status(broker, down_since(cluster, broker)),
        Cell(broker.address or DASH),
        numbers.count(broker.leading),
        skew_cell(broker, fair),
        numbers.count(broker.replicas),
        numbers.rate(broker.in_rate, what="records"),
        numbers.rate(broker.out_rate, what="records"),
        numbers.rate(broker.in_bytes_rate, what="B"),
        numbers.rate(broker.out_bytes_rate, what="B"),
        numbers.size(broker.disk_used),
        numbers.size(broker.disk_free),
        share(broker.cpu),
        numbers.size(broker.memory_bytes),
        numbers.milliseconds(broker.ack_p99_ms),
        numbers.count(broker.sessions),
        Cell(broker.rack or DASH),
        uptime,
        Cell(broker.version or DASH),
    )
    return Row(str(broker.id), cells, path("brokers", broker.id), f"{broker.address} {broker.rack}")


def skew_cell(broker: Broker, fair: float | None) -> Cell:
    """The leader share of a broker; its bar is half full at an even share."""
    if broker.leading is None or not fair:
        return UNKNOWN
    ratio = broker.leading / fair
    tone = "" if 0.5 <= ratio <= 1.5 or broker.draining else "warn"
    return Cell(
        f"{100 * ratio:.0f} %",
        round(ratio, 4),
        tone=tone,
        title=f"{numbers.counted(broker.leading, 'partition')}; an even share is {fair:.1f}",
        bar=min(1.0, ratio / 2),
    )


def share(value: float | None) -> Cell:
    return UNKNOWN if value is None else Cell(f"{100 * value:.0f} %", round(value, 3))


def _summary(cluster: Cluster) -> Cell:
    total, up = len(cluster.brokers), sum(one.up for one in cluster.brokers)
    if not total:
        return UNKNOWN
    words = f"{numbers.counted(total, 'broker')}, all up" if up == total else f"{up} of {total} brokers up"
    return Cell(words, up, tone="good" if up == total else "bad")


def _draining(brokers: Sequence[Broker]) -> Cell:
    names = [str(one.id) for one in brokers if one.up and one.draining]
    return Cell(f"draining: {', '.join(names)}", tone="warn") if names else Cell("")


def _skew(brokers: Sequence[Broker]) -> Cell:
    """Whether leaders are spread evenly, in one line."""
    fair = even_share(brokers)
    counts = [one.leading or 0 for one in brokers if one.up and not one.draining]
    if fair is None or len(counts) < 2:
        return Cell("")
    spread = max(counts) - min(counts)
    if spread <= 1:
        return Cell("leaders are spread evenly", tone="good")
    return Cell(f"leaders are spread unevenly: {min(counts)} to {max(counts)} per broker", tone="warn")
