"""The metrics of topics and groups, from the statistics of a broker. Pure.

Topics are summed over their partitions, to bound the number of series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from comet_broker.metrics.families import OTHERS, Statistics, counter, gauge

TOPICS_MAX: Final = 1_000  # the largest, with series of their own
GROUPS_MAX: Final = 2_000  # groups by topic

# Name in the statistics of a partition -> metric of its topic, help text.
_TOPIC_COUNTERS: Final = {
    "appended_records": ("comet_topic_appended_records", "Records written here, as a leader or a follower."),
    "appended_bytes": ("comet_topic_appended_bytes", "Bytes of batches written here."),
    "appended_batches": ("comet_topic_appended_batches", "Batches written here."),
    "delivered_records": ("comet_topic_delivered_records", "Records sent to clients from here."),
    "delivered_bytes": ("comet_topic_delivered_bytes", "Bytes of records sent to clients from here."),
    "compactions": ("comet_topic_compactions", "Rounds of compaction done here."),
    "compaction_read_bytes": ("comet_topic_compaction_read_bytes", "Bytes that compaction has read here."),
    "compacted_records": ("comet_topic_compaction_removed_records", "Records that compaction has removed here."),
}
_TOPIC_GAUGES: Final = {
    "bytes": ("comet_topic_bytes", "Bytes of the topic's logs on this broker's disk."),
    "partitions": ("comet_topic_partitions", "Partitions of the topic on this broker."),
    "leading": ("comet_topic_partitions_led", "Partitions of the topic that this broker leads."),
    "behind_replicas": (
        "comet_topic_partitions_under_replicated",
        "Partitions led here whose replicas are not all in sync.",
    ),
    "below_min_insync": (
        "comet_topic_partitions_below_min_insync",
        "Partitions led here with fewer in-sync replicas than min_insync: acks=all is refused.",
    ),
    "failed_logs": ("comet_topic_partitions_failed", "Partitions whose log has failed here."),
    "conflicts": (
        "comet_topic_partitions_in_conflict",
        "Replicas that do not follow their leader, because they would lose committed records.",
    ),
    "readers": ("comet_topic_readers", "Subscriptions to the topic's partitions here."),
    "acks_waiting": ("comet_topic_acks_waiting", "Batches that wait for their acknowledgement."),
    "transactions_waiting": ("comet_topic_transactions_waiting", "Transactions that wait for their coordinator."),
    "compaction_remaining_records": (
        "comet_topic_compaction_remaining_records",
        "Records that the last compaction here has left: about one for each key.",
    ),
}
_TOPIC_SUMS: Final = ("bytes", "readers", "acks_waiting", "transactions_waiting", "compaction_remaining_records")
_SHARED: Final = {
    "acknowledged": ("comet_share_group_acknowledged_records", "Records that members have acknowledged."),
    "redelivered": ("comet_share_group_redelivered_records", "Records delivered again."),
    "dead_lettered": ("comet_share_group_dead_lettered_records", "Records written to a dead-letter topic."),
    "dropped": ("comet_share_group_dropped_records", "Records given up without a dead-letter topic."),
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


def topics(partitions: Iterable[Statistics]) -> Iterator[Metric]:
    sums: dict[str, Counter[str]] = {}
    behind: dict[str, float] = {}  # seconds
    for partition in partitions:
        behind[partition["topic"]] = max(behind.get(partition["topic"], 0.0), partition["compaction_behind_s"])
        found = sums.setdefault(partition["topic"], Counter())
        for name in (*_TOPIC_COUNTERS, *_TOPIC_SUMS):
            found[name] += partition[name]
        found["partitions"] += 1
        found["leading"] += partition["leader"]
        found["behind_replicas"] += partition["leader"] and len(partition["in_sync"]) < partition["replicas"]
        found["below_min_insync"] += partition["leader"] and len(partition["in_sync"]) < partition["min_insync"]
        found["conflicts"] += bool(partition["conflict"])
        found["failed_logs"] += bool(partition["failed"])
    rows = sorted(sums.items(), key=lambda row: -row[1]["bytes"])
    if len(rows) > TOPICS_MAX:
        rest: Counter[str] = Counter()
        for topic, found in rows[TOPICS_MAX:]:
            rest.update(found)
            behind[OTHERS] = max(behind.get(OTHERS, 0.0), behind[topic])
        rows = [*rows[:TOPICS_MAX], (OTHERS, rest)]
    for names, make in ((_TOPIC_COUNTERS, counter), (_TOPIC_GAUGES, gauge)):
        for name, (metric, about) in names.items():
            yield make(metric, about, [({"topic": topic}, found[name]) for topic, found in rows])
    yield gauge(
        "comet_topic_compaction_behind_seconds",
        "How long compaction is overdue, in the partition where it is most.",
        [({"topic": topic}, behind[topic]) for topic, _ in rows],
    )


def coordination(slots: Sequence[Statistics]) -> Iterator[Metric]:
    for names, make in ((_COORDINATED, gauge), (_COORDINATED_COUNTERS, counter)):
        for name, (metric, about) in names.items():
            yield make(metric, about, [({}, sum(slot[name] for slot in slots))])
    lags = sorted((lag for slot in slots for lag in slot["lags"]), key=lambda lag: -lag["lag"])[:GROUPS_MAX]
    labels = [{"group": lag["group"], "topic": lag["topic"]} for lag in lags]
    records = [(label, lag["lag"]) for label, lag in zip(labels, lags, strict=True)]
    yield gauge("comet_group_lag_records", "Records that a group has not committed.", records)
    ages = [(label, lag["age_s"]) for label, lag in zip(labels, lags, strict=True)]
    yield gauge("comet_group_lag_seconds", "Age of the oldest record that a group has not committed.", ages)


def shares(partitions: Iterable[Statistics]) -> Iterator[Metric]:
    """The share groups at the partitions that this broker leads."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for partition in partitions:
        found = groups.setdefault((partition["group"], partition["topic"]), Counter())
        for name in ("in_flight", *_SHARED):
            found[name] += partition[name]
    rows = [({"group": group, "topic": topic}, found) for (group, topic), found in sorted(groups.items())][:GROUPS_MAX]
    in_flight = [(labels, found["in_flight"]) for labels, found in rows]
    yield gauge("comet_share_group_in_flight_records", "Records delivered and not acknowledged.", in_flight)
    for name, (metric, about) in _SHARED.items():
        yield counter(metric, about, [(labels, found[name]) for labels, found in rows])
