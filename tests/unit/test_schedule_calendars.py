"""Calendars as data: what is refused, JSON, differences, the warning before one ends, and the import."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from comet.errors import InvalidArgument
from comet.schedules import exchange
from comet.schedules.calendar_json import calendar_document, calendar_from_json
from comet.schedules.calendars import (
    BREAKS_MAX,
    SESSIONS_MAX,
    Calendar,
    CalendarSession,
    SessionBreak,
    SessionChanges,
    changes,
    check_calendar,
    warning,
)
from comet.schedules.exchange import imported_calendar
from comet.schedules.spec import parse_time
from comet.wire.calendar_protobuf import calendar_from_pb, calendar_to_pb

HOUR = 3_600_000_000
NOON = parse_time("2026-11-27T12:00Z")


def session(day: str = "2026-11-27", first: int = -4, last: int = 4, *breaks: tuple[int, int]) -> CalendarSession:
    """Hours from noon in UTC."""
    noon = parse_time(f"{day}T12:00Z")
    pauses = tuple(SessionBreak(noon + start * HOUR, noon + end * HOUR) for start, end in breaks)
    return CalendarSession(day, noon + first * HOUR, noon + last * HOUR, pauses)


def calendar(*sessions: CalendarSession, **other: Any) -> Calendar:
    given = sessions or (session(),)
    return Calendar(**{"name": "DESK", "zone": "UTC", "sessions": given, "known_until": "2026-12-31", **other})


REFUSED = {
    "name": (calendar(name="a b"), "invalid calendar name 'a b'"),
    "slash": (calendar(name="../x"), "invalid calendar name"),
    "zone": (calendar(zone="Mars/Olympus"), "no time zone 'Mars/Olympus'"),
    "empty": (replace(calendar(), sessions=()), "has no sessions"),
    "date": (calendar(replace(session(), date="2026-02-31")), "a session takes a date"),
    "digits": (calendar(replace(session(), date="2026-11-2７")), "a session takes a date"),
    "until": (calendar(known_until="soon"), "known_until takes a date"),
    "before the last session": (calendar(known_until="2026-11-26"), "is before the last session, 2026-11-27"),
    "source": (calendar(source="x" * 201), "source has 201 characters"),
    "backwards": (calendar(session("2026-11-27", 4, -4)), "session 2026-11-27 closes before it opens"),
    "instant": (calendar(session("2026-11-27", 4, 4)), "closes before it opens"),
    "far": (calendar(session("2026-11-27", 4, 50)), "from 2026-11-27T16:00:00.00:00 to 2026-11-29T14:00"),
    "seconds": (calendar(CalendarSession("2026-11-27", 1, 2)), "not within a day of its date"),
    "beyond": (calendar(CalendarSession("2026-11-27", 2**62, 2**62 + 1)), f"from {2**62} us"),
    "unsorted": (calendar(session("2026-11-30"), session("2026-11-27")), "2026-11-27 follows 2026-11-30: sort"),
    "twice": (calendar(session(), session()), "2026-11-27 follows 2026-11-27: sort"),
    "overlap": (calendar(session(), session("2026-11-28", -25, 4)), "2026-11-28 opens before session 2026-11-27"),
    "break outside": (calendar(session("2026-11-27", -4, 4, (-5, -3))), "the breaks of session 2026-11-27"),
    "breaks overlap": (calendar(session("2026-11-27", -4, 4, (-2, 1), (0, 2))), "the breaks of session 2026-11-27"),
    "breaks": (calendar(replace(session(), breaks=(SessionBreak(1, 2),) * (BREAKS_MAX + 1))), "has 9 breaks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    wrong, text = REFUSED[name]
    with pytest.raises(InvalidArgument, match=text):
        check_calendar(wrong)


def test_the_number_of_sessions_is_bounded() -> None:
    days = [(date(2000, 1, 1) + timedelta(days=one)).isoformat() for one in range(SESSIONS_MAX + 1)]
    sessions = tuple(session(day) for day in days)
    check_calendar(calendar(*sessions[:SESSIONS_MAX]))
    with pytest.raises(InvalidArgument, match=f"has {SESSIONS_MAX + 1} sessions, and at most {SESSIONS_MAX}"):
        check_calendar(calendar(*sessions))


def test_sessions_may_touch_and_open_the_evening_before() -> None:
    """As futures trade: the session of a Monday opens on Sunday."""
    check_calendar(calendar(session("2026-11-27", -13, 11), session("2026-11-28", -13, 11)))


def test_json_and_protobuf_keep_everything() -> None:
    whole = calendar(
        session("2026-11-27", -4, 4, (-1, 0), (1, 2)), session("2026-11-30"),
        zone="America/New_York", source="by hand", version=7, author="client:ops", set_us=NOON,
    )  # fmt: skip
    assert calendar_from_pb(calendar_to_pb(whole)) == whole
    document = calendar_document(whole)
    assert document["sessions"][0]["open"] == "2026-11-27T03:00:00-05:00"
    read = calendar_from_json(json.dumps(document))
    assert read == replace(whole, version=0, author="", set_us=None)


def test_times_without_an_offset_are_of_the_zone() -> None:
    text = (
        '{"zone": "America/New_York", "sessions": [{"date": "2026-11-02", "open": "2026-11-02T09:30", '
        '"close": "2026-11-02T16:00:00"}]}'
    )
    found = calendar_from_json(text, "DESK")
    assert calendar_from_json(text, default_name="DESK") == found
    named = json.dumps(json.loads(text) | {"name": "MINE"})
    assert calendar_from_json(named, default_name="DESK").name == "MINE"
    assert (found.name, found.known_until) == ("DESK", "2026-11-02")
    assert found.sessions[0].open_us == parse_time("2026-11-02T14:30Z")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "not a calendar"),
        ('{"zone": "UTC"', "not a calendar"),
        ('{"zone": "UTC", "sessions": [], "holidays": []}', "unknown field `holidays`"),
        ('{"zone": "Mars", "sessions": []}', "no time zone 'Mars'"),
        ('{"zone": "UTC", "sessions": []}', "has no sessions"),
        ('{"name": "XNYS", "zone": "UTC", "sessions": []}', "is called 'XNYS', not 'DESK'"),
        ('{"zone": "UTC", "sessions": [{"date": "2026-11-27", "open": "9:30", "close": "16:00"}]}', "open of session"),
        (
            '{"zone": "UTC", "sessions": [{"date": "2026-11-27", "open": "2026-11-27T09:30Z UTC", "close": ""}]}',
            "open of session '2026-11-27' takes a time",
        ),
        ('{"zone": "UTC", "sessions": [' + "[" * 2_000, "not a calendar"),
        ("\udcff", "not a calendar"),
    ],
)
def test_other_json_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        calendar_from_json(text.encode(errors="surrogateescape"), "DESK")


def test_the_dates_that_differ() -> None:
    before = calendar(session("2026-11-27"), session("2026-11-28"), session("2026-11-30"))
    after = calendar(session("2026-11-27"), session("2026-11-30", -4, 1), session("2026-12-01"))
    found = changes(before, after)
    assert found == SessionChanges(("2026-12-01",), ("2026-11-28",), ("2026-11-30",))
    assert str(found) == "1 session added, 1 removed, 1 changed"
    assert str(changes(after, after)) == "no session changed"


@pytest.mark.parametrize(
    ("known_until", "text"),
    [
        ("2026-12-28", ""),
        ("2026-12-27", "calendar DESK ends 2026-12-27, in 30 days: refresh it"),
        ("2026-11-28", "ends 2026-11-28, in 1 day:"),
        ("2026-11-27", "ends 2026-11-27, today:"),
        ("2026-11-26", "calendar DESK ended 2026-11-26: refresh it"),
    ],
)
def test_a_calendar_that_ends_soon_is_warned_of(known_until: str, text: str) -> None:
    found = warning("DESK", known_until, NOON)
    assert text in found if text else not found


# ---- import


def test_the_new_york_stock_exchange_is_imported_with_its_half_days() -> None:
    found = imported_calendar("XNYS", first=date(2026, 1, 1))
    assert (found.name, found.zone, found.sessions[0].date) == ("XNYS", "America/New_York", "2026-01-02")
    assert found.source.startswith("exchange_calendars ")
    assert found.known_until == found.sessions[-1].date > "2026-12-31"
    assert found.session("2026-11-26") is None, "Thanksgiving"
    half = found.session("2026-11-27")
    assert half is not None
    assert (half.open_us, half.close_us) == (parse_time("2026-11-27T14:30Z"), parse_time("2026-11-27T18:00Z"))
    whole = found.session("2026-11-30")
    assert whole is not None and whole.close_us == parse_time("2026-11-30T21:00Z") and whole.breaks == ()


def test_breaks_and_continuous_markets_are_imported() -> None:
    hong_kong = imported_calendar("XHKG", name="hk", first=date(2026, 11, 2)).session("2026-11-27")
    assert hong_kong is not None
    pause = SessionBreak(parse_time("2026-11-27T04:00Z"), parse_time("2026-11-27T05:00Z"))
    assert hong_kong.breaks == (pause,)
    assert imported_calendar("24/7", first=date(2026, 11, 2)).name == "24-7"


def test_an_unknown_exchange_and_a_missing_package_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="no calendar 'NYSEX'"):
        imported_calendar("NYSEX", first=date(2026, 1, 1))
    with pytest.raises(InvalidArgument, match=r"makes no calendar XKRX from 0001-01-01 on|knows no"):
        imported_calendar("XKRX", first=date(1, 1, 1))
    monkeypatch.setattr(exchange, "find_spec", lambda _: None)
    with pytest.raises(InvalidArgument, match="needs exchange_calendars") as raised:
        imported_calendar("XNYS", first=date(2026, 1, 1))
    assert "'.[calendars]'" in raised.value.details["hint"]
