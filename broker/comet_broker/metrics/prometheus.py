"""A broker's /metrics: its `statistics()`, summed up, in Prometheus' format. Pure.

Topics are summed over their partitions here, to bound the number of series; the numbers of single partitions are in
`statistics()` itself. Counters count the work of this broker, as a leader or a follower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
TOPICS_MAX: Final = 1_000  # the largest, with series of their own
GROUPS_MAX: Final = 2_000  # groups by topic
OTHERS: Final = "_others"

Statistics = Mapping[str, Any]
Samples = Sequence[tuple[Mapping[str, str], float]]

# Name in the statistics of a partition -> metric of its topic, help text.
_TOPIC_COUNTERS: Final = {
    "appended_records": ("comet_topic_appended_records", "Records written here, as a leader or a follower."),
    "appended_bytes": ("comet_topic_appended_bytes", "Bytes of batches written here."),
    "appended_batches": ("comet_topic_appended_batches", "Batches written here."),
    "delivered_records": ("comet_topic_delivered_records", "Records sent to clients from here."),
    "delivered_bytes": ("comet_topic_delivered_bytes", "Bytes of records sent to clients from here."),
}
_TOPIC_GAUGES: Final = {
    "bytes": ("comet_topic_bytes", "Bytes of the topic's logs on this broker's disk."),
    "partitions": ("comet_topic_partitions", "Partitions of the topic on this broker."),
    "leading": ("comet_topic_partitions_led", "Partitions of the topic that this broker leads."),
    "behind_replicas": (
        "comet_topic_partitions_under_replicated",
        "Partitions led here whose replicas are not all in sync.",
    ),
    "failed_logs": ("comet_topic_partitions_failed", "Partitions whose log has failed here."),
    "conflicts": (
        "comet_topic_partitions_in_conflict",
        "Replicas that do not follow their leader, because they would lose committed records.",
    ),
    "readers": ("comet_topic_readers", "Subscriptions to the topic's partitions here."),
    "acks_waiting": ("comet_topic_acks_waiting", "Batches that wait for their acknowledgement."),
    "transactions_waiting": ("comet_topic_transactions_waiting", "Transactions that wait for their coordinator."),
}
_COORDINATED: Final = {
    "groups": ("comet_coordinated_groups", "Groups that this broker coordinates."),
    "members": ("comet_coordinated_members", "Members of the groups that this broker coordinates."),
    "transactions_open": ("comet_coordinated_transactions_open", "Open transactions."),
}
_COORDINATED_COUNTERS: Final = {
    "transactions_committed": ("comet_coordinated_transactions_committed", "Transactions committed."),
    "transactions_aborted": ("comet_coordinated_transactions_aborted", "Transactions aborted."),
    "store_writes": ("comet_coordinated_store_writes", "Writes of groups and transactions to the metadata store."),
}


def exposition(statistics: Statistics) -> bytes:
    """The page. Slow with many topics; may run in a thread."""
    registry = CollectorRegistry()
    registry.register(_Page(statistics))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        now = self._statistics
        yield from _broker(now)
        yield from _replication(now)
        yield from _topics(now["partitions"])
        yield from _coordination(now["coordinates"])
        if now["audit"]:
            yield from _audit(now["audit"])


def _broker(now: Statistics) -> Iterator[Metric]:
    identity = {"cluster": now["cluster_id"], "broker": str(now["broker_id"]), "version": now["version"]}
    yield _gauge("comet_broker_info", "Identity of this broker.", [(identity, 1)])
    yield _gauge(
        "comet_broker_started_seconds",
        "Start time of the broker, in seconds since 1970.",
        [({}, now["started_us"] / 1e6)],
    )
    yield _gauge("comet_broker_draining", "1 while the broker stops.", [({}, float(now["draining"]))])
    yield _gauge(
        "comet_broker_controller", "1 while the broker is the controller.", [({}, float(now["controller"]["acting"]))]
    )
    yield _gauge(
        "comet_broker_metadata_trusted",
        "0 while the broker does not trust its metadata store (it went back in time, was emptied or exchanged).",
        [({}, float(now["metadata"]["trusted"]))],
    )
    yield _gauge(
        "comet_broker_insecure",
        "1 if the broker may answer strangers beyond loopback: insecure = true.",
        [({}, float(now["insecure"]))],
    )
    yield _gauge(
        "comet_broker_certificate_expiration_timestamp_seconds",
        "Time at which a listener's certificate expires, in seconds since 1970.",
        [({"listener": name}, end_us / 1e6) for name, end_us in sorted(now["certificates"].items())],
    )
    yield _gauge("comet_broker_streams", "Client streams.", [({}, now["session_count"])])
    yield _counter("comet_broker_received_bytes", "Bytes received on client streams.", [({}, now["received_bytes"])])
    yield _counter("comet_broker_sent_bytes", "Bytes of deliveries to clients.", [({}, now["sent_bytes"])])
    errors = [({"code": code}, number) for code, number in sorted(now["errors"].items())]
    yield _counter("comet_broker_errors", "Refused requests, by error code.", errors)
    yield _counter(
        "comet_broker_refused_silently",
        "Batches with acks=0 that could not be written.",
        [({}, now["refused_silently"])],
    )
    kinds = sorted(now["failed_by_kind"].items())
    yield _gauge(
        "comet_broker_failed",
        "Entities stopped by an unexpected error, until they are resumed or the broker restarts.",
        [({"kind": kind}, number) for kind, number in kinds],
    )
    yield _counter(
        "comet_broker_failures",
        "Unexpected errors, by kind of entity.",
        [({"kind": kind}, number) for kind, number in sorted(now["failures_by_kind"].items())],
    )
    yield _gauge(
        "comet_broker_failing_tasks",
        "Tasks of the broker that failed recently and were restarted.",
        [({}, len(now["failing_tasks"]))],
    )
    yield _gauge(
        "comet_broker_disk_free_bytes", "Free bytes on the disk of the data folder.", [({}, now["free_bytes"])]
    )
    yield _gauge("comet_broker_tail_bytes", "Recent batches kept in memory.", [({}, now["tail_bytes"])])
    yield from _memory(now["memory"])
    yield _throttled(now["quotas"])
    yield from _filters(now["filters"])
    yield from _schedules(now["schedules"])
    yield _histogram(
        "comet_broker_ack_seconds",
        "Time from the append of a batch to its acknowledgement, with replication.",
        now["acks"],
    )
    yield _histogram(
        "comet_broker_deliver_seconds",
        "Time from the append of a batch until it is sent to a client that keeps up (sampled under load).",
        now["deliveries"],
    )


def _throttled(quotas: Statistics) -> Metric:
    samples = [({"principal": one["principal"]}, one["seconds"]) for one in quotas["throttled"]]
    if quotas["others_throttled_s"]:
        samples.append(({"principal": OTHERS}, quotas["others_throttled_s"]))
    return _counter("comet_broker_throttled_seconds", "Time that streams and calls over a quota have waited.", samples)


def _filters(filters: Statistics) -> Iterator[Metric]:
    yield _counter("comet_broker_filter_seconds", "Processor time for filters of readers.", [({}, filters["seconds"])])
    for name, about in (
        ("examined_bytes", "Bytes of batches that filters were applied to."),
        ("unfiltered_batches", "Batches sent as they were: no time for filters."),
    ):
        yield _counter(f"comet_broker_filter_{name}", about, [({}, filters[name])])


def _schedules(schedules: Statistics) -> Iterator[Metric]:
    partitions = schedules["partitions"]
    for name, about, value in (
        ("schedules", "Schedules that this broker keeps.", sum(one["schedules"] for one in partitions)),
        ("schedules_due", "Schedules that are due and have not fired.", sum(one["due"] for one in partitions)),
        (
            "schedules_late_seconds",
            "How late the first one of them is.",
            max((one["late_s"] for one in partitions), default=0),
        ),
    ):
        yield _gauge(f"comet_broker_{name}", about, [({}, value)])
    for name, about in (
        ("fired", "Records of schedules written."),
        ("skipped", "Late times of schedules without a record."),
        ("cancelled", "Schedules cancelled."),
        ("paused", "Schedules that this broker has paused, as they cannot fire."),
        ("put_off", "Attempts to fire that a topic refused for now."),
    ):
        yield _counter(f"comet_broker_schedules_{name}", about, [({}, schedules[name])])


def _memory(memory: Statistics) -> Iterator[Metric]:
    held = memory["in_flight"]
    yield _gauge(
        "comet_broker_in_flight_bytes",
        "Bytes of requests that are not answered, and of answers that are not written.",
        [({}, held["bytes"])],
    )
    yield _gauge("comet_broker_in_flight_bytes_max", "Quota of those bytes.", [({}, held["bytes_max"])])
    yield _gauge("comet_broker_calls_waiting", "Calls that wait for records.", [({}, held["waiting"])])
    yield _counter("comet_broker_calls_refused", "Calls refused because the broker was full.", [({}, held["refused"])])
    if "bytes_max" in memory:
        yield _gauge("comet_broker_memory_bytes_max", "Memory that the broker may use.", [({}, memory["bytes_max"])])
        yield _counter("comet_broker_calls_ended", "Calls ended because memory was short.", [({}, memory["ended"])])
        if memory["used"] is not None:
            yield _gauge("comet_broker_memory_bytes", "Memory of the broker's process.", [({}, memory["used"])])


def _histogram(name: str, about: str, durations: Statistics) -> Metric:
    took = HistogramMetricFamily(name, about)
    total, buckets = 0.0, []
    for power, number in enumerate(durations["counts"][:-1]):
        total += number
        buckets.append((f"{(1 << power) / 1e6:g}", total))
    buckets.append(("+Inf", total + durations["counts"][-1]))
    took.add_metric([], buckets, sum_value=durations["sum_us"] / 1e6)
    return took


def _replication(now: Statistics) -> Iterator[Metric]:
    behind: Counter[str] = Counter()
    for partition in now["partitions"]:
        behind.update(partition["followers"])
    lags = [({"follower": follower}, records) for follower, records in sorted(behind.items())]
    yield _gauge("comet_broker_follower_lag_records", "Records that a follower has not reported yet.", lags)
    yield _gauge("comet_broker_followers", "Streams from followers.", [({}, len(now["followers"]))])
    following = sum(link["following"] for link in now["links"])
    wanted = sum(link["wanted"] for link in now["links"])
    yield _gauge("comet_broker_partitions_followed", "Partitions that the broker follows.", [({}, following)])
    yield _gauge("comet_broker_partitions_to_follow", "Partitions that the broker should follow.", [({}, wanted)])


def _topics(partitions: Iterable[Statistics]) -> Iterator[Metric]:
    topics: dict[str, Counter[str]] = {}
    for partition in partitions:
        found = topics.setdefault(partition["topic"], Counter())
        for name in (*_TOPIC_COUNTERS, "bytes", "readers", "acks_waiting", "transactions_waiting"):
            found[name] += partition[name]
        found["partitions"] += 1
        found["leading"] += partition["leader"]
        found["behind_replicas"] += partition["leader"] and len(partition["in_sync"]) < partition["replicas"]
        found["conflicts"] += bool(partition["conflict"])
        found["failed_logs"] += bool(partition["failed"])
    rows = sorted(topics.items(), key=lambda row: -row[1]["bytes"])
    if len(rows) > TOPICS_MAX:
        rest: Counter[str] = Counter()
        for _, found in rows[TOPICS_MAX:]:
            rest.update(found)
        rows = [*rows[:TOPICS_MAX], (OTHERS, rest)]
    for names, make in ((_TOPIC_COUNTERS, _counter), (_TOPIC_GAUGES, _gauge)):
        for name, (metric, about) in names.items():
            yield make(metric, about, [({"topic": topic}, found[name]) for topic, found in rows])


def _coordination(slots: Sequence[Statistics]) -> Iterator[Metric]:
    for names, make in ((_COORDINATED, _gauge), (_COORDINATED_COUNTERS, _counter)):
        for name, (metric, about) in names.items():
            yield make(metric, about, [({}, sum(slot[name] for slot in slots))])
    lags = sorted((lag for slot in slots for lag in slot["lags"]), key=lambda lag: -lag["lag"])[:GROUPS_MAX]
    labels = [{"group": lag["group"], "topic": lag["topic"]} for lag in lags]
    records = [(label, lag["lag"]) for label, lag in zip(labels, lags, strict=True)]
    yield _gauge("comet_group_lag_records", "Records that a group has not committed.", records)
    ages = [(label, lag["age_s"]) for label, lag in zip(labels, lags, strict=True)]
    yield _gauge("comet_group_lag_seconds", "Age of the oldest record that a group has not committed.", ages)


def _audit(audit: Statistics) -> Iterator[Metric]:
    events = [({"event": event}, number) for event, number in sorted(audit["events"].items())]
    yield _counter("comet_broker_audit_events", "Events of the audit log, repetitions included.", events)
    yield _counter(
        "comet_broker_audit_dropped", "Events that are not in the topic of the audit log.", [({}, audit["dropped"])]
    )


def _counter(name: str, about: str, samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(name, about, labels=_labels(samples)), samples)


def _gauge(name: str, about: str, samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(name, about, labels=_labels(samples)), samples)


def _labels(samples: Samples) -> list[str]:
    return list(samples[0][0]) if samples else []


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples) -> Metric:
    for labels, number in samples:
        family.add_metric(list(labels.values()), number)
    return family
