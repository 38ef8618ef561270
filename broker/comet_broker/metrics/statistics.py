"""Snapshots of a broker and its partitions, for clients, metrics and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from comet.v1 import types_pb2 as types
from comet.wire.version import VERSION
from comet_broker import settings
from comet_broker.cluster.membership import Membership
from comet_broker.cluster.store_guard import StoreGuard
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import NO_BROKER, ClusterState
from comet_broker.core.tail import TailBudget
from comet_broker.env import Env
from comet_broker.failures import Failures, Kind
from comet_broker.metrics.meter import RequestMeter
from comet_broker.metrics.sampler import Recorder
from comet_broker.partitions.drain import Drain
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.ports import Files


class SessionCounts(Protocol):
    """The sessions of clients."""

    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def statistics(self) -> list[dict[str, Any]]: ...


class ListenerCertificate(Protocol):
    """The certificate that a listener presents."""

    @property
    def listener(self) -> str: ...
    @property
    def expires_us(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """All statistics of a broker, read from its parts."""

    env: Env
    view: ClusterView
    guard: StoreGuard
    membership: Membership
    drain: Drain
    topics: TopicTable
    tail_budget: TailBudget
    files: Files
    meter: RequestMeter
    recorder: Recorder
    sessions: SessionCounts
    started_us: Callable[[], int]
    certificates: Sequence[ListenerCertificate]
    details: Mapping[str, Callable[[], Any]]  # the statistics of other parts, which only the full snapshot has

    def full(self) -> dict[str, Any]:
        """One snapshot of everything: metrics, dashboard and tests read the same numbers."""
        return {
            **self.summary(),
            "sessions": self.sessions.statistics(),
            "cluster": cluster(self.view.state),
            "partitions": every(self.topics.by_handle.values(), self.env.failures),
            "unknown_folders": list(self.topics.unknown_folders),
            "settings": settings.described(self.env.config),
            **{name: read() for name, read in self.details.items()},
        }

    def summary(self) -> dict[str, Any]:
        """The part of it that does not grow with the number of partitions and clients."""
        env, meter, tasks = self.env, self.meter, self.env.tasks
        total = totals(self.topics.by_handle.values())
        return {
            "cluster_id": self.view.cluster_id,
            "broker_id": env.me,
            "version": VERSION,
            "started_us": self.started_us(),
            "now_us": env.clock.wall_us(),
            "draining": self.drain.draining,
            "insecure": env.config.insecure,
            "certificates": {one.listener: one.expires_us for one in self.certificates if one.expires_us is not None},
            "topics": len(self.topics.by_name),
            "session_count": len(self.sessions),
            "received_bytes": self.sessions.received_bytes,
            "sent_bytes": self.sessions.sent_bytes,
            "acks": meter.ack_durations.statistics(),
            "deliveries": meter.deliver_durations.statistics(),
            **self.recorder.statistics(),
            "broker_epoch": self.membership.broker_epoch,
            "registered": self.membership.alive(),
            "metadata_revision": self.view.state.revision,
            "metadata": self.guard.statistics(),
            "totals": total,
            "disk_used": total["bytes"],
            "tail_bytes": self.tail_budget.used_bytes,
            "free_bytes": self.files.free_bytes(),
            "errors": dict(meter.errors),
            "auth_failures": dict(meter.auth_failures),
            "refused_silently": meter.refused_silently,
            "problems": {name: error.message for name, error in self.topics.problems.items()},
            "failed_tasks": list(tasks.failed),
            "failures": tasks.failures,
            "failing_tasks": dict(tasks.failing),
            **env.failures.statistics(),
        }


def status(
    partition: Partition, in_rate: float | None = None, in_bytes_rate: float | None = None
) -> types.PartitionStatus:
    """The status of a replica, as clients see it."""
    numbers = partition.log.statistics()
    return types.PartitionStatus(
        index=partition.index,
        log_start=partition.log.log_start,
        log_end=partition.log.log_end,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        bytes=numbers["bytes"],
        segments=numbers["segments"],
        failed=partition.log.failed is not None or bool(partition.fault),
        lost=[types.OffsetRange(first=first, end=end) for first, end in partition.log.lost],
        broker=partition.context.me,
        leader_epoch=partition.leader_epoch,
        leader=partition.leads,
        in_rate=in_rate,
        in_bytes_rate=in_bytes_rate,
        last_us=partition.log.segments.last_append_us,
    )


def cluster(state: ClusterState) -> dict[str, int]:
    """The cluster in the broker's view."""
    partitions = state.partitions.values()
    return {
        "brokers": len(state.brokers),
        "partitions": len(partitions),
        "partitions_offline": sum(one.value.leader == NO_BROKER for one in partitions),
    }


def totals(partitions: Iterable[Partition]) -> dict[str, int]:
    """The sums over many partitions."""
    held = leading = size = readers = records = written = conflicts = 0
    for partition in partitions:  # in one pass: there may be thousands, and this runs every second
        held += 1
        leading += partition.leadership is not None
        size += partition.log.segments.size_bytes
        readers += len(partition.readers)
        conflicts += partition.follower.conflict is not None
        records += partition.counts.appended_records
        written += partition.counts.appended_bytes
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
        "conflict": "" if partition.follower.conflict is None else str(partition.follower.conflict),
        "replicas": 0 if partition.state is None else len(partition.state.holders),
        "min_insync": partition.log.config.min_insync,
        "compaction_behind_s": partition.housekeeping.compaction.behind_s(),
        "followers": _behind(partition),
        "committed": partition.committed,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "transactions_waiting": len(partition.transaction_batches),
        "readers": len(partition.readers),
        "acks_waiting": 0 if partition.leadership is None else partition.leadership.acks.pending,
        "appended_batches": partition.counts.appended_batches,
        "appended_records": partition.counts.appended_records,
        "appended_bytes": partition.counts.appended_bytes,
        "delivered_records": partition.counts.delivered_records,
        "delivered_bytes": partition.counts.delivered_bytes,
        "last_append_us": partition.log.segments.last_append_us,
        "tail_bytes": partition.readers.tail.used_bytes,
        "fault": partition.fault,
    }


def _behind(partition: Partition) -> dict[str, int]:
    """By follower of this leader, the number of records that it has not reported yet."""
    if partition.leadership is None:
        return {}
    end = partition.log.log_end
    followers = partition.leadership.replicas.followers
    return {str(broker): end - max(0, follower.log_end) for broker, follower in followers.items()}
