"""A delayed record: a schedule that fires once. The checks of its time and id, and the request for it. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple, TypeAlias

from comet import limits
from comet.errors import CometError, InvalidArgument
from comet.producer.partitioner import HeaderPairs
from comet.types import ScheduledReceipt, check_schedule_id, timestamp_us
from comet.units import parse_duration_ms
from comet.v1 import records_pb2 as pb
from comet.v1 import schedules_pb2 as schedules
from comet.wire.acting import ActingFor

# A duration, seconds, or a text such as "5m".
Delay: TypeAlias = timedelta | float | str


class DueTime(NamedTuple):
    """When a record is due: in some time by the clock of the broker that stores it, or else at a time."""

    delay_ms: int | None
    due: datetime | None = None

    @property
    def spec(self) -> str:
        """The text of the schedule; empty for a delay."""
        return "" if self.due is None else f"at {self.due.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"

    def at_us(self, now_us: int) -> int:
        """Microseconds since 1970."""
        if self.due is not None:
            return timestamp_us(self.due)
        assert self.delay_ms is not None
        return now_us + 1000 * self.delay_ms


def due_time(delay: Delay | None, due: datetime | None) -> DueTime:
    """The checked time. Raises InvalidArgument.

    >>> due_time("5m", None).delay_ms, due_time(1.5, None).delay_ms
    (300000, 1500)
    >>> due_time(None, datetime(2026, 12, 1, 9, 30, tzinfo=UTC)).spec
    'at 2026-12-01T09:30:00Z'
    """
    if (delay is None) == (due is None):
        raise InvalidArgument("a delayed record has either delay or due")
    if delay is not None:
        delay_ms = _milliseconds(delay)
        if not 0 <= delay_ms <= limits.DELAY_MS_MAX:
            raise InvalidArgument(f"a delay is from 0 to {limits.DELAY_MS_MAX} ms, a year, not {delay!r}")
        return DueTime(delay_ms)
    if not isinstance(due, datetime) or due.utcoffset() is None:
        raise InvalidArgument(f"due must be a datetime with a time zone, not {due!r}")
    return DueTime(None, due)


def _milliseconds(delay: Any) -> int:
    if isinstance(delay, timedelta):
        return round(delay / timedelta(milliseconds=1))
    if isinstance(delay, str):
        if not delay.strip()[-1:].isalpha():  # "5" is five milliseconds elsewhere, and 5 is five seconds here
            raise InvalidArgument(f"delay {delay!r} has no unit: write 5s or 5m, or seconds as a number")
        return parse_duration_ms(delay)
    if isinstance(delay, int | float) and not isinstance(delay, bool) and math.isfinite(delay):
        return round(delay * 1000)
    raise InvalidArgument(f'delay must be a timedelta, seconds, or a text such as "5m", not {delay!r}')


def schedule_id_of(given: str | None, random: Random) -> str:
    """A new id for a record, or the given one. Raises InvalidArgument."""
    return f"{random.getrandbits(128):032x}" if given is None else check_schedule_id(given)


def refused_in_transaction() -> InvalidArgument:
    """The error of a delayed record in a transaction."""
    return InvalidArgument(
        "a transaction cannot hold a delayed record: send it with a comet.Producer, or app.producer in a handler, and "
        "with a schedule_id made of what it is about, so that it is stored once if the transaction is repeated"
    )


class DelayedRecord:
    """A delayed record until it is stored, and its outcome. Owned by its producer's DelayedSends."""

    __slots__ = (
        "acting",
        "count",
        "deadline",
        "done",
        "error",
        "problem",
        "put",
        "receipt",
        "seen",
        "size",
        "topic",
        "waiters",
    )

    def __init__(self, topic: str, put: schedules.SchedulePut, size: int, deadline: float) -> None:
        self.topic = topic
        self.acting: ActingFor | None = None  # the user of a gateway that is its author
        self.put: schedules.SchedulePut | None = put  # until it is done
        self.size = size
        self.count = 1
        self.deadline = deadline
        self.done = False
        self.receipt: ScheduledReceipt | None = None
        self.error: CometError | None = None
        self.problem: CometError | None = None  # of the last request
        self.waiters: list[Any] | None = None
        self.seen = False  # the error was given to a caller


def put_of(
    schedule_id: str,
    due: DueTime,
    value: bytes | None,
    key: bytes | None,
    headers: HeaderPairs,
    partition: int | None,
    ttl_ms: int,
) -> schedules.SchedulePut:
    """The schedule of a record. Without a partition the broker chooses it, by the key if there is one."""
    record = pb.Record(
        value=value,
        key=key,
        headers=[pb.Header(name=name, value=content) for name, content in headers],
        partition=partition,
        ttl_ms=ttl_ms,
    )
    schedule = schedules.Schedule(id=schedule_id, spec=due.spec, record=record)
    return schedules.SchedulePut(schedule=schedule, delay_ms=due.delay_ms, fresh=True)
