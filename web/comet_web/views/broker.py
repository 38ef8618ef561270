"""The page of one broker: figures over time, logs, connections, settings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from comet.entities import BrokerFailure
from comet_web.components import line_chart, numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, UNKNOWN, Cell, Chart, Column, Document, Row, Table
from comet_web.facts import BrokerDetail, Setting, Track
from comet_web.page_request import PageRequest, path
from comet_web.views.brokers import down_since, even_share, share, skew_cell, status

# Chart, unit, and lines as pairs of name and track.
CHARTS: Final = (
    ("records", "records/s", (("in", "records_in"), ("out", "records_out"))),
    ("bytes", "B/s", (("in", "bytes_in"), ("out", "bytes_out"))),
    ("latency", "ms", (
        ("ack p50", "ack_p50_ms"), ("ack p95", "ack_p95_ms"), ("ack p99", "ack_p99_ms"),
        ("deliver p99", "deliver_p99_ms"),
    )),
    ("cpu", "% of a core", (("CPU", "cpu"),)),
    ("memory", "B", (("memory", "memory"),)),
    ("disk", "B", (("logs", "disk_used"),)),
)  # fmt: skip

LOGS: Final = (
    Column("partition", "Partition"),
    Column("role", "Role"),
    Column("leader_epoch", "Epoch", numeric=True, hidden=True),
    Column("log_start", "Start offset", numeric=True, title="log start offset"),
    Column("log_end", "End offset", numeric=True, title="log end offset"),
    Column("records", "Records", numeric=True),
    Column("bytes", "Size", numeric=True),
    Column("segments", "Segments", numeric=True),
    Column("behind", "Follower lag", "records", numeric=True, title="of the slowest follower; leaders only"),
    Column("unflushed", "Unflushed", "records", numeric=True, hidden=True),
    Column("readers", "Subscriptions", numeric=True),
    Column("state", "State"),
)
SESSIONS: Final = (
    Column("client", "Client"),
    Column("peer", "Address"),
    Column("transport", "Transport", title="The wire, over TCP or the broker's Unix socket, or gRPC"),
    Column("subscriptions", "Subscriptions", numeric=True),
    Column("partitions", "Partitions", numeric=True),
    Column("received", "Received", numeric=True),
    Column("sent", "Sent", numeric=True),
    Column("owed", "Pending responses", numeric=True, hidden=True),
)
CLIENTS: Final = (
    Column("client", "Client", title="The name that producers, consumers and gateways give themselves"),
    Column("sessions", "Connections", numeric=True),
    Column("received", "Produced", numeric=True, title="Bytes that this broker received over the open connections"),
    Column("sent", "Consumed", numeric=True, title="Bytes that this broker sent over the open connections"),
    Column("share", "Share of bytes", numeric=True),
)
TRANSPORTS: Final = {"unix": "wire (Unix)", "wire": "wire", "grpc": "gRPC"}
FAILED: Final = (
    Column("kind", "Kind"),
    Column("name", "Name"),
    Column("state", "State"),
    Column("reason", "Reason", sortable=False),
    Column("step", "Step", hidden=True),
    Column("count", "Errors", numeric=True),
    Column("since", "Since", numeric=True),
)
SETTINGS: Final = (
    Column("name", "Setting"),
    Column("value", "Value"),
    Column("default", "Default"),
    Column("source", "Source"),
    Column("about", "Description", sortable=False),
)


def view(detail: BrokerDetail, request: PageRequest) -> Document:
    broker, cluster = detail.broker, detail.cluster
    now_us = cluster.time_us or request.now_us
    since = None if broker.up else down_since(cluster, broker)
    fields = {
        "id": Cell(str(broker.id), broker.id),
        "status": status(broker),
        "address": Cell(broker.address or DASH),
        "version": Cell(broker.version or DASH),
        "rack": Cell(broker.rack or DASH),
        "uptime": numbers.duration(
            None
            if broker.started_us is None or not broker.up
            else float(max(0, now_us - broker.started_us) // 1_000_000)
        ),
        "down": Cell("" if broker.up else _down(since), tone="" if broker.up else "bad"),
        "draining": Cell("yes" if broker.draining else "no"),
        "up": Cell("yes" if broker.up else "no"),
        "leading": numbers.count(broker.leading),
        "skew": skew_cell(broker, even_share(cluster.brokers)),
        "replicas": numbers.count(broker.replicas),
        "in": numbers.rate(broker.in_rate, what="records"),
        "out": numbers.rate(broker.out_rate, what="records"),
        "disk_used": numbers.size(broker.disk_used),
        "disk_free": numbers.size(broker.disk_free),
        "cpu": share(broker.cpu),
        "memory": numbers.size(broker.memory_bytes),
        "ack": numbers.milliseconds(broker.ack_p99_ms),
        "sessions": numbers.count(broker.sessions),
        "problems": Cell("; ".join(broker.problems), tone="bad" if broker.problems else ""),
        "failed": Cell("yes" if broker.failed else "no"),
    }
    tables = {
        "failed": shaped("failed", FAILED, map(_failed, broker.failed), request, main=False, sort="state"),
        "logs": _logs(detail, request),
        "sessions": shaped("sessions", SESSIONS, map(_session, detail.sessions), request, main=False, sort="client"),
        "clients": shaped("clients", CLIENTS, _clients(detail.sessions), request, main=False, sort="-share"),
        "settings": shaped("settings", SETTINGS, map(_setting, detail.settings), request, main=False, sort="name"),
    }
    charts = {name: _chart(name, unit, of, detail.tracks, now_us) for name, unit, of in CHARTS}
    return Document(cluster.time_us, f"Broker {broker.id}", fields, tables, charts)


def _down(since: int | None) -> str:
    return "Broker does not answer." if since is None else f"Broker does not answer since {numbers.moment_text(since)}."


def _chart(name: str, unit: str, of: Sequence[tuple[str, str]], tracks: Mapping[str, Track], now_us: int) -> Chart:
    return line_chart.chart(name, of, tracks, now_us, unit=unit, scale=100 if unit.startswith("%") else 1)


# ---- rows


def _number(found: Mapping[str, object], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


Log = Mapping[str, object]


def _topic_partition(log: Log) -> tuple[str, int]:
    return str(log.get("topic", "")), _number(log, "partition") or 0


def _partition(log: Log) -> Cell:
    topic, index = _topic_partition(log)
    return Cell(f"{topic} / {index}", f"{topic}/{index:06d}")


def _role(log: Log) -> Cell:
    return Cell("leader") if log.get("leader") else Cell("follower", tone="muted")


def _between(log: Log, first: str, end: str) -> Cell:
    """The number of records between two offsets."""
    begin, until = _number(log, first), _number(log, end)
    return numbers.count(None if begin is None or until is None else max(0, until - begin))


def _behind(log: Log) -> Cell:
    """The lag of the slowest follower of this leader."""
    followers = log.get("followers")
    if not log.get("leader") or not isinstance(followers, Mapping) or not followers:
        return UNKNOWN
    return numbers.count(max(value for value in followers.values() if isinstance(value, int)))


def _state(log: Log) -> Cell:
    failed = str(log.get("failed") or "")
    return Cell(f"failed: {failed}", tone="bad") if failed else Cell("ok", tone="good")


_CELLS: Final[Mapping[str, Callable[[Log], Cell]]] = {
    "partition": _partition,
    "role": _role,
    "leader_epoch": lambda log: numbers.count(_number(log, "leader_epoch")),
    "log_start": lambda log: numbers.count(_number(log, "log_start")),
    "log_end": lambda log: numbers.count(_number(log, "log_end")),
    "records": lambda log: _between(log, "log_start", "log_end"),
    "bytes": lambda log: numbers.size(_number(log, "bytes")),
    "segments": lambda log: numbers.count(_number(log, "segments")),
    "behind": _behind,
    "unflushed": lambda log: _between(log, "flushed_end", "log_end"),
    "readers": lambda log: numbers.count(_number(log, "readers")),
    "state": _state,
}
assert [column.key for column in LOGS] == list(_CELLS)


def _key(log: Log) -> str:
    topic, index = _topic_partition(log)
    return f"{topic}/{index}"


def _log(log: Log) -> Row:
    return Row(_key(log), tuple(make(log) for make in _CELLS.values()), path("topics", _topic_partition(log)[0]))


def _logs(detail: BrokerDetail, request: PageRequest) -> Table:
    """The table of logs. A page shows 100 of thousands; of the others only the sort cell is built."""
    sort = request.query.get("sort", "").removeprefix("-")
    at = list(_CELLS).index(sort if sort in _CELLS else "partition")
    make, before, after = list(_CELLS.values())[at], (UNKNOWN,) * at, (UNKNOWN,) * (len(_CELLS) - at - 1)
    known = {_key(log): log for log in detail.logs}
    rows = (Row(key, (*before, make(log), *after)) for key, log in known.items())
    table = shaped("logs", LOGS, rows, request, sort="partition", text=lambda row: row.key)
    return replace(table, rows=tuple(_log(known[row.key]) for row in table.rows))


def _failed(one: BrokerFailure) -> Row:
    cells = (
        Cell(one.kind),
        Cell(one.name),
        Cell("stopped", "0", tone="bad") if one.stopped else Cell("running", "1", tone="warn"),
        Cell(one.reason, title=one.reason),
        Cell(one.step or DASH),
        numbers.count(one.count),
        numbers.moment(one.since_us),
    )
    return Row(f"{one.kind} {one.name}", cells)


def _session(session: Mapping[str, object]) -> Row:
    client, peer = str(session.get("client") or "unnamed"), str(session.get("peer") or DASH)
    cells = (
        Cell(client),
        Cell(peer),
        Cell(TRANSPORTS.get(str(session.get("transport")), DASH)),
        numbers.count(_number(session, "subscriptions")),
        numbers.count(_number(session, "partitions")),
        numbers.size(_number(session, "received_bytes")),
        numbers.size(_number(session, "sent_bytes")),
        numbers.count(_number(session, "owed")),
    )
    return Row(str(session.get("stream", f"{client} {peer}")), cells)


def _clients(sessions: Sequence[Mapping[str, object]]) -> list[Row]:
    """The clients of the open connections, by name: those that write and read the most come first."""
    totals: dict[str, list[int]] = {}
    for session in sessions:
        total = totals.setdefault(str(session.get("client") or "unnamed"), [0, 0, 0])
        for at, count in enumerate((1, _number(session, "received_bytes"), _number(session, "sent_bytes"))):
            total[at] += count or 0
    whole = sum(received + sent for _, received, sent in totals.values())
    return [
        Row(
            client,
            (
                Cell(client),
                numbers.count(count),
                numbers.size(received),
                numbers.size(sent),
                _share_of(received + sent, whole),
            ),
        )
        for client, (count, received, sent) in totals.items()
    ]


def _share_of(part: int, whole: int) -> Cell:
    found = part / whole if whole else 0.0
    return Cell(f"{100 * found:.0f} %", found, bar=found)


def _setting(setting: Setting) -> Row:
    changed = setting.source != "default"
    cells = (
        Cell(setting.name, ("0" if changed else "1") + setting.name),  # changed ones first
        Cell(numbers.exact_text(setting.value, setting.unit), tone="info" if changed else ""),
        Cell(numbers.exact_text(setting.default, setting.unit), tone="muted"),
        Cell(setting.source, tone="" if changed else "muted"),
        Cell(setting.about.replace("`", "")),  # the marks of names in the documents
    )
    return Row(setting.name, cells)
