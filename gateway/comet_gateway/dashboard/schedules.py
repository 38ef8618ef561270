"""Schedules for pages: one page of the list, and one schedule with its next times.

The first content of the list says why it cannot be read; an update fails, so that the tab keeps its rows, as outdated.
A list that takes brokers long, such as the few paused ones of many, is read again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final

from comet.admin.schedules import ScheduleDetails, ScheduleInfo, ScheduleList
from comet.encryption.envelope import key_id_of
from comet.errors import CometError, InvalidSchedule, ScheduleNotFound, TopicNotFound
from comet.schedules.calendars import Calendar
from comet.schedules.preview import preview, zone_name
from comet.schedules.spec import Schedule, calendar_of, parse_schedule, wall_text
from comet.schedules.zones import zone_names
from comet_gateway.dashboard.broker_pool import ANSWER_S
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_web import facts
from comet_web.page_request import PageRequest

ROWS_MAX: Final = 100  # of one page
TIMES_SHOWN: Final = 10
SHOWN_BYTES: Final = 1_024  # of a value
PARSED_MAX: Final = 2_000  # texts of schedules
RECENT_S: Final = 0.5  # that an answer is reused for several users
CALENDAR_S: Final = 30.0
OPEN: Final = "open"  # the id of the schedule that opens a market
OPENING_S: Final = 1.0  # that a page of quotes waits for it
PAUSE_PARTS: Final = 9  # of the time that a list took, before an update reads it again
PAGES_MAX: Final = 100  # kept
UTC: Final = "UTC"
PAUSED: Final = {"active": False, "paused": True}


class ListedPages:
    """Lists as they were read last, each for a time in proportion to what it took. Kept by the sources."""

    def __init__(self, _sources: Sources) -> None:
        self._known: dict[Hashable, tuple[float, ScheduleList]] = {}

    def get(self, key: Hashable) -> ScheduleList | None:
        until, found = self._known.get(key, (0.0, None))
        return found if asyncio.get_running_loop().time() < until else None

    def put(self, key: Hashable, found: ScheduleList, took_s: float) -> None:
        self._known.pop(key, None)
        while len(self._known) >= PAGES_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = (asyncio.get_running_loop().time() + PAUSE_PARTS * took_s, found)


async def schedules(sources: Sources, request: PageRequest) -> facts.SchedulesPage:
    """The loader of the list. Raises Problem and CometError, but not for the first content of the page."""
    try:
        return await _page(sources, request)
    except (CometError, TimeoutError, Problem) as error:
        if not request.first:
            raise
        return facts.SchedulesPage(request.now_us, problem=f"Schedules cannot be read: {_why(error)}.")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the brokers did not answer in time"
    return error.detail if isinstance(error, Problem) else str(error)


async def _page(sources: Sources, request: PageRequest) -> facts.SchedulesPage:
    query = request.query
    topic, prefix, after = query.get("topic", ""), query.get("prefix", ""), query.get("after", "")
    paused = PAUSED.get(query.get("state", ""))
    if prefix and not topic:
        raise Problem("INVALID_ARGUMENT", "ids are compared within a topic: name the topic, too")
    key = ("schedules", topic, prefix, after, paused)
    pages = sources.part(ListedPages)
    found = None if request.first else pages.get(key)
    if found is None:
        found = await _listed(sources, key, pages)
    calendars = await _calendars(sources, found.schedules)
    rows = tuple(_schedule(one, calendars) for one in found.schedules)
    return facts.SchedulesPage(request.now_us, rows, found.after or "")


async def _listed(sources: Sources, key: tuple[str, str, str, str, bool | None], pages: ListedPages) -> ScheduleList:
    _, topic, prefix, after, paused = key
    began = asyncio.get_running_loop().time()
    found: ScheduleList = await sources.recently(
        key,
        RECENT_S,
        lambda: sources.sampler.query(
            lambda admin: admin.schedules.list_schedules(
                topic or None, prefix=prefix, paused=paused, after=after or None, limit=ROWS_MAX
            )
        ),
    )
    pages.put(key, found, asyncio.get_running_loop().time() - began)
    return found


async def schedule(sources: Sources, request: PageRequest) -> facts.ScheduleDetail:
    """The loader of one schedule. Raises CometError."""
    found = await _stored(sources, request.params["topic"], request.params["schedule"])
    calendars = await _calendars(sources, (found.schedule,))
    times, end, warning = _times(found.schedule, calendars, request.now_us)
    return facts.ScheduleDetail(
        request.now_us,
        _schedule(found.schedule, calendars),
        key=found.key,
        value=None if found.value is None else found.value[:SHOWN_BYTES],
        size=len(found.key or b"") + len(found.value or b""),
        headers=found.headers,
        encrypted=key_id_of(found.value) or "",
        partition=found.partition,
        ttl_ms=found.ttl_ms,
        times=times,
        end=end,
        warning=warning,
    )


async def _stored(sources: Sources, topic: str, id_: str) -> ScheduleDetails:
    return await sources.recently(
        ("schedule", topic, id_),
        RECENT_S,
        lambda: sources.sampler.query(lambda admin: admin.schedules.get_schedule(topic, id_)),
    )


async def opening(sources: Sources, topic: str) -> facts.Opening:
    """The schedule that opens a market: `open` of the topic with its states."""
    try:
        async with asyncio.timeout(OPENING_S):
            found = (await _stored(sources, topic, OPEN)).schedule
            return facts.Opening(_schedule(found, await _calendars(sources, (found,))))
    except (ScheduleNotFound, TopicNotFound):
        return facts.Opening()
    except (CometError, TimeoutError, Problem) as error:
        return facts.Opening(problem=_why(error))


def _times(
    one: ScheduleInfo, calendars: Mapping[str, Calendar], now_us: int
) -> tuple[tuple[facts.ScheduleTime, ...], str, str]:
    """The next times, why no more follow, and a warning. A time that is due and was not fired yet is the first."""
    parsed = parsed_spec(one.spec)
    if parsed is None:
        return (), "this gateway is too old for the schedule's text", ""
    waiting = one.next_us is not None and not one.paused
    after_us = min(one.next_us - 1, now_us) if one.next_us is not None and waiting else now_us
    try:
        found = preview(parsed, after_us, calendars, count=TIMES_SHOWN, now_us=now_us)
    except CometError as error:
        return (), error.message, ""
    times = tuple(facts.ScheduleTime(time.time_us, time.local) for time in found.times)
    end = found.end or ""
    if one.end_us and (within := tuple(time for time in times if time.time_us <= one.end_us)) != times:
        times, end = within, "it ends then"
    if one.fires_max and one.fires_max - one.fired <= len(times):
        times, end = times[: max(one.fires_max - one.fired, 0)], f"it ends after {one.fires_max:,} records"
    return times, end, found.warning


@lru_cache(maxsize=PARSED_MAX)
def parsed_spec(text: str) -> Schedule | None:
    """The schedule of a text; None: another version wrote it."""
    try:
        return parse_schedule(text)
    except InvalidSchedule:
        return None


async def _calendars(sources: Sources, found: tuple[ScheduleInfo, ...]) -> dict[str, Calendar]:
    """The calendars that the schedules name; those that cannot be read are missing."""
    parsed = {parsed_spec(one.spec) for one in found}
    names = sorted({calendar_of(one) for one in parsed if one is not None} - {""})
    read = await asyncio.gather(*(_calendar(sources, name) for name in names))
    return {name: calendar for name, calendar in zip(names, read, strict=True) if calendar is not None}


async def _calendar(sources: Sources, name: str) -> Calendar | None:
    with suppress(CometError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return await sources.recently(
                ("calendar", name),
                CALENDAR_S,
                lambda: sources.sampler.query(lambda admin: admin.calendars.get_calendar(name)),
            )
    return None


def _schedule(one: ScheduleInfo, calendars: Mapping[str, Calendar]) -> facts.Schedule:
    parsed = parsed_spec(one.spec)
    zone = UTC if parsed is None else zone_name(parsed, calendars)
    zone = zone if zone in zone_names() else UTC  # a calendar may have one of a newer tzdata
    return facts.Schedule(
        topic=one.topic,
        id=one.id,
        spec=one.spec,
        revision=one.revision,
        zone=zone,
        next_us=one.next_us,
        next_local="" if one.next_us is None else wall_text(one.next_us, zone),
        paused=one.paused,
        reason=one.reason,
        waits_for=one.waits_for,
        fired=one.fired,
        skipped=one.skipped,
        fired_us=one.fired_us,
        late=one.late,
        late_max_ms=one.late_max_ms,
        jitter_ms=one.jitter_ms,
        end_us=one.end_us or None,
        fires_max=one.fires_max,
        author=one.author,
        created_us=one.created_us or None,
        tzdata=one.tzdata,
    )
