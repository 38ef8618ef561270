"""Routes of schedules, whose revision is their ETag."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from pydantic import Field, WithJsonSchema

import comet
from comet.admin.documents import document
from comet.admin.parameters import NAME_PATTERN
from comet.admin.schedules import ABSENT, LIST_MAX, LISTED
from comet.schedules.spec import TEXT_CHARS_MAX
from comet.types import SCHEDULE_ID
from comet_gateway.http import request_body
from comet_gateway.http.problems import Problem, answers
from comet_gateway.records.schedule_json import schedule_json
from comet_gateway.routes.admin import STRICT, AdminClient, act_route, links
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.lists import Boolean, DryRun, Integer, Strict, TopicName
from comet_gateway.schemas.schedules_api import BODY, ScheduleDocument, decode_schedule

router = APIRouter(prefix="/v1", tags=["schedules"], dependencies=STRICT)

_ETAG: Final = re.compile(r'"([0-9]{1,18})"')
_HEADERS: Final = {"ETag": {"description": "The revision, in quotes.", "schema": {"type": "string"}}}
_SAME: Final = {"parameters": {"topic": "$request.path.topic", "schedule": "$request.path.schedule"}}
_CHANGED: Final = {200: {"headers": _HEADERS, **links(getSchedule=_SAME, cancelSchedule=_SAME)}}
_BODY_ERRORS: Final = ("BODY_STALLED", "BODY_TOO_LARGE", "MALFORMED_BODY", "UNSUPPORTED_MEDIA_TYPE")

ScheduleId = Annotated[
    str,
    Path(pattern=f"^{SCHEDULE_ID.pattern}$", description="Id of a schedule, unique in its topic.", examples=["report"]),
]
IfMatch = Annotated[
    str,
    Header(
        alias="If-Match", pattern='^("[0-9]{1,18}")?$', description="Only if the schedule has this ETag.",
    ),
]  # fmt: skip
IfNoneMatch = Annotated[
    str, Header(alias="If-None-Match", pattern="^\\*?$", description="`*`: only if the schedule does not exist.")
]


class ScheduleMove(Strict):
    """The new times of a schedule."""

    spec: str = Field(max_length=TEXT_CHARS_MAX, description="When it is due.", examples=["every 30m"])


@act_route(router, "listSchedules", response_model=model_of(comet.ScheduleList), responses=answers("TOPIC_NOT_FOUND"))
async def list_schedules(
    admin: AdminClient,
    topic: Annotated[str, Query(pattern=f"({NAME_PATTERN})|^$", description="Only those of this topic.")] = "",
    prefix: Annotated[
        str, Query(pattern=f"^({SCHEDULE_ID.pattern})?$", description="Only ids that begin with this; needs a topic.")
    ] = "",
    paused: Annotated[
        bool | None,
        Boolean,
        Query(description="Only paused ones, or only others."),
        WithJsonSchema({"type": "boolean"}),
    ] = None,
    after: Annotated[str, Query(max_length=500, description="`after` of the page before.")] = "",
    limit: Annotated[int, Field(ge=1, le=LIST_MAX), Integer, Query(description="Schedules at most.")] = LISTED,
) -> dict[str, Any]:
    found = await admin.schedules.list_schedules(
        topic or None, prefix=prefix, paused=paused, after=after or None, limit=limit
    )
    return document(found)


@act_route(
    router,
    "getSchedule",
    response_model=ScheduleDocument,
    responses={200: {"headers": _HEADERS, **links(cancelSchedule=_SAME, pauseSchedule=_SAME, runSchedule=_SAME)}},
)
async def get_schedule(admin: AdminClient, topic: TopicName, schedule: ScheduleId) -> Response:
    found = await admin.schedules.get_schedule(topic, schedule)
    headers = {"etag": f'"{found.schedule.revision}"', "cache-control": "no-store"}
    return Response(schedule_json(found), media_type="application/json", headers=headers)


@act_route(
    router,
    "putSchedule",
    response_model=model_of(comet.SchedulePut),
    responses={200: {"headers": _HEADERS, **links(getSchedule=_SAME, cancelSchedule=_SAME)}, **answers(*_BODY_ERRORS)},
    openapi_extra={"requestBody": BODY},
)
async def put_schedule(
    admin: AdminClient,
    topic: TopicName,
    schedule: ScheduleId,
    request: Request,
    response: Response,
    if_match: IfMatch = "",
    if_none_match: IfNoneMatch = "",
    dry_run: DryRun = False,
) -> dict[str, Any]:
    if if_match and if_none_match:
        raise Problem("VALIDATION", "If-Match and If-None-Match exclude each other: send one of them")
    headers, limits = request.scope["comet.headers"], request.app.state.config.limits
    request_body.media_type(headers, request_body.JSON)
    given = decode_schedule(await request_body.read(request.scope["comet.body"], headers, limits))
    done = await admin.schedules.put_schedule(
        topic,
        schedule,
        given.spec,
        value=given.record.value,
        key=given.record.key,
        headers=given.record.headers,
        partition=given.record.partition,
        ttl_ms=given.record.ttl_ms,
        late=given.late,
        late_max_ms=given.late_max_ms,
        jitter_ms=given.jitter_ms,
        end=given.end_us,
        fires_max=given.fires_max,
        revision=ABSENT if if_none_match else _revision(if_match),
        dry_run=dry_run,
    )
    return _answer(done, response)


@act_route(router, "cancelSchedule", response_model=model_of(comet.ScheduleChange))
async def cancel_schedule(
    admin: AdminClient, topic: TopicName, schedule: ScheduleId, if_match: IfMatch = "", dry_run: DryRun = False
) -> dict[str, Any]:
    done = await admin.schedules.cancel_schedule(topic, schedule, revision=_revision(if_match), dry_run=dry_run)
    return document(done)


def _add_change(change: str) -> None:
    """The route of pause, resume or run."""

    @act_route(router, f"{change}Schedule", response_model=model_of(comet.ScheduleChange), responses=_CHANGED)
    async def change_schedule(
        admin: AdminClient,
        topic: TopicName,
        schedule: ScheduleId,
        response: Response,
        if_match: IfMatch = "",
        dry_run: DryRun = False,
    ) -> dict[str, Any]:
        act = getattr(admin.schedules, f"{change}_schedule")
        return _answer(await act(topic, schedule, revision=_revision(if_match), dry_run=dry_run), response)


for _change in ("pause", "resume", "run"):
    _add_change(_change)


@act_route(router, "moveSchedule", response_model=model_of(comet.ScheduleChange), responses=_CHANGED)
async def move_schedule(
    admin: AdminClient,
    topic: TopicName,
    schedule: ScheduleId,
    body: Annotated[ScheduleMove, Body()],
    response: Response,
    if_match: IfMatch = "",
    dry_run: DryRun = False,
) -> dict[str, Any]:
    done = await admin.schedules.move_schedule(
        topic, schedule, body.spec, revision=_revision(if_match), dry_run=dry_run
    )
    return _answer(done, response)


def _revision(if_match: str) -> int | None:
    found = _ETAG.fullmatch(if_match)
    return None if found is None else int(found[1])


def _answer(done: comet.SchedulePut | comet.ScheduleChange, response: Response) -> dict[str, Any]:
    if not done.dry_run:
        response.headers["etag"] = f'"{done.schedule.revision}"'
    return document(done)
