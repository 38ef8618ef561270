"""The page of the audit log: the newest events, filtered by principal, event and outcome. Pure.

Its query parameters: `principal` (a part of it), `event`, `outcome`, beside those of a main table.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import urlencode

from comet_web.components import numbers
from comet_web.components.table import shaped
from comet_web.document import DASH, Cell, Column, Document, Row
from comet_web.facts import AuditRecord, AuditTrail
from comet_web.page_request import PageRequest, path

EVENTS: Final = {
    "refused": "Refused",
    "denied": "Denied",
    "admin": "Admin act",
    "first_use": "First use",
    "dropped": "Dropped",
}
OUTCOMES: Final = {"done": "Done", "failed": "Failed"}
COLUMNS: Final = (
    Column("time", "Time", unit="UTC", wide=False),
    Column("event", "Event", wide=False),
    Column("principal", "Principal", title="As its certificate, access key or token names it"),
    Column("operation", "Operation", wide=False),
    Column("resource", "Resource"),
    Column("outcome", "Outcome", wide=False, title="The code of the error; done: none"),
    Column("details", "Details", title="The message of the error, or the request of an admin act"),
    Column("count", "Times", numeric=True, title="Repetitions are counted and reported once a minute"),
    Column("address", "Address", title="Of the client"),
    Column("via", "Via", title="The gateway that acted for the principal", hidden=True),
    Column("broker", "Broker", numeric=True),
    Column("credential", "Credential", title="Id of the access key, or of the key that signed the token", hidden=True),
)
_TONES: Final = {"refused": "bad", "denied": "warn", "dropped": "bad", "": "bad"}
ROWS_CACHED: Final = 4_096  # a live page shows the same events again each second


def view(trail: AuditTrail, request: PageRequest) -> Document:
    chosen = {name: request.query.get(name, "") for name in ("principal", "event", "outcome")}
    found = [event for event in trail.events if _matches(event, chosen)]
    rows = [_row(trail.topic, event) for event in found]
    notice, tone = _notice(trail)
    return Document(
        trail.time_us,
        "Audit log",
        fields={
            "summary": Cell(_summary(trail, len(found))),
            "notice": Cell(notice, tone=tone),
            "command": Cell(f"comet acl add client:gateway read topic {trail.topic}" if _is_hidden(trail) else ""),
            "older": _older(trail),
        },
        tables={"events": shaped("events", COLUMNS, rows, request, sort="-time", text=_text)},
    )


def _matches(event: AuditRecord, chosen: dict[str, str]) -> bool:
    return (
        chosen["principal"].casefold() in event.principal.casefold()
        and chosen["event"] in ("", event.event)
        and chosen["outcome"] in ("", "failed" if _failed(event) else "done")
    )


def _failed(event: AuditRecord) -> bool:
    """Whether something did not happen: the call, or the record of events."""
    return bool(event.code) or event.event not in ("admin", "first_use")


def _text(row: Row) -> str:
    return " ".join(cell.text for cell in row.cells)


@lru_cache(ROWS_CACHED)
def _row(topic: str, event: AuditRecord) -> Row:
    href = f"{path('topics', topic, 'records')}?{urlencode({'partition': event.partition, 'offset': event.offset})}"
    time = numbers.moment_text(event.time_us).removesuffix(" UTC")
    operation = f"{event.operation} (dry run)" if event.dry_run else event.operation
    cells = (
        Cell(time, event.time_us, href=href),
        Cell(EVENTS.get(event.event, event.event or "unreadable"), event.event, _TONES.get(event.event, "")),
        Cell(event.principal, href=f"/audit?{urlencode({'principal': event.principal})}")
        if event.principal
        else _dash("not known: no valid credential"),
        Cell(operation) if operation else _dash(),
        _resource(event),
        _outcome(event),
        _details(event),
        numbers.count(max(event.count, 1), tone="" if event.count > 1 else "muted"),
        Cell(event.address) if event.address else _dash(),
        Cell(event.via) if event.via else _dash(),
        Cell(str(event.broker), event.broker) if event.broker else _dash(),
        Cell(event.credential) if event.credential else _dash(),
    )
    return Row(f"{event.partition}-{event.offset}", cells, href, f"event of {time}")


def _dash(title: str = "") -> Cell:
    return Cell(DASH, "", tone="muted", title=title)


def _resource(event: AuditRecord) -> Cell:
    if event.kind == "cluster":
        return Cell("cluster")
    return Cell(f"{event.kind} {event.name}".strip()) if event.kind or event.name else _dash()


def _details(event: AuditRecord) -> Cell:
    text = " · ".join(filter(None, (event.message, event.request)))
    return Cell(text, tone="" if event.message else "muted", title=text) if text else _dash()


def _outcome(event: AuditRecord) -> Cell:
    if event.code:
        return Cell(event.code, tone="bad" if event.event != "denied" else "warn")
    if event.event == "dropped":
        return Cell("lost", tone="bad", title="these events are missing in the topic; the brokers' logs have them")
    return Cell("done", tone="good") if event.event in EVENTS else Cell("unreadable", tone="bad")


def _summary(trail: AuditTrail, found: int) -> str:
    if not trail.events:
        return "Loading" if trail.state == "filling" else ""
    shown = numbers.counted(len(trail.events), "event")
    newest = f"Newest {shown}" if trail.older else shown
    return newest if found == len(trail.events) else f"{found:,} of the {newest[0].lower()}{newest[1:]}"


def _older(trail: AuditTrail) -> Cell:
    if not trail.older:
        return Cell("")
    return Cell(f"{trail.older:,} older", href=path("topics", trail.topic, "records"))


def _is_hidden(trail: AuditTrail) -> bool:
    return trail.state in ("hidden", "denied")


def _notice(trail: AuditTrail) -> tuple[str, str]:
    """What the page says of its source, and in which tone; empty: all is well."""
    rule = f"Its own principal needs a rule that names the topic {trail.topic}, or to be a superuser:"
    off = "The brokers keep no audit log. Brokers with superusers keep one, and those with audit = true."
    hidden = (
        "The brokers keep an audit log, but this gateway sees no event: there is none yet, or it may not read them."
    )
    match trail.state:
        case "off":
            return off, "warn"
        case "hidden":
            return f"{hidden} {rule}", "warn"
        case "denied":
            return f"This gateway may not read the audit log of the brokers: {trail.reason}. {rule}", "warn"
        case "failed":
            return f"The audit log cannot be followed: {trail.reason}. The gateway tries again.", "bad"
    return "", ""
