"""Calendars as JSON: files of `comet calendar put`, and the documents of the REST API.

    {"name": "XNYS", "zone": "America/New_York", "known_until": "2026-12-31", "source": "by hand",
     "sessions": [{"date": "2026-11-27", "open": "2026-11-27T09:30:00-05:00", "close": "2026-11-27T13:00:00-05:00",
                   "breaks": [{"start": "…", "end": "…"}]}]}

A time without an offset is on the wall clock of the calendar's zone. `version`, `author` and `set_us` are of a stored
calendar, and ignored when it is read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from comet.errors import InvalidArgument, InvalidSchedule
from comet.schedules.calendars import Calendar, CalendarSession, SessionBreak, check_calendar, check_zone, local_text
from comet.schedules.errors import invalid
from comet.schedules.spec import parse_time

FILE_BYTES_MAX = 4 << 20


class BreakDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    start: str
    end: str


class SessionDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    date: str
    open: str
    close: str
    breaks: tuple[BreakDocument, ...] = ()


class CalendarFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    zone: str
    sessions: tuple[SessionDocument, ...]
    name: str = ""
    known_until: str = ""
    source: str = ""
    version: str = "0"
    author: str = ""
    set_us: str | None = None


def calendar_from_json(data: bytes | str, name: str = "", *, default_name: str = "") -> Calendar:
    """The calendar of a JSON text, which has this name or none; without a name it gets `default_name`. Raises
    InvalidArgument.

    >>> text = '{"zone": "UTC", "sessions": [{"date": "2026-11-27", "open": "2026-11-27T08:00", '
    >>> text += '"close": "2026-11-27T16:00"}]}'
    >>> from comet.schedules.calendar_json import calendar_from_json
    >>> print(calendar_from_json(text, "DESK"))
    DESK: 1 session, known until 2026-11-27
    """
    try:
        found = msgspec.json.decode(data, type=CalendarFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"not a calendar: {error}; see docs/schedules.md for its form") from None
    if name and found.name not in ("", name):
        raise InvalidArgument(f"the calendar is called {found.name[:64]!r}, not {name!r}: use one name")
    check_zone(found.zone)
    sessions = tuple(_session(one, found.zone) for one in found.sessions)
    last = found.known_until or (sessions[-1].date if sessions else "")
    return check_calendar(Calendar(found.name or name or default_name, found.zone, sessions, last, found.source))


def calendar_document(calendar: Calendar) -> dict[str, Any]:
    """The JSON form of a calendar, with the times on the wall clock of its zone."""
    return {
        "name": calendar.name,
        "zone": calendar.zone,
        "known_until": calendar.known_until,
        "source": calendar.source,
        "version": str(calendar.version),
        "author": calendar.author,
        "set_us": None if calendar.set_us is None else str(calendar.set_us),
        "sessions": [session_document(one, calendar.zone) for one in calendar.sessions],
    }


def session_document(session: CalendarSession, zone: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "date": session.date,
        "open": local_text(session.open_us, zone),
        "close": local_text(session.close_us, zone),
    }
    if session.breaks:
        found["breaks"] = [
            {"start": local_text(one.start_us, zone), "end": local_text(one.end_us, zone)} for one in session.breaks
        ]
    return found


def _session(given: SessionDocument, zone: str) -> CalendarSession:
    def time_of(what: str, text: str) -> int:
        try:
            if "T" not in text or len(text) > 40:
                raise invalid("not a time")
            ending = text.partition("T")[2]
            zoned = text if any(sign in ending for sign in "Z+-") else f"{text} {zone}"
            return parse_time(zoned)
        except InvalidSchedule:
            raise InvalidArgument(
                f"{what} of session {given.date[:20]!r} takes a time such as 2026-11-27T09:30:00-05:00, "
                f"not {text[:40]!r}"
            ) from None

    return CalendarSession(
        given.date,
        time_of("open", given.open),
        time_of("close", given.close),
        tuple(SessionBreak(time_of("break", one.start), time_of("break", one.end)) for one in given.breaks),
    )
