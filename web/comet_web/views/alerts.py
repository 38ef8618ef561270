"""The page of alerts: rules with their states, events, deliveries. Pure."""

from __future__ import annotations

from typing import Final

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, Cell, Column, Document, Row
from comet_web.facts import AlertDelivery, AlertEvent, AlertRow, AlertsPage
from comet_web.page_request import PageRequest

ALERTS: Final = (
    Column("name", "Alert", wide=False),
    Column("state", "State", wide=False),
    Column("severity", "Severity"),
    Column("target", "Watches"),
    Column("condition", "Condition"),
    Column("seen", "Seen", title="When the state changed"),
    Column("since", "Since", numeric=True),
    Column("channels", "Notices to"),
)
EVENTS: Final = (
    Column("time", "Time", unit="UTC", wide=False),
    Column("name", "Alert", wide=False),
    Column("event", "Event", wide=False),
    Column("text", "Seen"),
)
DELIVERIES: Final = (
    Column("time", "Time", unit="UTC", wide=False),
    Column("outcome", "Outcome", wide=False),
    Column("to", "To"),
    Column("name", "Alert"),
    Column("attempts", "Attempts", numeric=True),
    Column("notice", "Notice", title="Its id, the same at each attempt"),
)
_ORDER: Final = {"firing": 0, "pending": 1, "resolved": 2, "ok": 3}
_STATES: Final = {"firing": "bad", "pending": "warn", "resolved": "info", "ok": "good"}
_SEVERITIES: Final = {"critical": "bad", "warning": "warn", "info": "info"}
_OUTCOMES: Final = {"delivered": "good", "failed": "bad", "dropped": "bad"}


def view(found: AlertsPage, request: PageRequest) -> Document:
    now_us = found.time_us
    firing = sum(row.state == "firing" for row in found.rows)
    unable = sum(bool(row.problem) for row in found.rows)
    return Document(
        now_us,
        "Alerts",
        fields={
            "firing": numbers.count(firing, tone="bad" if firing else ""),
            "unable": numbers.count(unable, tone="warn" if unable else ""),
            "muted": numbers.count(sum(row.muted_until_us > now_us for row in found.rows)),
            "rules": numbers.count(len(found.rows)),
            "notice": Cell(found.reason),
            "evaluates": Cell(_evaluates(found)),
        },
        tables={
            "alerts": shaped(
                "alerts", ALERTS, [_alert(row, now_us) for row in found.rows], request, sort="state", text=_text
            ),
            "events": shaped(
                "events", EVENTS, map(_event, range(len(found.events)), found.events), request, main=False, sort="-time"
            ),
            "deliveries": shaped(
                "deliveries",
                DELIVERIES,
                map(_delivery, range(len(found.deliveries)), found.deliveries),
                request,
                main=False,
                sort="-time",
            ),
        },
    )


def _evaluates(found: AlertsPage) -> str:
    if found.reason or not found.rows:
        return ""
    where = (
        "This gateway evaluates the alerts."
        if found.evaluates
        else "Another gateway evaluates the alerts, or one begins to within seconds."
    )
    return where if found.mail else f"{where} This one has no mail server (smtp_server)."


def _text(row: Row) -> str:
    return " ".join(cell.text for cell in row.cells)


def _alert(row: AlertRow, now_us: int) -> Row:
    held = f" for {numbers.duration_text(row.for_s)}" if row.for_s else ""
    cells = (
        Cell(row.name),
        _state(row, now_us),
        Cell(row.severity, tone=_SEVERITIES[row.severity] if row.state == "firing" else ""),
        Cell(row.target, title=row.target),
        Cell(row.condition + held),
        Cell(row.problem, tone="warn", title="Not evaluated") if row.problem else Cell(row.seen or DASH),
        numbers.ago(row.since_us, now_us),
        Cell(", ".join(row.channels)) if row.channels else Cell("none", "", tone="muted"),
    )
    return Row(row.id, cells, label=row.name)


def _state(row: AlertRow, now_us: int) -> Cell:
    order = _ORDER[row.state]
    if not row.enabled:
        return Cell("disabled", 9, tone="muted")
    if row.problem:
        return Cell("not evaluated", 1, "warn", f"Last known: {row.state}")
    parts, titles = [row.state], []
    if row.acknowledged_by:
        parts.append("acknowledged")
        titles.append(f"Acknowledged by {row.acknowledged_by}")
    if row.muted_until_us > now_us:
        parts.append("muted")
        titles.append(f"Muted by {row.muted_by} until {numbers.moment_text(row.muted_until_us)}")
    return Cell(", ".join(parts), order, _STATES[row.state], "; ".join(titles))


def _time(time_us: int) -> Cell:
    """Without the year; the title has it. The text stays the same at each tick."""
    text = numbers.moment_text(time_us)
    return Cell(text[5:19], time_us, title=text)


def _event(number: int, one: AlertEvent) -> Row:
    tone = _STATES.get(one.event, "muted")
    cells = (
        _time(one.time_us),
        Cell(one.name),
        Cell(one.event, tone=tone),
        Cell(one.text or DASH),
    )
    return Row(f"{one.time_us}.{number}", cells)


def _delivery(number: int, one: AlertDelivery) -> Row:
    outcome = f"{one.outcome}: {one.error}" if one.error else one.outcome
    cells = (
        _time(one.time_us),
        Cell(outcome, tone=_OUTCOMES[one.outcome]),
        Cell(one.to),
        Cell(one.name),
        numbers.count(one.attempts),
        Cell(one.notice),
    )
    return Row(f"{one.time_us}.{number}", cells)
