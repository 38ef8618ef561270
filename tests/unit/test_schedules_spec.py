"""The language of schedules: what it takes, its canonical text, and errors that point at the wrong part."""

from __future__ import annotations

import pickle

import pytest

from comet.errors import InvalidSchedule, from_code
from comet.schedules.spec import CalendarTime, Cron, parse_schedule, parse_time
from comet.schedules.zones import TZDATA, zone_names, zone_of

CANONICAL = {
    "at 2026-12-01T09:30:00-05:00": "at 2026-12-01T09:30:00-05:00",
    "at 2026-12-01T09:30Z": "at 2026-12-01T09:30:00Z",
    "at  2026-12-01T09:30:00.5+00:00": "at 2026-12-01T09:30:00.500000Z",
    "at 2026-12-01T09:30 America/New_York": "at 2026-12-01T09:30:00 America/New_York",
    "every 15m": "every 15m",
    "every 1h30m": "every 90m",
    "every 1500ms": "every 1500ms",
    "every 24h": "every 1d",
    "every 1000001us from 2026-12-01T00:00Z": "every 1000001us from 2026-12-01T00:00:00Z",
    "every 15m from 2026-12-01T09:30:00-05:00": "every 15m from 2026-12-01T09:30:00-05:00",
    "cron 30 9 * * 1-5 America/New_York": "cron 30 9 * * 1-5 America/New_York",
    "cron 30 9 * * mon-fri": "cron 30 9 * * MON-FRI UTC",
    "cron 0 30 9 * * MON": "cron 0 30 9 * * MON UTC",
    "cron */5 0 30 9 * * Europe/London": None,
    "cron 0 0 L * *": "cron 0 0 L * * UTC",
    "cron 0 0 * * 5#2 GB": "cron 0 0 * * 5#2 GB",
    "cron 0 0 29 2 *": "cron 0 0 29 2 * UTC",
    "cron 0 0 31 2 1": "cron 0 0 31 2 1 UTC",  # day or weekday: Mondays of February
    "cron 0 0 */30 2 1#5": None,
    "cron 0 0 */29 2 1L": None,
    "cron 0 0 */28 2 4#5": "cron 0 0 */28 2 4#5 UTC",
    "cron 30 9 * * * on sessions of XNYS": "cron 30 9 * * * on sessions of XNYS",
    "cron 30 9 * * * Asia/Tokyo on sessions of XNYS": "cron 30 9 * * * Asia/Tokyo on sessions of XNYS",
    "calendar:XNYS open-5m": "calendar:XNYS open-5m",
    "calendar:XNYS close+0": "calendar:XNYS close",
    "calendar:XNYS close": "calendar:XNYS close",
    "calendar:XTKS break_start-0": "calendar:XTKS break_start",
    "calendar:24-7 break_end+1h30m": "calendar:24-7 break_end+90m",
}

# text -> the position of the wrong part, and a part of the error or its hint
WRONG = {
    "": (0, "begin with at, every, cron"),
    "daily": (0, "begin with at, every, cron"),
    "At 2026-12-01T09:30Z": (0, "begin with at"),
    "at": (2, "write a time such as"),
    "at noon": (3, "write a time such as"),
    "at 2026-12-01T09:30:00": (3, "add Z, an offset or a zone"),
    "at 2026-02-31T09:30Z": (3, "day is out of range for month"),
    "at 2026-12-01T24:30Z": (3, "hour must be in 0..23"),
    "at 2026-12-01T09:30+05:60": (3, "minutes of the offset"),
    "at 2026-12-01T09:30+24:00": (3, "'2026-12-01T09:30+24:00'"),
    "at 1969-12-31T23:59:59Z": (3, "from 1970 to 2199"),
    "at 2200-01-01T00:00Z": (3, "from 1970 to 2199"),
    "at 2026-12-01T09:30Z UTC": (21, "write one of them"),
    "at 2026-12-01T09:30 UTC please": (24, "one word too many"),
    "at ２０２６-12-01T09:30Z": (3, "write a time"),
    "every": (5, "write a duration"),
    "every 15": (6, "write a duration"),
    "every -5m": (6, "write a duration"),
    "every 500ms": (6, "from 1s to 366d"),
    "every 367d": (6, "from 1s to 366d"),
    "every 999999999999999999d": (6, "from 1s to 366d"),
    "every 15m at 09:30": (10, "write every 15m from"),
    "every 15m from": (14, "a time is missing"),
    "every 15m from 2026-12-01T09:30": (15, "add Z or an offset"),
    "cron": (4, "5 or 6 fields, not 0"),
    "cron 1 2 3": (10, "5 or 6 fields, not 3"),
    "cron 60 * * * *": (5, "minutes are 0-59"),
    "cron 30 25 * * * UTC": (8, "hours are 0-23"),
    "cron 60 0 0 1 1 *": (5, "seconds are 0-59"),
    "cron 0 0 32 * *": (9, "days of the month are 1-31"),
    "cron 0 0 0 * *": (9, "days of the month are 1-31"),
    "cron 0 0 1 13 *": (11, "months are 1-12"),
    "cron 0 0 * * 8": (13, "days of the week are 0-7"),
    "cron 0 0 * * MONDAY": (13, "days of the week are 0-7"),
    "cron 5-1 * * * *": (5, "minutes are 0-59"),
    "cron */0 * * * *": (5, "minutes are 0-59"),
    "cron ? * * * *": (5, "minutes are 0-59"),
    "cron 0 0 31 2 *": (9, "no such date exists"),
    "cron 0 0 30,31 2 *": (9, "no such date exists"),
    "cron 0 0 31 4,6,9,11 *": (9, "no such date exists"),
    "cron 0 0 */30 2 1#5": (16, "no such date exists"),
    "cron 30 9 * * 1-5 America/New_york": (18, "did you mean America/New_York?"),
    "cron 30 9 * * 1-5 Tokyo": (18, "did you mean Asia/Tokyo?"),
    "cron 30 9 * * 1-5 ../../etc/passwd": (18, "no time zone"),
    "cron 30 9 * * 1-5 on sessions of X!": (33, "calendar name"),
    "calendar:": (9, "calendar name"),
    "calendar:XNYS": (13, "an event is missing"),
    "calendar:XNYS opens": (14, "write open, close"),
    "calendar:XNYS open-5": (19, "write a duration"),
    "calendar:XNYS open-25h": (19, "more than 1d"),
    "calendar:XNYS open -5m": (19, "one word too many"),
}


@pytest.mark.parametrize("text", [text for text, canonical in CANONICAL.items() if canonical is not None])
def test_the_canonical_text_is_of_the_same_schedule(text: str) -> None:
    schedule = parse_schedule(text)
    assert str(schedule) == CANONICAL[text]
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize("text", [text for text, canonical in CANONICAL.items() if canonical is None])
def test_what_is_wrong_or_never_comes(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        parse_schedule(text)


@pytest.mark.parametrize("text", WRONG)
def test_an_error_points_at_the_wrong_part(text: str) -> None:
    position, part = WRONG[text]
    with pytest.raises(InvalidSchedule) as raised:
        parse_schedule(text)
    error = raised.value
    assert part in f"{error.message} {error.details.get('hint', '')}"
    assert error.details["position"] == str(position)
    assert f"at character {position}" in error.message
    assert error.code == "INVALID_ARGUMENT" and not error.retriable


def test_an_error_keeps_its_details_over_a_process_and_a_wire() -> None:
    with pytest.raises(InvalidSchedule) as raised:
        parse_schedule("every 15")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), again.message, again.details) == (InvalidSchedule, raised.value.message, raised.value.details)
    assert from_code(again.code, again.message, details=again.details).details["position"] == "6"


def test_a_long_text_is_refused_and_shortened_in_errors() -> None:
    with pytest.raises(InvalidSchedule, match="201 characters, and at most 200"):
        parse_schedule("every 15m" + " " * 192)
    with pytest.raises(InvalidSchedule) as raised:
        parse_schedule("x" * 200)
    assert len(raised.value.message) < 120


def test_a_sixth_word_is_a_field_or_a_zone() -> None:
    assert parse_schedule("cron 0 30 9 * * SUN") == parse_schedule("cron 0 30 9 * * sun UTC")
    zoned = parse_schedule("cron 30 9 * * SUN EST")
    assert isinstance(zoned, Cron)
    assert (zoned.zone, len(zoned.cron.fields)) == ("EST", 5)


def test_a_calendar_of_a_digit_and_its_offset() -> None:
    assert parse_schedule("calendar:XNYS open-5m") == CalendarTime("XNYS", "open", -300_000_000)


def test_a_time_alone() -> None:
    assert parse_time("1970-01-01T00:00:00.000001Z") == 1
    with pytest.raises(InvalidSchedule, match="a time is missing"):
        parse_time(" ")


def test_zones_are_those_of_the_package() -> None:
    """Not those of the machine, whose version is not known."""
    assert TZDATA[:2] == "20"
    assert "America/New_York" in zone_names() and "localtime" not in zone_names()
    assert str(zone_of("Asia/Tokyo")) == "Asia/Tokyo"
    for name in ("", ".", "..", "/etc/localtime", "america/new_york", "tzdata.zi", "America"):
        with pytest.raises(InvalidSchedule):
            zone_of(name)
