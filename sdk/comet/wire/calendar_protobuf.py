"""Market calendars as protobuf, and back."""

from __future__ import annotations

from comet.schedules.calendars import Calendar, CalendarSession, SessionBreak
from comet.v1 import admin_pb2 as admin


def calendar_to_pb(calendar: Calendar) -> admin.Calendar:
    return admin.Calendar(
        name=calendar.name,
        zone=calendar.zone,
        known_until=calendar.known_until,
        source=calendar.source,
        version=calendar.version,
        author=calendar.author,
        set_us=calendar.set_us or 0,
        sessions=[
            admin.CalendarSession(
                date=one.date,
                open_us=one.open_us,
                close_us=one.close_us,
                breaks=[admin.CalendarBreak(start_us=pause.start_us, end_us=pause.end_us) for pause in one.breaks],
            )
            for one in calendar.sessions
        ],
    )


def calendar_from_pb(calendar: admin.Calendar) -> Calendar:
    return Calendar(
        calendar.name,
        calendar.zone,
        tuple(
            CalendarSession(
                one.date,
                one.open_us,
                one.close_us,
                tuple(SessionBreak(pause.start_us, pause.end_us) for pause in one.breaks),
            )
            for one in calendar.sessions
        ),
        calendar.known_until,
        calendar.source,
        calendar.version,
        calendar.author,
        calendar.set_us or None,
    )
