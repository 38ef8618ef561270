"""What is read for the pages of schedules: one page at a time, calendars once, and the next times up to the end.

On virtual time (comet_testing.simulation.loop).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

import comet
from comet.errors import CalendarNotFound, CometError, ScheduleNotFound, Unavailable
from comet_gateway.dashboard import schedules
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_testing.simulation import loop as sim
from comet_web import facts
from comet_web.page_request import PageRequest

T = TypeVar("T")
SECOND = 1_000_000
NOW = 1_795_800_000 * SECOND  # 2026-11-27 17:20:00 UTC
CALENDAR = comet.Calendar(
    "XNYS",
    "America/New_York",
    (comet.CalendarSession("2026-11-27", NOW - 3_000 * SECOND, NOW + 2_400 * SECOND),),
    "2026-11-29",
)


def info(id_: str = "report", spec: str = "every 15m", **changes: Any) -> comet.ScheduleInfo:
    usual = comet.ScheduleInfo("orders", id_, spec, "fire_last", next_us=NOW + 600 * SECOND, fired=3, revision=7)
    return replace(usual, **changes)


class Brokers:
    """As comet.Admin of a cluster with these schedules."""

    def __init__(self, *found: comet.ScheduleInfo, after: str | None = None) -> None:
        self.found = found
        self.after = after
        self.error: CometError | None = None
        self.lists: list[dict[str, Any]] = []
        self.calendar_reads = 0
        self.slow_s = 0.0
        self.calendar: comet.Calendar | None = CALENDAR
        self.record: dict[str, Any] = {
            "key": None, "value": b"1", "headers": (), "partition": None, "ttl_ms": None,
        }  # fmt: skip
        self.schedules = self.calendars = self

    async def list_schedules(self, topic: str | None, **asked: Any) -> comet.ScheduleList:
        self.lists.append({"topic": topic, **asked})
        await asyncio.sleep(self.slow_s)
        if self.error is not None:
            raise self.error
        return comet.ScheduleList(self.found, self.after)

    async def get_schedule(self, topic: str, id_: str) -> comet.ScheduleDetails:
        if self.error is not None:
            raise self.error
        return comet.ScheduleDetails(self.found[0], **self.record)

    async def get_calendar(self, name: str) -> comet.Calendar:
        self.calendar_reads += 1
        if self.calendar is None:
            raise CalendarNotFound(f"calendar {name!r} does not exist in this cluster")
        return self.calendar


class World:
    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers

        async def query(question: Callable[[Any], Awaitable[T]]) -> T:
            return await question(brokers)

        pages = schedules.ListedPages(cast(Sources, None))
        sources = SimpleNamespace(sampler=SimpleNamespace(query=query), _recent={}, part=lambda kind: pages)
        sources._drop_failed = lambda key, task: Sources._drop_failed(cast(Sources, sources), key, task)
        sources.recently = lambda *given: Sources.recently(cast(Sources, sources), *given)
        self.sources = cast(Sources, sources)

    async def page(self, query: Mapping[str, str] = MappingProxyType({}), *, first: bool = True) -> facts.SchedulesPage:
        return await schedules.schedules(self.sources, PageRequest("/schedules", query=query, now_us=NOW, first=first))

    async def one(self) -> facts.ScheduleDetail:
        params = {"topic": "orders", "schedule": "report"}
        return await schedules.schedule(self.sources, PageRequest("/", params=params, now_us=NOW))


def page(brokers: Brokers, query: Mapping[str, str] = MappingProxyType({}), *, first: bool = True) -> Any:
    return sim.run(lambda _: World(brokers).page(query, first=first))


def one(*found: comet.ScheduleInfo, calendar: comet.Calendar | None = CALENDAR, **record: Any) -> facts.ScheduleDetail:
    brokers = Brokers(*found)
    brokers.calendar = calendar
    brokers.record |= record
    return sim.run(lambda _: World(brokers).one())


# ---- the list


def test_a_page_is_read_and_no_more() -> None:
    brokers = Brokers(info(), after="orders/report")
    found = page(brokers, {"topic": "orders", "prefix": "re", "state": "paused", "after": "orders/a"})
    assert brokers.lists == [
        {"topic": "orders", "prefix": "re", "paused": True, "after": "orders/a", "limit": schedules.ROWS_MAX}
    ]
    assert (found.after, [row.id for row in found.schedules]) == ("orders/report", ["report"])
    page(brokers, {"state": "active"})
    page(brokers, {"state": "other"})
    assert [one_["paused"] for one_ in brokers.lists[1:]] == [False, None]
    assert brokers.lists[1]["topic"] is None


def test_tabs_with_the_same_page_share_an_answer() -> None:
    brokers = Brokers(info())
    world = World(brokers)

    async def tabs(_: sim.SimLoop) -> None:
        await asyncio.gather(*(world.page() for _ in range(5)), world.page({"topic": "orders"}))
        await asyncio.sleep(2 * schedules.RECENT_S)
        await world.page()

    sim.run(tabs)
    assert [one_["topic"] for one_ in brokers.lists] == [None, "orders", None]


@pytest.mark.parametrize(("slow_s", "reads"), [(0.0, 20), (0.05, 20), (1.0, 3)])
def test_a_list_that_takes_long_is_read_again_after_a_pause(slow_s: float, reads: int) -> None:
    brokers = Brokers(info())
    brokers.slow_s = slow_s
    world = World(brokers)

    async def ticks(_: sim.SimLoop) -> None:
        for tick in range(20):
            assert (await world.page(first=tick == 0)).schedules
            await asyncio.sleep(1.0)

    sim.run(ticks)
    assert len(brokers.lists) == reads


def test_next_times_stand_on_the_wall_clock_of_the_schedule_or_its_calendar() -> None:
    brokers = Brokers(
        info("a"),
        info("b", "cron 0 9 * * * Asia/Tokyo"),
        info("c", "calendar:XNYS close"),
        info("d", "cron 0 9 * * * on sessions of XNYS"),
        info("e", "calendar:XNYS open", next_us=None),
        info("f", "a text of a newer version"),
    )
    found = page(brokers).schedules
    assert [row.zone for row in found] == ["UTC", "Asia/Tokyo", *["America/New_York"] * 3, "UTC"]
    assert [row.next_local for row in found[:3]] == [
        "2026-11-27T17:30:00+00:00", "2026-11-28T02:30:00+09:00", "2026-11-27T12:30:00-05:00",
    ]  # fmt: skip
    assert found[4].next_local == ""
    assert brokers.calendar_reads == 1


def test_a_calendar_that_is_gone_leaves_times_in_utc() -> None:
    brokers = Brokers(info("c", "calendar:XNYS close"))
    brokers.calendar = None
    assert [row.zone for row in page(brokers).schedules] == ["UTC"]
    brokers.calendar = replace(CALENDAR, zone="Mars/Olympus")  # of a newer tzdata
    assert [row.zone for row in page(brokers).schedules] == ["UTC"]


def test_the_first_content_says_why_schedules_cannot_be_read_and_an_update_fails() -> None:
    brokers = Brokers()
    brokers.error = Unavailable("no broker answers")
    assert "no broker answers" in page(brokers).problem
    with pytest.raises(Unavailable):
        page(brokers, first=False)
    assert "name the topic" in page(Brokers(), {"prefix": "a"}).problem
    with pytest.raises(Problem):
        page(Brokers(), {"prefix": "a"}, first=False)


# ---- one schedule


def minutes(found: facts.ScheduleDetail) -> list[int]:
    return [(time.time_us - NOW) // (60 * SECOND) for time in found.times]


def test_the_next_ten_times_begin_with_the_stored_one() -> None:
    found = one(info())
    assert minutes(found) == [10, 25, 40, 55, 70, 85, 100, 115, 130, 145]
    assert (found.end, found.times[0].local) == ("", "2026-11-27T17:30:00+00:00")


def test_a_time_that_is_due_and_has_not_fired_is_the_first() -> None:
    assert minutes(one(info(next_us=NOW - 300 * SECOND)))[:2] == [-5, 10]
    assert minutes(one(info(next_us=NOW - 300 * SECOND, paused=True)))[:2] == [10, 25], "it is left out"


def test_times_go_up_to_the_end_and_the_number_of_records() -> None:
    found = one(info(end_us=NOW + 2_400 * SECOND))
    assert (minutes(found), found.end) == ([10, 25, 40], "it ends then")
    found = one(info(fires_max=5, end_us=NOW + 2_400 * SECOND))
    assert (minutes(found), found.end) == ([10, 25], "it ends after 5 records")
    assert one(info(fires_max=13)).end == "it ends after 13 records"
    assert one(info(fires_max=14)).end == ""


def test_a_calendar_that_ends_ends_the_times_and_warns() -> None:
    found = one(info(spec="calendar:XNYS close", next_us=NOW + 2_400 * SECOND))
    assert minutes(found) == [40]
    assert "2026-11-29" in found.end
    assert "2026-11-29" in found.warning
    gone = one(info(spec="calendar:XNYS close"), calendar=None)
    assert (gone.times, gone.end) == ((), "calendar 'XNYS' does not exist in this cluster")


def test_a_text_of_a_newer_version_has_no_times() -> None:
    found = one(info(spec="weekly on mondays"))
    assert (found.times, found.end) == ((), "this gateway is too old for the schedule's text")


def test_a_value_is_cut_and_its_size_is_that_of_the_whole() -> None:
    found = one(info(), key=b"k", value=b"v" * 5_000, headers=(("a", b"1"),), partition=3, ttl_ms=-1)
    assert len(found.value or b"") == schedules.SHOWN_BYTES
    assert (found.size, found.headers, found.partition, found.ttl_ms) == (5_001, (("a", b"1"),), 3, -1)
    assert one(info(), value=None).value is None


def test_a_schedule_that_is_over_is_an_error() -> None:
    brokers = Brokers(info())
    brokers.error = ScheduleNotFound("schedule 'report' does not exist")
    with pytest.raises(ScheduleNotFound):
        sim.run(lambda _: World(brokers).one())
