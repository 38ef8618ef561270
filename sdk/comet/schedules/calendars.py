"""Market calendars: on which dates a market opens and closes, and when; as data.

    XNYS    zone America/New_York, known until 2027-11-23
            2026-11-25    open 14:30:00Z    close 21:00:00Z
            2026-11-27    open 14:30:00Z    close 18:00:00Z     no session on the 26th, Thanksgiving

A date without a session is a closed day, up to `known_until`. Nothing is guessed beyond that date.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Annotated, Final

from comet.errors import InvalidArgument, InvalidSchedule
from comet.schedules.zones import EPOCH, SECOND_US, local_time, zone_of
from comet.types import Int64
from comet.units import count

SESSIONS_MAX: Final = 5_000  # of one calendar: 20 years of trading days
BREAKS_MAX: Final = 8  # of one session
SOURCE_CHARS_MAX: Final = 200
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ENDS_SOON_DAYS: Final = 30  # before `known_until`: then it should be refreshed
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAY_US: Final = 86_400 * SECOND_US
_AROUND_US: Final = 2 * _DAY_US  # a session may open on the evening before its date


@dataclass(frozen=True, slots=True)
class SessionBreak:
    """A pause within a session.

    >>> lunch = comet.SessionBreak(1_795_748_400_000_000, 1_795_752_000_000_000)
    >>> (lunch.end_us - lunch.start_us) // 60_000_000
    60
    """

    start_us: Int64
    end_us: Int64


@dataclass(frozen=True, slots=True)
class CalendarSession:
    """The trading session of a date.

    >>> half_day = comet.CalendarSession("2026-11-27", 1_795_789_800_000_000, 1_795_802_400_000_000)
    >>> (half_day.close_us - half_day.open_us) / 3_600_000_000
    3.5
    """

    date: Annotated[str, "In the calendar's zone, as 2026-11-27."]
    open_us: Int64
    close_us: Int64
    breaks: tuple[SessionBreak, ...] = ()


@dataclass(frozen=True, slots=True)
class Calendar:
    """The sessions of a market. `version` is that of the cluster's metadata; 0: it is not stored.

    >>> day = comet.CalendarSession("2026-11-27", 1_795_789_800_000_000, 1_795_802_400_000_000)
    >>> print(comet.Calendar("XNYS", "America/New_York", (day,), "2026-12-31"))
    XNYS: 1 session, known until 2026-12-31
    """

    name: str
    zone: Annotated[str, "The IANA name of its time zone."]
    sessions: tuple[CalendarSession, ...]  # by date
    known_until: Annotated[str, "The last date for which the sessions are known."]
    source: Annotated[str, "Where the sessions are from, with its version."] = ""
    version: Int64 = 0
    author: Annotated[str, "The client that stored it."] = ""
    set_us: Int64 | None = None

    def __str__(self) -> str:
        return f"{self.name}: {count(len(self.sessions), 'session')}, known until {self.known_until}"

    def session(self, day: str) -> CalendarSession | None:
        """The session of a date; None: the market is closed."""
        at = bisect_left(self.sessions, day, key=_date_of)
        return self.sessions[at] if at < len(self.sessions) and self.sessions[at].date == day else None

    def dates_from(self, day: str) -> Iterator[str]:
        """The dates with a session, from that date on."""
        at = bisect_left(self.sessions, day, key=_date_of)
        return (self.sessions[index].date for index in range(at, len(self.sessions)))

    def next_event(self, event: str, after_us: int) -> int | None:
        """The next opening, closing or edge of a break after a time."""
        if event in ("open", "close"):
            edge = _open_of if event == "open" else _close_of
            at = bisect_right(self.sessions, after_us, key=edge)
            return edge(self.sessions[at]) if at < len(self.sessions) else None
        for session in self.sessions[bisect_right(self.sessions, after_us, key=_close_of) :]:
            edges = (one.start_us if event == "break_start" else one.end_us for one in session.breaks)
            found = next((edge for edge in edges if edge > after_us), None)
            if found is not None:
                return found
        return None


def _date_of(session: CalendarSession) -> str:
    return session.date


def _open_of(session: CalendarSession) -> int:
    return session.open_us


def _close_of(session: CalendarSession) -> int:
    return session.close_us


def check_calendar(calendar: Calendar) -> Calendar:
    """The calendar. Raises InvalidArgument, which names the session that is wrong."""
    check_calendar_name(calendar.name)
    check_zone(calendar.zone)
    if not calendar.sessions:
        raise InvalidArgument(f"calendar {calendar.name} has no sessions: give at least one")
    if len(calendar.sessions) > SESSIONS_MAX:
        raise InvalidArgument(
            f"calendar {calendar.name} has {len(calendar.sessions)} sessions, and at most {SESSIONS_MAX} are taken; "
            "leave out the oldest"
        )
    if len(calendar.source) > SOURCE_CHARS_MAX:
        raise InvalidArgument(f"source has {len(calendar.source)} characters, and at most {SOURCE_CHARS_MAX} are taken")
    for session in calendar.sessions:
        _check_session(session, calendar.zone)
    for earlier, later in pairwise(calendar.sessions):
        if later.date <= earlier.date:
            raise InvalidArgument(f"session {later.date} follows {earlier.date}: sort the sessions, one for each date")
        if later.open_us < earlier.close_us:
            raise InvalidArgument(f"session {later.date} opens before session {earlier.date} closes")
    check_date("known_until", calendar.known_until)
    if calendar.known_until < calendar.sessions[-1].date:
        last = calendar.sessions[-1].date
        raise InvalidArgument(f"known_until {calendar.known_until} is before the last session, {last}")
    return calendar


def check_calendar_name(name: str) -> str:
    """The name. Raises InvalidArgument."""
    if NAME.fullmatch(name) is None:
        raise InvalidArgument(f"invalid calendar name {name[:64]!r}: 1 to 64 letters, digits, '.', '_' or '-'")
    return name


def check_zone(name: str) -> str:
    """The name of a time zone. Raises InvalidArgument."""
    try:
        return zone_of(name).key
    except InvalidSchedule as error:
        raise InvalidArgument(f"calendar zone: no time zone {name[:64]!r}", details=error.details) from None


def check_date(what: str, text: str) -> date:
    """The date of a text such as 2026-11-27. Raises InvalidArgument."""
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InvalidArgument(f"{what} takes a date such as 2026-11-27, not {text[:40]!r}")


def _check_session(session: CalendarSession, zone: str) -> None:
    day = check_date("a session", session.date)
    noon_us = (day - EPOCH.date()).days * _DAY_US + _DAY_US // 2
    if not session.open_us < session.close_us:
        raise InvalidArgument(f"session {session.date} closes before it opens")
    if max(abs(session.open_us - noon_us), abs(session.close_us - noon_us)) > _AROUND_US:
        found = [local_text(one, zone) for one in (session.open_us, session.close_us)]
        raise InvalidArgument(f"session {session.date} is from {found[0]} to {found[1]}: not within a day of its date")
    if len(session.breaks) > BREAKS_MAX:
        raise InvalidArgument(f"session {session.date} has {len(session.breaks)} breaks, and at most {BREAKS_MAX}")
    edges = [
        session.open_us,
        *(edge for one in session.breaks for edge in (one.start_us, one.end_us)),
        session.close_us,
    ]
    if any(later <= earlier for earlier, later in pairwise(edges)):
        raise InvalidArgument(f"the breaks of session {session.date} are not one after another within it")


def local_text(time_us: int, zone: str) -> str:
    """A time on the wall clock of a zone, as 2026-11-27T13:00:00-05:00; without a zone's years if it has none there."""
    try:
        return local_time(time_us, zone_of(zone)).isoformat()
    except (OverflowError, ValueError):
        return f"{time_us} us"


@dataclass(frozen=True, slots=True)
class SessionChanges:
    """The dates whose sessions differ between two versions of a calendar.

    >>> print(SessionChanges(added=("2026-11-27", "2026-11-30"), changed=("2026-12-24",)))
    2 sessions added, 1 changed
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [(self.added, "added"), (self.removed, "removed"), (self.changed, "changed")]
        found = [(len(dates), word) for dates, word in parts if dates]
        if not found:
            return "no session changed"
        first, *rest = found
        return ", ".join([f"{count(first[0], 'session')} {first[1]}", *(f"{number:,} {word}" for number, word in rest)])


def changes(before: Calendar | None, after: Calendar) -> SessionChanges:
    """The changes of sessions from one version to another; None: there was none."""
    old = {} if before is None else {one.date: one for one in before.sessions}
    new = {one.date: one for one in after.sessions}
    return SessionChanges(
        added=tuple(day for day in new if day not in old),
        removed=tuple(day for day in old if day not in new),
        changed=tuple(day for day, one in new.items() if day in old and old[day] != one),
    )


def warning(name: str, known_until: str, now_us: int) -> str:
    """The warning about a calendar that ends soon, or has ended; empty: it is known for longer."""
    today = (EPOCH + timedelta(microseconds=now_us)).date()
    days = (check_date("known_until", known_until) - today).days
    if days > ENDS_SOON_DAYS:
        return ""
    if days < 0:
        ends = f"ended {known_until}"
    else:
        ends = f"ends {known_until}, {'in ' + count(days, 'day') if days else 'today'}"
    return f"calendar {name} {ends}: refresh it, for example with comet calendar import {name}"
