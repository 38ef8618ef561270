"""The next times of a schedule, for people: in UTC and on the wall clock of its zone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from comet.schedules.calendars import Calendar, warning
from comet.schedules.due import ScheduleEnd, next_time
from comet.schedules.spec import At, Cron, Schedule, calendar_of, wall_text
from comet.schedules.zones import TZDATA
from comet.types import Int64


@dataclass(frozen=True, slots=True)
class ScheduledTime:
    """One time of a schedule.

    >>> comet.ScheduledTime(0, "1970-01-01T00:00:00+00:00", "1969-12-31T19:00:00-05:00").local
    '1969-12-31T19:00:00-05:00'
    """

    time_us: Int64
    utc: Annotated[str, "As 2026-11-27T18:00:00+00:00."]
    local: Annotated[str, "On the wall clock of the schedule's zone."]


@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """The next times of a schedule, and why there are no more if these are all.

    >>> from comet.schedules.preview import preview
    >>> from comet.schedules.spec import parse_schedule
    >>> print(preview(parse_schedule("every 15m"), 1_780_000_000_000_000, {}, count=1, now_us=0))
    every 15m: 2026-05-28T20:30:00+00:00
    """

    schedule: Annotated[str, "The canonical text."]
    zone: Annotated[str, "The zone of `local`: that of the schedule or its calendar, else UTC."]
    times: tuple[ScheduledTime, ...]
    end: Annotated[str | None, "Why no more times follow; None: more follow."]
    warning: Annotated[str, "About the calendar that it needs; empty: none."]
    tzdata: Annotated[str, "The version of the time zones that were used."]

    def __str__(self) -> str:
        return f"{self.schedule}: {', '.join(one.local for one in self.times) or self.end}"


def zone_name(schedule: Schedule, calendars: Mapping[str, Calendar]) -> str:
    """The zone in which people read the times of a schedule."""
    own = schedule.zone if isinstance(schedule, Cron | At) else ""
    calendar = calendars.get(calendar_of(schedule))
    return own or ("UTC" if calendar is None else calendar.zone)


def preview(
    schedule: Schedule, after_us: int, calendars: Mapping[str, Calendar], *, count: int, now_us: int
) -> SchedulePreview:
    """The next `count` times after one. Warns of a calendar that ends soon after now. Raises CalendarNotFound."""
    zone = zone_name(schedule, calendars)
    times: list[ScheduledTime] = []
    end = None
    while end is None and len(times) < count:
        found = next_time(schedule, after_us if not times else times[-1].time_us, calendars)
        if isinstance(found, ScheduleEnd):
            end = str(found)
        else:
            times.append(ScheduledTime(found, wall_text(found, "UTC"), wall_text(found, zone)))
    calendar = calendars.get(calendar_of(schedule))
    return SchedulePreview(
        str(schedule),
        zone,
        tuple(times),
        end,
        "" if calendar is None else warning(calendar.name, calendar.known_until, now_us),
        TZDATA,
    )
