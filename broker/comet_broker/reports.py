"""What a partition is like at the moment, for clients, metrics and tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from comet.types import PartitionStatus
from comet_broker.partition import Partition


def status(partition: Partition, in_rate: float | None = None, in_bytes_rate: float | None = None) -> PartitionStatus:
    """What clients are told of a replica."""
    numbers = partition.log.statistics()
    return PartitionStatus(
        index=partition.index,
        log_start=partition.log.log_start,
        log_end=partition.log.log_end,
        high_watermark=partition.high_watermark,
        stable_end=partition.stable_end,
        bytes=numbers["bytes"],
        segments=numbers["segments"],
        failed=partition.log.failed is not None or bool(partition.fault),
        lost=partition.log.lost,
        broker=partition.site.me,
        leader_epoch=partition.leader_epoch,
        leader=partition.leads,
        in_rate=in_rate,
        in_bytes_rate=in_bytes_rate,
        last_us=partition.log.last_append_us,
    )


def totals(partitions: Iterable[Partition]) -> dict[str, int]:
    """Many of them in a few numbers."""
    held = leading = size = readers = records = written = 0
    for partition in partitions:  # once: there may be thousands, and it is asked for every second
        held += 1
        leading += partition.leadership is not None
        size += partition.log.size_bytes
        readers += len(partition.readers)
        records += partition.appended_records
        written += partition.appended_bytes
    return {
        "partitions": held,
        "leading": leading,
        "bytes": size,
        "readers": readers,
        "appended_records": records,
        "appended_bytes": written,
    }


def statistics(partition: Partition) -> dict[str, Any]:
    """One snapshot in numbers."""
    return {
        **partition.log.statistics(),
        "topic": partition.topic,
        "partition": partition.index,
        "leader": partition.leads,
        "leader_epoch": partition.leader_epoch,
        "in_sync": [] if partition.state is None else sorted(partition.state.in_sync),
        "replicas": 0 if partition.state is None else len(partition.state.holders),
        "followers": _behind(partition),
        "committed": partition.committed,
        "high_watermark": partition.high_watermark,
        "stable_end": partition.stable_end,
        "transactions_waiting": len(partition.enlistments),
        "readers": len(partition.readers),
        "acks_waiting": partition.acks_waiting,
        "appended_batches": partition.appended_batches,
        "appended_records": partition.appended_records,
        "appended_bytes": partition.appended_bytes,
        "delivered_records": partition.delivered_records,
        "delivered_bytes": partition.delivered_bytes,
        "last_append_us": partition.log.last_append_us,
        "tail_bytes": partition.tail.used_bytes,
    }


def _behind(partition: Partition) -> dict[str, int]:
    """Of each replica that follows this leader, the records that it has not said it has."""
    if partition.leadership is None:
        return {}
    end = partition.log.log_end
    followers = partition.leadership.replicas.followers
    return {str(broker): end - max(0, follower.log_end) for broker, follower in followers.items()}
