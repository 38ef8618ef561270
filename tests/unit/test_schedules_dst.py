"""Schedules in the nights when clocks change, against a table that was written by hand.

In 2026 the clocks change at these times in UTC:

    New York    03-08T07:00 forward, 02:00 to 03:00      11-01T06:00 back, 02:00 to 01:00
    London      03-29T01:00 forward, 01:00 to 02:00      10-25T01:00 back, 02:00 to 01:00
    Auckland    09-26T14:00 forward, 02:00 to 03:00      04-04T14:00 back, 03:00 to 02:00
    Santiago    09-06T04:00 forward, 00:00 to 01:00      04-05T03:00 back, 24:00 to 23:00 of the same day
    Lord Howe   10-03T15:30 forward, 02:00 to 02:30      04-04T15:00 back, 02:00 to 01:30
"""

from __future__ import annotations

from datetime import datetime

import pytest

from comet.schedules.due import next_time
from comet.schedules.spec import parse_schedule
from comet.schedules.zones import EPOCH, local_time, microseconds, zone_of

NEW_YORK, LONDON, AUCKLAND = "America/New_York", "Europe/London", "Pacific/Auckland"
SANTIAGO, LORD_HOWE = "America/Santiago", "Australia/Lord_Howe"

# zone, fields, start, the next times, all in UTC; a time without a date is on that of the one before
TABLE = [
    # forward
    (NEW_YORK, "30 2 * * *", "03-08T05:00", "03-08T07:00 03-09T06:30"),
    (NEW_YORK, "30 1 * * *", "03-08T05:00", "03-08T06:30 03-09T05:30"),
    (NEW_YORK, "0 3 * * *", "03-08T05:00", "03-08T07:00 03-09T07:00"),
    (NEW_YORK, "0,30 2,3 * * *", "03-08T05:00", "03-08T07:00 07:30 03-09T06:00"),
    (NEW_YORK, "*/30 * * * *", "03-08T06:00", "03-08T06:30 07:00 07:30 08:00"),
    (NEW_YORK, "0 * * * *", "03-08T05:30", "03-08T06:00 07:00 08:00"),
    (NEW_YORK, "*/30 2 * * *", "03-08T05:00", "03-09T06:00 06:30"),
    (NEW_YORK, "0 30 2 * * *", "03-08T05:00", "03-09T06:30 03-10T06:30"),
    (LONDON, "30 1 * * *", "03-28T23:00", "03-29T01:00 03-30T00:30"),
    (LONDON, "30 0 * * *", "03-28T23:00", "03-29T00:30 23:30"),
    (LONDON, "*/30 * * * *", "03-29T00:15", "03-29T00:30 01:00 01:30 02:00"),
    (LONDON, "0 * * * *", "03-28T23:30", "03-29T00:00 01:00 02:00"),
    (AUCKLAND, "30 2 * * *", "09-26T12:00", "09-26T14:00 09-27T13:30"),
    (AUCKLAND, "0 9 * * *", "09-26T12:00", "09-26T20:00 09-27T20:00"),
    (AUCKLAND, "*/30 * * * *", "09-26T13:15", "09-26T13:30 14:00 14:30"),
    (AUCKLAND, "0 * * * *", "09-26T12:30", "09-26T13:00 14:00 15:00"),
    (SANTIAGO, "30 0 * * *", "09-06T00:00", "09-06T04:00 09-07T03:30"),
    (SANTIAGO, "0 0 * * *", "09-06T00:00", "09-06T04:00 09-07T03:00"),
    (SANTIAGO, "0 0 6 9 *", "09-01T00:00", "09-06T04:00"),
    (SANTIAGO, "30 23 * * *", "09-05T20:00", "09-06T03:30 09-07T02:30"),
    (SANTIAGO, "*/30 * * * *", "09-06T03:15", "09-06T03:30 04:00 04:30"),
    (SANTIAGO, "0 * * * *", "09-06T02:30", "09-06T03:00 04:00 05:00"),
    (LORD_HOWE, "15 2 * * *", "10-03T12:00", "10-03T15:30 10-04T15:15"),
    (LORD_HOWE, "30 2 * * *", "10-03T12:00", "10-03T15:30 10-04T15:30"),
    (LORD_HOWE, "*/30 * * * *", "10-03T14:45", "10-03T15:00 15:30 16:00"),
    (LORD_HOWE, "0 * * * *", "10-03T14:15", "10-03T14:30 16:00 17:00"),
    (LORD_HOWE, "45 * * * *", "10-03T14:45", "10-03T15:15 15:45 16:45"),
    # back
    (NEW_YORK, "30 1 * * *", "11-01T04:00", "11-01T05:30 11-02T06:30"),
    (NEW_YORK, "30 1 * * *", "11-01T06:10", "11-02T06:30"),
    (NEW_YORK, "0 2 * * *", "11-01T04:00", "11-01T07:00 11-02T07:00"),
    (NEW_YORK, "*/30 * * * *", "11-01T05:00", "11-01T05:30 06:00 06:30 07:00"),
    (NEW_YORK, "0 * * * *", "11-01T04:30", "11-01T05:00 06:00 07:00"),
    (NEW_YORK, "*/30 1 * * *", "11-01T04:45", "11-01T05:00 05:30 06:00 06:30 11-02T06:00"),
    (NEW_YORK, "0 30 1 * * *", "11-01T04:00", "11-01T05:30 06:30 11-02T06:30"),
    (LONDON, "30 1 * * *", "10-24T23:00", "10-25T00:30 10-26T01:30"),
    (LONDON, "30 0 * * *", "10-24T23:00", "10-24T23:30 10-26T00:30"),
    (LONDON, "*/30 * * * *", "10-25T00:15", "10-25T00:30 01:00 01:30 02:00"),
    (LONDON, "0 * * * *", "10-24T23:30", "10-25T00:00 01:00 02:00"),
    (LONDON, "*/20 1 * * *", "10-24T23:50", "10-25T00:00 00:20 00:40 01:00 01:20 01:40 10-26T01:00"),
    (AUCKLAND, "30 2 * * *", "04-04T12:00", "04-04T13:30 04-05T14:30"),
    (AUCKLAND, "0 9 * * *", "04-04T12:00", "04-04T21:00 04-05T21:00"),
    (AUCKLAND, "*/30 * * * *", "04-04T13:15", "04-04T13:30 14:00 14:30 15:00"),
    (AUCKLAND, "0 * * * *", "04-04T12:30", "04-04T13:00 14:00 15:00"),
    (SANTIAGO, "30 23 * * *", "04-05T00:00", "04-05T02:30 04-06T03:30"),
    (SANTIAGO, "0 0 * * *", "04-05T00:00", "04-05T04:00 04-06T04:00"),
    (SANTIAGO, "*/30 * * * *", "04-05T02:15", "04-05T02:30 03:00 03:30 04:00"),
    (SANTIAGO, "0 * * * *", "04-05T01:30", "04-05T02:00 03:00 04:00"),
    (SANTIAGO, "*/30 23 * * *", "04-05T01:45", "04-05T02:00 02:30 03:00 03:30 04-06T03:00"),
    (LORD_HOWE, "45 1 * * *", "04-04T12:00", "04-04T14:45 04-05T15:15"),
    (LORD_HOWE, "0 2 * * *", "04-04T12:00", "04-04T15:30 04-05T15:30"),
    (LORD_HOWE, "*/30 * * * *", "04-04T14:15", "04-04T14:30 15:00 15:30 16:00"),
    (LORD_HOWE, "0 * * * *", "04-04T13:30", "04-04T14:00 15:30 16:30"),
    (LORD_HOWE, "45 * * * *", "04-04T14:00", "04-04T14:45 15:15 16:15"),
    (LORD_HOWE, "*/30 2 * * *", "04-04T14:15", "04-04T15:30 16:00 04-05T15:30"),
]


def utc(text: str) -> int:
    return microseconds(datetime.fromisoformat(f"2026-{text}:00+00:00"))


def expected(text: str) -> list[int]:
    found, day = [], ""
    for word in text.split():
        day = word[:5] if "T" in word else day
        found.append(utc(word if "T" in word else f"{day}T{word}"))
    return found


@pytest.mark.parametrize(("zone", "fields", "start", "times"), TABLE, ids=lambda value: str(value)[:24])
def test_the_table_of_nights(zone: str, fields: str, start: str, times: str) -> None:
    schedule = parse_schedule(f"cron {fields} {zone}")
    found: list[int] = []
    at = utc(start)
    for _ in times.split():
        following = next_time(schedule, at, {})
        assert isinstance(following, int)
        found.append(at := following)
    shown = [[str(local_time(one, EPOCH.tzinfo)) for one in some] for some in (found, expected(times))]  # type: ignore[arg-type]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("zone", sorted({row[0] for row in TABLE}))
def test_the_table_has_both_nights_of_a_zone(zone: str) -> None:
    """And in each a fixed time, each half hour, and each hour."""
    rows = [row for row in TABLE if row[0] == zone]
    for fields in ("*/30 * * * *", "0 * * * *"):
        assert len([row for row in rows if row[1] == fields]) == 2
    assert len([row for row in rows if not row[1].startswith(("*", "0 *", "45 *"))]) >= 4


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("at 2026-03-08T02:30 America/New_York", "03-08T07:00"),  # skipped: right after the gap
        ("at 2026-11-01T01:30 America/New_York", "11-01T05:30"),  # repeated: the first one
        ("at 2026-11-01T01:30-05:00", "11-01T06:30"),
        ("at 2026-10-04T02:15 Australia/Lord_Howe", "10-03T15:30"),
    ],
)
def test_one_time_in_such_a_night(text: str, time: str) -> None:
    assert next_time(parse_schedule(text), 0, {}) == utc(time)


def test_clocks_that_went_back_over_midnight() -> None:
    """In St. John's, on 7 November 2010, 00:01 became 23:01 of the day before, at 02:31 in UTC."""
    found: list[str] = []
    at = microseconds(datetime.fromisoformat("2010-11-07T01:45:00+00:00"))
    for _ in range(5):
        following = next_time(parse_schedule("cron */30 * * * * America/St_Johns"), at, {})
        assert isinstance(following, int)
        at = following
        found.append(local_time(at, zone_of("America/St_Johns")).strftime("%d %H:%M %z"))
    assert found == ["06 23:30 -0230", "07 00:00 -0230", "06 23:30 -0330", "07 00:00 -0330", "07 00:30 -0330"]
    once = parse_schedule("cron 30 23 * * * America/St_Johns")
    first = next_time(once, microseconds(datetime.fromisoformat("2010-11-07T01:45:00+00:00")), {})
    assert first == microseconds(datetime.fromisoformat("2010-11-07T02:00:00+00:00"))
    assert next_time(once, first, {}) == microseconds(datetime.fromisoformat("2010-11-08T03:00:00+00:00"))
