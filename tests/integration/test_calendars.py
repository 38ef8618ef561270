"""Market calendars of a cluster: versions, limits, other brokers, REST and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import comet
import comet.testing
from comet_broker import limits
from comet_broker.schedules.store import ScheduleStore
from tests.integration.local_cluster import LocalCluster
from tests.integration.resources_client import Api, api
from tests.integration.test_access_keys import keyed
from tests.integration.test_cli_flows import Up, serving
from tests.waiting import until_answered

HOUR_US = 3_600_000_000
NOON = 1_795_780_800_000_000  # 2026-11-27T12:00Z


def calendar(name: str = "DESK", days: int = 3, *, hours: int = 4, source: str = "") -> comet.Calendar:
    """Sessions from 2026-11-27 on, from 08:00 in UTC."""
    sessions = tuple(
        comet.CalendarSession(
            (date(2026, 11, 27) + timedelta(days=number)).isoformat(),
            NOON + (24 * number - 4) * HOUR_US,
            NOON + (24 * number + hours) * HOUR_US,
        )
        for number in range(days)
    )
    return comet.Calendar(name, "UTC", sessions, sessions[-1].date, source)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def broker() -> AsyncIterator[comet.testing.TestBroker]:
    async with comet.testing.broker() as one:
        yield one


async def test_a_calendar_is_read_from_every_broker_and_outlives_them(cluster: LocalCluster) -> None:
    def at(number: int) -> comet.Admin:
        return comet.Admin([cluster.address(number)], connect=cluster.network.connect)

    async with at(1) as first:
        made = await first.calendars.put_calendar(calendar(source="by hand"))
    assert (made.created, made.calendar.sessions, made.added) == (True, 3, ())
    for number in (1, 2, 3):
        async with at(number) as admin:
            assert await until_answered(partial(_has, admin, made.calendar.version), within_s=30)  # views follow
            found = await admin.calendars.get_calendar("DESK")
            assert found.sessions == calendar().sessions
            assert (found.source, found.version, found.author) == ("by hand", made.calendar.version, "anonymous")
            assert (await admin.calendars.list_calendars()).calendars == (made.calendar,)
    await cluster.stop(1)
    await cluster.start(1)
    async with at(1) as again:
        assert (await again.calendars.get_calendar("DESK")).version == made.calendar.version


async def _has(admin: comet.Admin, version: int) -> bool:
    return any(one.version >= version for one in (await admin.calendars.list_calendars()).calendars)


async def test_of_two_writers_of_one_version_one_wins(broker: comet.testing.TestBroker) -> None:
    async with comet.Admin(broker.address) as admin:
        calendars = admin.calendars
        version = (await calendars.put_calendar(calendar(), version=0)).calendar.version
        tries = [calendars.put_calendar(calendar(hours=hours), version=version) for hours in range(1, 11)]
        done = await asyncio.gather(*tries, return_exceptions=True)
        won = [one for one in done if isinstance(one, comet.CalendarPut)]
        lost = [one for one in done if isinstance(one, comet.CalendarChanged)]
        assert (len(won), len(lost)) == (1, 9)
        assert {one.details["version"] for one in lost} == {str(won[0].calendar.version)}
        assert (await calendars.get_calendar("DESK")).version == won[0].calendar.version > version
        with pytest.raises(comet.CalendarChanged, match=r"has the version .* that it does not exist"):
            await calendars.put_calendar(calendar(), version=0)
        with pytest.raises(comet.CalendarChanged, match="expects the version"):
            await calendars.delete_calendar("DESK", version=version)
        assert (await calendars.delete_calendar("DESK", version=won[0].calendar.version)).deleted
        with pytest.raises(
            comet.CalendarChanged, match="does not exist, and the request expects the version"
        ) as raised:
            await calendars.put_calendar(calendar(), version=version)
        assert raised.value.details["version"] == "0"
        assert not (await calendars.delete_calendar("DESK")).deleted
        # Without a version all succeed, one after the other.
        for one in await asyncio.gather(*(calendars.put_calendar(calendar(hours=hours)) for hours in range(1, 9))):
            assert one.calendar.name == "DESK"


async def test_a_refresh_says_what_changed_and_a_dry_run_changes_nothing(broker: comet.testing.TestBroker) -> None:
    async with comet.Admin(broker.address) as admin:
        before = await admin.calendars.put_calendar(calendar(days=3))
        shorter = comet.Calendar(
            "DESK", "UTC", (*calendar(days=2, hours=3).sessions[1:], *calendar(days=5).sessions[3:]), "2026-12-31"
        )
        for dry_run in (True, False):
            done = await admin.calendars.put_calendar(shorter, dry_run=dry_run)
            assert (done.dry_run, done.created) == (dry_run, False)
            assert done.added == ("2026-11-30", "2026-12-01")
            assert done.removed == ("2026-11-27", "2026-11-29")
            assert done.changed == ("2026-11-28",)
            stored = await admin.calendars.get_calendar("DESK")
            assert (stored.known_until, stored.version == before.calendar.version) == (
                "2026-11-29" if dry_run else "2026-12-31", dry_run,
            )  # fmt: skip
        assert str(done) == "DESK: 3 sessions, known until 2026-12-31; 2 sessions added, 2 removed, 1 changed"


async def test_calendars_are_bounded(broker: comet.testing.TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with comet.Admin(broker.address) as admin:
        monkeypatch.setattr(limits, "CALENDARS_MAX", 2)
        for name in ("a", "b", "b"):
            await admin.calendars.put_calendar(calendar(name))
        with pytest.raises(comet.LimitExceeded, match="has 2 calendars, its limit; delete one first"):
            await admin.calendars.put_calendar(calendar("c"))
        monkeypatch.setattr(limits, "CALENDARS_MAX", 100)
        monkeypatch.setattr(limits, "CALENDAR_BYTES_MAX", 400)
        with pytest.raises(comet.LimitExceeded, match=r"calendar c takes .* bytes, and at most 400"):
            await admin.calendars.put_calendar(calendar("c", days=20))
        monkeypatch.setattr(limits, "CALENDARS_BYTES_MAX", 600)
        with pytest.raises(comet.LimitExceeded, match=r"would take .* bytes, and at most 600"):
            await admin.calendars.put_calendar(calendar("c"))
        assert [one.name for one in (await admin.calendars.list_calendars()).calendars] == ["a", "b"]
        with pytest.raises(comet.InvalidArgument, match="invalid calendar name"):
            await admin.calendars.delete_calendar("../rules")


async def test_the_largest_calendar_fits(broker: comet.testing.TestBroker) -> None:
    async with comet.Admin(broker.address) as admin:
        done = await admin.calendars.put_calendar(calendar(days=5_000))
        assert done.calendar.sessions == 5_000
        found = await admin.calendars.next_times("calendar:DESK close", count=1, after_us=NOON)
        assert found.times[0].utc == "2026-11-27T16:00:00+00:00"


async def test_next_times_need_the_calendar_of_the_schedule_alone(broker: comet.testing.TestBroker) -> None:
    async with comet.Admin("localhost:1", timeout_ms=100) as nowhere:
        found = await nowhere.calendars.next_times("cron 0 9 * * 1 Asia/Tokyo", count=2, after_us=NOON)
        assert [one.local for one in found.times] == ["2026-11-30T09:00:00+09:00", "2026-12-07T09:00:00+09:00"]
    async with comet.Admin(broker.address) as admin:
        with pytest.raises(comet.CalendarNotFound, match="calendar 'DESK' does not exist"):
            await admin.calendars.next_times("calendar:DESK open")
        with pytest.raises(comet.InvalidSchedule, match="at character 14"):
            await admin.calendars.next_times("calendar:DESK opne")
        await admin.calendars.put_calendar(calendar())
        found = await admin.calendars.next_times("calendar:DESK open-5m", after_us=NOON)
        assert [one.utc for one in found.times] == ["2026-11-28T07:55:00+00:00", "2026-11-29T07:55:00+00:00"]
        assert found.end == "calendar DESK is known until 2026-11-29 only: import a newer version"
        assert found.warning.startswith("calendar DESK end") and "comet calendar import DESK" in found.warning


async def test_a_rule_guards_calendars(tmp_path: Path) -> None:
    """Reading needs `describe cluster`, changing `alter cluster`; the author is the client that stored it."""
    async with keyed(tmp_path) as broker:
        file, _ = await broker.key("ops.key", "client:ops")
        async with comet.Admin(broker.bootstrap(file)) as admin:
            for call in (
                admin.calendars.list_calendars(),
                admin.calendars.get_calendar("DESK"),
                admin.calendars.put_calendar(calendar()),
                admin.calendars.delete_calendar("DESK"),
            ):
                with pytest.raises(comet.Forbidden):
                    await call
            await broker.admin.access.add_rule("client:ops", ["describe"], comet.ResourceKind.CLUSTER, "*")
            assert await until_answered(partial(_allows, admin.calendars.list_calendars), within_s=30)
            with pytest.raises(comet.Forbidden):
                await admin.calendars.put_calendar(calendar())
            await broker.admin.access.add_rule("client:ops", ["alter"], comet.ResourceKind.CLUSTER, "*")
            assert await until_answered(
                partial(_allows, partial(admin.calendars.put_calendar, calendar())), within_s=30
            )
            assert (await admin.calendars.get_calendar("DESK")).author == "client:ops"


async def _allows(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except comet.Forbidden:
        return False
    return True


# ---- REST

BODY: dict[str, Any] = {
    "zone": "America/New_York",
    "known_until": "2026-11-30",
    "sessions": [
        {"date": "2026-11-27", "open": "2026-11-27T09:30", "close": "2026-11-27T13:00:00-05:00"},
        {"date": "2026-11-30", "open": "2026-11-30T09:30", "close": "2026-11-30T16:00"},
    ],
}


@pytest.fixture
async def http(broker: comet.testing.TestBroker) -> AsyncIterator[Api]:
    async with api(broker.address) as one:
        yield one


async def put(http: Api, body: dict[str, Any] = BODY, **headers: str) -> httpx.Response:
    return await http.client.put(
        "/v1/calendars/XNYS", json=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


async def test_a_calendar_over_rest_has_an_etag(http: Api) -> None:
    assert (await http.get("/calendars")) == {"calendars": []}
    problem = await http.ask("GET", "/calendars/XNYS", status=404)
    assert problem["code"] == "CALENDAR_NOT_FOUND"
    assert (await put(http, if_match="*")).status_code == 412
    made = await put(http, if_none_match="*")
    assert made.status_code == 200 and made.json()["created"]
    tag = made.headers["etag"]
    assert tag == f'"{made.json()["calendar"]["version"]}"'
    found = await http.client.get("/v1/calendars/XNYS")
    assert found.headers["etag"] == tag
    document = found.json()
    assert document["sessions"][0] == {
        "date": "2026-11-27", "open": "2026-11-27T09:30:00-05:00", "close": "2026-11-27T13:00:00-05:00", "breaks": [],
    }  # fmt: skip
    again = await put(http, if_none_match="*")
    assert (again.status_code, again.json()["code"], f'"{again.json()["version"]}"') == (412, "CALENDAR_CHANGED", tag)
    document["sessions"][1]["close"] = "2026-11-30T13:00:00-05:00"
    changed = await put(http, document, if_match=tag)  # a document that was read is one that may be written
    assert (changed.status_code, changed.json()["changed"]) == (200, ["2026-11-30"])
    assert (await put(http, document, if_match=tag)).status_code == 412
    assert (await put(http, document, if_match="*")).status_code == 200
    assert (await put(http, document, if_match="*", if_none_match="*")).status_code == 422
    old = await http.client.delete("/v1/calendars/XNYS", headers={"if-match": tag})
    assert old.status_code == 412
    gone = await http.client.delete("/v1/calendars/XNYS", headers={"if-match": "*"})
    assert (gone.status_code, gone.json()) == (200, {"name": "XNYS", "deleted": True})
    assert (await http.ask("DELETE", "/calendars/XNYS"))["deleted"] is False


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"zone": "Mars"}, 400, "no time zone 'Mars'"),
        ({"name": "XLON"}, 400, "is called 'XLON', not 'XNYS'"),
        ({"sessions": []}, 422, "sessions"),
        (
            {"sessions": [{"date": "2026-02-31", "open": "2026-11-27T09:30", "close": "2026-11-27T10:00"}]},
            400,
            "a date",
        ),
        ({"known_until": "2026-11-29"}, 400, "before the last session"),
        ({"holidays": ["2026-12-25"]}, 422, "holidays"),
    ],
)
async def test_a_wrong_calendar_is_refused(http: Api, change: dict[str, Any], status: int, text: str) -> None:
    answer = await put(http, BODY | change)
    assert answer.status_code == status, answer.text
    assert text in answer.text
    assert (await http.get("/calendars")) == {"calendars": []}


async def test_next_times_over_rest(http: Api) -> None:
    await put(http)
    found = await http.get("/schedules/next", spec="calendar:XNYS close", after="2026-11-26T00:00Z", count=3)
    assert [one["utc"] for one in found["times"]] == ["2026-11-27T18:00:00+00:00", "2026-11-30T21:00:00+00:00"]
    assert found["times"][0]["local"] == "2026-11-27T13:00:00-05:00"
    assert (found["zone"], found["end"]) == (
        "America/New_York", "calendar XNYS is known until 2026-11-30 only: import a newer version",
    )  # fmt: skip
    assert found["warning"].startswith("calendar XNYS end")
    assert len((await http.get("/schedules/next", spec="every 15m"))["times"]) == 10
    wrong = await http.ask("GET", "/schedules/next", status=400, spec="cron 30 25 * * *")
    assert (wrong["code"], wrong["position"], wrong["hint"]) == ("INVALID_ARGUMENT", "8", "hours are 0-23")
    for query in ({"spec": "every 1h", "count": 101}, {"spec": "every 1h", "count": 0}, {"count": 1}):
        await http.ask("GET", "/schedules/next", status=422, **query)
    await http.ask("GET", "/schedules/next", status=404, spec="calendar:XLON open")
    await http.ask("GET", "/schedules/next", status=400, spec="every 1h", after="tomorrow")


# ---- the command line


@pytest.mark.slow
def test_calendars_on_the_command_line(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")) as (_, told):
        up = Up(told["address"], tmp_path)
        made = up.run("calendar", "import", "XNYS", "--from", "2026-01-01")
        assert made.stdout.startswith(b"XNYS: ") and b"; created" in made.stdout
        assert b"; no session changed" in up.run("calendar", "import", "XNYS", "--from", "2026-01-01").stdout
        file = tmp_path / "XNYS.json"
        document: Any = up.json("calendar", "show", "XNYS")
        document["sessions"] = [one for one in document["sessions"] if one["date"] != "2026-11-27"]
        file.write_text(json.dumps(document))
        shown = up.run("calendar", "put", str(file), "--dry-run").stdout
        assert b"1 removed" in shown or b"1 session removed" in shown
        assert b"removed: 2026-11-27" in shown
        done: Any = up.json("calendar", "put", str(file), "--version", document["version"])
        assert done["removed"] == ["2026-11-27"]
        refused = up.run("calendar", "put", str(file), "--version", document["version"], code=1).stderr
        assert b"CALENDAR_CHANGED" in refused and b"comet calendar show" in refused
        assert b"exchange_calendars" in up.run("calendar", "list").stdout
        assert b"known until" in up.run("calendar", "show", "XNYS").stdout
        after = ("--after", "2026-11-25T22:00Z", "-n", "1")
        seen: Any = up.json("calendar", "next", "calendar:XNYS close-5m", *after)
        assert [one["utc"] for one in seen["times"]] == ["2026-11-30T20:55:00+00:00"]
        assert b"deleted: calendar XNYS" in up.run("calendar", "delete", "XNYS").stdout
        assert b"nothing to do" in up.run("calendar", "delete", "XNYS").stdout
        missing = up.run("calendar", "show", "XNYS", code=3).stderr
        assert b"comet calendar import" in missing
        assert b"cannot read" in up.run("calendar", "put", "nowhere.json", code=2).stderr
        assert b"has no calendar" in up.run("calendar", "import", "NYSEX", code=2).stderr


@pytest.mark.slow
def test_next_times_without_a_cluster() -> None:
    nowhere = Up("localhost:1", Path())
    shown = nowhere.run(
        "calendar", "next", "cron 30 2 * * * America/New_York", "--after", "2026-03-07T08:00Z", "-n", "2"
    )
    assert b"2026-03-08T03:00:00-04:00" in shown.stdout and b"2026-03-09T02:30:00-04:00" in shown.stdout
    wrong = nowhere.run("calendar", "next", "cron 30 9 * * 1-5 Nowhere", code=2).stderr
    assert b"at character 18" in wrong and b"IANA zone" in wrong
    once = nowhere.run("calendar", "next", "at 2020-01-01T00:00Z")
    assert b"it comes once, and that is over" in once.stderr


async def test_schedules_follow_a_newer_calendar_although_one_cannot_be_written(
    broker: comet.testing.TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until(day: int) -> comet.Calendar:
        at_us = int(datetime(2090, 1, day, 8, tzinfo=UTC).timestamp()) * 1_000_000
        session = comet.CalendarSession(f"2090-01-{day:02}", at_us, at_us + HOUR_US)
        return comet.Calendar("DESK", "UTC", (session,), session.date)

    async with comet.Admin(broker.address) as admin:
        await admin.create_topic("orders")
        await admin.calendars.put_calendar(until(2))
        for number in range(3):
            await admin.schedules.put_schedule("orders", f"s-{number}", "calendar:DESK open", value=b"")
        failures = iter([comet.Unavailable("the coordinator is away", retry_after_ms=50)])
        write = ScheduleStore.write

        async def fails_once(self: ScheduleStore, *state: Any) -> Any:
            for error in failures:
                raise error
            return await write(self, *state)

        monkeypatch.setattr(ScheduleStore, "write", fails_once)
        await admin.calendars.put_calendar(until(3))
        opens_us = until(3).sessions[0].open_us

        async def followed() -> bool:
            return all(one.next_us == opens_us for one in (await admin.schedules.list_schedules()).schedules)

        assert await until_answered(followed, within_s=30)
        assert next(failures, None) is None
