"""When a schedule is due: its next time, the late ones, and jitter. Pure: the time is an argument.

All times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from hashlib import blake2b
from typing import Final

from comet.errors import CalendarNotFound, InvalidArgument
from comet.schedules.calendars import Calendar
from comet.schedules.cron import LAST_DATE, next_cron
from comet.schedules.spec import TIME_MAX_US, At, CalendarTime, Cron, Every, Schedule
from comet.schedules.zones import local_time, zone_of

LATE_FIRED_MAX: Final = 1_000  # late times that fire at once


@dataclass(frozen=True, slots=True)
class ScheduleEnd:
    """The schedule has no later time. `calendar` names the calendar whose known sessions end: a newer version of it
    may have more."""

    reason: str
    calendar: str = ""

    def __str__(self) -> str:
        return self.reason


def next_time(schedule: Schedule, after_us: int, calendars: Mapping[str, Calendar]) -> int | ScheduleEnd:
    """The first time strictly after another one. Raises CalendarNotFound, and InvalidArgument for a time outside 1970
    to 2199.

    >>> from comet.schedules.spec import parse_schedule
    >>> next_time(parse_schedule("every 15m"), 1_780_000_000_000_000, {})
    1780000200000000
    """
    if not -1 <= after_us <= TIME_MAX_US:
        raise InvalidArgument("the time to start from is not from 1970 to 2199")
    match schedule:
        case At():
            return schedule.time_us if schedule.time_us > after_us else ScheduleEnd("it comes once, and that is over")
        case Every():
            return _within(_next_step(schedule, after_us))
        case CalendarTime():
            calendar = _calendar(calendars, schedule.calendar)
            found = calendar.next_event(schedule.event, after_us - schedule.offset_us)
            return _calendar_end(calendar, schedule.event) if found is None else found + schedule.offset_us
        case Cron(calendar=""):
            return _within(next_cron(schedule.cron, zone_of(schedule.zone), after_us))
        case Cron():
            return _on_sessions(schedule, after_us, _calendar(calendars, schedule.calendar))


def _within(found: int | None) -> int | ScheduleEnd:
    return ScheduleEnd("no time before 2200") if found is None or found > TIME_MAX_US else found


def _next_step(schedule: Every, after_us: int) -> int:
    first = schedule.from_us
    if first is not None and after_us < first:
        return first
    base = first or 0
    return base + ((after_us - base) // schedule.period_us + 1) * schedule.period_us


def _calendar(calendars: Mapping[str, Calendar], name: str) -> Calendar:
    found = calendars.get(name)
    if found is None:
        raise CalendarNotFound(f"calendar {name!r} does not exist in this cluster")
    return found


def _calendar_end(calendar: Calendar, event: str = "") -> ScheduleEnd:
    if event.startswith("break") and not any(session.breaks for session in calendar.sessions):
        return ScheduleEnd(f"the sessions of calendar {calendar.name} have no breaks", calendar.name)
    return ScheduleEnd(
        f"calendar {calendar.name} is known until {calendar.known_until} only: import a newer version", calendar.name
    )


def _on_sessions(schedule: Cron, after_us: int, calendar: Calendar) -> int | ScheduleEnd:
    zone = zone_of(schedule.zone or calendar.zone)
    start = local_time(after_us, zone).date() - timedelta(days=1)  # see next_cron
    for text in calendar.dates_from(start.isoformat()):
        day = date.fromisoformat(text)
        if schedule.cron.matches(day):
            found = schedule.cron.first_on(day, zone, after_us)
            if found is not None:
                return found if day <= LAST_DATE else _calendar_end(calendar)
    return _calendar_end(calendar)


# ---- late times


class LatePolicy(str, Enum):
    """What happens with times that are over before they could fire, as after an outage."""

    FIRE = "fire"  # the first one; the default of `at`
    FIRE_LAST = "fire_last"  # the last one, for all; the default of the others
    FIRE_ALL = "fire_all"  # each, the first LATE_FIRED_MAX of them
    SKIP = "skip"  # each that is not later than `late_max_us`, the first LATE_FIRED_MAX of them


@dataclass(frozen=True, slots=True)
class DueTimes:
    """The times that fire now, in order, and the one after now. Of `skipped` times at most LATE_FIRED_MAX are
    counted."""

    fire: tuple[int, ...]
    skipped: int
    next: int | ScheduleEnd


def default_policy(schedule: Schedule) -> LatePolicy:
    return LatePolicy.FIRE if isinstance(schedule, At) else LatePolicy.FIRE_LAST


def due_times(
    schedule: Schedule,
    next_us: int,
    now_us: int,
    calendars: Mapping[str, Calendar],
    policy: LatePolicy,
    *,
    late_max_us: int = 0,
) -> DueTimes:
    """The times that fire at `now_us`, of a schedule whose next time was `next_us`; none if that is still to come.

    >>> from comet.schedules.spec import parse_schedule
    >>> due_times(parse_schedule("every 1m"), 60_000_000, 200_000_000, {}, LatePolicy.FIRE_LAST)
    DueTimes(fire=(180000000,), skipped=2, next=240000000)
    """
    if next_us > now_us:
        return DueTimes((), 0, next_us)
    missed = _missed(schedule, next_us, now_us, calendars)
    following = next_time(schedule, now_us, calendars)
    match policy:
        case LatePolicy.FIRE:
            fire = missed[:1]
        case LatePolicy.FIRE_LAST:
            fire = missed[-1:] if len(missed) < LATE_FIRED_MAX else [_last(schedule, missed[-1], now_us, calendars)]
        case LatePolicy.FIRE_ALL:
            fire = missed
        case LatePolicy.SKIP:
            earliest = max(next_us, now_us - late_max_us)
            first = next_time(schedule, earliest - 1, calendars) if earliest > next_us else next_us
            fire = [] if isinstance(first, ScheduleEnd) else _missed(schedule, first, now_us, calendars)
    return DueTimes(tuple(fire), len(set(missed).difference(fire)), following)


def _missed(schedule: Schedule, next_us: int, now_us: int, calendars: Mapping[str, Calendar]) -> list[int]:
    """The times from that one on until now, the first LATE_FIRED_MAX of them."""
    found: list[int] = []
    at: int | ScheduleEnd = next_us
    while isinstance(at, int) and at <= now_us and len(found) < LATE_FIRED_MAX:
        found.append(at)
        at = next_time(schedule, at, calendars)
    return found


def _last(schedule: Schedule, known_us: int, now_us: int, calendars: Mapping[str, Calendar]) -> int:
    """The last time until now. `next_time` never goes back as its start goes on, so the start is bisected."""
    low, high, last = known_us - 1, now_us, known_us  # the time after `low` is `last`; the one after `high` is later
    while high - low > 1:
        middle = (low + high) // 2
        found = next_time(schedule, middle, calendars)
        if isinstance(found, int) and found <= now_us:
            low = last = found  # nothing lies between them
        else:
            high = middle
    return last


# ---- jitter


def jitter_us(schedule_id: str, due_us: int, jitter_max_us: int) -> int:
    """A delay from 0 to `jitter_max_us`, the same for the same schedule and time at every broker.

    >>> 0 <= jitter_us("report", 1_780_000_200_000_000, 5_000_000) <= 5_000_000
    True
    """
    if jitter_max_us < 0:
        raise InvalidArgument("jitter is not negative")
    digest = blake2b(f"{due_us} {schedule_id}".encode(), digest_size=16).digest()
    return int.from_bytes(digest) % (jitter_max_us + 1)
