"""Schedules, whose records brokers write when they are due: `Admin.schedules`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from comet.admin.access import Requester
from comet.admin.documents import DRY_RUN
from comet.admin.parameters import Input, TopicName
from comet.client.retry import is_refused_for_now, repeat
from comet.errors import InvalidArgument
from comet.producer.idempotent_publish import record_to_pb
from comet.producer.value_encoder import ValueEncoder
from comet.types import SCHEDULE_ID, Int64, check_topic_name, timestamp_us
from comet.units import count as counted
from comet.units import time_text
from comet.v1 import schedules_pb2 as pb
from comet.values.record import Headers, Key, NewRecord
from comet.wire import protobuf

M = TypeVar("M", bound=Message)

ABSENT: Final = -1  # as an expected revision: the schedule must not exist
LIST_MAX: Final = 1_000
LISTED: Final = 100

ScheduleId = Annotated[
    str, Input("Id of a schedule, unique in its topic.", pattern=f"^{SCHEDULE_ID.pattern}$", example="open-report")
]
Spec = Annotated[
    str,
    Input(
        "When it is due, such as 'every 15m', 'cron 30 9 * * 1-5 America/New_York' or 'calendar:XNYS open-5m'.",
        example="every 15m",
    ),
]
ScheduleRevision = Annotated[Int64 | None, Input("Only if it has this revision.", 0, flag="--revision")]
Pairs: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule and its state, without its record.

    >>> print(comet.ScheduleInfo("quotes", "report", "every 15m", "fire_last", next_us=1_795_825_800_000_000))
    quotes/report: every 15m, next at 2026-11-28T00:30:00+00:00
    """

    topic: Annotated[str, "It gets the records."]
    id: Annotated[str, "Unique in the topic."]
    spec: Annotated[str, "When it is due: the canonical text."]
    late: Annotated[
        str,
        "What happens with late times: `fire`, `fire_last`, `fire_all` or `skip`; empty: `fire` for `at`, `fire_last` "
        "for the others.",
    ] = ""
    late_max_ms: Annotated[Int64, "For `skip`: times that are later have no record."] = 0
    jitter_ms: Annotated[Int64, "Each time is later by 0 to this, by a hash of id and time."] = 0
    end_us: Annotated[Int64, "It has no time after this one; 0: no end."] = 0
    fires_max: Annotated[Int64, "It ends after this many records; 0: no limit."] = 0
    paused: bool = False
    reason: Annotated[str, "Why a broker has paused it; empty: a person did, or it is not paused."] = ""
    waits_for: Annotated[str, "The calendar whose next version resumes it; empty: none."] = ""
    next_us: Annotated[Int64 | None, "When it is due next, without jitter; null: not known."] = None
    fired: Annotated[Int64, "Records so far."] = 0
    skipped: Annotated[Int64, "Late times without a record."] = 0
    fired_us: Annotated[Int64 | None, "The due time of the last record; null: none yet."] = None
    author: Annotated[str, "The client whose rights are checked when it fires."] = ""
    created_us: Int64 = 0
    tzdata: Annotated[str, "The version of the time zones that computed its next time."] = ""
    revision: Annotated[Int64, "That of its last change."] = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.id}: {self.spec}, {state_text(self)}"


def state_text(schedule: ScheduleInfo) -> str:
    """The next time of a schedule, or that it is paused and why."""
    if schedule.paused:
        return f"paused: {schedule.reason}" if schedule.reason else "paused"
    return "no next time" if schedule.next_us is None else f"next at {time_text(schedule.next_us)}"


@dataclass(frozen=True, slots=True)
class ScheduleDetails:
    """A schedule and its record. `value` None: a tombstone. `partition` None: by the key, or any.

    >>> info = comet.ScheduleInfo("quotes", "report", "every 15m")
    >>> comet.ScheduleDetails(info, key=None, value=b"now", headers=(), partition=None, ttl_ms=None).value
    b'now'
    """

    schedule: ScheduleInfo
    key: bytes | None
    value: bytes | None
    headers: Pairs
    partition: int | None
    ttl_ms: Annotated[Int64 | None, "The time to live of its records; -1: no expiry; null: that of the topic."]


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """A page of schedules, by topic and id.

    >>> print(comet.ScheduleList((), after=None))
    0 schedules
    """

    schedules: tuple[ScheduleInfo, ...]
    after: Annotated[str | None, "`after` of the next page; null: this is the last one."]

    def __str__(self) -> str:
        return counted(len(self.schedules), "schedule") + ("" if self.after is None else ", and more follow")


@dataclass(frozen=True, slots=True)
class SchedulePut:
    """A schedule that was stored.

    >>> info = comet.ScheduleInfo("quotes", "report", "every 15m", next_us=1_795_825_800_000_000)
    >>> print(comet.SchedulePut(False, info, created=True))
    created quotes/report: every 15m, next at 2026-11-28T00:30:00+00:00
    """

    dry_run: Annotated[bool, DRY_RUN]
    schedule: ScheduleInfo
    created: Annotated[bool, "There was no schedule of that id."]

    def __str__(self) -> str:
        if self.dry_run:
            return f"would {'create' if self.created else 'replace'} {self.schedule}"
        return f"{'created' if self.created else 'replaced'} {self.schedule}"


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A schedule that was cancelled, paused, resumed, run or moved.

    >>> info = comet.ScheduleInfo("quotes", "report", "every 15m", paused=True)
    >>> print(comet.ScheduleChange(False, "paused", info))
    paused quotes/report: every 15m
    """

    dry_run: Annotated[bool, DRY_RUN]
    change: Annotated[str, "`cancelled`, `paused`, `resumed`, `run` or `moved`."]
    schedule: Annotated[ScheduleInfo, "Its state afterwards; the last one if it is over."]

    def __str__(self) -> str:
        one = self.schedule
        if self.change == "cancelled":  # a question has the effect after the schedule's name
            return f"its times are {one.spec}, {state_text(one)}" if self.dry_run else f"cancelled {one.topic}/{one.id}"
        if self.change == "run":
            return f"{one.topic}/{one.id} {'would be' if self.dry_run else 'is'} due now"
        shown = f"{one.topic}/{one.id}: {one.spec}" if self.change == "paused" else str(one)
        return f"would be {self.change}: {shown}" if self.dry_run else f"{self.change} {shown}"


class ScheduleAdmin:
    """Manages schedules: `Admin.schedules`.

    A schedule has a record, which a broker writes to its topic each time that it is due. Their language, and what
    happens with late times, is in docs/schedules.md.

    >>> async def example(address: str) -> None:
    ...     async with comet.Admin(address) as admin:
    ...         await admin.schedules.put_schedule("quotes", "report", "cron 30 9 * * 1-5 UTC", value=b"report")
    ...         print([one.id for one in (await admin.schedules.list_schedules("quotes")).schedules])
    ...         await admin.schedules.cancel_schedule("quotes", "report")
    >>> run(example)
    ['report']
    """

    def __init__(self, request: Requester, timeout_ms: int, random: Random) -> None:
        self._call = request
        self._timeout_ms = timeout_ms
        self._random = random

    async def _request(self, method: str, request: Message, response: type[M]) -> M:
        """The answer, once the partition of the schedule has a leader that has read it. Raises the error of a put."""

        async def once(_: int) -> M:
            answer = await self._call(method, request, response)
            if isinstance(answer, pb.PutSchedulesResponse) and answer.results[0].HasField("error"):
                raise protobuf.error_from_pb(answer.results[0].error)
            return answer

        return await repeat(once, self._timeout_ms, self._random, again=is_refused_for_now)

    async def list_schedules(
        self,
        topic: Annotated[str | None, Input("Only those of this topic.", flag="--topic -t")] = None,
        *,
        prefix: Annotated[str, Input("Only ids that begin with this; needs a topic.")] = "",
        paused: Annotated[bool | None, Input("Only paused ones, or only others.")] = None,
        after: Annotated[str | None, Input("`after` of the page before.")] = None,
        limit: Annotated[int, Input("Schedules at most.", 1, LIST_MAX)] = LISTED,
    ) -> ScheduleList:
        """A page of the schedules of a topic, or of all topics that the caller may read, by topic and id.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         print(await admin.schedules.list_schedules("quotes", paused=True))
        >>> run(example)
        0 schedules
        """
        if prefix and topic is None:
            raise InvalidArgument("a prefix of ids needs a topic")
        if not 1 <= limit <= LIST_MAX:
            raise InvalidArgument(f"limit must be from 1 to {LIST_MAX}, not {limit!r}")
        request = pb.ListSchedulesRequest(
            topic="" if topic is None else check_topic_name(topic),
            prefix=prefix,
            after=after or "",
            limit=limit,
            state=_STATES[paused],
        )
        answer = await self._request("ListSchedules", request, pb.ListSchedulesResponse)
        return ScheduleList(tuple(map(_info, answer.schedules)), answer.after or None)

    async def get_schedule(self, topic: TopicName, id: ScheduleId) -> ScheduleDetails:
        """A schedule with its record. Raises ScheduleNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         quote = {"bid": 1.08}
        ...         await admin.schedules.put_schedule("quotes", "open", "every 1h", value=quote, key="EURUSD")
        ...         found = await admin.schedules.get_schedule("quotes", "open")
        ...         print(found.key, found.value, found.schedule.spec)
        >>> run(example)
        b'EURUSD' b'{"bid":1.08}' every 1h
        """
        return _details(await self._request("GetSchedule", _named(topic, id, None), pb.Schedule))

    async def put_schedule(
        self,
        topic: TopicName,
        id: ScheduleId,
        spec: Spec,
        *,
        value: Any,
        key: Key = None,
        headers: Headers | None = None,
        partition: int | None = None,
        ttl_ms: int | None = None,
        late: str = "",
        late_max_ms: int = 0,
        jitter_ms: int = 0,
        end: datetime | str | int | None = None,
        fires_max: int = 0,
        revision: int | None = None,
        dry_run: bool = False,
    ) -> SchedulePut:
        """Stores a schedule, in place of an earlier one with the same id. With an empty id a broker makes one.

        `value`, `key`, `headers`, `partition` and `ttl_ms` are those of `Producer.send`, for each record. `late` says
        what happens with times that were missed: `fire` (the first; the default of `at`), `fire_last` (the default of
        the others), `fire_all`, or `skip`, which leaves out those that are later than `late_max_ms`. `jitter_ms` moves
        each time by 0 to that. It ends after `end`, a datetime, a text with a zone or microseconds
        since 1970, and after `fires_max` records; 0: no limit.

        With `revision` only in place of this one, -1 for none: else raises RevisionMismatch, and nothing changes. With
        `dry_run` nothing changes, and the answer is the effect. Raises InvalidSchedule, CalendarNotFound,
        TopicNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         done = await admin.schedules.put_schedule(
        ...             "quotes", "close", "at 2099-12-31T18:00 America/New_York", value=b"closed", revision=-1
        ...         )
        ...         print(done)
        >>> run(example)
        created quotes/close: at 2099-12-31T18:00:00 America/New_York, next at 2099-12-31T23:00:00+00:00
        """
        _check_spec(spec)
        record = NewRecord(value, key, () if headers is None else headers, None, partition, ttl_ms)
        try:
            schedule = pb.Schedule(
                topic=check_topic_name(topic),
                id=id,
                spec=spec,
                record=record_to_pb(record, ValueEncoder().encode),
                late=late,
                late_max_ms=late_max_ms,
                jitter_ms=jitter_ms,
                end_us=_end_us(end),
                fires_max=fires_max,
            )
            put = pb.SchedulePut(schedule=schedule, revision=revision)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"the schedule cannot be stored: {error}") from error
        request = pb.PutSchedulesRequest(topic=topic, schedules=[put], dry_run=dry_run)
        (result,) = (await self._request("PutSchedules", request, pb.PutSchedulesResponse)).results
        return SchedulePut(dry_run, _info(result.schedule), result.created)

    async def cancel_schedule(
        self, topic: TopicName, id: ScheduleId, *, revision: ScheduleRevision = None, dry_run: bool = False
    ) -> ScheduleChange:
        """Deletes a schedule: it never fires again. With `revision` only this one. Raises ScheduleNotFound,
        RevisionMismatch.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         try:
        ...             await admin.schedules.cancel_schedule("quotes", "report")
        ...         except comet.ScheduleNotFound as error:
        ...             print(error.code)
        >>> run(example)
        SCHEDULE_NOT_FOUND
        """
        return await self._change("CancelSchedule", "cancelled", _named(topic, id, revision, dry_run=dry_run))

    async def pause_schedule(
        self, topic: TopicName, id: ScheduleId, *, revision: ScheduleRevision = None, dry_run: bool = False
    ) -> ScheduleChange:
        """Pauses a schedule: it does not fire until it is resumed. Raises ScheduleNotFound, RevisionMismatch.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.schedules.put_schedule("quotes", "report", "every 1h", value=b"report")
        ...         print(await admin.schedules.pause_schedule("quotes", "report"))
        >>> run(example)
        paused quotes/report: every 1h
        """
        return await self._change("PauseSchedule", "paused", _named(topic, id, revision, dry_run=dry_run))

    async def resume_schedule(
        self, topic: TopicName, id: ScheduleId, *, revision: ScheduleRevision = None, dry_run: bool = False
    ) -> ScheduleChange:
        """Resumes a paused schedule, from its next time on. Times that are over are not made up for; one that was to
        fire once fires now if its time is over. Raises ScheduleNotFound, RevisionMismatch, CalendarNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.schedules.put_schedule("quotes", "report", "every 1h", value=b"report")
        ...         await admin.schedules.pause_schedule("quotes", "report")
        ...         print((await admin.schedules.resume_schedule("quotes", "report")).schedule.paused)
        >>> run(example)
        False
        """
        return await self._change("ResumeSchedule", "resumed", _named(topic, id, revision, dry_run=dry_run))

    async def run_schedule(
        self, topic: TopicName, id: ScheduleId, *, revision: ScheduleRevision = None, dry_run: bool = False
    ) -> ScheduleChange:
        """Makes a schedule due now, once, beside its times; one that was to fire once is over then. It must not be
        paused. Without an answer it may be due all the same: with `revision` a repeated request does not fire it again.
        Raises ScheduleNotFound, RevisionMismatch.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.schedules.put_schedule("quotes", "report", "every 1h", value=b"report")
        ...         print((await admin.schedules.run_schedule("quotes", "report")).change)
        >>> run(example)
        run
        """
        return await self._change("RunSchedule", "run", _named(topic, id, revision, dry_run=dry_run))

    async def move_schedule(
        self, topic: TopicName, id: ScheduleId, spec: Spec, *, revision: ScheduleRevision = None, dry_run: bool = False
    ) -> ScheduleChange:
        """Gives a schedule other times; its record stays. Raises ScheduleNotFound, RevisionMismatch, InvalidSchedule,
        CalendarNotFound.

        >>> async def example(address: str) -> None:
        ...     async with comet.Admin(address) as admin:
        ...         await admin.schedules.put_schedule("quotes", "report", "every 1h", value=b"report")
        ...         print((await admin.schedules.move_schedule("quotes", "report", "every 90m")).schedule.spec)
        >>> run(example)
        every 90m
        """
        _check_spec(spec)
        named = _named(topic, id, revision, dry_run=dry_run)
        request = pb.MoveScheduleRequest(
            topic=named.topic, id=named.id, spec=spec, revision=revision, dry_run=named.dry_run
        )
        return await self._change("MoveSchedule", "moved", request)

    async def _change(
        self, call: str, change: str, request: pb.ScheduleRequest | pb.MoveScheduleRequest
    ) -> ScheduleChange:
        answer = await self._request(call, request, pb.Schedule)
        return ScheduleChange(request.dry_run, change, _info(answer))


_STATES: Final = {
    None: pb.SCHEDULE_STATE_ANY,
    True: pb.SCHEDULE_STATE_PAUSED,
    False: pb.SCHEDULE_STATE_ACTIVE,
}


def _named(topic: str, id: str, revision: int | None, *, dry_run: bool = False) -> pb.ScheduleRequest:
    try:
        return pb.ScheduleRequest(topic=check_topic_name(topic), id=id, revision=revision, dry_run=dry_run)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"no schedule can have this id or revision: {error}") from error


def _check_spec(spec: str) -> None:
    """Raises InvalidSchedule, with the character where the text is wrong."""
    from comet.schedules.spec import parse_schedule  # other commands need no cron

    parse_schedule(spec)


def _end_us(end: datetime | str | int | None) -> int:
    if end is None or isinstance(end, int):
        return end or 0
    if isinstance(end, datetime):
        return timestamp_us(end)
    from comet.schedules.spec import parse_time

    return parse_time(end)


def _info(found: pb.Schedule) -> ScheduleInfo:
    return ScheduleInfo(
        found.topic,
        found.id,
        found.spec,
        found.late,
        found.late_max_ms,
        found.jitter_ms,
        found.end_us,
        found.fires_max,
        found.paused,
        found.reason,
        found.waits_for,
        found.next_us or None,
        found.fired,
        found.skipped,
        found.fired_us or None,
        found.author,
        found.created_us,
        found.tzdata,
        found.revision,
    )


def _details(found: pb.Schedule) -> ScheduleDetails:
    record = found.record
    return ScheduleDetails(
        _info(found),
        record.key if record.HasField("key") else None,
        record.value if record.HasField("value") else None,
        tuple((header.name, header.value) for header in record.headers),
        record.partition if record.HasField("partition") else None,
        record.ttl_ms or None,
    )
