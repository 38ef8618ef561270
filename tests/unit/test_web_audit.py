"""What the page of the audit log says, and what it makes of records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from comet_gateway.dashboard.audit_trail import TEXT_CHARS_MAX, event_of
from comet_web import render
from comet_web.components.navigation import NAV
from comet_web.document import DASH
from comet_web.facts import AuditRecord, AuditTrail
from comet_web.page_request import PageRequest
from comet_web.pages import PAGES
from comet_web.views import audit as audit_view

NOW = 1_795_298_240_000_000
ADDED = AuditRecord(
    0, 3, NOW - 1_000, "admin", 1, "client:ops", "3f9a51c07d42", "10.0.0.7", "AddRule", "cluster", "*",
    request='{"rule":{}}',
)  # fmt: skip
TRIED = replace(ADDED, offset=4, time_us=NOW - 500, code="FORBIDDEN", message="may not", dry_run=True)
USED = AuditRecord(0, 0, NOW - 4_000, "first_use", 1, "client:billing", operation="read", kind="topic", name="orders")
DENIED = AuditRecord(
    0, 1, NOW - 3_000, "denied", 1, "client:billing", operation="delete", kind="topic", name="orders",
    code="FORBIDDEN", message="client:billing may not delete topic 'orders'",
)  # fmt: skip
REFUSED = AuditRecord(0, 2, NOW - 2_000, "refused", 2, address="10.9.9.9", code="CREDENTIALS_REFUSED", count=40)
LOST = AuditRecord(0, 5, NOW, "dropped", 2, count=7)
TRAIL = AuditTrail(NOW, "__audit", "live", events=(LOST, TRIED, ADDED, REFUSED, DENIED, USED), events_max=1_000)
PAGE = PageRequest("/audit", now_us=NOW)


def offsets(trail: AuditTrail, **query: str) -> list[int]:
    found = audit_view.view(trail, replace(PAGE, query=query)).tables["events"]
    return [int(row.key.partition("-")[2]) for row in found.rows]


def cells(event: AuditRecord) -> dict[str, tuple[str, str]]:
    table = audit_view.view(replace(TRAIL, events=(event,)), PAGE).tables["events"]
    (row,) = table.rows
    return {column.key: (cell.text, cell.tone) for column, cell in zip(table.columns, row.cells, strict=True)}


def test_the_newest_event_is_on_top() -> None:
    assert offsets(TRAIL) == [5, 4, 3, 2, 1, 0]
    assert offsets(TRAIL, sort="time") == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"principal": "BILL"}, [1, 0]),
        ({"principal": "client:"}, [4, 3, 1, 0]),
        ({"event": "denied"}, [1]),
        ({"event": "admin"}, [4, 3]),
        ({"outcome": "done"}, [3, 0]),
        ({"outcome": "failed"}, [5, 4, 2, 1]),
        ({"event": "admin", "outcome": "failed", "principal": "ops"}, [4]),
        ({"event": "nothing"}, []),
    ],
    ids=str,
)
def test_filters_select_by_principal_event_and_outcome(query: dict[str, str], expected: list[int]) -> None:
    assert offsets(TRAIL, **query) == expected


def test_each_field_has_its_column() -> None:
    found = cells(DENIED)
    assert found["event"] == ("Denied", "warn")
    assert found["resource"] == ("topic orders", "")
    assert found["outcome"] == ("FORBIDDEN", "warn")
    assert found["details"] == ("client:billing may not delete topic 'orders'", "")
    assert found["count"] == ("1", "muted")
    assert found["address"] == (DASH, "muted")
    found = cells(REFUSED)
    assert (found["principal"], found["count"]) == ((DASH, "muted"), ("40", ""))
    assert (found["address"][0], found["broker"][0], found["event"][1]) == ("10.9.9.9", "2", "bad")
    found = cells(TRIED)
    assert (found["operation"][0], found["details"][0]) == ("AddRule (dry run)", 'may not · {"rule":{}}')
    assert cells(ADDED)["resource"][0] == "cluster"
    assert cells(ADDED)["outcome"] == ("done", "good")
    assert cells(ADDED)["details"] == ('{"rule":{}}', "muted")
    assert cells(LOST)["outcome"] == ("lost", "bad")


def test_the_page_says_how_many_events_it_has_and_where_the_others_are() -> None:
    assert audit_view.view(TRAIL, PAGE).fields["summary"].text == "6 events"
    cut = replace(TRAIL, older=1_204)
    found = audit_view.view(cut, PAGE).fields
    assert (found["summary"].text, found["older"].text) == ("Newest 6 events", "1,204 older")
    assert found["older"].href == "/topics/__audit/records"
    few = audit_view.view(cut, replace(PAGE, query={"event": "denied"})).fields
    assert few["summary"].text == "1 of the newest 6 events"
    assert audit_view.view(AuditTrail(NOW, "__audit", "filling"), PAGE).fields["summary"].text == "Loading"


@pytest.mark.parametrize(
    ("state", "part", "tone", "command"),
    [
        ("off", "The brokers keep no audit log", "warn", False),
        ("hidden", "this gateway sees no event", "warn", True),
        ("denied", "This gateway may not read the audit log of the brokers: why.", "warn", True),
        ("failed", "The audit log cannot be followed: why.", "bad", False),
    ],
)
def test_the_page_says_why_it_has_no_events(state: str, part: str, tone: str, command: bool) -> None:
    found = audit_view.view(AuditTrail(NOW, "__audit", state, "why"), PAGE).fields
    assert part in found["notice"].text and found["notice"].tone == tone
    assert bool(found["command"].text) is command
    assert not command or found["command"].text == "comet acl add client:gateway read topic __audit"
    assert not audit_view.view(TRAIL, PAGE).fields["notice"].text


def test_markup_in_events_stays_text() -> None:
    hostile = "<b>&\"'</b>"
    texts = ("principal", "credential", "address", "operation", "kind", "name", "code", "message", "request", "via")
    more: dict[str, Any] = dict.fromkeys(texts, hostile)
    event = AuditRecord(0, 1, NOW, hostile, 1, **more)
    page = next(page for page in PAGES if page.name == "audit")
    asked = replace(PAGE, query={"principal": hostile, "sort": hostile})
    html = render.page(
        page.template, doc=audit_view.view(replace(TRAIL, events=(event,)), asked), page=page, request=asked, root="",
        static="/s", cluster_name="", nav=NAV, csrf="c", csv="/audit.csv", acts="{}",
    )  # fmt: skip
    assert "<b>" not in html and "&lt;b&gt;" in html
    assert " style=" not in html and " onclick" not in html


# ---- records


def test_an_event_is_read_from_its_record() -> None:
    value = {
        "time": "2026-11-28T09:15:02.250000+00:00", "broker": 1, "event": "admin", "principal": "client:ops",
        "credential": "3f9a51c07d42", "address": "10.0.0.7", "operation": "DeleteTopic", "kind": "topic",
        "name": "orders", "via": "client:gateway", "dry_run": True, "count": 2, "request": {"name": "orders"},
        "later": "ignored",
    }  # fmt: skip
    found = event_of(json.dumps(value).encode(), 0, 7, NOW)
    assert found == AuditRecord(
        0, 7, NOW, "admin", 1, "client:ops", "3f9a51c07d42", "10.0.0.7", "DeleteTopic", "topic", "orders",
        count=2, dry_run=True, request='{"name":"orders"}', via="client:gateway",
    )  # fmt: skip
    assert cells(found)["via"] == ("client:gateway", "")


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"\xff\xfe", b"[1]", b"null", b"{", b'{"count": 1e999}',
        b'{"event": 1, "principal": [], "count": "x", "broker": -1}',
    ],
    ids=repr,
)  # fmt: skip
def test_a_record_of_another_form_is_an_event_without_a_kind(value: bytes | None) -> None:
    found = event_of(value, 0, 7, NOW)
    assert (found.event, found.principal, found.count, found.broker) == ("", "", 0, 0)
    assert cells(found)["outcome"] == ("unreadable", "bad")


def test_texts_of_events_are_cut() -> None:
    long = "x" * 10_000
    for value in (json.dumps({"event": "denied", "name": long, "request": {"a": long}}).encode(), long.encode()):
        found = event_of(value, 0, 7, NOW)
        assert len(found.name + found.request + found.message) <= 2 * TEXT_CHARS_MAX
