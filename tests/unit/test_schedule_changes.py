"""What happens to one schedule: made, moved, paused, resumed, run, fired."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from comet.errors import InvalidArgument, InvalidSchedule
from comet.schedules.calendars import Calendar, CalendarSession
from comet.v1 import records_pb2
from comet.v1 import schedules_pb2 as pb
from comet_broker.schedules import changes

NOW = int(datetime(2026, 11, 30, 9, 0, tzinfo=UTC).timestamp()) * 1_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND


def session(day: int) -> CalendarSession:
    opens = int(datetime(2026, 12, day, 14, 30, tzinfo=UTC).timestamp()) * SECOND
    return CalendarSession(f"2026-12-{day:02}", opens, opens + 6 * 3600 * SECOND)


CALENDARS = {"X": Calendar("X", "UTC", (session(1), session(2)), "2026-12-02", "test")}


def made(spec: str = "", **given: object) -> pb.Schedule:
    put = pb.SchedulePut()
    if (delay_ms := given.pop("delay_ms", None)) is not None:
        assert isinstance(delay_ms, int)
        put.delay_ms = delay_ms
    fields = {"id": "a", "spec": spec, "record": records_pb2.Record(key=b"k", value=b"v"), **given}
    put.schedule.CopyFrom(pb.Schedule(**fields))  # type: ignore[arg-type]
    return changes.made(put, "t", NOW, CALENDARS)


def times_of(done: changes.Fired) -> list[int]:
    return [record.timestamp_us for record in done.records]


def header(record: records_pb2.Record, name: str) -> str:
    (found,) = [one.value for one in record.headers if one.name == f"comet-schedule-{name}"]
    return found.decode()


def test_one_that_is_due_once_fires_and_is_over() -> None:
    schedule = made(delay_ms=1_500)
    assert schedule.next_us == changes.due_us(schedule) == NOW + 1_500_000
    done = changes.fired(schedule, NOW + 9 * DAY, {}, 10)
    (record,) = done.records
    assert done.after is None
    assert (record.key, record.value, record.timestamp_us) == (b"k", b"v", NOW + 1_500_000)
    assert [header(record, name) for name in ("id", "due", "count")] == ["a", str(NOW + 1_500_000), "1"]


def test_the_spec_is_stored_in_its_canonical_form() -> None:
    assert made("every  1h30m").spec == "every 90m"
    assert changes.is_due_once(made("at 2026-12-01T09:30:00Z"))


def test_one_in_the_past_is_due_at_once() -> None:
    schedule = made("at 2026-11-01T00:00:00Z")
    assert changes.due_us(schedule) == schedule.next_us < NOW


def test_a_recurring_one_goes_on_with_its_next_time() -> None:
    schedule = made("every 1m")
    done = changes.fired(schedule, NOW + 61 * SECOND, {}, 10)
    assert times_of(done) == [NOW + 60 * SECOND]
    assert done.after is not None
    assert (done.after.next_us, done.after.fired, done.after.fired_us) == (NOW + 120 * SECOND, 1, NOW + 60 * SECOND)
    again = changes.fired(done.after, NOW + 130 * SECOND, {}, 10)
    assert header(again.records[0], "count") == "2"


@pytest.mark.parametrize(
    ("late", "fires", "skipped"),
    [("", [5], 4), ("fire_last", [5], 4), ("fire", [1], 4), ("fire_all", [1, 2, 3, 4, 5], 0), ("skip", [4, 5], 3)],
)
def test_late_times(late: str, fires: list[int], skipped: int) -> None:
    schedule = made("every 1m", late=late, late_max_ms=90_000 if late == "skip" else 0)
    done = changes.fired(schedule, NOW + 330 * SECOND, {}, 1000)
    assert times_of(done) == [NOW + at * 60 * SECOND for at in fires]
    assert done.skipped == skipped
    assert done.after is not None
    assert done.after.next_us == NOW + 360 * SECOND
    assert done.after.skipped == skipped


def test_what_does_not_fit_into_a_transaction_fires_in_the_next_one() -> None:
    schedule = made("every 1m", late="fire_all")
    done = changes.fired(schedule, NOW + 330 * SECOND, {}, 2)
    assert times_of(done) == [NOW + 60 * SECOND, NOW + 120 * SECOND]
    assert done.after is not None
    rest = changes.fired(done.after, NOW + 330 * SECOND, {}, 10)
    assert times_of(rest) == [NOW + at * 60 * SECOND for at in (3, 4, 5)]
    assert header(rest.records[0], "count") == "3"


def test_it_ends_after_as_many_as_it_says() -> None:
    schedule = made("every 1m", late="fire_all", fires_max=3)
    done = changes.fired(schedule, NOW + 130 * SECOND, {}, 10)
    assert done.after is not None
    last = changes.fired(done.after, NOW + 330 * SECOND, {}, 10)
    assert times_of(last) == [NOW + 180 * SECOND]
    assert last.after is None


def test_it_ends_at_its_end() -> None:
    schedule = made("every 1m", late="fire_all", end_us=NOW + 125 * SECOND)
    done = changes.fired(schedule, NOW + 330 * SECOND, {}, 10)
    assert times_of(done) == [NOW + 60 * SECOND, NOW + 120 * SECOND]
    assert done.after is None


def test_jitter_comes_after_the_time_and_is_the_same_each_time() -> None:
    schedule = made("every 1h", jitter_ms=60_000)
    due = changes.due_us(schedule)
    assert due is not None
    assert schedule.next_us < due < schedule.next_us + 60 * SECOND
    assert due == changes.due_us(made("every 1h", jitter_ms=60_000))
    assert times_of(changes.fired(schedule, due, {}, 10)) == [schedule.next_us]


def test_it_waits_for_a_newer_calendar_where_its_own_ends() -> None:
    schedule = made("calendar:X open")
    first = changes.fired(schedule, schedule.next_us, CALENDARS, 10).after
    assert first is not None
    last = changes.fired(first, first.next_us, CALENDARS, 10)
    assert len(last.records) == 1
    assert last.after is not None
    assert (last.after.paused, last.after.waits_for) == (True, "X")
    assert "known until 2026-12-02" in last.after.reason
    assert changes.due_us(last.after) is None
    longer = {"X": Calendar("X", "UTC", (session(1), session(2), session(3)), "2026-12-03", "test")}
    resumed = changes.renewed(last.after, first.next_us + SECOND, longer)
    assert resumed is not None
    assert (resumed.paused, resumed.reason, resumed.next_us) == (False, "", session(3).open_us)


def test_a_changed_calendar_moves_the_next_time() -> None:
    schedule = made("calendar:X open")
    holiday = {"X": Calendar("X", "UTC", (session(2),), "2026-12-02", "test")}
    found = changes.renewed(schedule, NOW, holiday)
    assert found is not None
    assert found.next_us == session(2).open_us
    assert changes.renewed(found, NOW, holiday) is None


def test_a_time_that_is_over_already_stays_due_when_a_calendar_changes() -> None:
    schedule = made("calendar:X open")
    assert changes.renewed(schedule, schedule.next_us, {"X": CALENDARS["X"]}) is None


def test_without_its_calendar_it_is_paused_with_the_reason() -> None:
    done = changes.fired(made("calendar:X open"), NOW + 3 * DAY, {}, 10)
    assert done.records == ()
    assert done.after is not None
    assert (done.after.paused, done.after.waits_for) == (True, "X")
    assert "'X' does not exist" in done.after.reason


def test_one_that_a_newer_version_wrote_is_paused() -> None:
    schedule = made("every 1m")
    schedule.spec = "moon full"
    done = changes.fired(schedule, NOW + DAY, {}, 10)
    assert done.after is not None
    assert done.after.paused
    assert "moon" in done.after.reason


def test_paused_and_resumed() -> None:
    stopped = changes.paused(made("every 1m"))
    assert changes.due_us(stopped) is None
    with pytest.raises(InvalidArgument, match="resume it first"):
        changes.run(stopped, NOW)
    again = changes.resumed(stopped, NOW + 330 * SECOND, {})
    assert changes.due_us(again) == NOW + 360 * SECOND
    assert changes.renewed(stopped, NOW, {}) is None


def test_times_that_have_fired_do_not_come_again_when_a_clock_is_set_back() -> None:
    first = changes.fired(made("every 1m"), NOW + 300 * SECOND, {}, 10)
    assert first.after is not None
    assert first.after.fired_us == NOW + 300 * SECOND
    assert changes.resumed(changes.paused(first.after), NOW, {}).next_us == NOW + 360 * SECOND
    assert changes.moved(first.after, "every 30s", NOW, {}).next_us == NOW + 330 * SECOND


def test_one_that_is_due_once_keeps_its_time_over_a_pause() -> None:
    schedule = made(delay_ms=1_000)
    again = changes.resumed(changes.paused(schedule), NOW + DAY, {})
    assert again.next_us == schedule.next_us


def test_run_now_is_beside_its_times() -> None:
    now = changes.run(made("every 1h"), NOW + 5)
    done = changes.fired(now, NOW + 10, {}, 10)
    assert times_of(done) == [NOW + 5]
    assert done.after is not None
    assert done.after.next_us == NOW + 3600 * SECOND
    once = changes.fired(changes.run(made("at 2027-01-01T00:00:00Z"), NOW + 5), NOW + 10, {}, 10)
    assert (times_of(once), once.after) == ([NOW + 5], None)


def test_moved_keeps_its_record_and_a_persons_pause() -> None:
    found = changes.moved(changes.paused(made("every 1h")), "every 1m", NOW, {})
    assert (found.spec, found.next_us, found.paused) == ("every 1m", NOW + 60 * SECOND, True)
    assert found.record.value == b"v"
    waiting = changes.moved(changes.paused(made("every 1h"), "the calendar ends", "X"), "every 1m", NOW, {})
    assert not waiting.paused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": "a/b"}, "not a valid id"),
        ({"id": "x" * 201}, "not a valid id"),
        ({"late": "never"}, "late is fire, fire_last, fire_all, skip"),
        ({"late": "skip"}, "late=skip needs late_max_ms"),
        ({"late_max_ms": 5_000}, "goes with late=skip"),
        ({"jitter_ms": 86_400_001}, "jitter_ms is at most"),
        ({"end_us": NOW + 1}, "no time before its end"),
        ({"spec": "every 1m", "delay_ms": 5}, "either a spec or a delay"),
        ({"spec": "", "delay_ms": 367 * 86_400_000}, "a delay is at most"),
        ({"spec": "at 2027-01-01T00:00:00Z", "fires_max": 2}, "neither end nor fires_max"),
        ({"spec": "calendar:X break_start"}, "no next time"),
        ({"record": records_pb2.Record(value=b"", expected=3)}, "no `expected`"),
        ({"record": records_pb2.Record(value=b"", ttl_ms=-7)}, "ttl_ms must be"),
    ],
)
def test_what_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        made(**{"spec": "every 1m", **given})  # type: ignore[arg-type]


def test_an_error_of_the_spec_says_where() -> None:
    with pytest.raises(InvalidSchedule) as caught:
        made("every 5x")
    assert caught.value.details["position"] == "6"
