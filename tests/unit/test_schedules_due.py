"""Next times of schedules, what happens with late ones, and jitter."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from comet.errors import CalendarNotFound, InvalidArgument
from comet.schedules.calendars import Calendar, CalendarSession, SessionBreak, check_calendar
from comet.schedules.due import (
    LATE_FIRED_MAX,
    DueTimes,
    LatePolicy,
    ScheduleEnd,
    default_policy,
    due_times,
    jitter_us,
    next_time,
)
from comet.schedules.preview import preview
from comet.schedules.spec import TIME_MAX_US, parse_schedule, parse_time, wall_text

MINUTE = 60_000_000
NEW_YORK = "America/New_York"
CLOSED = {"2026-11-26", "2026-12-25", "2027-01-01"}  # Thanksgiving, Christmas, New Year
HALF = {"2026-11-27", "2026-12-24"}


def days(first: str, last: str) -> list[str]:
    day, found = date.fromisoformat(first), []
    while day.isoformat() <= last:
        if day.weekday() < 5 and day.isoformat() not in CLOSED:
            found.append(day.isoformat())
        day += timedelta(days=1)
    return found


def at(day: str, time: str, zone: str = NEW_YORK) -> int:
    return parse_time(f"{day}T{time} {zone}")


def new_york(first: str = "2026-11-02", last: str = "2027-01-08") -> Calendar:
    """As the New York Stock Exchange trades: to 13:00 on half days."""
    sessions = tuple(
        CalendarSession(day, at(day, "09:30"), at(day, "13:00" if day in HALF else "16:00"))
        for day in days(first, last)
    )
    return check_calendar(Calendar("XNYS", NEW_YORK, sessions, last))


def tokyo() -> Calendar:
    zone = "Asia/Tokyo"
    sessions = tuple(
        CalendarSession(
            day, at(day, "09:00", zone), at(day, "15:30", zone),
            (SessionBreak(at(day, "11:30", zone), at(day, "12:30", zone)),),
        )
        for day in days("2026-11-02", "2026-12-30")
    )  # fmt: skip
    return check_calendar(Calendar("XTKS", zone, sessions, "2026-12-31"))


XNYS, XTKS = new_york(), tokyo()
CALENDARS = {"XNYS": XNYS, "XTKS": XTKS}


def times(text: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    found = preview(parse_schedule(text), parse_time(after), CALENDARS, count=count, now_us=0)
    assert found.zone or zone
    return [wall_text(one.time_us, zone)[:16] for one in found.times]


# ---- calendars


def test_thanksgiving_is_closed_and_the_day_after_it_ends_early() -> None:
    assert times("calendar:XNYS close", "2026-11-25T00:00Z", 3) == [
        "2026-11-25T21:00",
        "2026-11-27T18:00",
        "2026-11-30T21:00",
    ]
    assert times("calendar:XNYS open-5m", "2026-11-25T20:00Z", 2) == ["2026-11-27T14:25", "2026-11-30T14:25"]
    assert times("calendar:XNYS close+90m", "2026-12-23T22:00Z", 3) == [
        "2026-12-23T22:30",
        "2026-12-24T19:30",
        "2026-12-28T22:30",
    ]


def test_breaks_are_events_too() -> None:
    assert times("calendar:XTKS break_start", "2026-11-30T00:00Z", 2, "Asia/Tokyo") == [
        "2026-11-30T11:30",
        "2026-12-01T11:30",
    ]
    assert times("calendar:XTKS break_end-1m", "2026-11-30T03:29Z", 1, "Asia/Tokyo") == ["2026-12-01T12:29"]
    none = next_time(parse_schedule("calendar:XNYS break_end"), 0, CALENDARS)
    assert none == ScheduleEnd("the sessions of calendar XNYS have no breaks", "XNYS")


def test_cron_on_sessions_leaves_out_closed_days_in_the_zone_of_its_fields() -> None:
    assert times("cron 0 10 * * * on sessions of XNYS", "2026-11-25T16:00Z", 2, NEW_YORK) == [
        "2026-11-27T10:00",
        "2026-11-30T10:00",
    ]
    # On a date with a session, as people in London read it.
    assert times("cron 0 7 * * * Europe/London on sessions of XNYS", "2026-11-25T08:00Z", 2) == [
        "2026-11-27T07:00",
        "2026-11-30T07:00",
    ]
    assert times("cron 0 10 * * 4 on sessions of XNYS", "2026-11-20T00:00Z", 2, NEW_YORK)[0] == "2026-12-03T10:00"


def test_nothing_is_guessed_beyond_a_calendar() -> None:
    last = at("2027-01-08", "16:00")
    for text in ("calendar:XNYS close", "cron 59 15 * * * on sessions of XNYS"):
        schedule = parse_schedule(text)
        assert isinstance(next_time(schedule, last - 2 * MINUTE, CALENDARS), int)
        found = next_time(schedule, last, CALENDARS)
        assert isinstance(found, ScheduleEnd)
        assert (found.calendar, str(found)) == (
            "XNYS", "calendar XNYS is known until 2027-01-08 only: import a newer version",
        )  # fmt: skip
    on_saturdays = next_time(parse_schedule("cron 0 9 * * 6 on sessions of XNYS"), 0, CALENDARS)
    assert isinstance(on_saturdays, ScheduleEnd) and on_saturdays.calendar == "XNYS"


def test_a_missing_calendar_is_named() -> None:
    for text in ("calendar:XLON open", "cron 0 9 * * * on sessions of XLON"):
        with pytest.raises(CalendarNotFound, match="calendar 'XLON' does not exist"):
            next_time(parse_schedule(text), 0, CALENDARS)


# ---- steps and ends


def test_times_are_exact_and_strictly_after() -> None:
    once = parse_schedule("at 2026-12-01T09:30:00.000001Z")
    due = parse_time("2026-12-01T09:30:00.000001Z")
    assert next_time(once, due - 1, {}) == due
    assert next_time(once, due, {}) == ScheduleEnd("it comes once, and that is over")
    every = parse_schedule("every 1000001us from 2026-12-01T00:00Z")
    first = parse_time("2026-12-01T00:00Z")
    assert [next_time(every, after, {}) for after in (0, first - 1, first, first + 1_000_001)] == [
        first, first, first + 1_000_001, first + 2_000_002,
    ]  # fmt: skip
    assert next_time(parse_schedule("every 15m"), 15 * MINUTE - 1, {}) == 15 * MINUTE
    assert next_time(parse_schedule("every 15m"), 15 * MINUTE, {}) == 30 * MINUTE
    cron = parse_schedule("cron * * * * *")
    assert [next_time(cron, after, {}) for after in (-1, 0, MINUTE - 1, MINUTE)] == [0, MINUTE, MINUTE, 2 * MINUTE]


@pytest.mark.parametrize("text", ["every 366d", "cron 0 0 1 1 *", "cron 0 0 29 2 *"])
def test_schedules_end_before_2200(text: str) -> None:
    found = next_time(parse_schedule(text), TIME_MAX_US, {})
    assert found == ScheduleEnd("no time before 2200")


def test_a_time_outside_all_schedules_is_refused() -> None:
    for after in (-2, TIME_MAX_US + 1):
        with pytest.raises(InvalidArgument, match="from 1970 to 2199"):
            next_time(parse_schedule("every 1h"), after, {})


# ---- late times

EVERY = parse_schedule("every 1m")
FIRST = 100 * MINUTE


def late(policy: LatePolicy, now: int, schedule: object = EVERY, **more: int) -> DueTimes:
    return due_times(schedule, FIRST, now, CALENDARS, policy, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", LatePolicy)
def test_what_is_not_due_yet_does_not_fire(policy: LatePolicy) -> None:
    assert late(policy, FIRST - 1) == DueTimes((), 0, FIRST)


@pytest.mark.parametrize("policy", LatePolicy)
def test_what_is_due_now_fires_once(policy: LatePolicy) -> None:
    assert late(policy, FIRST) == DueTimes((FIRST,), 0, FIRST + MINUTE)


def test_three_late_times_by_each_policy() -> None:
    now = FIRST + 2 * MINUTE + 1
    following = FIRST + 3 * MINUTE
    missed = (FIRST, FIRST + MINUTE, FIRST + 2 * MINUTE)
    assert late(LatePolicy.FIRE, now) == DueTimes(missed[:1], 2, following)
    assert late(LatePolicy.FIRE_LAST, now) == DueTimes(missed[2:], 2, following)
    assert late(LatePolicy.FIRE_ALL, now) == DueTimes(missed, 0, following)
    assert late(LatePolicy.SKIP, now, late_max_us=MINUTE + 1) == DueTimes(missed[1:], 1, following)
    assert late(LatePolicy.SKIP, now, late_max_us=MINUTE) == DueTimes(missed[2:], 2, following)
    assert late(LatePolicy.SKIP, now) == DueTimes((), 3, following)


def test_a_year_of_late_times_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one of half a million is found with few steps, and none takes more than LATE_FIRED_MAX."""
    from comet.schedules import due

    steps = 0

    def counted(*arguments: object) -> object:
        nonlocal steps
        steps += 1
        return next_time(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(due, "next_time", counted)
    now = FIRST + 365 * 24 * 60 * MINUTE + 5
    hour = now - 5 - (now - 5) % (60 * MINUTE)
    for text, last in (("every 1m", now - 5), ("cron * * * * *", now - 5), ("cron 0 * * * *", hour)):
        schedule = parse_schedule(text)
        first = next_time(schedule, FIRST - 1, {})
        assert isinstance(first, int)
        found = due_times(schedule, first, now, {}, LatePolicy.FIRE_LAST)
        assert found.fire == (last,) and found.skipped == LATE_FIRED_MAX
        assert found.next == next_time(schedule, now, {})
        assert steps < LATE_FIRED_MAX + 60
        steps = 0
    assert len(due_times(EVERY, FIRST, now, {}, LatePolicy.FIRE_ALL).fire) == LATE_FIRED_MAX
    within = due_times(EVERY, FIRST, now, {}, LatePolicy.SKIP, late_max_us=10 * MINUTE)
    assert within.fire == tuple(now - 5 - ago * MINUTE for ago in reversed(range(10)))


def test_a_late_single_time_fires_however_late() -> None:
    once = parse_schedule("at 2026-12-01T09:30Z")
    due = parse_time("2026-12-01T09:30Z")
    found = due_times(once, due, due + 10**12, {}, default_policy(once))
    assert found == DueTimes((due,), 0, ScheduleEnd("it comes once, and that is over"))
    assert default_policy(EVERY) is LatePolicy.FIRE_LAST


def test_late_sessions_are_those_of_the_calendar() -> None:
    """Down over Thanksgiving: the closings of Wednesday, Friday and Monday were missed."""
    close = parse_schedule("calendar:XNYS close")
    first, now = at("2026-11-25", "16:00"), at("2026-11-30", "18:00")
    missed = (first, at("2026-11-27", "13:00"), at("2026-11-30", "16:00"))
    assert due_times(close, first, now, CALENDARS, LatePolicy.FIRE_ALL).fire == missed
    assert due_times(close, first, now, CALENDARS, LatePolicy.FIRE_LAST).fire == missed[2:]


# ---- jitter


def test_jitter_is_the_same_everywhere_and_spreads() -> None:
    assert jitter_us("report", 1_780_000_200_000_000, 1_000_000) == 500_855
    found = {jitter_us(f"id-{number}", FIRST, 9) for number in range(200)}
    assert found == set(range(10))
    assert {jitter_us("x", due, 9) for due in range(200)} == set(range(10))
    assert jitter_us("x", FIRST, 0) == 0
    with pytest.raises(InvalidArgument):
        jitter_us("x", FIRST, -1)
