"""Routes of alerts: rules, their states, tests of delivery, and the history."""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response

from comet_gateway.alerts.documents import (
    Alert,
    AlertHistory,
    AlertList,
    AlertRule,
    AlertTest,
    Mute,
    alert_document,
    delivery_document,
    event_document,
)
from comet_gateway.alerts.service import Alerts, new_id
from comet_gateway.http.auth import Principal, Role
from comet_gateway.http.problems import Problem, answers
from comet_gateway.http.topic_roles import require_topic
from comet_gateway.routes.admin import STRICT, links

router = APIRouter(prefix="/v1", tags=["alerts"], dependencies=STRICT)

_SAME: Final = {"parameters": {"alert": "$request.path.alert"}}
_OFF: Final = ("ALERTS_OFF",)
_ONE: Final = ("ALERTS_OFF", "ALERT_NOT_FOUND")


async def _alerts(request: Request) -> Alerts:
    """Raises ALERTS_OFF."""
    found: Alerts | None = request.app.state.alerts
    if found is None:
        raise Problem("ALERTS_OFF", "this gateway serves no alerts")
    return found


async def _principal(request: Request) -> Principal:
    found: Principal = request.scope["comet.principal"]
    return found


AlertsOf = Annotated[Alerts, Depends(_alerts)]
User = Annotated[Principal, Depends(_principal)]
AlertId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="The id of an alert.", examples=["3fa1c2d4e5b6"])]


def _now_us() -> int:
    return time.time_ns() // 1_000


def _whole(user: Principal) -> bool:
    return user.role >= Role.OPERATOR


async def _store(alerts: Alerts, user: Principal, id_: str, body: AlertRule) -> Alert:
    """Stores a rule for a user, whose role has to be enough for its topic."""
    try:
        rule = body.rule(id_, user.name, _now_us())
    except msgspec.ValidationError as error:
        raise Problem("VALIDATION", str(error)) from None
    require_topic(user, rule.topic)
    return alert_document(await alerts.store(rule), _now_us(), whole=True)


@router.get("/alerts", operation_id="listAlerts", summary="List alerts", responses=answers(*_OFF))
async def list_alerts(alerts: AlertsOf, user: User) -> AlertList:
    """Lists all rules with their states, by name. There are at most 200."""
    now_us = _now_us()
    return AlertList(items=[alert_document(one, now_us, whole=_whole(user)) for one in alerts.states()])


@router.post(
    "/alerts",
    operation_id="createAlert",
    summary="Create an alert",
    status_code=201,
    responses={
        **answers(*_OFF, "MALFORMED_FILTER"),
        201: {
            "headers": {"Location": {"schema": {"type": "string"}}},
            **links(describeAlert={"parameters": {"alert": "$response.body#/id"}}),
        },
    },
)
async def create_alert(alerts: AlertsOf, user: User, body: AlertRule, response: Response) -> Alert:
    """Creates a rule. A gateway begins to evaluate it within seconds."""
    found = await _store(alerts, user, new_id(), body)
    response.headers["location"] = f"/v1/alerts/{found.id}"
    return found


@router.get(
    "/alerts/{alert}", operation_id="describeAlert", summary="Get an alert", responses=answers(*_ONE)
)  # fmt: skip
async def describe_alert(alerts: AlertsOf, user: User, alert: AlertId) -> Alert:
    """Gets a rule and its state."""
    return alert_document(alerts.state(alert), _now_us(), whole=_whole(user))


@router.put(
    "/alerts/{alert}",
    operation_id="replaceAlert",
    summary="Replace an alert",
    responses={**answers(*_ONE, "MALFORMED_FILTER"), 200: links(describeAlert=_SAME)},
)
async def replace_alert(alerts: AlertsOf, user: User, alert: AlertId, body: AlertRule) -> Alert:
    """Replaces a rule. With another condition its state begins again. Of two changes at once the later one stays."""
    alerts.state(alert)
    return await _store(alerts, user, alert, body)


@router.delete(
    "/alerts/{alert}",
    operation_id="deleteAlert",
    summary="Delete an alert",
    status_code=204,
    response_class=Response,
    responses=answers(*_ONE),
)
async def delete_alert(alerts: AlertsOf, user: User, alert: AlertId) -> Response:
    """Deletes a rule. Notices of it that are not delivered yet still are."""
    await alerts.delete(alert, user.name)
    return Response(status_code=204)


@router.post(
    "/alerts/{alert}/mute",
    operation_id="muteAlert",
    summary="Mute an alert",
    responses={**answers(*_ONE), 200: links(describeAlert=_SAME)},
)
async def mute_alert(alerts: AlertsOf, user: User, alert: AlertId, body: Mute) -> Alert:
    """Holds notices back for a time. Its state is still evaluated; what fires still at the end is told then."""
    return alert_document(await alerts.mute(alert, body.seconds, user.name), _now_us(), whole=True)


@router.post(
    "/alerts/{alert}/acknowledge",
    operation_id="acknowledgeAlert",
    summary="Acknowledge a firing alert",
    responses={**answers(*_ONE, "ALERT_NOT_FIRING"), 200: links(describeAlert=_SAME)},
)
async def acknowledge_alert(alerts: AlertsOf, user: User, alert: AlertId) -> Alert:
    """Marks this firing as known. No further notice of it comes but that of its end."""
    return alert_document(await alerts.acknowledge(alert, user.name), _now_us(), whole=True)


@router.post(
    "/alerts/{alert}/test",
    operation_id="testAlert",
    summary="Test the delivery of an alert",
    responses=answers(*_ONE),
)
async def test_alert(alerts: AlertsOf, alert: AlertId) -> AlertTest:
    """Sends a test notice to each channel, once, from this gateway, and says how that went."""
    return AlertTest(deliveries=[delivery_document(one) for one in await alerts.test(alert)])


@router.get("/alert-history", operation_id="listAlertHistory", summary="List the history", responses=answers(*_OFF))
async def list_history(alerts: AlertsOf) -> AlertHistory:
    """Lists the newest 200 events of alerts and the newest 200 deliveries."""
    alerts.states()
    book = alerts.log.book
    return AlertHistory(
        events=[event_document(one) for one in reversed(book.history)],
        deliveries=[delivery_document(one) for one in reversed(book.deliveries)],
    )
