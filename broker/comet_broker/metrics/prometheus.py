"""A broker's /metrics: its `statistics()`, summed up, in Prometheus' format. Pure.

The numbers of single partitions are in `statistics()` itself. Counters count the work of this broker, as a leader or a
follower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from comet_broker.metrics.families import OTHERS, Statistics, counter, gauge, histogram
from comet_broker.metrics.topic_metrics import coordination, shares, topics

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text"


def exposition(statistics: Statistics, accept: str = "") -> tuple[str, bytes]:
    """The page with its content type: in the format OpenMetrics if the header Accept names it, else in Prometheus' own.
    Slow with many topics; may run in a thread."""
    registry = CollectorRegistry()
    registry.register(_Page(statistics))
    if OPENMETRICS in accept:
        return openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest(registry)
    return CONTENT_TYPE, generate_latest(registry)


class _Page(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        now = self._statistics
        yield from _broker(now)
        yield from _cluster(now["cluster"])
        yield from _replication(now)
        yield from topics(now["partitions"])
        yield from coordination(now["coordinates"])
        yield from shares(now["shares"]["partitions"])
        if now["audit"]:
            yield from _audit(now["audit"])


def _broker(now: Statistics) -> Iterator[Metric]:
    identity = {"cluster": now["cluster_id"], "broker": str(now["broker_id"]), "version": now["version"]}
    yield gauge("comet_broker_info", "Identity of this broker.", [(identity, 1)])
    yield gauge(
        "comet_broker_start_time_seconds",
        "Start time of the broker, in seconds since 1970.",
        [({}, now["started_us"] / 1e6)],
    )
    yield gauge("comet_broker_draining", "1 while the broker stops.", [({}, float(now["draining"]))])
    yield gauge(
        "comet_broker_controller", "1 while the broker is the controller.", [({}, float(now["controller"]["acting"]))]
    )
    yield gauge(
        "comet_broker_metadata_trusted",
        "0 while the broker does not trust its metadata store (it went back in time, was emptied or exchanged).",
        [({}, float(now["metadata"]["trusted"]))],
    )
    yield gauge(
        "comet_broker_registered",
        "1 while the broker's registration in the metadata store holds.",
        [({}, float(now["registered"]))],
    )
    yield gauge(
        "comet_broker_insecure",
        "1 if the broker may answer strangers beyond loopback: insecure = true.",
        [({}, float(now["insecure"]))],
    )
    yield gauge(
        "comet_broker_certificate_expiration_timestamp_seconds",
        "Time at which a listener's certificate expires, in seconds since 1970.",
        [({"listener": name}, end_us / 1e6) for name, end_us in sorted(now["certificates"].items())],
    )
    yield gauge("comet_broker_streams", "Client streams.", [({}, now["session_count"])])
    yield counter("comet_broker_received_bytes", "Bytes received on client streams.", [({}, now["received_bytes"])])
    yield counter("comet_broker_sent_bytes", "Bytes of deliveries to clients.", [({}, now["sent_bytes"])])
    errors = [({"code": code}, number) for code, number in sorted(now["errors"].items())]
    yield counter("comet_broker_errors", "Refused requests, by error code.", errors)
    reasons = [({"reason": reason}, number) for reason, number in sorted(now["auth_failures"].items())]
    yield counter("comet_broker_auth_failures", "Calls without valid credentials, by reason.", reasons)
    yield counter(
        "comet_broker_refused_silently",
        "Batches with acks=0 that could not be written.",
        [({}, now["refused_silently"])],
    )
    kinds = sorted(now["failed_by_kind"].items())
    yield gauge(
        "comet_broker_failed",
        "Entities stopped by an unexpected error, until they are resumed or the broker restarts.",
        [({"kind": kind}, number) for kind, number in kinds],
    )
    yield counter(
        "comet_broker_failures",
        "Unexpected errors, by kind of entity.",
        [({"kind": kind}, number) for kind, number in sorted(now["failures_by_kind"].items())],
    )
    yield gauge(
        "comet_broker_failing_tasks",
        "Tasks of the broker that failed recently and were restarted.",
        [({}, len(now["failing_tasks"]))],
    )
    yield gauge("comet_broker_disk_free_bytes", "Free bytes on the disk of the data folder.", [({}, now["free_bytes"])])
    yield gauge("comet_broker_tail_bytes", "Recent batches kept in memory.", [({}, now["tail_bytes"])])
    yield from _memory(now["memory"])
    yield _throttled(now["quotas"])
    yield from _filters(now["filters"])
    yield from _schedules(now["schedules"])
    yield histogram(
        "comet_broker_ack_seconds",
        "Time from the append of a batch to its acknowledgement, with replication.",
        now["acks"],
    )
    yield histogram(
        "comet_broker_deliver_seconds",
        "Time from the append of a batch until it is sent to a client that keeps up (sampled under load).",
        now["deliveries"],
    )


def _throttled(quotas: Statistics) -> Metric:
    samples = [({"principal": one["principal"]}, one["seconds"]) for one in quotas["throttled"]]
    if quotas["others_throttled_s"]:
        samples.append(({"principal": OTHERS}, quotas["others_throttled_s"]))
    return counter("comet_broker_throttled_seconds", "Time that streams and calls over a quota have waited.", samples)


def _filters(filters: Statistics) -> Iterator[Metric]:
    yield counter("comet_broker_filter_seconds", "Processor time for filters of readers.", [({}, filters["seconds"])])
    for name, about in (
        ("examined_bytes", "Bytes of batches that filters were applied to."),
        ("examined_records", "Records that filters were applied to."),
        ("skipped_records", "Records that were not sent because they did not match."),
        ("unfiltered_batches", "Batches sent as they were: no time for filters."),
    ):
        yield counter(f"comet_broker_filter_{name}", about, [({}, filters[name])])


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
        yield gauge(f"comet_broker_{name}", about, [({}, value)])
    for name, about in (
        ("fired", "Records of schedules written."),
        ("skipped", "Late times of schedules without a record."),
        ("cancelled", "Schedules cancelled."),
        ("paused", "Schedules that this broker has paused, as they cannot fire."),
        ("put_off", "Attempts to fire that a topic refused for now."),
    ):
        yield counter(f"comet_broker_schedules_{name}", about, [({}, schedules[name])])


def _memory(memory: Statistics) -> Iterator[Metric]:
    held = memory["in_flight"]
    yield gauge(
        "comet_broker_in_flight_bytes",
        "Bytes of requests that are not answered, and of answers that are not written.",
        [({}, held["bytes"])],
    )
    yield gauge("comet_broker_in_flight_max_bytes", "Quota of those bytes.", [({}, held["bytes_max"])])
    yield gauge("comet_broker_calls_waiting", "Calls that wait for records.", [({}, held["waiting"])])
    yield counter("comet_broker_calls_refused", "Calls refused because the broker was full.", [({}, held["refused"])])
    if "bytes_max" in memory:
        yield gauge("comet_broker_memory_max_bytes", "Memory that the broker may use.", [({}, memory["bytes_max"])])
        yield counter("comet_broker_calls_ended", "Calls ended because memory was short.", [({}, memory["ended"])])
        if memory["used"] is not None:
            yield gauge("comet_broker_memory_bytes", "Memory of the broker's process.", [({}, memory["used"])])


def _cluster(cluster: Statistics) -> Iterator[Metric]:
    for name, about in (
        ("brokers", "Live brokers, in this broker's view."),
        ("partitions", "Partitions of the cluster, in this broker's view."),
        ("partitions_offline", "Partitions without a leader, in this broker's view."),
    ):
        yield gauge(f"comet_cluster_{name}", about, [({}, cluster[name])])


def _replication(now: Statistics) -> Iterator[Metric]:
    behind: Counter[str] = Counter()
    for partition in now["partitions"]:
        behind.update(partition["followers"])
    lags = [({"follower": follower}, records) for follower, records in sorted(behind.items())]
    yield gauge("comet_broker_follower_lag_records", "Records that a follower has not reported yet.", lags)
    yield gauge("comet_broker_followers", "Streams from followers.", [({}, len(now["followers"]))])
    following = sum(link["following"] for link in now["links"])
    wanted = sum(link["wanted"] for link in now["links"])
    yield gauge("comet_broker_partitions_followed", "Partitions that the broker follows.", [({}, following)])
    yield gauge("comet_broker_partitions_to_follow", "Partitions that the broker should follow.", [({}, wanted)])


def _audit(audit: Statistics) -> Iterator[Metric]:
    events = [({"event": event}, number) for event, number in sorted(audit["events"].items())]
    yield counter("comet_broker_audit_events", "Events of the audit log, repetitions included.", events)
    yield counter(
        "comet_broker_audit_dropped", "Events that are not in the topic of the audit log.", [({}, audit["dropped"])]
    )
