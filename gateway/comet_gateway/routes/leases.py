"""Records of shared groups, leased without a session: by one request, and settled by others, through any gateway.

lease ─► records with a token each ─► ack | nack | reject | extend, before the lease is over
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

import comet
from comet.errors import CometError, InvalidArgument
from comet_gateway.config import Limits
from comet_gateway.http.client_disconnect import while_there
from comet_gateway.http.problems import Problem, answers
from comet_gateway.push.subscribe_request import Values
from comet_gateway.records.record_json import each
from comet_gateway.schemas.common import ProblemDocument
from comet_gateway.schemas.leases import LEASED, LeaseAsked, Nack, Reject, Settled, Settlements, Tokens
from comet_gateway.schemas.lists import GroupName

router = APIRouter(prefix="/v1", tags=["leases"])


async def _leases(request: Request) -> comet.Leases:
    found: comet.Leases = request.app.state.backend.leases
    return found


LeasesClient = Annotated[comet.Leases, Depends(_leases)]

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
_SETTLED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "All are kept."},
    207: {"model": Settlements, "description": "Some are not; `problem` says why."},
    **answers("MALFORMED_TOKEN", "LEASE_EXPIRED", "TOPIC_NOT_FOUND", "NOT_LEADER", "LEADERSHIP_LOST"),
}


@router.post(
    "/groups/{group}/lease",
    operation_id="leaseRecords",
    response_class=Response,
    responses={
        **answers("TOPIC_NOT_FOUND", "DATA_LOSS", "NOT_LEADER", "NOT_COORDINATOR", "COORDINATOR_LOADING", "LOG_FAILED"),
        200: {**LEASED, "links": _LINKS},
    },
)
async def lease(request: Request, leases: LeasesClient, group: GroupName, body: LeaseAsked) -> Response:
    """Leases records of a topic in the name of a shared group, each with a token to settle it with.

    What is neither settled nor extended within `lease_ms` is given out again, as is all that is leased when another
    broker comes to lead the partition. The group needs no members, and may have some: they share its records. A group
    that is new is made by this, and stays until it is deleted.

    Where the client goes away before the answer, nothing stays leased, as far as the gateway can notice.
    """
    state = request.app.state
    limits: Limits = state.config.limits
    _within("limit", body.limit, limits.records_max)
    _within("max_bytes", body.max_bytes, limits.answer_bytes_max)
    _within("wait_ms", body.wait_ms, limits.wait_ms_max)
    found = await while_there(
        request,
        leases.lease(
            group,
            body.topic,
            records_max=body.limit,
            bytes_max=body.max_bytes,
            wait_ms=body.wait_ms,
            lease_ms=body.lease_ms,
            attempts_max=body.attempts_max,
            dead_letter=body.dead_letter or "",
            by_key=body.by_key,
            start=body.start,
        ),
        state.draining,
    )
    if found and await request.is_disconnected():
        await leases.give_back([record.token for record in found])
    state.metrics.records_out += len(found)
    return Response(_document(found, Values(body.values)), media_type="application/json")


def _within(name: str, value: int, most: int) -> None:
    if value > most:
        raise Problem("VALIDATION", f"{name} is at most {most} at this gateway, not {value}")


def _document(found: Sequence[comet.LeasedRecord], values: Values) -> bytes:
    texts = [
        b'%b,"attempt":%d,"token":"%b"}' % (text[:-1], record.attempt, record.token.encode())
        for text, record in zip(each(found, values), found, strict=True)
    ]
    return b'{"records":[%b]}' % b",".join(texts)


# ---- settling


@router.post("/groups/{group}/ack", operation_id="ackRecords", responses=_SETTLED, response_model_exclude_none=True)
async def ack(leases: LeasesClient, group: GroupName, body: Tokens, response: Response) -> Settlements:
    """These are done. May be said again where the answer was lost."""
    return _settled(await leases.ack(body.tokens, group=group), response)


@router.post("/groups/{group}/nack", operation_id="nackRecords", responses=_SETTLED, response_model_exclude_none=True)
async def nack(leases: LeasesClient, group: GroupName, body: Nack, response: Response) -> Settlements:
    """These are to be given out again, not before `delay_ms` are over; after `attempts_max` they are dead letters."""
    return _settled(await leases.nack(body.tokens, delay_ms=body.delay_ms, group=group), response)


@router.post(
    "/groups/{group}/reject", operation_id="rejectRecords", responses=_SETTLED, response_model_exclude_none=True
)
async def reject(leases: LeasesClient, group: GroupName, body: Reject, response: Response) -> Settlements:
    """These are never to be given out again: they are dead letters."""
    return _settled(await leases.reject(body.tokens, reason=body.reason, group=group), response)


@router.post(
    "/groups/{group}/extend", operation_id="extendRecords", responses=_SETTLED, response_model_exclude_none=True
)
async def extend(leases: LeasesClient, group: GroupName, body: Tokens, response: Response) -> Settlements:
    """These take longer: their leases begin anew."""
    return _settled(await leases.extend(body.tokens, group=group), response)


def _settled(outcomes: Sequence[CometError | None], response: Response) -> Settlements:
    """All of one kind that went wrong are one problem; else each token has its own."""
    problems = [None if error is None else _problem(error) for error in outcomes]
    wrong = [problem for problem in problems if problem is not None]
    if len(wrong) == len(problems) and len({problem.code for problem in wrong}) == 1:
        raise wrong[0]
    if wrong:
        response.status_code = 207
    return Settlements(results=[_result(problem) for problem in problems])


def _problem(error: CometError) -> Problem:
    return Problem("MALFORMED_TOKEN", error.message) if isinstance(error, InvalidArgument) else Problem.of(error)


def _result(problem: Problem | None) -> Settled:
    if problem is None:
        return Settled(settled=True, problem=None)
    return Settled(settled=False, problem=ProblemDocument.model_validate(problem.document()))
