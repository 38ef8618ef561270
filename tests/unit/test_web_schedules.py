"""The pages of schedules: the list and one schedule, what is due and what is late, and why one does not fire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from comet_web import render
from comet_web.components import numbers
from comet_web.components.navigation import NAV
from comet_web.document import DASH, Document
from comet_web.facts import Schedule, ScheduleDetail, SchedulesPage, ScheduleTime
from comet_web.page_request import OPERATOR, VIEWER, PageRequest
from comet_web.pages import PAGES
from comet_web.views import schedule as one_schedule
from comet_web.views import schedules

SECOND = 1_000_000
NOW = 1_795_800_000 * SECOND  # 2026-11-27 17:20:00 UTC
PAGE = {page.name: page for page in PAGES}
MARKUP = "<b>bold</b>"


def made(**changes: Any) -> Schedule:
    usual = Schedule(
        "orders", "close-report", "cron 0 13 * * 1-5 America/New_York", 7,
        zone="America/New_York", next_us=NOW + 2400 * SECOND, next_local="2026-11-27T13:00:00-05:00",
        fired=1_204, skipped=0, fired_us=NOW - 86_400 * SECOND, late="fire_last",
        author="client:ann", created_us=NOW - 10**12, tzdata="2026f",
    )  # fmt: skip
    return replace(usual, **changes)


def detail(one: Schedule | None = None, **changes: Any) -> ScheduleDetail:
    usual = ScheduleDetail(
        NOW, one or made(), key=b"ACME", value=b'{"report": 1}', size=17, headers=(("desk", b"NORTH"),),
        times=(ScheduleTime(NOW + 2400 * SECOND, "2026-11-27T13:00:00-05:00"),),
    )  # fmt: skip
    return replace(usual, **changes)


def asked(path: str, query: Mapping[str, str], role: int = OPERATOR) -> PageRequest:
    return PageRequest(path=path, query=query, now_us=NOW, role=role)


def listed(*found: Schedule, after: str = "", problem: str = "", **query: str) -> Document:
    return schedules.view(SchedulesPage(NOW, found, after, problem), asked("/schedules", query))


def shown(found: ScheduleDetail) -> Document:
    return one_schedule.view(found, asked("/schedules/orders/close-report", {}))


def html(name: str, document: Document, request: PageRequest) -> str:
    around = {"root": "", "static": "/s", "cluster_name": "", "clusters": (), "nav": NAV, "csrf": "", "acts": "{}"}
    return render.page(PAGE[name].template, doc=document, page=PAGE[name], request=request, csv="", **around)


def list_html(*found: Schedule, role: int = OPERATOR, problem: str = "", **query: str) -> str:
    request = asked("/schedules", query, role)
    return html("schedules", schedules.view(SchedulesPage(NOW, found, "", problem), request), request)


def one_html(found: ScheduleDetail, role: int = OPERATOR) -> str:
    request = asked("/schedules/orders/close-report", {}, role)
    return html("schedule", one_schedule.view(found, request), request)


def texts(document: Document, table: str) -> list[dict[str, str]]:
    shown_ = document.tables[table]
    keys = [column.key for column in shown_.columns]
    return [dict(zip(keys, (cell.text for cell in row.cells), strict=True)) for row in shown_.rows]


# ---- the list


def test_a_schedule_has_its_times_its_next_one_and_its_state() -> None:
    (row,) = texts(listed(made()), "schedules")
    assert row == {
        "schedule": "close-report", "topic": "orders", "spec": "cron 0 13 * * 1-5 America/New_York",
        "next": "2026-11-27 13:00:00 America/New_York", "in": "in 40 min", "fired": "1,204", "skipped": "0",
        "state": "active",
    }  # fmt: skip
    (cells,) = [row.cells for row in listed(made()).tables["schedules"].rows]
    assert cells[3].title == "2026-11-27 18:00:00.000 UTC"
    assert listed(made()).tables["schedules"].rows[0].href == "/schedules/orders/close-report"


@pytest.mark.parametrize(
    ("local", "text"),
    [
        ("2026-11-27T13:00:00-05:00", "2026-11-27 13:00:00"),
        ("2026-11-27T13:00:00+09:00", "2026-11-27 13:00:00"),
        ("2026-11-27T13:00:00.000250+00:00", "2026-11-27 13:00:00.000250"),
    ],
)
def test_a_wall_clock_stands_without_its_offset(local: str, text: str) -> None:
    assert schedules.wall_text(local) == text


@pytest.mark.parametrize(
    ("left_s", "jitter_ms", "text", "tone"),
    [
        (200, 0, "in 3 min 20 s", ""),
        (2, 0, "in 2 s", ""),
        (0, 0, "now", ""),
        (-5, 0, "now", ""),
        (-6, 0, "late by 6 s", "warn"),
        (-200, 0, "late by 3 min 20 s", "warn"),
        (-200, 200_000, "now", ""),
        (-206, 200_000, "late by 3 min 26 s", "warn"),
    ],
)
def test_what_is_due_is_late_only_after_its_jitter(left_s: int, jitter_ms: int, text: str, tone: str) -> None:
    cell = schedules.due(made(next_us=NOW + left_s * SECOND, jitter_ms=jitter_ms), NOW)
    assert (cell.text, cell.tone) == (text, tone)


def test_a_countdown_does_not_flicker() -> None:
    assert {numbers.until(NOW + 3 * SECOND, NOW + part).text for part in (0, 1, 999_999, 1_000_000)} == {
        "in 3 s", "in 2 s",
    }  # fmt: skip


def test_a_schedule_that_does_not_fire_says_why() -> None:
    by_person = listed(made(paused=True, next_us=NOW - SECOND))
    assert texts(by_person, "schedules")[0]["state"] == "paused"
    assert (texts(by_person, "schedules")[0]["next"], texts(by_person, "schedules")[0]["in"]) == (DASH, "paused")
    assert texts(listed(made(paused=True)), "schedules")[0]["next"] == "2026-11-27 13:00:00 America/New_York"
    by_broker = texts(listed(made(paused=True, reason="topic 'orders' does not exist")), "schedules")[0]
    assert by_broker["state"] == "paused: topic 'orders' does not exist"
    waiting = made(paused=True, reason="calendar XNYS is known until 2027-11-23", waits_for="XNYS", next_us=None)
    row = texts(listed(waiting), "schedules")[0]
    assert (row["state"], row["next"], row["in"]) == ("waits for calendar XNYS", DASH, DASH)


def test_the_next_page_begins_behind_the_last_schedule() -> None:
    assert listed(made()).fields["next"].text == ""
    document = listed(made(), after="orders/close-report", topic="orders")
    href = document.fields["next"].href
    assert parse_qs(urlsplit(href).query) == {"topic": ["orders"], "after": ["orders/close-report"]}
    assert document.fields["count"].text == "1 schedule on this page"
    assert listed(made(), made(id="b")).fields["count"].text == "2 schedules"


def test_names_are_segments_of_their_addresses_and_markup_is_text() -> None:
    assert schedules.schedule_link("a", "b:c.d") == "/schedules/a/b%3Ac.d"
    found = list_html(made(id=MARKUP, spec=MARKUP, reason=MARKUP, paused=True, zone=MARKUP))
    assert "<b>" not in found
    assert "<b>" not in one_html(
        detail(made(id=MARKUP, spec=MARKUP, paused=True, reason=MARKUP, author=MARKUP), key=b"<b>", value=b"<b>",
               headers=(("<b>", b"<b>"),), end=MARKUP, warning=MARKUP)
    )  # fmt: skip


def test_a_long_text_is_cut_in_the_list() -> None:
    spec = "cron " + ",".join(map(str, range(60))) + " * * * * UTC"
    row = listed(made(spec=spec)).tables["schedules"].rows[0]
    assert len(row.cells[2].text) < 70
    assert row.cells[2].title == spec


@pytest.mark.parametrize(
    ("problem", "query", "title", "part"),
    [
        ("", {}, "No schedules yet", "New schedule"),
        ("", {"topic": "x"}, "No schedule matches", "check capitals"),
        ("", {"topic": "x", "after": "x/a"}, "No more schedules", "first page"),
        ("no broker", {}, "Schedules are not read yet", "tries again by itself"),
    ],
)
def test_an_empty_list_says_what_to_do(problem: str, query: dict[str, str], title: str, part: str) -> None:
    document = schedules.view(SchedulesPage(NOW, problem=problem), asked("/schedules", query))
    assert document.fields["nothing"].text == title
    assert part in document.fields["why"].text


def test_a_problem_is_an_alert() -> None:
    assert 'role="alert" data-page-problem>Schedules cannot' in list_html(problem="Schedules cannot be read.")
    assert "data-page-problem" not in list_html(made())


# ---- one schedule


def test_a_schedule_has_its_next_times_in_its_zone_and_in_utc() -> None:
    times = (
        ScheduleTime(NOW + 2400 * SECOND, "2026-11-27T13:00:00-05:00"),
        ScheduleTime(NOW + 250_000, "2026-11-28T02:20:00.250000+09:00"),
    )
    assert texts(shown(detail(times=times)), "times") == [
        {"local": "Fri 2026-11-27 13:00:00 -05:00", "utc": "2026-11-27 18:00:00", "in": "in 40 min"},
        {"local": "Sat 2026-11-28 02:20:00.250000 +09:00", "utc": "2026-11-27 17:20:00.250", "in": "now"},
    ]


def test_a_schedule_has_its_settings() -> None:
    fields = shown(detail(made(jitter_ms=90_000, end_us=NOW, fires_max=1_000))).fields
    assert fields["jitter"].text == "up to 90 s"
    assert fields["ends"].text == "after 1,000 records, or at 2026-11-27 17:20:00.000 UTC"
    assert fields["zone"].text == "America/New_York, tzdata 2026f"
    assert fields["late"].text == "fire_last: the last missed time, for all of them"
    assert shown(detail(made(late="skip", late_max_ms=60_000))).fields["late"].text == (
        "skip: no time that is later than 1 min"
    )
    assert shown(detail()).fields["ends"].text == "never"
    assert shown(detail(made(late=""))).fields["late"].text.startswith("fire_last: ")
    assert shown(detail(made(late="", spec="at 2026-12-01T09:30:00Z"))).fields["late"].text.startswith("fire: ")


def test_a_schedule_leads_to_the_records_that_it_wrote() -> None:
    href = shown(detail()).fields["records"].href
    assert urlsplit(href).path == "/topics/orders/records"
    assert parse_qs(urlsplit(href).query) == {"header": ["comet-schedule-id: close-report"]}
    assert shown(detail(made(fired=0, fired_us=None))).fields["records"].text == ""
    assert shown(detail(made(fired=0, fired_us=None))).fields["last"].text == DASH


def test_a_broker_that_has_paused_a_schedule_says_why_and_what_to_do() -> None:
    assert shown(detail()).fields["notice"].text == ""
    assert shown(detail(made(paused=True))).fields["notice"].text == ""
    gone = shown(detail(made(paused=True, reason="topic 'orders' does not exist"))).fields["notice"].text
    assert gone == "A broker has paused it: topic 'orders' does not exist. Resume it once that is mended."
    waiting = shown(detail(made(paused=True, reason="it is known until 2027-11-23", waits_for="XNYS"))).fields["notice"]
    assert waiting.text == (
        "Paused: it is known until 2027-11-23. It resumes by itself once calendar XNYS has a new version."
    )


def test_the_end_of_the_times_has_a_reason() -> None:
    assert shown(detail()).fields["end"].text == ""
    assert shown(detail(end="it comes once, and that is over")).fields["end"].text == (
        "No more times: it comes once, and that is over."
    )
    assert "does not fire until it is resumed" in shown(detail(made(paused=True))).fields["end"].text
    assert shown(detail(made(paused=True), times=(), end="over")).fields["end"].text == "No more times: over."


def test_a_record_has_its_key_value_and_headers() -> None:
    document = shown(detail(partition=2, ttl_ms=3_600_000))
    assert [document.fields[name].text for name in ("key", "value", "partition", "ttl", "size")] == [
        "ACME", '{"report": 1}', "2", "1 h", "17 B",
    ]  # fmt: skip
    assert texts(document, "headers") == [{"name": "desk", "value": "NORTH"}]
    bare = shown(detail(key=None, value=None, headers=(), ttl_ms=-1)).fields
    assert [bare[name].text for name in ("key", "value", "partition", "ttl")] == [
        "none", "tombstone", "by the key", "they do not expire",
    ]  # fmt: skip
    assert shown(detail()).fields["ttl"].text == "as the topic says"
    assert shown(detail(encrypted="k1")).fields["value"].text == "encrypted with key k1"


def test_a_viewer_sees_all_and_is_told_why_it_changes_nothing() -> None:
    actions = ("edit", "pause", "resume", "run", "move", "cancel")
    pages = [(list_html(made(), role=VIEWER), ("new",)), (one_html(detail(), VIEWER), actions)]
    for text, names in pages:
        for action in names:
            button = text.split(f'data-action="{action}-schedule"')[1].split(">")[0]
            assert "needs the role operator; you are viewer" in button
    assert "needs the role" not in list_html(made()) + one_html(detail())


def test_the_navigation_leads_to_schedules() -> None:
    assert 'href="/schedules" data-go="s" aria-current="page"' in one_html(detail())
