"""Schedules against a naive model: the wall clock, minute by minute; and hostile texts."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, given
from hypothesis import strategies as st

from comet.errors import InvalidSchedule
from comet.schedules.calendars import Calendar, CalendarSession
from comet.schedules.cron import CronFields
from comet.schedules.due import LATE_FIRED_MAX, LatePolicy, ScheduleEnd, due_times, next_time
from comet.schedules.spec import TEXT_CHARS_MAX, TIME_MAX_US, Schedule, parse_schedule
from comet.schedules.zones import EPOCH, microseconds, zone_names, zone_of

MINUTE_US: Final = 60_000_000
# A start, in 2026 if clocks change then, two days before.
NIGHTS: Final = {
    "America/New_York": ("2026-03-07", "2026-10-31"),
    "Europe/London": ("2026-03-28", "2026-10-24"),
    "Pacific/Auckland": ("2026-04-03", "2026-09-25"),
    "America/Santiago": ("2026-04-03", "2026-09-04"),
    "Australia/Lord_Howe": ("2026-04-03", "2026-10-02"),
    "Africa/Casablanca": ("2026-02-14", "2026-03-21"),
    "Asia/Kathmandu": ("2026-02-14",),
    "Pacific/Apia": ("2011-12-28",),  # 30 December was left out
    "America/St_Johns": ("2010-11-06", "2010-03-13"),  # clocks changed at 00:01
    "UTC": ("2026-02-27",),
}
DAYS: Final = 5


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    spans = st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, high).map(lambda step: f"*/{step}")
    return st.one_of(
        st.just("*"), one.map(str), spans, steps, st.lists(one.map(str), min_size=1, max_size=3).map(",".join)
    )


fields = st.tuples(
    numbers(0, 59),
    numbers(0, 23),
    st.one_of(st.just("*"), st.just("*"), numbers(1, 31), st.sampled_from(["L", "LW"])),
    st.just("*"),
    st.one_of(st.just("*"), st.just("*"), numbers(0, 7), st.sampled_from(["SUN", "5L", "6#1"])),
)


@st.composite
def nights(draw: st.DrawFn) -> tuple[str, int]:
    """A zone and a time in the days before its clocks change."""
    zone = draw(st.sampled_from(sorted(NIGHTS)))
    start = datetime.fromisoformat(draw(st.sampled_from(NIGHTS[zone]))).replace(tzinfo=UTC)
    return zone, microseconds(start) + draw(st.integers(0, 24 * 60 * MINUTE_US))


@lru_cache(maxsize=64)
def wall_clock(zone: str, first: int) -> list[tuple[int, datetime]]:
    """Each minute of some days with its wall clock."""
    tz = zone_of(zone)
    return [
        (us, (EPOCH + timedelta(microseconds=us)).astimezone(tz))
        for us in range(first * MINUTE_US, (first + DAYS * 24 * 60) * MINUTE_US, MINUTE_US)
    ]


def naive_times(text: tuple[str, ...], zone: str, after_us: int) -> list[int]:
    """The times of cron fields after one, by Debian's rules, from the wall clock of each minute."""
    cron: Any = parse_schedule(f"cron {' '.join(text)} {zone}").cron  # type: ignore[union-attr]
    parsed = cron._parsed
    first = after_us // MINUTE_US // (24 * 60) * 24 * 60 - 24 * 60
    found: list[int] = []
    seen: set[datetime] = set()
    last: datetime | None = None
    days: dict[date, bool] = {}
    for us, aware in wall_clock(zone, first):
        wall = aware.replace(tzinfo=None, fold=0)
        walls = [wall]
        if not text[0].startswith("*") and not text[1].startswith("*"):
            if last is not None and wall > last + timedelta(minutes=1):  # skipped: all of these come now
                missing = (wall - last) // timedelta(minutes=1)
                walls = [last + timedelta(minutes=1 + one) for one in range(missing)]
            walls = [one for one in walls if one not in seen]  # repeated: only the first ones count
            seen.update(walls)
        for one in walls:
            if one.minute in parsed.minutes and one.hour in parsed.hours:
                day = one.date()
                if days.setdefault(day, day not in days and parsed.match_day(day)):
                    found.append(us)
                    break
        last = wall
    return [one for one in found if one > after_us]


@given(nights(), fields)
def test_cron_agrees_with_a_walk_of_the_wall_clock(night: tuple[str, int], text: tuple[str, ...]) -> None:
    zone, after = night
    try:
        schedule = parse_schedule(f"cron {' '.join(text)} {zone}")
    except InvalidSchedule:
        assume(False)
    wanted = naive_times(text, zone, after)[:40]
    found: list[int] = []
    while len(found) < len(wanted):
        following = next_time(schedule, found[-1] if found else after, {})
        assert isinstance(following, int)
        found.append(following)
    assert found == wanted


@given(nights(), fields, st.integers(0, 2 * 24 * 60 * MINUTE_US))
def test_the_next_time_is_after_and_never_goes_back(night: tuple[str, int], text: tuple[str, ...], later: int) -> None:
    zone, after = night
    try:
        schedule = parse_schedule(f"cron {' '.join(text)} {zone}")
    except InvalidSchedule:
        assume(False)
    first, second = next_time(schedule, after, {}), next_time(schedule, after + later, {})
    assert isinstance(first, int) and isinstance(second, int)
    assert after < first <= second and first % MINUTE_US == 0
    if after + later < first:
        assert first == second, "no time lies between them"
    assert parse_schedule(str(schedule)) == schedule


# ---- calendars, steps and policies


@st.composite
def markets(draw: st.DrawFn) -> Calendar:
    """Some days of 2026, each with a session."""
    days = draw(st.sets(st.integers(0, 60), min_size=1, max_size=30))
    sessions = []
    for day in sorted(days):
        start = datetime(2026, 10, 1, 13, tzinfo=UTC) + timedelta(days=day)
        opens = microseconds(start) + draw(st.integers(0, 3)) * 30 * MINUTE_US
        closes = opens + draw(st.integers(1, 14)) * 30 * MINUTE_US
        sessions.append(CalendarSession(start.date().isoformat(), opens, closes))
    return Calendar("M", "America/New_York", tuple(sessions), sessions[-1].date)


START: Final = microseconds(datetime(2026, 9, 25, tzinfo=UTC))
schedules = st.one_of(
    st.tuples(st.sampled_from(["open", "close"]), st.integers(-90, 90)).map(
        lambda one: f"calendar:M {one[0]}{one[1]:+}m"
    ),
    st.tuples(numbers(0, 59), st.integers(9, 16)).map(lambda one: f"cron {one[0]} {one[1]} * * * on sessions of M"),
    st.integers(1, 5_000).map(lambda minutes: f"every {minutes}m"),
    st.tuples(numbers(0, 59), numbers(0, 23)).map(lambda one: f"cron {one[0]} {one[1]} * * * America/New_York"),
)  # fmt: skip


@given(markets(), schedules, st.integers(0, 70 * 24 * 60), st.integers(0, 24 * 60))
def test_times_on_sessions_agree_with_a_walk(market: Calendar, text: str, minutes: int, later: int) -> None:
    schedule = parse_schedule(text)
    after = START + minutes * MINUTE_US
    found = next_time(schedule, after, {"M": market})
    second = next_time(schedule, after + later * MINUTE_US, {"M": market})
    if isinstance(found, ScheduleEnd):
        assert isinstance(second, ScheduleEnd) and found.calendar == "M"
    else:
        assert found > after and (isinstance(second, ScheduleEnd) or second >= found)
    if text.startswith("calendar:"):
        event, _, offset = text.removeprefix("calendar:M ").removesuffix("m").replace("-", "+-").partition("+")
        edges = [one.open_us if event == "open" else one.close_us for one in market.sessions]
        wanted = [edge + int(offset) * MINUTE_US for edge in edges]
        assert found == min((one for one in wanted if one > after), default=found)
        assert isinstance(found, ScheduleEnd) == all(one <= after for one in wanted)
    elif "sessions" in text:
        plain = parse_schedule(f"{text.partition(' on ')[0]} America/New_York")
        at: int | ScheduleEnd = after
        dates = {one.date for one in market.sessions}
        while isinstance(at, int):
            at = next_time(plain, at, {})
            assert isinstance(at, int)
            day = (EPOCH + timedelta(microseconds=at)).astimezone(zone_of("America/New_York")).date().isoformat()
            if day > market.known_until:
                assert isinstance(found, ScheduleEnd)
                break
            if day in dates:
                assert found == at
                break


@given(markets(), schedules, st.integers(0, 40 * 24 * 60), st.integers(0, 20 * 24 * 60), st.sampled_from(LatePolicy))
def test_late_times_agree_with_a_walk(market: Calendar, text: str, minutes: int, late: int, policy: LatePolicy) -> None:
    schedule, calendars = parse_schedule(text), {"M": market}
    first = next_time(schedule, START + minutes * MINUTE_US, calendars)
    assume(isinstance(first, int))
    assert isinstance(first, int)
    now, late_max = first + late * MINUTE_US, 3 * 24 * 60 * MINUTE_US
    missed: list[int] = []
    at: int | ScheduleEnd = first
    while isinstance(at, int) and at <= now:
        missed.append(at)
        at = next_time(schedule, at, calendars)
    wanted = {
        LatePolicy.FIRE: missed[:1],
        LatePolicy.FIRE_LAST: missed[-1:],
        LatePolicy.FIRE_ALL: missed[:LATE_FIRED_MAX],
        LatePolicy.SKIP: [one for one in missed if one >= now - late_max][:LATE_FIRED_MAX],
    }
    found = due_times(schedule, first, now, calendars, policy, late_max_us=late_max)
    assert found.fire == tuple(wanted[policy])
    assert found.next == at
    if len(missed) <= LATE_FIRED_MAX:
        assert found.skipped == len(missed) - len(found.fire)


# ---- hostile texts

PARTS: Final = (
    *("at", "every", "cron", "calendar:", "XNYS", "open", "close", "on sessions of", "from", "UTC", "America/New_York"),
    *("*", "*/", "-", "#", "L", "LW", "W", "?", ",", "/", " ", "  ", "\t", "\n", "0", "9", "59", "99999999999", "MON"),
    *("2026-12-01T09:30Z", "T", ":", "Z", "+", "15m", "us", "ms", "\x00", "é", "٣", "５", "🕐", "%", "'", "(", ".*"),
)
hostile = st.one_of(
    st.text(max_size=TEXT_CHARS_MAX + 20),
    st.lists(st.sampled_from(PARTS), max_size=60).map("".join),
    st.tuples(
        st.sampled_from(["at ", "every ", "cron ", "calendar:"]),
        st.lists(st.sampled_from(PARTS), max_size=16).map(" ".join),
    ).map("".join),
    st.lists(numbers(0, 99), min_size=4, max_size=7).map(lambda words: f"cron {' '.join(words)}"),
)  # fmt: skip


def parsed(text: str) -> tuple[Schedule | None, InvalidSchedule | None]:
    try:
        return parse_schedule(text), None
    except InvalidSchedule as error:
        return None, error


@given(hostile)
def test_a_hostile_text_is_a_schedule_or_a_typed_error(text: str) -> None:
    schedule, error = parsed(text)
    if schedule is None:
        assert error is not None
        assert 0 <= int(error.details["position"]) <= len(text)
        assert len(error.message) < 300
        return
    assert parse_schedule(str(schedule)) == schedule
    if not getattr(schedule, "calendar", ""):
        found = next_time(schedule, START, {})
        assert isinstance(found, ScheduleEnd) or START < found <= TIME_MAX_US


star = st.integers(1, 60).map(lambda step: f"*/{step}")
days_of_month = st.one_of(star, st.sampled_from(["L", "LW", "29", "30", "31", "31,LW", "30,31", "31,L", "28-31"]))
days_of_week = st.one_of(star, st.sampled_from(["1#5", "0#1", "5L", "0L", "1#5,2#4", "6", "0"]))


@given(days_of_month, st.sampled_from(["*", "2", "4", "2,4", "*/7"]), days_of_week)
def test_dates_that_never_come_are_known_as_such(day: str, month: str, weekday: str) -> None:
    """As a walk over 40 years finds them: after these each day of a year has been each weekday."""
    try:
        found = CronFields(("0", "0", day, month, weekday))
    except CronSimError:
        assert "L" not in day and "*" not in day
        return
    first = date(2000, 1, 1)
    dates = (first + timedelta(days=number) for number in range(40 * 366))
    assert found.is_possible() == any(map(found.matches, dates))


@pytest.mark.parametrize(
    "text",
    [
        "cron 0 0 LW * */53",
        "cron 0 0 31,LW 2 */53",
        "cron 0 0 31 2 *",
        "cron 0 0 30 2 *",
        "cron 0 0 31 4,6,9,11 *",
        "cron 0 0 */30 2 1#5",
        "cron 0 0 */29 2 0L",
    ],
)
def test_a_cron_that_never_comes_is_refused_without_a_walk(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(*_: object) -> bool:
        raise AssertionError("it looks at dates one by one")

    monkeypatch.setattr(CronSim, "match_day", walked)
    with pytest.raises(InvalidSchedule):
        parse_schedule(text)


@given(st.sampled_from(sorted(zone_names())), st.integers(0, TIME_MAX_US))
def test_every_zone_has_next_times(zone: str, after: int) -> None:
    found = next_time(parse_schedule(f"cron 30 2 * * * {zone}"), after, {})
    assert isinstance(found, ScheduleEnd) or after < found <= after + 3 * 24 * 60 * MINUTE_US
