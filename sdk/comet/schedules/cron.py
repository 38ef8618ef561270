"""Cron fields on the wall clock of a zone.

cronsim reads the fields and decides which days match. The times within a day are computed here, because cronsim 2.8
loses some where the clock moves by half an hour (Lord Howe). The rules at a change of the clock are cronsim's, which
are those of Debian's cron:

    fixed     5 fields, neither minute nor hour begins with *: a time that is skipped comes right after the gap, once;
              a time that is repeated comes the first time only
    running   all others: each minute of real time whose wall clock matches, also those that are repeated

    local time   ... 01:59:59 | 03:00:00 ...       a day with a change at T, from offset A to B: its part before T is
                              T                    local < T + A, the other local >= T + B
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from comet.schedules.errors import invalid, shown
from comet.schedules.zones import EPOCH, SECOND_US

DAY_S: Final = 86_400
LAST_DATE: Final = date(2199, 12, 31)  # of all schedules
_CHARACTERS: Final = re.compile(r"[0-9A-Z*,/#-]+")
_NAMES: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_HINTS: Final = (
    "seconds are 0-59",
    "minutes are 0-59",
    "hours are 0-23",
    "days of the month are 1-31, L (the last one) or LW (the last weekday)",
    "months are 1-12 or JAN-DEC",
    "days of the week are 0-7 (0 and 7 are Sunday), SUN-SAT, 5L (the last Friday) or 5#2 (the second Friday)",
)
_NEVER: Final = "no such date exists: check day-of-month, month and day-of-week"


@dataclass(frozen=True, slots=True)
class CronFields:
    """The fields of a cron schedule, in capitals: 5, or 6 with seconds first."""

    fields: tuple[str, ...]
    _parsed: Any = field(init=False, repr=False, compare=False)
    _times: tuple[list[int], list[int], list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parsed = CronSim(" ".join(self.fields), EPOCH)  # raises CronSimError
        object.__setattr__(self, "_parsed", parsed)
        object.__setattr__(self, "_times", tuple(map(sorted, (parsed.hours, parsed.minutes, parsed.seconds))))

    @property
    def fixed(self) -> bool:
        """Whether it runs at fixed times of a day, and so once in the nights when the clock changes."""
        return len(self.fields) == 5 and not self.fields[0].startswith("*") and not self.fields[1].startswith("*")

    def is_possible(self) -> bool:
        """Whether some date matches both day-of-month and day-of-week, where it has to; found without a walk."""
        parsed = self._parsed
        if not parsed.day_and:
            return True
        weekdays = {one % 7 for one in parsed.weekdays if isinstance(one, int)}
        nths = {one[1] for one in parsed.weekdays if not isinstance(one, int)}
        if CronSim.LAST_WEEKDAY in parsed.days and weekdays & {1, 2, 3, 4, 5}:
            return True
        lasts = {calendar.monthrange(year, month)[1] for month in parsed.months for year in (2023, 2024)}
        return any(
            weekdays or (day + 6) // 7 in nths or (CronSim.LAST in nths and day + 7 > last)
            for last in lasts
            for day in (last if one == CronSim.LAST else one for one in parsed.days)
            if 0 < day <= last
        )

    def matches(self, day: date) -> bool:
        """Whether it has times on that day.

        >>> CronFields(("30", "9", "*", "*", "MON-FRI")).matches(date(2026, 11, 27))
        True
        """
        return day.month in self._parsed.months and bool(self._parsed.match_day(day))

    def next_date(self, day: date) -> date | None:
        """The first day from that one on that matches."""
        while day <= LAST_DATE:
            if day.month not in self._parsed.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            elif self._parsed.match_day(day):
                return day
            else:
                day += timedelta(days=1)
        return None

    def first_on(self, day: date, zone: ZoneInfo, after_us: int) -> int | None:
        """The first time on a day that matches, after that time, in microseconds."""
        found = self._first_on(day, zone, after_us // SECOND_US)
        return None if found is None else found * SECOND_US

    def _first_on(self, day: date, zone: ZoneInfo, after: int) -> int | None:
        """In seconds. `start`, `end`, `wall` are seconds of the wall clock since 1970-01-01T00:00."""
        start = (day - EPOCH.date()).days * DAY_S
        end = start + DAY_S
        before, then = _offset(day, zone, fold=0), _offset(day + timedelta(days=1), zone, fold=1)
        if before == then:
            wall = self._wall(max(start, after + before + 1), end, start)
            return None if wall is None else wall - before
        change = _change(zone, start - before - 1, end - min(before, then), then)
        wall = self._wall(max(start, after + before + 1), min(end, change + before), start)
        if wall is not None:
            return wall - before
        resumed = change + then
        if self.fixed:
            skipped = self._wall(max(start, change + before), min(end, change + then), start)
            if skipped is not None and change > after:
                return change
            resumed = max(resumed, change + before)  # a repeated time came before the change
        wall = self._wall(max(start, resumed, after + then + 1), end, start)
        return None if wall is None else wall - then

    def _wall(self, low: int, high: int, start: int) -> int | None:
        """The first matching time of the wall clock from `low` to below `high`, on the day that starts at `start`."""
        if low >= high:
            return None
        hours, minutes, seconds = self._times
        rest, second = divmod(low - start, 60)
        hour, minute = divmod(rest, 60)
        at = bisect_left(hours, hour)
        if at < len(hours) and hours[at] == hour:
            at_minute = bisect_left(minutes, minute)
            if at_minute < len(minutes) and minutes[at_minute] == minute:
                at_second = bisect_left(seconds, second)
                if at_second < len(seconds):
                    return _below(start + hour * 3_600 + minute * 60 + seconds[at_second], high)
                at_minute += 1
            if at_minute < len(minutes):
                return _below(start + hour * 3_600 + minutes[at_minute] * 60 + seconds[0], high)
            at += 1
        if at < len(hours):
            return _below(start + hours[at] * 3_600 + minutes[0] * 60 + seconds[0], high)
        return None


def next_cron(cron: CronFields, zone: ZoneInfo, after_us: int) -> int | None:
    """The first time after that one, in microseconds; None: it comes no more until LAST_DATE."""
    # A change of the clock just after midnight goes back to the day before, so a day's times may follow the next day's.
    day = cron.next_date((EPOCH + timedelta(microseconds=after_us)).astimezone(zone).date() - timedelta(days=1))
    while day is not None:
        found = cron.first_on(day, zone, after_us)
        if found is not None:
            following = day + timedelta(days=1)
            earlier = cron.first_on(following, zone, after_us) if cron.matches(following) else None
            return found if earlier is None else min(found, earlier)
        day = cron.next_date(day + timedelta(days=1))
    return None


def _below(found: int, high: int) -> int | None:
    return found if found < high else None


def _offset(day: date, zone: ZoneInfo, *, fold: int) -> int:
    """The offset of the zone at the start of a day, in seconds."""
    offset = datetime.combine(day, time(fold=fold), tzinfo=zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def _change(zone: ZoneInfo, low: int, high: int, offset: int) -> int:
    """The second in UTC from which on the zone has that offset; `low` is before it."""
    while high - low > 1:
        middle = (low + high) // 2
        found = (EPOCH + timedelta(seconds=middle)).astimezone(zone).utcoffset()
        assert found is not None
        low, high = (low, middle) if round(found.total_seconds()) == offset else (middle, high)
    return high


# ---- parsing


def parse_fields(words: list[tuple[str, int]]) -> CronFields:
    """The fields, each with its position. Raises InvalidSchedule."""
    fields = tuple(word.upper() for word, _ in words)
    for index, (word, position) in enumerate(words, 6 - len(words)):
        if _CHARACTERS.fullmatch(fields[index - 6 + len(words)]) is None:
            raise invalid(f"{_NAMES[index]} {shown(word)}", position, hint=_HINTS[index])
    try:
        found = CronFields(fields)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        at = _NAMES.index(name)
        word, position = words[at - 6 + len(words)]
        hint = _NEVER if name == "day-of-month" and _is_day(word) else _HINTS[at]
        raise invalid(f"{name} {shown(word)}", position, hint) from None
    if not found.is_possible():
        raise invalid(f"day-of-week {shown(words[-1][0])}", words[-1][1], _NEVER)
    return found


def _is_day(word: str) -> bool:
    """Whether some months have a day of this field."""
    try:
        CronSim(f"0 0 {word} 1 *", EPOCH)
    except CronSimError:
        return False
    return True
