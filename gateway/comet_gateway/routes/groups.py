"""Routes of groups: members, lag and committed offsets."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from comet.admin.documents import document
from comet.admin.parameters import NAME_PATTERN
from comet.types import GroupState
from comet_gateway.http.problems import answers
from comet_gateway.routes.admin import STRICT, AdminClient, Users, act_route, links, problem_of
from comet_gateway.schemas.groups import (
    CommitBody,
    CommitOutcome,
    CommitOutcomes,
    CommittedOffset,
    CommittedOffsets,
    Group,
    GroupDetails,
    GroupList,
    Lag,
    Member,
    Reset,
    ResetOutcome,
    ResetPartition,
)
from comet_gateway.schemas.lists import (
    PAGE,
    After,
    DryRun,
    Filter,
    GroupName,
    Limit,
)

router = APIRouter(prefix="/v1", tags=["groups"], dependencies=STRICT)

_SAME: Final = {"parameters": {"group": "$request.path.group"}}
_MOVING: Final = ("NOT_COORDINATOR", "COORDINATOR_LOADING")  # while the group has no coordinator


# ---- inspection


@act_route(router, "listGroups")
async def list_groups(
    admin: AdminClient,
    limit: Limit = PAGE,
    after: After = "",
    filter: Filter = "",  # noqa: A002 - what the rules of the wire call it
    state: Annotated[GroupState | None, Query(description="Only groups in this state.")] = None,
    topic: Annotated[str | None, Query(pattern=NAME_PATTERN, description="Only groups that read this topic.")] = None,
) -> GroupList:
    part = filter.casefold()
    found = [
        group
        for group in await admin.list_groups()
        if part in group.name.casefold() and state in (None, group.state) and (topic is None or topic in group.topics)
    ]
    rest = [group for group in found if group.name > after]
    return GroupList(
        items=[Group(**document(group)) for group in rest[:limit]],
        next=rest[limit - 1].name if len(rest) > limit else None,
        total=len(found),
    )


@act_route(
    router,
    "describeGroup",
    responses={200: links(getLag=_SAME, getCommittedOffsets=_SAME, deleteGroup=_SAME)},
)
async def describe_group(admin: AdminClient, group: GroupName) -> GroupDetails:
    found = await admin.describe_group(group)
    lags = found.lags
    summary = document(found.summary) | {"members": [Member(**document(member)) for member in found.members]}
    return GroupDetails(
        **summary,
        partitions=[Lag(**document(lag)) for lag in lags],
        lag=sum(lag.lag for lag in lags),
        age_s=max((lag.age_s for lag in lags), default=0.0),
    )


# ---- committed offsets


@router.get(
    "/groups/{group}/offsets",
    operation_id="getCommittedOffsets",
    summary="Get the committed offsets of a group",
    responses=answers("GROUP_NOT_FOUND", *_MOVING),
)
async def get_offsets(admin: AdminClient, group: GroupName) -> CommittedOffsets:
    """Gets the group's committed offsets by topic and partition. A share group has none."""
    found = await admin.group_offsets(group)
    return CommittedOffsets(group=group, offsets=[CommittedOffset(**document(one)) for one in found])


@router.put(
    "/groups/{group}/offsets",
    operation_id="commitOffsets",
    summary="Commit offsets for a group",
    responses={
        **answers("GROUP_NOT_EMPTY", *_MOVING),
        200: {
            "description": "All offsets were committed.",
            **links(
                describeGroup=_SAME, getCommittedOffsets=_SAME, resetGroup={**_SAME, "requestBody": {"to": "earliest"}}
            ),
        },
        207: {"model": CommitOutcomes, "description": "Some offsets were not committed; `error` says why."},
    },
)
async def commit_offsets(
    request: Request, admin: AdminClient, users: Users, group: GroupName, body: CommitBody, response: Response
) -> CommitOutcomes:
    """Commits offsets for clients without a session. The group must have no members; a new group is created.

    A committed offset never goes back: the answer has the offset that holds now. So a request can be repeated after a
    lost answer. To go back, use `reset`."""
    wanted = {(one.topic, one.partition): one.offset for one in body.offsets}
    topics = dict.fromkeys(topic for topic, _ in wanted)
    await users.check(request.scope["comet.principal"], [("read", "topic", topic) for topic in topics])
    found = await admin.commit_offsets(group, wanted)
    if any(one.error for one in found):
        response.status_code = 207
    return CommitOutcomes(
        group=group,
        offsets=[
            CommitOutcome(
                topic=one.topic,
                partition=one.partition,
                offset=one.offset,
                error=None if one.error is None else problem_of(one.error),
            )
            for one in found
        ],
    )


@act_route(router, "resetGroup")
async def reset_group(admin: AdminClient, group: GroupName, body: Reset, dry_run: DryRun = False) -> ResetOutcome:
    changes = await admin.reset_group(group, **_target(body), dry_run=dry_run)
    return ResetOutcome(
        dry_run=dry_run,
        group=group,
        partitions=[ResetPartition(**document(change)) for change in changes],
        skipped=sum(max(0, change.skipped) for change in changes),
        repeated=sum(max(0, -change.skipped) for change in changes),
    )


def _target(body: Reset) -> dict[str, Any]:
    if body.offsets is not None:
        return {"offsets": {(one.topic, one.partition): one.offset for one in body.offsets}}
    topics: list[str | tuple[str, int]] = []
    for one in body.topics:
        topics += [one] if isinstance(one, str) else [(one.topic, index) for index in one.partitions]
    return {"to": body.to, "shift": body.shift, "topics": topics}
