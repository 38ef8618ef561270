"""The state of a member's partitions, and the offsets that it can commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from comet.consumer.broker_subscription import PartitionSubscription
from comet.groups.membership import AssignedPartition
from comet.types import TopicPartition
from comet.values.record import Record, RecordBatch

# Arguments of a commit: a record or batch, several, or offsets per partition.
Handled = (
    Record[Any]
    | RecordBatch[Any]
    | Iterable[Record[Any] | RecordBatch[Any]]
    | Mapping[TopicPartition, int]
    | Mapping[tuple[str, int], int]
)


class MemberPartition:
    """The state of an assigned partition, from the assignment until it is lost or released."""

    def __init__(self, assignment: AssignedPartition) -> None:
        self.assignment = assignment
        self.tp = assignment.tp
        self.committed = assignment.offset
        self.first = assignment.offset  # the first offset that was read
        self.reader: PartitionSubscription | None = None  # None: the first position is not known yet
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.releasing = False
        self.revoked = False  # `on_revoked` was called for it

    def begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)


def begins_of(handled: Handled | None) -> dict[TopicPartition, int]:
    """Per partition the first offset of the processed records and batches.

    >>> begins_of({("quotes", 0): 5})
    {}
    """
    found: dict[TopicPartition, int] = {}
    if handled is None or isinstance(handled, Mapping):
        return found
    for one in [handled] if isinstance(handled, Record | RecordBatch) else handled:
        first = one.offsets[0] if isinstance(one, RecordBatch) else one.offset
        tp = TopicPartition(one.topic, one.partition)
        found[tp] = min(first, found.get(tp, first))
    return found


def offsets_of(handled: Handled) -> dict[TopicPartition, int]:
    """Per partition the offset after the processed records.

    >>> offsets_of({("quotes", 0): 5})
    {TopicPartition(topic='quotes', partition=0): 5}
    """
    if isinstance(handled, Mapping):
        return {TopicPartition(*tp): offset for tp, offset in handled.items()}
    found: dict[TopicPartition, int] = {}
    for one in [handled] if isinstance(handled, Record | RecordBatch) else handled:
        behind = one.next_offset if isinstance(one, RecordBatch) else one.offset + 1
        tp = TopicPartition(one.topic, one.partition)
        found[tp] = max(behind, found.get(tp, 0))
    return found
