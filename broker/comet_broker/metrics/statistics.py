"""Snapshots of a broker and its partitions, for clients, metrics and tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import comet
from comet.types import PartitionStatus
from comet_broker import settings
from comet_broker.failures import Failures, Kind
from comet_broker.partitions.partition import Partition

if TYPE_CHECKING:
    from comet_broker.broker import Broker
    from comet_broker.replication.leader import ReplicaSession
    from comet_broker.streams.session import Session

SESSIONS_MAX: Final = 1000  # of which each is listed


def statistics_of(
    broker: Broker, sessions: Collection[Session], followers: Collection[ReplicaSession]
) -> dict[str, Any]:
    """One snapshot of all statistics of a broker."""
    return {
        **broker.summary(),
        "sessions": [session.statistics() for session in list(sessions)[:SESSIONS_MAX]],
        "controller": broker.controller.statistics(),
        "links": broker.replicator.statistics(),
        "followers": [session.statistics() for session in followers],
        "partitions": every(broker.topics.by_handle.values(), broker.failures),
        "shares": broker.shares.statistics(),
        "coordinates": broker.coordinator.statistics(),
        "unknown_folders": list(broker.topics.unknown_folders),
        "settings": settings.described(broker.config),
    }


def summary_of(broker: Broker, sessions: Collection[Session], gone: Mapping[str, int]) -> dict[str, Any]:
    """The part of it that does not grow with the number of partitions. `gone`: bytes of streams that have ended."""
    total = totals(broker.topics.by_handle.values())
    return {
        "cluster_id": broker.cluster_id,
        "broker_id": broker.config.broker_id,
        "version": comet.__version__,
        "started_us": broker.started_us,
        "now_us": broker.clock.wall_us(),
        "draining": broker.draining,
        "topics": len(broker.topics.by_name),
        "session_count": broker.session_count,
        "received_bytes": gone["received"] + sum(one.received_bytes for one in sessions),
        "sent_bytes": gone["sent"] + sum(one.sent_bytes for one in sessions),
        "acks": broker.ack_durations.statistics(),
        "deliveries": broker.deliver_durations.statistics(),
        **broker.recorder.statistics(),
        "broker_epoch": broker.membership.broker_epoch,
        "metadata_revision": broker.view.state.revision,
        "metadata": broker.guard.statistics(),
        "totals": total,
        "disk_used": total["bytes"],
        "tail_bytes": broker.tail_budget.used_bytes,
        "free_bytes": broker.files.free_bytes(),
        "errors": dict(broker.errors),
        "refused_silently": broker.refused_silently,
        "problems": {name: error.message for name, error in broker.topics.problems.items()},
        "failed_tasks": list(broker.tasks.failed),
        "failures": broker.tasks.failures,
        "failing_tasks": dict(broker.tasks.failing),
        **broker.failures.statistics(),
    }


def status(partition: Partition, in_rate: float | None = None, in_bytes_rate: float | None = None) -> PartitionStatus:
    """The status of a replica, as clients see it."""
    numbers = partition.log.statistics()
    return PartitionStatus(
        index=partition.index,
        log_start=partition.log.log_start,
        log_end=partition.log.log_end,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        bytes=numbers["bytes"],
        segments=numbers["segments"],
        failed=partition.log.failed is not None or bool(partition.fault),
        lost=partition.log.lost,
        broker=partition.context.me,
        leader_epoch=partition.leader_epoch,
        leader=partition.leads,
        in_rate=in_rate,
        in_bytes_rate=in_bytes_rate,
        last_us=partition.log.segments.last_append_us,
    )


def totals(partitions: Iterable[Partition]) -> dict[str, int]:
    """The sums over many partitions."""
    held = leading = size = readers = records = written = conflicts = 0
    for partition in partitions:  # in one pass: there may be thousands, and this runs every second
        held += 1
        leading += partition.leadership is not None
        size += partition.log.segments.size_bytes
        readers += len(partition.readers)
        conflicts += partition.conflict is not None
        records += partition.appended_records
        written += partition.appended_bytes
    return {
        "partitions": held,
        "leading": leading,
        "bytes": size,
        "readers": readers,
        "conflicts": conflicts,
        "appended_records": records,
        "appended_bytes": written,
    }


def every(partitions: Iterable[Partition], failures: Failures) -> list[dict[str, Any]]:
    """The statistics of all partitions, without those whose numbers cannot be read."""
    found: list[dict[str, Any]] = []
    for partition in partitions:
        with failures.guard(Kind.PARTITION, str(partition), "statistics"):
            found.append(statistics(partition))
    return found


def statistics(partition: Partition) -> dict[str, Any]:
    """One snapshot of the numbers of a partition."""
    return {
        **partition.log.statistics(),
        "topic": partition.topic,
        "partition": partition.index,
        "leader": partition.leads,
        "leader_epoch": partition.leader_epoch,
        "in_sync": [] if partition.state is None else sorted(partition.state.in_sync),
        "conflict": "" if partition.conflict is None else str(partition.conflict),
        "replicas": 0 if partition.state is None else len(partition.state.holders),
        "followers": _behind(partition),
        "committed": partition.committed,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "transactions_waiting": len(partition.transaction_batches),
        "readers": len(partition.readers),
        "acks_waiting": partition.acks_waiting,
        "appended_batches": partition.appended_batches,
        "appended_records": partition.appended_records,
        "appended_bytes": partition.appended_bytes,
        "delivered_records": partition.delivered_records,
        "delivered_bytes": partition.delivered_bytes,
        "last_append_us": partition.log.segments.last_append_us,
        "tail_bytes": partition.tail.used_bytes,
        "fault": partition.fault,
    }


def _behind(partition: Partition) -> dict[str, int]:
    """By follower of this leader, the number of records that it has not reported yet."""
    if partition.leadership is None:
        return {}
    end = partition.log.log_end
    followers = partition.leadership.replicas.followers
    return {str(broker): end - max(0, follower.log_end) for broker, follower in followers.items()}
