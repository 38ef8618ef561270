"""Calendars of the package exchange_calendars (the extra `calendars`), as this cluster stores them.

It computes about a year ahead, from rules in its code: its newer versions know more, and correct what exchanges change.
"""

from __future__ import annotations

from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

from comet.errors import InvalidArgument, pip_install
from comet.schedules.calendars import Calendar, CalendarSession, SessionBreak, check_calendar

PACKAGE: Final = "exchange_calendars"
NAMES_SHOWN_MAX: Final = 12


def imported_calendar(code: str, *, name: str = "", first: date) -> Calendar:
    """The calendar of an exchange, such as XNYS, from a date on. Raises InvalidArgument. Takes about a second.

    >>> from datetime import date
    >>> from comet.schedules.exchange import imported_calendar
    >>> imported_calendar("XNYS", first=date(2026, 1, 1)).session("2026-11-27")
    CalendarSession(date='2026-11-27', open_us=1795789800000000, close_us=1795802400000000, breaks=())
    """
    if find_spec(PACKAGE) is None:
        raise InvalidArgument(f"importing a calendar needs {PACKAGE}", details={"hint": pip_install("calendars")})
    import exchange_calendars
    from exchange_calendars import errors

    try:
        found = exchange_calendars.get_calendar(code, start=first.isoformat())
    except errors.InvalidCalendarName:
        names = exchange_calendars.get_calendar_names(include_aliases=False)
        near = [one for one in names if code[:2].upper() in one][:NAMES_SHOWN_MAX] or names[:NAMES_SHOWN_MAX]
        raise InvalidArgument(
            f"{PACKAGE} has no calendar {code[:40]!r}", details={"hint": f"some of its {len(names)}: {', '.join(near)}"}
        ) from None
    except (ValueError, errors.CalendarError) as error:
        raise InvalidArgument(f"{PACKAGE} makes no calendar {code} from {first} on: {error}") from None
    sessions = tuple(map(_session, found.schedule.itertuples()))
    if not sessions:
        raise InvalidArgument(f"{PACKAGE} knows no session of {code} from {first} on")
    source = f"{PACKAGE} {version(PACKAGE)}"
    return check_calendar(Calendar(name or code.replace("/", "-"), str(found.tz), sessions, sessions[-1].date, source))


def _session(row: Any) -> CalendarSession:
    """Its index is the date; a session without a break has no time there."""
    breaks = () if row.break_start != row.break_start else (SessionBreak(_us(row.break_start), _us(row.break_end)),)
    return CalendarSession(row.Index.date().isoformat(), _us(row.open), _us(row.close), breaks)


def _us(time: Any) -> int:
    return int(time.value) // 1_000
