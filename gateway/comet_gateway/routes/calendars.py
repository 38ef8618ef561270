"""Routes of market calendars, whose version is their ETag, and of the next times of schedules."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import Field

import comet
from comet.admin.calendars import TIMES_SHOWN, TIMES_SHOWN_MAX
from comet.admin.documents import document
from comet.schedules.calendar_json import calendar_document, calendar_from_json
from comet.schedules.calendars import NAME
from comet.schedules.preview import SchedulePreview
from comet.schedules.spec import TEXT_CHARS_MAX, parse_time
from comet_gateway.http.problems import Problem, answers
from comet_gateway.routes.admin import STRICT, AdminClient, act_route, links
from comet_gateway.schemas.calendars import CalendarBody, CalendarDocument
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.lists import DryRun, Integer

router = APIRouter(prefix="/v1", tags=["calendars"], dependencies=STRICT)

_ETAG: Final = re.compile(r'"([0-9]{1,18})"')
_SAME: Final = {"parameters": {"calendar": "$request.path.calendar"}}
_HEADERS: Final = {"ETag": {"description": "The version, in quotes.", "schema": {"type": "string"}}}

CalendarName = Annotated[
    str, Path(pattern=f"^{NAME.pattern}$", description="Name of a market calendar.", examples=["XNYS"])
]
IfMatch = Annotated[
    str,
    Header(
        alias="If-Match",
        pattern='^("[0-9]{1,18}"|\\*)?$',
        description="Only if the calendar has this ETag; `*`: only if it exists.",
    ),
]
IfNoneMatch = Annotated[
    str, Header(alias="If-None-Match", pattern="^\\*?$", description="`*`: only if the calendar does not exist.")
]


@act_route(
    router,
    "getCalendar",
    response_model=CalendarDocument,
    responses={200: {"headers": _HEADERS, **links(putCalendar=_SAME, deleteCalendar=_SAME)}},
)
async def get_calendar(admin: AdminClient, calendar: CalendarName, response: Response) -> dict[str, Any]:
    found = await admin.calendars.get_calendar(calendar)
    response.headers["etag"] = f'"{found.version}"'
    return calendar_document(found)


@act_route(
    router,
    "putCalendar",
    response_model=model_of(comet.CalendarPut),
    responses={200: {"headers": _HEADERS, **links(getCalendar=_SAME, deleteCalendar=_SAME)}},
)
async def put_calendar(
    admin: AdminClient,
    calendar: CalendarName,
    body: CalendarBody,
    response: Response,
    if_match: IfMatch = "",
    if_none_match: IfNoneMatch = "",
    dry_run: DryRun = False,
) -> dict[str, Any]:
    given = calendar_from_json(body.model_dump_json(), calendar)
    if if_match and if_none_match:
        raise Problem("VALIDATION", "If-Match and If-None-Match exclude each other: send one of them")
    version = 0 if if_none_match else await _expected(admin, calendar, if_match)
    done = await admin.calendars.put_calendar(given, version=version, dry_run=dry_run)
    response.headers["etag"] = f'"{done.calendar.version}"'
    return document(done)


@act_route(router, "deleteCalendar", response_model=model_of(comet.CalendarDeletion))
async def delete_calendar(admin: AdminClient, calendar: CalendarName, if_match: IfMatch = "") -> dict[str, Any]:
    version = await _expected(admin, calendar, if_match)
    return document(await admin.calendars.delete_calendar(calendar, version=version))


async def _expected(admin: comet.Admin, name: str, if_match: str) -> int | None:
    """The version of an If-Match. Raises CALENDAR_CHANGED if it is `*` and the calendar does not exist."""
    if if_match == "*":
        try:
            return (await admin.calendars.get_calendar(name)).version
        except comet.CalendarNotFound:
            raise Problem("CALENDAR_CHANGED", f"calendar {name} does not exist", more={"version": "0"}) from None
    found = _ETAG.fullmatch(if_match)
    return None if found is None else int(found[1])


@router.get(
    "/schedules/next",
    operation_id="listNextTimes",
    summary="List the next times of a schedule",
    response_model=model_of(SchedulePreview),
    responses=answers("CALENDAR_NOT_FOUND"),
)
async def list_next_times(
    admin: AdminClient,
    spec: Annotated[
        str,
        Query(
            max_length=TEXT_CHARS_MAX,
            description="The schedule, such as `cron 30 9 * * 1-5 America/New_York` or `calendar:XNYS open-5m`.",
            examples=["every 15m"],
        ),
    ],
    count: Annotated[int, Field(ge=1, le=TIMES_SHOWN_MAX), Integer, Query(description="Times at most.")] = TIMES_SHOWN,
    after: Annotated[
        str, Query(max_length=TEXT_CHARS_MAX, description="The time to start from, with an offset; empty: now.")
    ] = "",
) -> dict[str, Any]:
    """Lists the times in order, in UTC and on the wall clock of the schedule's zone. Nothing is stored."""
    after_us = parse_time(after) if after else None
    return document(await admin.calendars.next_times(spec, count=count, after_us=after_us))
