"""The page of a topic's keys: the list, the key that was looked up, and what it says where it has nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from comet_web import render
from comet_web.document import Document
from comet_web.facts import RecordPreview, TopicKeys
from comet_web.page_request import OPERATOR, VIEWER, PageRequest
from comet_web.pages import PAGES
from comet_web.views import topic_keys
from tests.unit.test_web_topic import detail, partition
from tests.unit.test_web_topics import NOW, SECOND

PAGE = next(page for page in PAGES if page.name == "topic_keys")
MARKUP = b"<b>bold</b>"


def record(key: bytes, value: bytes | None = b"1", offset: int = 7, **changes: Any) -> RecordPreview:
    return replace(RecordPreview(2, offset, NOW - 3 * SECOND, key, value, 12), **changes)


def facts(*keys: RecordPreview, compacted: bool = True, **changes: Any) -> TopicKeys:
    return replace(TopicKeys(replace(detail(partition(0)), compacted=compacted), keys), **changes)


def asked(query: Mapping[str, str], role: int = OPERATOR) -> PageRequest:
    return PageRequest(path="/topics/quotes/keys", query=query, now_us=NOW, role=role)


def view(found: TopicKeys, **query: str) -> Document:
    return topic_keys.view(found, asked(query))


def html(found: TopicKeys, role: int = OPERATOR, **query: str) -> str:
    request = asked(query, role)
    around = {"root": "", "static": "/s", "cluster_name": "", "clusters": (), "nav": (), "csrf": "", "acts": "{}"}
    return render.page(PAGE.template, doc=topic_keys.view(found, request), page=PAGE, request=request, csv="", **around)


def texts(document: Document, table: str) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in document.tables[table].rows]


# ---- the list


def test_a_key_has_its_value_revision_time_and_size() -> None:
    row = texts(view(facts(record(b"EURUSD", b'{"bid": 1.08}'))), "keys")[0]
    assert row[:3] == ["EURUSD", '{"bid": 1.08}', "7"]
    assert row[4] == "12 B"


def test_bytes_that_are_not_text_are_hex_and_markup_is_text() -> None:
    found = facts(record(b"\xff\x00", b"\xfe\xed"), record(MARKUP, MARKUP))
    assert [row[:2] for row in texts(view(found), "keys")] == [["ff 00", "fe ed"], ["<b>bold</b>"] * 2]
    assert "<b>" not in html(found)


@pytest.mark.parametrize(
    ("key", "query"),
    [
        (b"EUR/USD", {"key": ["EUR/USD"]}),
        (b"a&key=b c", {"key": ["a&key=b c"]}),
        (b"\xff\xfe\x00", {"key_base64": ["//4A"]}),
        (b"k" * topic_keys.KEY_BYTES_MAX, {"key": ["k" * topic_keys.KEY_BYTES_MAX]}),
    ],
)
def test_a_key_leads_to_its_look_up_within_the_list_shown(key: bytes, query: dict[str, list[str]]) -> None:
    row = view(facts(record(key)), prefix="a", key="before", key_base64="AA==").tables["keys"].rows[0]
    assert urlsplit(row.href).path == "/topics/quotes/keys"
    assert parse_qs(urlsplit(row.href).query) == {"prefix": ["a"], **query}


def test_a_key_that_is_too_long_for_an_address_leads_to_its_record() -> None:
    row = view(facts(record(b"k" * (topic_keys.KEY_BYTES_MAX + 1)))).tables["keys"].rows[0]
    assert row.href == "/topics/quotes/records?partition=2&offset=7"
    assert len(row.cells[0].text) < 100


def test_a_row_stays_itself_when_its_value_changes() -> None:
    before, after = (view(facts(record(b"a", offset=offset))).tables["keys"].rows[0].key for offset in (1, 2))
    assert before == after


def test_the_next_page_begins_behind_the_last_key() -> None:
    assert view(facts(record(b"a"))).fields["next"].text == ""
    cell = view(facts(record(b"a"), after=b"\xffa"), prefix="x").fields["next"]
    assert parse_qs(urlsplit(cell.href).query) == {"prefix": ["x"], "after": ["ff61"]}
    long = view(facts(record(b"a"), after=b"k" * 600)).fields["next"]
    assert not long.href
    assert "use a prefix" in long.text


# ---- one key


def test_a_key_is_told_by_its_last_revision() -> None:
    history = (record(b"a", b"2", 9), record(b"a", None, 8), record(b"a", b"1", 7))
    document = view(facts(key=b"a", history=history), key="a")
    fields = {name: document.fields[name].text for name in ("state", "status", "revision", "partition", "key_base64")}
    assert fields == {
        "state": "value", "status": "revision 9, 3 s ago", "revision": "9", "partition": "2", "key_base64": "YQ==",
    }  # fmt: skip
    assert [row[:2] for row in texts(document, "history")] == [["9", "2"], ["8", "deleted"], ["7", "1"]]
    assert document.tables["history"].rows[2].href == "/topics/quotes/records?partition=2&offset=7"


def test_a_key_without_a_value_says_why() -> None:
    deleted = view(facts(key=b"a", history=(record(b"a", None, 8),)), key="a").fields
    assert (deleted["state"].text, deleted["status"].text) == ("deleted", "deleted by revision 8, 3 s ago")
    absent = view(facts(key=b"a"), key="a").fields
    assert (absent["state"].text, absent["status"].text) == (
        "absent",
        "has no value, and the log has no revision of it",
    )
    expired = view(facts(key=b"a", history=(record(b"a", b"1", 8),), expired=True), key="a").fields
    assert (expired["state"].text, expired["status"].text) == ("absent", "has no value: the last one has expired")
    unread = view(facts(key=b"a", problem="Partition 2 has no leader"), key="a").fields
    assert (unread["state"].text, unread["status"].text) == ("unread", "not read yet")
    assert view(facts()).fields["state"].text == ""


# ---- nothing, and what is wrong


@pytest.mark.parametrize(
    ("changes", "query", "title", "part"),
    [
        ({}, {}, "No keys yet", "New key"),
        ({}, {"prefix": "x"}, "No key begins with this", "check capitals"),
        ({}, {"prefix": "x", "after": "61"}, "No more keys", "first page"),
        ({"problem": "no leader"}, {"prefix": "x"}, "Keys are not read yet", "tries again by itself"),
    ],
)
def test_an_empty_list_says_what_to_do(changes: dict[str, Any], query: dict[str, str], title: str, part: str) -> None:
    document = view(facts(**changes), **query)
    assert document.fields["nothing"].text == title
    assert part in document.fields["why"].text


def test_a_problem_is_an_alert_with_a_way_to_read_nevertheless() -> None:
    shown = html(facts(problem="Partition 2 has no leader."))
    assert 'role="alert" data-page-problem>Partition 2 has no leader.' in shown
    assert 'href="/topics/quotes/keys?stale=yes">Read from any replica' in shown
    assert "Read from any replica" not in html(facts(problem="none"), stale="yes")
    assert "data-page-problem" not in html(facts())


def test_the_tab_is_there_where_values_are_kept() -> None:
    assert "not compacted" not in html(facts())
    assert "This topic is not compacted" in html(facts(compacted=False))
    assert "may be older" in html(facts(), stale="yes")


def test_a_viewer_reads_and_is_told_why_it_does_not_write() -> None:
    history = (record(b"a"),)
    shown = html(facts(record(b"a"), key=b"a", history=history), VIEWER, key="a")
    for action in ("new-key", "edit-key", "delete-key"):
        button = shown.split(f'data-action="{action}"')[1].split(">")[0]
        assert "needs the role operator; you are viewer" in button
    assert "needs the role" not in html(facts(key=b"a", history=history), key="a").split("<form")[1].split("<nav")[0]
