"""What happens to one schedule: it is made, moved, paused, resumed, run now, and it fires. Pure.

    made ─► active ─┬─► fires ─► active with its next time, or over (None)
                    └─► paused, by a person or by a broker with a reason ─► resumed

All times are microseconds since 1970 in UTC. A schedule is the message of the protocol, which is also what the log has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from comet import records
from comet.errors import CalendarNotFound, InvalidArgument, InvalidSchedule
from comet.schedules.calendars import Calendar
from comet.schedules.due import LatePolicy, ScheduleEnd, default_policy, due_times, jitter_us, next_time
from comet.schedules.spec import TIME_MAX_US, At, Cron, Schedule, calendar_of, parse_schedule
from comet.schedules.zones import TZDATA
from comet.types import check_schedule_id
from comet.v1 import records_pb2
from comet.v1 import schedules_pb2 as pb
from comet.wire.record_ttl import check_ttl
from comet_broker import limits

PARTITIONS: Final = 4  # of `__schedules`
LATE_MAX_MS_MIN: Final = 1_000
DAY_MS: Final = 86_400_000
YEAR_MS: Final = 366 * DAY_MS
_INT64_MAX: Final = (1 << 63) - 1


def key_of(topic: str, schedule_id: str) -> bytes:
    """Its key in the log: the topic's name has no '/'."""
    return f"{topic}/{schedule_id}".encode()


def partition_of(topic: str, schedule_id: str) -> int:
    return records.partition_for(key_of(topic, schedule_id), PARTITIONS)


def is_due_once(schedule: pb.Schedule) -> bool:
    return schedule.spec.startswith("at ")


def due_us(schedule: pb.Schedule) -> int | None:
    """When it fires next; None: not before it is changed."""
    if schedule.paused or not schedule.next_us:
        return None
    return schedule.next_us + jitter_us(schedule.id, schedule.next_us, 1000 * schedule.jitter_ms)


# ---- made and changed


def made(put: pb.SchedulePut, topic: str, now_us: int, calendars: Mapping[str, Calendar]) -> pb.Schedule:
    """A new schedule by a request. Raises InvalidArgument, InvalidSchedule, CalendarNotFound."""
    given = put.schedule
    check_schedule_id(given.id)
    found = pb.Schedule(
        topic=topic,
        id=given.id,
        late=given.late,
        late_max_ms=given.late_max_ms,
        jitter_ms=given.jitter_ms,
        end_us=given.end_us,
        fires_max=given.fires_max,
        created_us=now_us,
    )
    _set_record(found, given.record)
    if put.HasField("delay_ms"):
        if given.spec:
            raise InvalidArgument("a schedule has either a spec or a delay")
        if put.delay_ms > YEAR_MS:
            raise InvalidArgument(f"a delay is at most {YEAR_MS} ms, a year, not {put.delay_ms}")
        spec: Schedule = At(now_us + 1000 * put.delay_ms)
    else:
        spec = parse_schedule(given.spec)
    _check_policy(found, spec)
    _set_times(found, spec, now_us, calendars)
    return found


def _set_record(schedule: pb.Schedule, given: records_pb2.Record) -> None:
    if given.HasField("expected"):
        raise InvalidArgument("the record of a schedule has no `expected`")
    if given.ttl_ms:
        check_ttl(given.ttl_ms)
    schedule.record.CopyFrom(given)
    for name in ("timestamp_us", "offset", "expires_us"):
        schedule.record.ClearField(name)


def _check_policy(schedule: pb.Schedule, spec: Schedule) -> None:
    if schedule.late:
        try:
            LatePolicy(schedule.late)
        except ValueError:
            raise InvalidArgument(
                f"late is {', '.join(policy.value for policy in LatePolicy)}, not {schedule.late[:64]!r}"
            ) from None
    if schedule.late == LatePolicy.SKIP.value and not LATE_MAX_MS_MIN <= schedule.late_max_ms <= YEAR_MS:
        raise InvalidArgument(f"late=skip needs late_max_ms, from {LATE_MAX_MS_MIN} to {YEAR_MS}")
    if schedule.late != LatePolicy.SKIP.value and schedule.late_max_ms:
        raise InvalidArgument("late_max_ms goes with late=skip")
    if schedule.jitter_ms > DAY_MS:
        raise InvalidArgument(f"jitter_ms is at most {DAY_MS}, a day")
    if not 0 <= schedule.end_us <= TIME_MAX_US:
        raise InvalidArgument("the end of a schedule is from 1970 to 2199")
    if isinstance(spec, At) and (schedule.end_us or schedule.fires_max):
        raise InvalidArgument("a schedule that is due once has neither end nor fires_max")


def _set_times(schedule: pb.Schedule, spec: Schedule, now_us: int, calendars: Mapping[str, Calendar]) -> None:
    """Raises InvalidArgument if it is never due."""
    found = spec.time_us if isinstance(spec, At) else next_time(spec, now_us, calendars)
    if isinstance(found, ScheduleEnd):
        raise InvalidArgument(f"the schedule has no next time: {found}")
    if schedule.end_us and found > schedule.end_us:
        raise InvalidArgument("the schedule has no time before its end")
    schedule.spec = str(spec)
    schedule.next_us = found
    schedule.tzdata = TZDATA
    _unpause(schedule)


def moved(schedule: pb.Schedule, spec_text: str, now_us: int, calendars: Mapping[str, Calendar]) -> pb.Schedule:
    """With other times, after those that have fired. A schedule that was paused stays so."""
    found = _copy(schedule)
    spec = parse_schedule(spec_text)
    _check_policy(found, spec)
    _set_times(found, spec, max(now_us, schedule.fired_us), calendars)
    found.paused = schedule.paused and not schedule.waits_for
    found.reason = schedule.reason if found.paused else ""
    return found


def paused(schedule: pb.Schedule, reason: str = "", waits_for: str = "") -> pb.Schedule:
    """By a broker, with a reason, or by a person."""
    found = _copy(schedule)
    found.paused, found.reason, found.waits_for = True, reason[: limits.SCHEDULE_REASON_CHARS_MAX], waits_for
    return found


def resumed(schedule: pb.Schedule, now_us: int, calendars: Mapping[str, Calendar]) -> pb.Schedule:
    """Active again; from now on, so that times meanwhile do not fire, nor those that have fired, if a clock was set
    back. One that is due once keeps its time."""
    found = _copy(schedule)
    spec = parse_schedule(found.spec)
    if not isinstance(spec, At):
        _set_times(found, spec, max(now_us, schedule.fired_us), calendars)
    _unpause(found)
    return found


def run(schedule: pb.Schedule, now_us: int) -> pb.Schedule:
    """Due now."""
    if schedule.paused:
        raise InvalidArgument(f"schedule {schedule.id!r} is paused: resume it first")
    found = _copy(schedule)
    found.next_us = now_us
    return found


def _copy(schedule: pb.Schedule) -> pb.Schedule:
    found = pb.Schedule()
    found.CopyFrom(schedule)
    found.ClearField("revision")
    return found


def _unpause(schedule: pb.Schedule) -> None:
    schedule.paused, schedule.reason, schedule.waits_for = False, "", ""


def renewed(schedule: pb.Schedule, now_us: int, calendars: Mapping[str, Calendar]) -> pb.Schedule | None:
    """With its next time computed again, after its calendar or the rules of time zones have changed; None: it stays as
    it is. Times that are over already stay due."""
    if (schedule.paused and not schedule.waits_for) or (not schedule.paused and schedule.next_us <= now_us):
        return None
    found = _copy(schedule)
    try:
        spec = parse_schedule(schedule.spec)
        if isinstance(spec, At):
            return None
        at = next_time(spec, max(now_us, schedule.fired_us), calendars)
    except (CalendarNotFound, InvalidSchedule) as error:
        at = ScheduleEnd(str(error), calendar_name(schedule))
    if isinstance(at, ScheduleEnd):
        found.paused, found.reason, found.waits_for = True, str(at), at.calendar
    else:
        found.next_us, found.tzdata = at, TZDATA
        _unpause(found)
    return None if _copy(schedule) == found else found


def calendar_name(schedule: pb.Schedule) -> str:
    """The calendar that its times depend on; empty: none, or its spec cannot be read."""
    if schedule.spec.startswith(("at ", "every ")):
        return ""
    try:
        return calendar_of(parse_schedule(schedule.spec))
    except InvalidSchedule:
        return ""


def uses_zone(schedule: pb.Schedule) -> bool:
    """Whether other rules of time zones may give it other times."""
    if schedule.spec.startswith(("at ", "every ", "calendar:")):
        return False
    try:
        return isinstance(parse_schedule(schedule.spec), Cron)
    except InvalidSchedule:
        return False


# ---- fired


@dataclass(frozen=True, slots=True)
class Fired:
    """The records of a schedule that is due, and what becomes of it; None: it is over."""

    records: tuple[records_pb2.Record, ...]
    after: pb.Schedule | None
    skipped: int = 0


def fired(schedule: pb.Schedule, now_us: int, calendars: Mapping[str, Calendar], records_max: int) -> Fired:
    """Of a schedule that is due now. A broker that cannot tell its times pauses it."""
    try:
        spec = parse_schedule(schedule.spec)
        policy = LatePolicy(schedule.late) if schedule.late else default_policy(spec)
        late = jitter_us(schedule.id, schedule.next_us, 1000 * schedule.jitter_ms)
        due = due_times(
            spec, schedule.next_us, now_us - late, calendars, policy, late_max_us=1000 * schedule.late_max_ms
        )
    except (CalendarNotFound, InvalidArgument, ValueError) as error:
        return Fired((), paused(schedule, str(error), calendar_name(schedule)))
    following: int | ScheduleEnd | None = None if isinstance(spec, At) else due.next
    times: Sequence[int] = due.fire
    if len(times) > records_max:
        times, following = times[:records_max], times[records_max]
    if schedule.end_us:
        times = [at for at in times if at <= schedule.end_us]
        if isinstance(following, int) and following > schedule.end_us:
            following = None
    if schedule.fires_max and schedule.fired + len(times) >= schedule.fires_max:
        times, following = times[: schedule.fires_max - schedule.fired], None
    made_of = tuple(_record(schedule, at, schedule.fired + 1 + index) for index, at in enumerate(times))
    return Fired(made_of, _after(schedule, times, following, due.skipped), due.skipped)


def _after(
    schedule: pb.Schedule, times: Sequence[int], following: int | ScheduleEnd | None, skipped: int
) -> pb.Schedule | None:
    if following is None or (isinstance(following, ScheduleEnd) and not following.calendar):
        return None
    found = _copy(schedule)
    found.fired += len(times)
    found.skipped += skipped
    if times:
        found.fired_us = times[-1]
    if isinstance(following, ScheduleEnd):
        found.paused, found.reason, found.waits_for = True, str(following), following.calendar
        return found
    found.next_us, found.tzdata = following, TZDATA
    return found


def _record(schedule: pb.Schedule, at_us: int, number: int) -> records_pb2.Record:
    found = records_pb2.Record()
    found.CopyFrom(schedule.record)
    found.timestamp_us = at_us
    for name, value in (("id", schedule.id), ("due", str(at_us)), ("count", str(number))):
        found.headers.add(name=f"comet-schedule-{name}", value=value.encode())
    return found
