"""Writes the Grafana dashboards in deploy/grafana: `make generate`; with --check, says which would change.

A dashboard is a list of panels, a panel a title, a unit and expressions with their legends. Each expression is
narrowed to the job and the other variables of its dashboard.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).resolve().parents[1] / "deploy/grafana"
METRIC: Final = re.compile(r"\b((?:\w+:)?comet_\w+(?::\w+)?)(?:\{([^}]*)\})?")
WIDTH: Final = 24
HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
PER_ROW: Final = 3
STATS_PER_ROW: Final = 6
NAMED: Final = {  # label -> how the names of metrics with it begin
    "topic": ("comet_topic_", "comet_group_", "comet_share_group_", "topic:"),
    "group": ("comet_group_", "comet_share_group_", "group:"),
}
COLOURS: Final = {
    "bad": [("green", None), ("red", 1)],
    "good": [("red", None), ("green", 1)],
    "plain": [("blue", None)],
}
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A chart of series; `about` says what to watch it for."""

    title: str
    unit: str
    series: Mapping[str, str]  # expression -> legend
    about: str = ""


class Stat(NamedTuple):
    """One number: `good` if 1 or more is, `bad` if it is not, or `plain`."""

    title: str
    expression: str
    kind: str = "bad"
    unit: str = "none"
    about: str = ""


class Dashboard(NamedTuple):
    """`info` is a metric that each process of the dashboard's jobs has; `variables` are labels to choose by."""

    title: str
    info: str
    panels: Sequence[Panel | Stat]
    variables: Mapping[str, str] = {}  # label -> metric that has it
    text: str = ""


def rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}[$__rate_interval]))"


def total(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({metric})"


DASHBOARDS: Final = {
    "cluster": Dashboard(
        "Comet / Cluster",
        "comet_broker_info",
        (
            Stat("Live brokers", "max(comet_cluster_brokers)", "good"),
            Stat("Offline partitions", "max(comet_cluster_partitions_offline)"),
            Stat("Below min_insync", "sum(comet_topic_partitions_below_min_insync)"),
            Stat("Under-replicated", "sum(comet_topic_partitions_under_replicated)"),
            Stat("In conflict", "sum(comet_topic_partitions_in_conflict)"),
            Stat("Failed logs", "sum(comet_topic_partitions_failed)"),
            Panel(
                "Records appended",
                "cps",
                {rate("comet_topic_appended_records_total", "instance"): "{{instance}}"},
                "Every replica counts.",
            ),
            Panel(
                "Records delivered", "cps", {rate("comet_topic_delivered_records_total", "instance"): "{{instance}}"}
            ),
            Panel(
                "Bytes of client streams",
                "Bps",
                {
                    rate("comet_broker_received_bytes_total", "instance"): "{{instance}} in",
                    rate("comet_broker_sent_bytes_total", "instance"): "{{instance}} out",
                },
            ),
            Panel("Acknowledgement, p99", "s", {"instance:comet_broker_ack_seconds:p99_5m": "{{instance}}"}),
            Panel("Append to client, p99", "s", {"instance:comet_broker_deliver_seconds:p99_5m": "{{instance}}"}),
            Panel(
                "Errors", "cps", {rate("comet_broker_errors_total", "code"): "{{code}}"}, "Refused requests, by code."
            ),
            Panel(
                "Lag of followers",
                "short",
                {
                    total(
                        "comet_broker_follower_lag_records", "instance", "follower"
                    ): "{{follower}} behind {{instance}}"
                },
            ),
            Panel("Partitions led", "short", {total("comet_topic_partitions_led", "instance"): "{{instance}}"}),
            Panel(
                "Replication",
                "short",
                {
                    "comet_broker_partitions_to_follow": "{{instance}} should follow",
                    "comet_broker_partitions_followed": "{{instance}} follows",
                },
            ),
            Panel("Client streams", "short", {"comet_broker_streams": "{{instance}}"}),
            Panel(
                "Memory",
                "bytes",
                {"comet_broker_memory_bytes": "{{instance}}", "comet_broker_memory_max_bytes": "limit"},
            ),
            Panel(
                "Bytes in flight",
                "bytes",
                {"comet_broker_in_flight_bytes": "{{instance}}", "comet_broker_in_flight_max_bytes": "limit"},
            ),
            Panel("Free disk", "bytes", {"comet_broker_disk_free_bytes": "{{instance}}"}),
            Panel(
                "Metadata store",
                "short",
                {
                    "comet_broker_registered": "{{instance}} registered",
                    "comet_broker_metadata_trusted": "{{instance}} trusts it",
                    "comet_broker_controller": "{{instance}} controls",
                },
            ),
            Panel(
                "Failures",
                "short",
                {
                    total("comet_broker_failed", "instance", "kind"): "{{instance}} {{kind}}",
                    "comet_broker_failing_tasks": "{{instance}} tasks",
                },
            ),
        ),
    ),
    "topics": Dashboard(
        "Comet / Topics",
        "comet_broker_info",
        (
            Panel(
                "Records appended",
                "cps",
                {"topic:comet_topic_appended_records:rate5m": "{{topic}}"},
                "Every replica counts.",
            ),
            Panel("Records delivered", "cps", {"topic:comet_topic_delivered_records:rate5m": "{{topic}}"}),
            Panel("Bytes appended", "Bps", {rate("comet_topic_appended_bytes_total", "topic"): "{{topic}}"}),
            Panel("Bytes on disk", "bytes", {total("comet_topic_bytes", "topic"): "{{topic}}"}, "Of all replicas."),
            Panel("Subscriptions", "short", {total("comet_topic_readers", "topic"): "{{topic}}"}),
            Panel(
                "Batches that wait for their acknowledgement",
                "short",
                {total("comet_topic_acks_waiting", "topic"): "{{topic}}"},
            ),
            Panel(
                "Under-replicated partitions",
                "short",
                {total("comet_topic_partitions_under_replicated", "topic"): "{{topic}}"},
            ),
            Panel(
                "Compaction overdue",
                "s",
                {"max by (instance, topic) (comet_topic_compaction_behind_seconds)": "{{topic}} {{instance}}"},
            ),
            Panel(
                "Compaction",
                "Bps",
                {rate("comet_topic_compaction_read_bytes_total", "topic"): "{{topic}} read"},
            ),
            Panel(
                "Records that compaction left",
                "short",
                {"max by (topic) (comet_topic_compaction_remaining_records)": "{{topic}}"},
                "About one for each key.",
            ),
            Panel(
                "Filters",
                "cps",
                {
                    rate("comet_broker_filter_examined_records_total", "instance"): "{{instance}} examined",
                    rate("comet_broker_filter_skipped_records_total", "instance"): "{{instance}} skipped",
                    rate("comet_broker_filter_unfiltered_batches_total", "instance"): "{{instance}} batches unfiltered",
                },
                "Unfiltered batches: filter_percent is used up.",
            ),
            Panel(
                "Schedules",
                "short",
                {
                    "comet_broker_schedules": "{{instance}} kept",
                    "comet_broker_schedules_due": "{{instance}} due",
                    rate("comet_broker_schedules_fired_total", "instance"): "{{instance}} fired a second",
                },
            ),
            Panel("Schedules late", "s", {"comet_broker_schedules_late_seconds": "{{instance}}"}),
        ),
        {"topic": "comet_topic_partitions"},
    ),
    "groups": Dashboard(
        "Comet / Groups and lag",
        "comet_broker_info",
        (
            Stat("Groups", "sum(comet_coordinated_groups)", "plain"),
            Stat("Members", "sum(comet_coordinated_members)", "plain"),
            Stat("Largest lag", "max(comet_group_lag_seconds)", "plain", "s"),
            Stat("Open transactions", "sum(comet_coordinated_transactions_open)", "plain"),
            Panel("Lag in time", "s", {"max by (group, topic) (comet_group_lag_seconds)": "{{group}} {{topic}}"}),
            Panel(
                "Lag in records", "short", {"max by (group, topic) (comet_group_lag_records)": "{{group}} {{topic}}"}
            ),
            Panel(
                "Lag as a share of its limit",
                "percentunit",
                {
                    "max by (group) (comet_group_lag_seconds) "
                    "/ on (group) group_left () max by (group) (group:comet_group_lag_seconds:limit)": "{{group}}"
                },
                "At 100 % and rising, CometGroupLagging fires.",
            ),
            Panel(
                "Transactions",
                "cps",
                {
                    rate("comet_coordinated_transactions_committed_total", "job"): "committed",
                    rate("comet_coordinated_transactions_aborted_total", "job"): "aborted",
                },
            ),
            Panel(
                "Share groups: in flight",
                "short",
                {total("comet_share_group_in_flight_records", "group", "topic"): "{{group}} {{topic}}"},
            ),
            Panel(
                "Share groups: records",
                "cps",
                {
                    rate("comet_share_group_acknowledged_records_total", "group"): "{{group}} acknowledged",
                    rate("comet_share_group_redelivered_records_total", "group"): "{{group}} again",
                    rate("comet_share_group_dropped_records_total", "group"): "{{group}} dropped",
                },
            ),
            Panel(
                "Dead letters",
                "cps",
                {
                    rate("comet_share_group_dead_lettered_records_total", "group"): "{{group}}",
                    rate("comet_app_dead_lettered_total", "handler"): "{{handler}}",
                },
            ),
            Panel(
                "Handlers",
                "cps",
                {
                    rate("comet_app_handled_total", "handler"): "{{handler}} handled",
                    rate("comet_app_retried_total", "handler"): "{{handler}} again",
                    rate("comet_app_failed_total", "handler"): "{{handler}} failed",
                },
                "Of applications whose own metrics are scraped.",
            ),
        ),
        {"group": "comet_group_lag_seconds"},
    ),
    "gateway": Dashboard(
        "Comet / Gateway",
        "comet_gateway_info",
        (
            Panel(
                "Requests",
                "reqps",
                {rate("comet_gateway_requests_total", "status"): "{{status}}"},
                "0: the client left before the answer.",
            ),
            Panel("Duration of requests, p99", "s", {"route:comet_gateway_request_seconds:p99_5m": "{{route}}"}),
            Panel("Requests by route", "reqps", {rate("comet_gateway_requests_total", "route"): "{{route}}"}),
            Panel("Connections", "short", {total("comet_gateway_connections", "kind"): "{{kind}}"}),
            Panel("Running requests", "short", {"comet_gateway_requests_running": "{{instance}}"}),
            Panel(
                "Turned away",
                "reqps",
                {rate("comet_gateway_turned_away_total", "limit"): "{{limit}}"},
                "A limit was reached.",
            ),
            Panel("Records", "cps", {rate("comet_gateway_records_total", "direction"): "{{direction}}"}),
            Panel(
                "Bytes of bodies",
                "Bps",
                {
                    rate("comet_gateway_received_bytes_total", "instance"): "{{instance}} in",
                    rate("comet_gateway_sent_bytes_total", "instance"): "{{instance}} out",
                },
            ),
            Panel("Bytes of requests in memory", "bytes", {"comet_gateway_body_bytes_held": "{{instance}}"}),
            Panel(
                "Pushed records",
                "cps",
                {
                    rate("comet_gateway_push_delivered_total", "job"): "delivered",
                    rate("comet_gateway_push_dropped_total", "job"): "dropped",
                    rate("comet_gateway_push_conflated_total", "job"): "conflated",
                },
            ),
            Panel("Subscribers", "short", {total("comet_gateway_feed_subscribers", "topic"): "{{topic}}"}),
            Panel(
                "Slowest subscriber, records behind",
                "short",
                {"max by (topic) (comet_gateway_feed_behind_max)": "{{topic}}"},
            ),
            Panel(
                "Alerts of the gateways",
                "short",
                {
                    "max(comet_gateway_alerts_firing)": "firing",
                    "max(comet_gateway_alert_notices_waiting)": "notices waiting",
                },
            ),
        ),
    ),
    "spark": Dashboard(
        "Comet / Spark",
        "comet_broker_info",
        (
            Panel(
                "Lag of streams in time",
                "s",
                {"max by (group, topic) (comet_group_lag_seconds)": "{{group}} {{topic}}"},
                "The age of the oldest record that no batch has covered.",
            ),
            Panel(
                "Lag of streams in records",
                "short",
                {"max by (group, topic) (comet_group_lag_records)": "{{group}} {{topic}}"},
            ),
            Panel(
                "Change of the lag",
                "cps",
                {"deriv(comet_group_lag_records[5m])": "{{group}} {{topic}}"},
                "Records a second; above 0 the stream is slower than its producers.",
            ),
            Panel(
                "Records appended",
                "cps",
                {"topic:comet_topic_appended_records:rate5m": "{{topic}}"},
                "Every replica counts.",
            ),
            Panel("Records delivered", "cps", {"topic:comet_topic_delivered_records:rate5m": "{{topic}}"}),
            Panel("Errors", "cps", {rate("comet_broker_errors_total", "code"): "{{code}}"}),
        ),
        {"group": "comet_group_lag_seconds", "topic": "comet_topic_partitions"},
        "Brokers see a stream of Spark by the group that its option `group` names: it commits its progress once per "
        "batch. Choose those groups above, and the topics that the jobs read and write. Durations of batches and sizes "
        "of state are in Spark's own metrics (`spark.sql.streaming.metricsEnabled`).",
    ),
    "security": Dashboard(
        "Comet / Security",
        "comet_broker_info",
        (
            Stat("Open to strangers", "sum(comet_broker_insecure)", about="Brokers with insecure = true."),
            Stat(
                "First certificate expires in",
                "min(comet_broker_certificate_expiration_timestamp_seconds) - time()",
                "plain",
                "s",
            ),
            Stat("Dropped audit events", "sum(comet_broker_audit_dropped_total)"),
            Panel("Refused credentials", "cps", {rate("comet_broker_auth_failures_total", "reason"): "{{reason}}"}),
            Panel("Events of the audit log", "cps", {rate("comet_broker_audit_events_total", "event"): "{{event}}"}),
            Panel(
                "Waiting for quotas",
                "percentunit",
                {rate("comet_broker_throttled_seconds_total", "principal"): "{{principal}}"},
                "Seconds in each second, over all streams and calls of a principal.",
            ),
            Panel(
                "Certificates",
                "s",
                {"comet_broker_certificate_expiration_timestamp_seconds - time()": "{{instance}} {{listener}}"},
                "Time until they expire.",
            ),
            Panel(
                "Calls refused and ended for lack of memory",
                "cps",
                {
                    rate("comet_broker_calls_refused_total", "instance"): "{{instance}} refused",
                    rate("comet_broker_calls_ended_total", "instance"): "{{instance}} ended",
                },
            ),
        ),
    ),
}


def documents() -> dict[str, str]:
    """The dashboards, by the name of their file."""
    return {f"{name}.json": json.dumps(_document(name, one), indent=1) + "\n" for name, one in DASHBOARDS.items()}


def _document(name: str, one: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"comet-{name}",
        "title": one.title,
        "tags": ["comet"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(one)},
        "panels": _panels(one),
    }


def _variables(one: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    job = _variable("job", f"label_values({one.info}, job)")
    chosen = [
        _variable(label, f'label_values({metric}{{job=~"$job"}}, {label})') for label, metric in one.variables.items()
    ]
    return [source, job, *chosen]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(one: Dashboard) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    x = y = height = 0
    if one.text:
        found.append(_text(one.text))
        y = STAT_HEIGHT
    for panel in one.panels:
        stat = isinstance(panel, Stat)
        wide = WIDTH // (STATS_PER_ROW if stat else PER_ROW)
        if x + wide > WIDTH or (x and height != (STAT_HEIGHT if stat else HEIGHT)):
            x, y = 0, y + height
        height = STAT_HEIGHT if stat else HEIGHT
        made = _stat(panel, one) if isinstance(panel, Stat) else _chart(panel, one)
        found.append(made | {"id": len(found) + 1, "gridPos": {"x": x, "y": y, "w": wide, "h": height}})
        x += wide
    return found


def _text(text: str) -> dict[str, Any]:
    place = {"x": 0, "y": 0, "w": WIDTH, "h": STAT_HEIGHT}
    return {"id": 1, "type": "text", "title": "", "gridPos": place, "options": {"mode": "markdown", "content": text}}


def _chart(panel: Panel, one: Dashboard) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": _scoped(expression, one), "legendFormat": legend}
        for at, (expression, legend) in enumerate(panel.series.items())
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": {"fillOpacity": 5}}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _stat(panel: Stat, one: Dashboard) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in COLOURS[panel.kind]]
    return {
        "type": "stat",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "targets": [{"refId": "A", "datasource": SOURCE, "expr": _scoped(panel.expression, one), "instant": True}],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"},
    }


def _scoped(expression: str, one: Dashboard) -> str:
    """The expression with the job and the variables of the dashboard in each selector that has such labels."""

    def narrowed(match: re.Match[str]) -> str:
        metric, given = match[1], match[2]
        if metric.startswith("comet_app_"):
            return match[0]
        labels = [given] if given else []
        labels.append('job=~"$job"')
        labels += [f'{label}=~"${label}"' for label in one.variables if _has(metric, label)]
        return f"{metric}{{{','.join(labels)}}}"

    return METRIC.sub(narrowed, expression)


def _has(metric: str, label: str) -> bool:
    """Whether a metric is of topics or groups, as its name says."""
    return metric.startswith(NAMED[label])


def main() -> None:
    """Writes the files, or with --check names those that would change."""
    fresh = documents()
    kept = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    changed = sorted(name for name in fresh.keys() | kept.keys() if fresh.get(name) != kept.get(name))
    if "--check" in sys.argv:
        sys.exit("\n".join(changed) or 0)
    for name in changed:
        if name in fresh:
            (FOLDER / name).write_text(fresh[name])
        else:
            (FOLDER / name).unlink()


if __name__ == "__main__":
    main()
