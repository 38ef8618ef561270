"""The language of schedules.

    at 2026-12-01T09:30:00-05:00             once; the time has Z, an offset, or a zone after it
    every 15m                                each multiple of 15 minutes since 1970-01-01T00:00Z
    every 90m from 2026-12-01T09:30:00Z      that time, and each 90 minutes after it
    cron 30 9 * * 1-5 America/New_York       cron fields, 5 or 6 (seconds first), on the wall clock of a zone; or UTC
    cron 30 9 * * * on sessions of XNYS      only on dates with a session; without a zone in that of the calendar
    calendar:XNYS open-5m                    before, at or after open, close, break_start or break_end

`str` of a schedule is its canonical text, which reads as the same schedule. Pure: `comet.schedules.due` computes times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Final, Literal, TypeAlias, cast

from comet.schedules.calendars import NAME
from comet.schedules.cron import LAST_DATE, CronFields, parse_fields
from comet.schedules.errors import invalid, shown
from comet.schedules.zones import EPOCH, local_time, microseconds, zone_names, zone_of

TEXT_CHARS_MAX: Final = 200
CalendarEvent: TypeAlias = Literal["open", "close", "break_start", "break_end"]

_UNIT_US: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
PERIOD_MIN_US: Final = 1_000_000
PERIOD_MAX_US: Final = 366 * _UNIT_US["d"]
OFFSET_MAX_US: Final = _UNIT_US["d"]
TIME_MAX_US: Final = microseconds(datetime(LAST_DATE.year + 1, 1, 1, tzinfo=UTC)) - 1
_DURATION: Final = re.compile(r"(?:[0-9]{1,18}(?:ms|us|[dhms]))+")
_PART: Final = re.compile(r"([0-9]+)(ms|us|[dhms])")
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r"(?:(Z)|([+-])([0-9]{2}):([0-9]{2}))?"
)
_EVENT: Final = re.compile(r"(open|close|break_start|break_end)(?:([+-])([0-9a-z]+))?")
_WORD: Final = re.compile(r"[^ \t]+")
_KINDS: Final = (
    "begin with at, every, cron or calendar:NAME, such as: every 15m; cron 30 9 * * 1-5 America/New_York; "
    "calendar:XNYS open-5m"
)
_TIMES: Final = "write a time such as 2026-12-01T09:30:00-05:00"
_EVENTS: Final = "write open, close, break_start or break_end, with an offset such as -5m or +1h30m"
_DURATIONS: Final = "write a duration such as 30s, 15m, 1h30m or 1d"


@dataclass(frozen=True, slots=True)
class At:
    """Once. `zone` is empty if the time was written with an offset, which is in minutes."""

    time_us: int
    zone: str = ""
    offset: int = 0
    wall: datetime | None = None  # as it was written, with a zone

    def __str__(self) -> str:
        if self.wall is not None:
            return f"at {self.wall.isoformat()} {self.zone}"
        return f"at {_written(self.time_us, self.offset)}"


@dataclass(frozen=True, slots=True)
class Every:
    """In equal steps of real time: from a first time, or at multiples of the period since 1970 in UTC."""

    period_us: int
    from_us: int | None = None
    offset: int = 0  # in minutes, of the first time as it was written

    def __str__(self) -> str:
        first = "" if self.from_us is None else f" from {_written(self.from_us, self.offset)}"
        return f"every {format_duration(self.period_us)}{first}"


@dataclass(frozen=True, slots=True)
class Cron:
    """On the wall clock of a zone; with a calendar only on dates that have a session there."""

    cron: CronFields
    zone: str = ""  # empty: that of the calendar
    calendar: str = ""

    def __str__(self) -> str:
        return " ".join(
            filter(
                None,
                ["cron", *self.cron.fields, self.zone, f"on sessions of {self.calendar}" if self.calendar else ""],
            )
        )


@dataclass(frozen=True, slots=True)
class CalendarTime:
    """At a time of each session of a calendar, or before or after it."""

    calendar: str
    event: CalendarEvent
    offset_us: int = 0

    def __str__(self) -> str:
        sign = "-" if self.offset_us < 0 else "+"
        offset = f"{sign}{format_duration(abs(self.offset_us))}" if self.offset_us else ""
        return f"calendar:{self.calendar} {self.event}{offset}"


Schedule: TypeAlias = At | Every | Cron | CalendarTime


def parse_schedule(text: str) -> Schedule:
    """The schedule of a text. Raises InvalidSchedule.

    >>> from comet.schedules.spec import parse_schedule
    >>> print(parse_schedule("every  90m"), parse_schedule("calendar:XNYS close+0"), sep="; ")
    every 90m; calendar:XNYS close
    """
    if len(text) > TEXT_CHARS_MAX:
        raise invalid(f"{len(text)} characters, and at most {TEXT_CHARS_MAX} are read")
    words = [(found[0], found.start()) for found in _WORD.finditer(text)]
    if not words:
        raise invalid("it is empty", hint=_KINDS)
    (kind, position), rest, end = words[0], words[1:], len(text)
    if kind == "at":
        return _at(rest, end)
    if kind == "every":
        return _every(rest, end)
    if kind == "cron":
        return _cron(rest, end)
    if kind.startswith("calendar:"):
        return _calendar(kind, position, rest, end)
    raise invalid(f"unknown kind {shown(kind)}", position, hint=_KINDS)


def calendar_of(schedule: Schedule) -> str:
    """The name of the calendar that it needs; empty: none."""
    return schedule.calendar if isinstance(schedule, Cron | CalendarTime) else ""


def format_duration(duration_us: int) -> str:
    """A duration in the largest unit that has no fraction.

    >>> format_duration(5_400_000_000), format_duration(1_500_000)
    ('90m', '1500ms')
    """
    for unit, size in _UNIT_US.items():
        if duration_us and duration_us % size == 0:
            return f"{duration_us // size}{unit}"
    return "0s"


# ---- kinds

_Words: TypeAlias = list[tuple[str, int]]


def _at(words: _Words, end: int) -> At:
    if not words:
        raise invalid("a time is missing", end, hint=_TIMES)
    (text, position), *rest = words
    _no_more(rest[1:])
    wall, offset = _parsed_time(text, position)
    if rest:
        name, at = rest[0]
        if offset is not None:
            raise invalid("an offset and a zone", at, hint="write one of them")
        zone = zone_of(name, at)
        return At(_in_range(_resolved(wall, name), position), zone=zone.key, wall=wall)
    if offset is None:
        raise invalid(f"{shown(text)} has no zone", position, hint=f"add Z, an offset or a zone: {text}Z, {text}-05:00")
    return At(_in_range(_with_offset(wall, offset), position), offset=offset)


def _resolved(wall: datetime, zone: str) -> int:
    """The time of a wall clock: the first one if it is repeated, right after the gap if it is skipped."""
    aware = wall.replace(tzinfo=zone_of(zone))
    back = aware.astimezone(UTC).astimezone(aware.tzinfo).replace(tzinfo=None)
    if back == wall:
        return microseconds(aware.astimezone(UTC))
    cron = CronFields((str(wall.minute), str(wall.hour), "*", "*", "*"))
    found = cron.first_on(wall.date(), zone_of(zone), microseconds(aware.astimezone(UTC)) - _UNIT_US["d"])
    assert found is not None  # the end of the gap
    return found


def _every(words: _Words, end: int) -> Every:
    if not words:
        raise invalid("a duration is missing", end, hint=_DURATIONS)
    (text, position), *rest = words
    period_us = parse_duration(text, position)
    if not PERIOD_MIN_US <= period_us <= PERIOD_MAX_US:
        raise invalid(f"{shown(text)} is not from 1s to 366d", position, hint="write 1s, 15m or 1d")
    if not rest:
        return Every(period_us)
    if rest[0][0] != "from":
        raise invalid(shown(rest[0][0]), rest[0][1], hint="write every 15m from 2026-12-01T09:30:00Z")
    if len(rest) == 1:
        raise invalid("a time is missing", end, hint=_TIMES)
    _no_more(rest[2:])
    text, position = rest[1]
    wall, offset = _parsed_time(text, position)
    if offset is None:
        raise invalid(f"{shown(text)} has no zone", position, hint=f"add Z or an offset: {text}Z")
    return Every(period_us, _in_range(_with_offset(wall, offset), position), offset)


def _cron(words: _Words, end: int) -> Cron:
    calendar = ""
    if len(words) >= 4 and [word for word, _ in words[-4:-1]] == ["on", "sessions", "of"]:
        calendar = _calendar_name(*words[-1])
        words = words[:-4]
    zone = "" if calendar else "UTC"
    if words and len(words) > 5 and not _is_field(words[-1][0]):
        zone = zone_of(*words[-1]).key
        words = words[:-1]
    if not 5 <= len(words) <= 6:
        position = words[6][1] if len(words) > 6 else end
        raise invalid(
            f"cron takes 5 or 6 fields, not {len(words)}",
            position,
            hint="write 5: minute hour day-of-month month day-of-week, or 6 with seconds first; then a zone: "
            "cron 30 9 * * 1-5 America/New_York",
        )
    return Cron(parse_fields(words), zone, calendar)


def _is_field(word: str) -> bool:
    """Whether a word after the fifth field is a sixth one, and no zone."""
    if word in zone_names():
        return False
    return word[0] in "0123456789*," or word[:3].upper() in {"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}


def _calendar(kind: str, position: int, words: _Words, end: int) -> CalendarTime:
    prefix = "calendar:"
    name = _calendar_name(kind.removeprefix(prefix), position + len(prefix))
    if not words:
        raise invalid("an event is missing", end, hint=_EVENTS)
    (text, at), *rest = words
    _no_more(rest)
    found = _EVENT.fullmatch(text)
    if found is None:
        raise invalid(shown(text), at, hint=_EVENTS)
    offset_us = 0
    if found[3]:
        offset_us = 0 if found[3] == "0" else parse_duration(found[3], at + found.start(3))
        if offset_us > OFFSET_MAX_US:
            raise invalid(f"{shown(found[3])} is more than 1d", at + found.start(3), hint=_EVENTS)
    return CalendarTime(name, cast(CalendarEvent, found[1]), -offset_us if found[2] == "-" else offset_us)


def _calendar_name(name: str, position: int) -> str:
    if NAME.fullmatch(name) is None:
        raise invalid(f"calendar name {shown(name)}", position, hint="1 to 64 letters, digits, '.', '_' or '-': XNYS")
    return name


def _no_more(words: _Words) -> None:
    if words:
        raise invalid(f"{shown(words[0][0])} is one word too many", words[0][1], hint="remove it")


# ---- values


def parse_duration(text: str, position: int = 0) -> int:
    """Microseconds of `15m`, `1h30m`, `1500ms`. Raises InvalidSchedule."""
    if _DURATION.fullmatch(text) is None:
        raise invalid(f"duration {shown(text)}", position, hint=_DURATIONS)
    return sum(int(found[1]) * _UNIT_US[found[2]] for found in _PART.finditer(text))


def parse_time(text: str) -> int:
    """Microseconds since 1970 of a time with Z, an offset or a zone. Raises InvalidSchedule.

    >>> from comet.schedules.spec import parse_time
    >>> parse_time("2026-12-01T09:30:00-05:00")
    1796135400000000
    """
    words = [(found[0], found.start()) for found in _WORD.finditer(text[:TEXT_CHARS_MAX])]
    return _at(words, len(text)).time_us


def _parsed_time(text: str, position: int) -> tuple[datetime, int | None]:
    """A time as it is written, and its offset in minutes; None: it has none."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise invalid(f"time {shown(text)}", position, hint=_TIMES)
    fraction = int((found[7] or "").ljust(6, "0"))
    try:
        year, month, day, hour, minute = map(int, found.group(1, 2, 3, 4, 5))
        wall = datetime(year, month, day, hour, minute, int(found[6] or 0), fraction)  # noqa: DTZ001 - as it is written
        offset = None
        if found[8] or found[9]:
            minutes = int(found[10] or 0) * 60 + int(found[11] or 0)
            offset = -minutes if found[9] == "-" else minutes
            timezone(timedelta(minutes=offset))
            if int(found[11] or 0) > 59:
                raise ValueError("minutes of the offset are 0 to 59")
    except ValueError as error:
        raise invalid(f"{shown(text)}: {error}", position, hint=_TIMES) from None
    return wall, offset


def _with_offset(wall: datetime, offset: int) -> int:
    return microseconds(wall.replace(tzinfo=UTC)) - offset * _UNIT_US["m"]


def _in_range(time_us: int, position: int) -> int:
    if not 0 <= time_us <= TIME_MAX_US:
        raise invalid("the time is not from 1970 to 2199", position, hint=_TIMES)
    return time_us


def _written(time_us: int, offset: int) -> str:
    """A time with its offset in minutes."""
    if not offset:
        return (EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None).isoformat() + "Z"
    return (EPOCH + timedelta(microseconds=time_us)).astimezone(timezone(timedelta(minutes=offset))).isoformat()


def wall_text(time_us: int, zone: str) -> str:
    """A time on the wall clock of a zone, as 2026-11-27T13:00:00-05:00."""
    return local_time(time_us, zone_of(zone)).isoformat()
