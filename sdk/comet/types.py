"""The values that cross Comet's public API: plain frozen dataclasses, standard library only."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Annotated, Final, Literal, NamedTuple

from comet.errors import CometError, DataLoss, InvalidArgument, OffsetOutOfRange, Truncated

INT64: Final = object()
Int64 = Annotated[int, INT64]  # a string in JSON, whose numbers lose digits in browsers
UNLISTED: Final = object()  # marks a field or parameter that the JSON form and the command line leave out
GroupState = Literal["empty", "stable", "rebalancing"]
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}")
SCHEDULE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,199}")


class Example(NamedTuple):
    """An example of a value, for the description of its JSON form: a mark in an annotation."""

    value: int | str


class Acks(IntEnum):
    """When a produced batch is acknowledged: never, when the leader's log has it, or when every in-sync replica has it.

    >>> Acks.of(0), Acks.of(1), Acks.of("all")
    (<Acks.NONE: 0>, <Acks.LEADER: 1>, <Acks.ALL: 2>)
    """

    NONE = 0
    LEADER = 1
    ALL = 2

    @classmethod
    def of(cls, value: Acks | Literal[0, 1, "all"]) -> Acks:
        """As users write it: 0, 1 or "all"."""
        match value:
            case Acks():
                return value
            case 0:
                return cls.NONE
            case 1:
                return cls.LEADER
            case "all":
                return cls.ALL
        raise InvalidArgument(f'acks must be 0, 1 or "all", not {value!r}')


@dataclass(frozen=True, slots=True)
class Receipt:
    """The broker's acknowledgement of a record: where it was written. `offset` is -1 with acks=0. A `duplicate` was
    written by an earlier request with the same idempotency key.

    >>> receipt = Receipt("quotes", partition=0, offset=41, append_time_us=1_767_225_600_000_000)
    >>> f"{receipt.topic}/{receipt.partition}/{receipt.offset}"
    'quotes/0/41'
    """

    topic: str
    partition: int
    offset: int
    append_time_us: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ScheduledReceipt:
    """The broker's acknowledgement of a delayed record: the schedule that writes it when it is due, at `next_us`. A
    `duplicate` was stored by an earlier request with the same id; `next_us` is None if that record has been written, or
    was cancelled.

    >>> receipt = ScheduledReceipt("reminders", "order-4711", next_us=1_796_135_400_000_000)
    >>> f"{receipt.topic}/{receipt.id}"
    'reminders/order-4711'
    """

    topic: str
    id: str
    next_us: int | None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ReceiptRange:
    """The broker's acknowledgement of consecutive records: where they were written. `first` is -1 with acks=0.

    >>> list(ReceiptRange("quotes", 0, first=40, count=2, append_time_us=0).offsets)
    [40, 41]
    """

    topic: str
    partition: int
    first: int
    count: int
    append_time_us: int

    @property
    def offsets(self) -> range:
        return range(self.first, self.first + self.count) if self.first >= 0 else range(0)


class TopicPartition(NamedTuple):
    """One partition of a topic. A plain tuple (topic, partition) can be used instead.

    >>> TopicPartition("quotes", 3) == ("quotes", 3)
    True
    """

    topic: str
    partition: int


# The names of the strategies by which the partitions of a group are assigned.
AssignmentStrategy = Literal["sticky", "range", "rack"]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in the list of groups. `kind` is "consumer" or "share", `state` "empty", "stable" or "rebalancing",
    `assignment` the strategy by which a consumer group assigns partitions: that of most members.

    >>> GroupSummary("engine", "consumer", "stable", 5, coordinator=1, generation=7, topics=("quotes",)).members
    5
    """

    name: str
    kind: Annotated[Literal["consumer", "share"], "consumer: members share partitions; share: records."]
    state: GroupState
    members: int
    coordinator: Annotated[int, "Id of the broker that is its coordinator."]
    generation: int
    topics: tuple[str, ...]
    assignment: Annotated[
        str, "Assignment strategy, that of most members: sticky, range or rack; empty in a share group."
    ] = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group: its assigned partitions, those that it is asked to release, and the assignment strategy that
    it asks for.

    >>> owned = (TopicPartition("quotes", 0),)
    >>> GroupMember("m1", "", "engine-1", owned, (), silent_ms=12, session_timeout_ms=10_000).owned[0].partition
    0
    """

    id: str
    instance: Annotated[str, "Instance id of a static member; otherwise empty."]
    client: Annotated[str, "The client's name."]
    owned: tuple[TopicPartition, ...]
    release: Annotated[tuple[TopicPartition, ...], "Partitions being revoked."]
    silent_ms: Annotated[int, "Milliseconds since its last heartbeat."]
    session_timeout_ms: int
    assignment: Annotated[str, "The assignment strategy that it asks for; empty in a share group."] = ""
    rack: Annotated[str, "Its rack; empty: unknown."] = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition: in records, and as the age of the oldest uncommitted one.

    `committed` is None without a committed offset, `drain_s` is None unless the lag shrinks. Of a share group,
    `committed` is the offset below which all records are done, `dead_waiting` the number of dead letters that could
    not be written yet, and `dead_problem` the reason.

    >>> PartitionLag("quotes", 0, "m1", committed=40, log_start=0, end=100, lag=60, age_s=1.5, drain_s=12.0).lag
    60
    """

    topic: str
    partition: int
    member: Annotated[str | None, "The member to which it is assigned; null: none."]
    committed: Annotated[Int64 | None, "Committed offset; null: none."]
    log_start: Int64
    end: Int64
    lag: Annotated[Int64, "Records."]
    age_s: Annotated[float, "Age of the oldest unprocessed record in seconds; 0: none."]
    drain_s: Annotated[float | None, "Time to process the lag at the recent rate; null: it does not shrink."] = None
    in_flight: Annotated[Int64, "Share groups: records acquired now."] = 0
    redelivered: Annotated[Int64, "Share groups: records delivered more than once."] = 0
    dead_lettered: Annotated[Int64, "Share groups: records that became dead letters."] = 0
    dead_waiting: Annotated[Int64, "Share groups: dead letters that could not be written yet."] = 0
    dead_problem: Annotated[str, "Why they could not be written; empty: no error."] = ""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group with its state, members and lag.

    >>> summary = GroupSummary("engine", "consumer", "empty", 0, 1, 7, ("quotes",))
    >>> GroupInfo(summary, members=(), lags=()).summary.state
    'empty'
    """

    summary: GroupSummary
    members: tuple[GroupMember, ...]
    lags: tuple[PartitionLag, ...]
    rebalances_us: tuple[int, ...] = ()  # the times of the last rebalances, as far as its coordinator knows


@dataclass(frozen=True, slots=True)
class ResetPartition:
    """The effect of a reset on one partition. `skipped` records are not read; if negative, read again.

    >>> ResetPartition("quotes", 0, before=40, after=100, skipped=60, note="").after
    100
    """

    topic: str
    partition: int
    before: Int64 | None
    after: Int64
    skipped: Annotated[Int64, "Records that are skipped; negative: read again."]
    note: Annotated[str, "For example: the log starts at 40: 12 records from 28 on are deleted."]


@dataclass(frozen=True, slots=True)
class LagPoint:
    """The lag of a group in one topic, all partitions together, at one moment.

    >>> LagPoint(1_767_225_600_000_000, "quotes", lag=60, age_s=1.5, committed=40, end=100).lag
    60
    """

    time_us: Int64
    topic: str
    lag: Int64
    age_s: float
    committed: Int64
    end: Int64


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap: offsets without a readable record, from `first` up to, not including, `end`.

    reason      "deleted": by retention; "damaged": no broker can read them, or they are in a batch that no
                reader can decode; "truncated": the log was truncated after a failure, and went on from `first`, so
                that other records have those offsets now
    error       the error that reported the gap, if there is one; equal gaps may have different errors

    >>> gap = Gap("quotes", partition=0, first=40, end=42, reason="truncated")
    >>> gap.end - gap.first
    2
    """

    topic: str
    partition: int
    first: int
    end: int
    reason: Literal["deleted", "truncated", "damaged"]
    error: CometError | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: CometError, topic: str, partition: int, position: int) -> Gap | None:
        """The gap that an error of a read at `position` reports; None if it reports none. A negative position: unknown.

            position before log_start    "deleted"
            position after log_end       "truncated"
            truncated below position     "truncated"
            a damaged range              "damaged"; also a corrupt batch

        >>> from comet.errors import Truncated
        >>> gap = Gap.of(Truncated("truncated", details={"log_end": "40"}), "quotes", 0, position=42)
        >>> gap, gap.next_offset
        (Gap(topic='quotes', partition=0, first=40, end=42, reason='truncated'), 40)
        """
        log_start, log_end = _offset_in(error, "log_start"), _offset_in(error, "log_end")
        match error:
            case OffsetOutOfRange() if 0 <= position < log_start:
                return cls(topic, partition, position, log_start, "deleted", error)
            case OffsetOutOfRange() | Truncated() if 0 <= log_end < position:
                return cls(topic, partition, log_end, position, "truncated", error)
            case DataLoss():
                first, end = _offset_in(error, "first"), _offset_in(error, "end")
                if 0 <= first < end and position < end:
                    return cls(topic, partition, max(first, position), end, "damaged", error)
        return None

    @property
    def next_offset(self) -> int:
        """The offset at which reading goes on: after a truncation the log continues at `first`."""
        return self.first if self.reason == "truncated" else self.end


def _offset_in(error: CometError, name: str) -> int:
    found = error.details.get(name, "")
    return int(found) if found.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class Earliest:
    """Start at the oldest record.

    >>> position("earliest", now_us=0) == Earliest()
    True
    """


@dataclass(frozen=True, slots=True)
class Latest:
    """Start with records that are written from now on.

    >>> position("latest", now_us=0) == Latest()
    True
    """


@dataclass(frozen=True, slots=True)
class AtOffset:
    """Start at this offset.

    >>> position(42, now_us=0) == AtOffset(42)
    True
    """

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start with the first record whose timestamp is this or later.

    >>> position("-1h", now_us=3_600_000_000) == AtTime(0)
    True
    """

    timestamp_us: int


Position = Earliest | Latest | AtOffset | AtTime
StartLike = Position | str | int | datetime | timedelta

_RELATIVE: Final = re.compile(r"-(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_UNIT_US: Final[Mapping[str, int]] = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def wall_clock_us() -> int:
    return time.time_ns() // 1000


def timestamp_us(when: datetime) -> int:
    """Microseconds since 1970; a naive datetime is local time, as everywhere in Python."""
    return (when.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def position(start: StartLike, *, now_us: int) -> Position:
    """Parses a start position.

    >>> position("earliest", now_us=0), position(42, now_us=0)
    (Earliest(), AtOffset(offset=42))
    >>> position("-1.5h", now_us=10_000_000_000)
    AtTime(timestamp_us=4600000000)
    >>> position("2026-01-01T00:00:00Z", now_us=0)
    AtTime(timestamp_us=1767225600000000)
    """
    match start:
        case Earliest() | Latest() | AtOffset() | AtTime():
            return start
        case bool():
            pass
        case int() if start >= 0:
            return AtOffset(start)
        case datetime():
            return AtTime(timestamp_us(start))
        case timedelta():
            return AtTime(now_us - abs(start) // timedelta(microseconds=1))
        case "earliest" | "beginning":
            return Earliest()
        case "latest" | "end" | "now":
            return Latest()
        case str() if start.isdecimal():
            return AtOffset(int(start))
        case str() if relative := _RELATIVE.fullmatch(start):
            return AtTime(now_us - round(float(relative[1]) * _UNIT_US[relative[2]]))
        case str():
            try:
                return AtTime(timestamp_us(datetime.fromisoformat(start)))
            except ValueError:
                pass
    raise InvalidArgument(
        f"invalid position {start!r}: use earliest, latest, an offset, a time such as "
        "2026-01-31T12:00:00Z, or a time ago such as -90s, -15m, -1h, -7d"
    )


def check_topic_name(name: str) -> str:
    """Returns the name if it is valid: letters, digits, '.', '_' and '-', at most 249, not starting with '.' or '-'."""
    if not isinstance(name, str) or not TOPIC_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not a valid topic name: use 1 to 249 letters, digits, '.', '_' and '-', "
            "beginning with a letter, digit or '_'"
        )
    return name


def check_schedule_id(schedule_id: str) -> str:
    """Returns the id of a schedule if it is valid."""
    if not isinstance(schedule_id, str) or not SCHEDULE_ID.fullmatch(schedule_id):
        raise InvalidArgument(
            f"{schedule_id!r:.80} is not a valid id of a schedule: use 1 to 200 letters, digits, '.', '_', ':' and "
            "'-', beginning with a letter, digit or '_'"
        )
    return schedule_id


AUDIT_TOPIC: Final = "__audit"  # the audit log of the brokers, which they alone write
SCHEDULES_TOPIC: Final = "__schedules"  # schedules and their states, which brokers alone write
ALERTS_TOPIC: Final = "__alerts"  # the rules of alerts and their states, which gateways write
APPLIED_TOPIC: Final = "__applied"  # what `comet apply` has made, which it writes


def is_internal_topic(name: str) -> bool:
    """Whether Comet itself writes the topic: its name begins with two underscores."""
    return name.startswith("__")


@dataclass(slots=True)
class Header:
    """One header of a record; names may repeat."""

    name: str
    value: bytes = field(default=b"")
