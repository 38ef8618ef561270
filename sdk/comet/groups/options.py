"""The options of a group consumer, the state of its partitions, and the offsets it can commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, TypedDict

from comet import limits
from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.consumer import Isolation
from comet.consumer.fetcher import OutOfRange
from comet.consumer.record import Record, RecordBatch
from comet.consumer.replica_choice import ReadFrom
from comet.errors import InvalidArgument
from comet.groups.membership import AssignedPartition
from comet.types import Gap, StartLike, TopicPartition, check_topic_name
from comet.v1 import groups_pb2 as groups_pb
from comet.wire.corrupt import OnCorrupt
from comet.wire.transport import Connect

# Called with the partitions concerned; an awaitable result is awaited.
OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]
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


class GroupSettings(TypedDict, total=False):
    """The settings of a GroupConsumer, beside its group and the type of its values."""

    pattern: str
    start: StartLike
    instance: str
    session_timeout_ms: int
    release_timeout_ms: int
    commit_interval_ms: float
    auto_commit: bool
    isolation: Isolation
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_lost: OnPartitions | None
    buffer_bytes: int
    on_out_of_range: OutOfRange
    on_gap: Callable[[Gap], None] | None
    on_corrupt: OnCorrupt
    read_from: ReadFrom
    rack: str
    name: str
    connect: Connect | None
    random: Random | None
    clock_us: Callable[[], int]


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


def join_frame(
    group: str,
    topics: Sequence[str],
    pattern: str,
    kind: groups_pb.GroupKind,
    client: str,
    instance: str,
    session_timeout_ms: int,
    release_timeout_ms: int,
) -> groups_pb.Join:
    """The Join request of a member. Raises InvalidArgument for options that a coordinator refuses."""
    if not topics and not pattern:
        raise InvalidArgument("no topics given: name topics, or give a pattern")
    if len(pattern) > limits.PATTERN_CHARS_MAX:
        raise InvalidArgument(f"a pattern has at most {limits.PATTERN_CHARS_MAX} characters")
    if not limits.SESSION_TIMEOUT_MS_MIN <= session_timeout_ms <= limits.SESSION_TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"session_timeout_ms must be from {limits.SESSION_TIMEOUT_MS_MIN} to {limits.SESSION_TIMEOUT_MS_MAX}"
        )
    return groups_pb.Join(
        group=check_group_name(group),
        instance=instance,
        topics=list(dict.fromkeys(map(check_topic_name, topics))),
        pattern=pattern,
        kind=kind,
        session_timeout_ms=session_timeout_ms,
        release_timeout_ms=release_timeout_ms,
        client=client,
    )


def check_group_name(group: str) -> str:
    """Checks a group's name: the rules are those of topic names."""
    try:
        return check_topic_name(group)
    except InvalidArgument as error:
        raise InvalidArgument(f"invalid group name; the rules for topics apply: {error.message}") from None
