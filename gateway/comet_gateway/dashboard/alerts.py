"""Alerts for pages: the facts of their page, and the channel of notices for a browser's notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from comet_gateway.alerts.journal import RuleState
from comet_gateway.alerts.rule import label
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_web import facts
from comet_web.page_request import PageRequest

OFF: Final = "Alerts are off: set the gateway's setting alerts."


async def alerts(sources: Sources, request: PageRequest) -> facts.AlertsPage:
    """The loader of the page."""
    found, now_us = sources.alerts, request.now_us
    if found is None:
        return facts.AlertsPage(now_us, OFF)
    try:
        states = found.states()
    except Problem as problem:
        return facts.AlertsPage(now_us, problem.detail)
    book = found.log.book
    return facts.AlertsPage(
        now_us,
        evaluates=found.evaluates,
        mail=found.has_mail,
        rows=tuple(map(_row, states)),
        events=tuple(
            facts.AlertEvent(one.time_us, one.name, one.event, one.severity, one.text) for one in reversed(book.history)
        ),
        deliveries=tuple(
            facts.AlertDelivery(one.time_us, one.name, one.notice, one.to, one.outcome, one.attempts, one.error)
            for one in reversed(book.deliveries)
        ),
    )


def _row(known: RuleState) -> facts.AlertRow:
    rule = known.rule
    acknowledged = known.state == "firing" and known.acknowledged == known.number
    return facts.AlertRow(
        id=rule.id,
        name=rule.name,
        state=known.state,
        severity=rule.severity,
        target=rule.target(),
        condition=rule.words(),
        for_s=rule.for_s,
        seen=known.text,
        since_us=known.since_us,
        channels=tuple(map(label, rule.channels)),
        enabled=rule.enabled,
        problem=known.problem,
        muted_until_us=known.muted_until_us,
        muted_by=known.muted_by,
        acknowledged_by=known.acknowledged_by if acknowledged else "",
    )


async def notices(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """The channel: each notice for browsers that becomes due while it is open. Raises Problem."""
    if params:
        raise Problem("INVALID_ARGUMENT", "the channel alerts takes no params")
    found = session.sources.alerts
    if found is None:
        raise Problem("ALERTS_OFF", OFF)
    page = found.page()
    try:
        while True:
            notice = await page.get()
            rule = notice.rule
            yield {
                "id": notice.id,
                "event": notice.event,
                "name": rule.name,
                "severity": rule.severity,
                "text": f"{rule.target()}: {notice.text or rule.words()}",
            }
    finally:
        found.leave(page)
