"""Routes of share groups without a session: one request acquires, others acknowledge, through any gateway.

acquire ─► records with a token each ─► ack | nack | reject | extend, before the lock expires
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

import comet
from comet.errors import CometError, InvalidArgument
from comet.share.tokens import Token
from comet_gateway.config import Limits
from comet_gateway.http.client_disconnect import while_there
from comet_gateway.http.problems import Problem, answers
from comet_gateway.http.shares import holder_of
from comet_gateway.http.topic_roles import require_topic
from comet_gateway.records.record_json import Values, each
from comet_gateway.routes.admin import Users
from comet_gateway.schemas.common import ProblemDocument
from comet_gateway.schemas.lists import GroupName
from comet_gateway.schemas.share_groups import (
    ACQUIRED,
    Acknowledged,
    Acknowledgements,
    AcquireBody,
    Nack,
    Reject,
    Tokens,
)
from comet_gateway.search.filters import filter_of

router = APIRouter(prefix="/v1", tags=["share groups"])


async def _client(request: Request) -> comet.ShareClient:
    found: comet.ShareClient = request.app.state.backend.share_client
    return found


ShareClientFrom = Annotated[comet.ShareClient, Depends(_client)]


async def _topics_allowed(request: Request, users: Users) -> Callable[[Sequence[str]], Awaitable[None]]:
    """Checks that the user may read the topics of some tokens. Those that are none are told one by one."""

    async def check(tokens: Sequence[str]) -> None:
        topics = set()
        for text in tokens:
            with suppress(InvalidArgument):
                topics.add(Token.parse(text).topic)
        await users.check(request.scope["comet.principal"], [("read", "topic", topic) for topic in sorted(topics)])

    return check


TopicsAllowed = Annotated[Callable[[Sequence[str]], Awaitable[None]], Depends(_topics_allowed)]

_GROUP: Final = "$request.path.group"


def _with_first_token(**more: Any) -> dict[str, Any]:
    return {"parameters": {"group": _GROUP}, "requestBody": {"tokens": ["$response.body#/records/0/token"], **more}}


_LINKS: Final = {
    "ackRecords": {"operationId": "ackRecords", **_with_first_token()},
    "nackRecords": {"operationId": "nackRecords", **_with_first_token(delay_ms=1000)},
    "rejectRecords": {"operationId": "rejectRecords", **_with_first_token(reason="no such symbol")},
    "extendRecords": {"operationId": "extendRecords", **_with_first_token()},
    "describeGroup": {"operationId": "describeGroup", "parameters": {"group": _GROUP}},
}
_ACKNOWLEDGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "All were acknowledged."},
    207: {"model": Acknowledgements, "description": "Some were not acknowledged; `problem` says why."},
    **answers("MALFORMED_TOKEN", "LOCK_EXPIRED", "TOPIC_NOT_FOUND", "NOT_LEADER", "LEADERSHIP_LOST"),
}


@router.post(
    "/groups/{group}/acquire",
    operation_id="acquireRecords",
    summary="Acquire records of a share group",
    response_class=Response,
    responses={
        **answers("TOPIC_NOT_FOUND", "DATA_LOSS", "NOT_LEADER", "NOT_COORDINATOR", "COORDINATOR_LOADING", "LOG_FAILED"),
        200: {**ACQUIRED, "links": _LINKS},
    },
)
async def acquire(
    request: Request, client: ShareClientFrom, users: Users, group: GroupName, body: AcquireBody
) -> Response:
    """Acquires records of a topic for a share group, each with a token to acknowledge it.

    Records that are neither acknowledged nor extended within `lock_ms` are delivered again, as are all acquired records
    after a change of the partition's leader. The group may have members, which share its records, but needs none. A new
    group is created, and stays until it is deleted.

    If the client disconnects before the answer, and the gateway notices, the records are released.
    """
    require_topic(request.scope["comet.principal"], body.topic)
    filter_of([body.filter] if body.filter else [])
    state = request.app.state
    limits: Limits = state.config.limits
    _within("limit", body.limit, limits.records_max)
    _within("max_bytes", body.max_bytes, limits.answer_bytes_max)
    _within("wait_ms", body.wait_ms, limits.wait_ms_max)
    needs = [("read", "topic", body.topic), *([("write", "topic", body.dead_letter)] if body.dead_letter else [])]
    await users.check(request.scope["comet.principal"], needs)
    with state.traffic.waiting.held(holder_of(request.scope)) if body.wait_ms else nullcontext():
        found = await while_there(
            request,
            client.acquire(
                group,
                body.topic,
                records_max=body.limit,
                bytes_max=body.max_bytes,
                wait_ms=body.wait_ms,
                lock_ms=body.lock_ms,
                deliveries_max=body.deliveries_max,
                dead_letter=body.dead_letter or "",
                by_key=body.by_key,
                start=body.start,
                filter=body.filter,
            ),
            state.draining,
        )
    if found and await request.is_disconnected():
        await client.give_back([record.token for record in found])
    state.metrics.records_out += len(found)
    return Response(_document(found, Values(body.values)), media_type="application/json")


def _within(name: str, value: int, most: int) -> None:
    if value > most:
        raise Problem("VALIDATION", f"{name} must be at most {most} at this gateway, not {value}")


def _document(found: Sequence[comet.AcquiredRecord], values: Values) -> bytes:
    texts = [
        b'%b,"delivery_count":%d,"token":"%b"}' % (text[:-1], record.delivery_count, record.token.encode())
        for text, record in zip(each(found, values), found, strict=True)
    ]
    return b'{"records":[%b]}' % b",".join(texts)


# ---- acknowledging


@router.post(
    "/groups/{group}/ack",
    operation_id="ackRecords",
    summary="Accept acquired records",
    responses=_ACKNOWLEDGED,
    response_model_exclude_none=True,
)
async def ack(
    client: ShareClientFrom, allowed: TopicsAllowed, group: GroupName, body: Tokens, response: Response
) -> Acknowledgements:
    """Accepts records: they are done. Can be repeated after a lost answer."""
    await allowed(body.tokens)
    return _acknowledged(await client.ack(body.tokens, group=group), response)


@router.post(
    "/groups/{group}/nack",
    operation_id="nackRecords",
    summary="Release acquired records",
    responses=_ACKNOWLEDGED,
    response_model_exclude_none=True,
)
async def nack(
    client: ShareClientFrom, allowed: TopicsAllowed, group: GroupName, body: Nack, response: Response
) -> Acknowledgements:
    """Releases records for another delivery after `delay_ms`; after `deliveries_max` they become dead letters."""
    await allowed(body.tokens)
    return _acknowledged(await client.nack(body.tokens, delay_ms=body.delay_ms, group=group), response)


@router.post(
    "/groups/{group}/reject",
    operation_id="rejectRecords",
    summary="Reject acquired records",
    responses=_ACKNOWLEDGED,
    response_model_exclude_none=True,
)
async def reject(
    client: ShareClientFrom, allowed: TopicsAllowed, group: GroupName, body: Reject, response: Response
) -> Acknowledgements:
    """Rejects records: they are not delivered again and become dead letters."""
    await allowed(body.tokens)
    return _acknowledged(await client.reject(body.tokens, reason=body.reason, group=group), response)


@router.post(
    "/groups/{group}/extend",
    operation_id="extendRecords",
    summary="Extend acquisition locks",
    responses=_ACKNOWLEDGED,
    response_model_exclude_none=True,
)
async def extend(
    client: ShareClientFrom, allowed: TopicsAllowed, group: GroupName, body: Tokens, response: Response
) -> Acknowledgements:
    """Restarts the locks of records that take longer."""
    await allowed(body.tokens)
    return _acknowledged(await client.extend(body.tokens, group=group), response)


def _acknowledged(outcomes: Sequence[CometError | None], response: Response) -> Acknowledgements:
    """The outcomes; if all failed with the same error, raises one problem."""
    problems = [None if error is None else _problem(error) for error in outcomes]
    wrong = [problem for problem in problems if problem is not None]
    if len(wrong) == len(problems) and len({problem.code for problem in wrong}) == 1:
        raise wrong[0]
    if wrong:
        response.status_code = 207
    return Acknowledgements(results=[_result(problem) for problem in problems])


def _problem(error: CometError) -> Problem:
    return Problem("MALFORMED_TOKEN", error.message) if isinstance(error, InvalidArgument) else Problem.of(error)


def _result(problem: Problem | None) -> Acknowledged:
    if problem is None:
        return Acknowledged(acknowledged=True, problem=None)
    return Acknowledged(acknowledged=False, problem=ProblemDocument.model_validate(problem.document()))
