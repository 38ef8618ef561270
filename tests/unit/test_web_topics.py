"""The list of topics: what is said of each, what is left out, and that what is not known is a dash and sorts last."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from comet.types import TOPIC_NAME
from comet_web import render
from comet_web.document import DASH, Document
from comet_web.facts import Cluster, Topic, Track
from comet_web.page_request import PageRequest
from comet_web.views import topics

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND


def topic(name: str = "quotes", **changes: Any) -> Topic:
    made = Topic(
        name=name,
        internal=name.startswith("__"),
        partitions=3,
        replicas=3,
        in_sync=3,
        under_replicated=0,
        offline=0,
        retention={"ms": 7 * 86_400_000},
        records=1_204_331,
        bytes=2_500_000,
        in_rate=1_230.0,
        in_bytes_rate=98_000.0,
        out_rate=20.0,
        last_us=NOW - 90 * SECOND,
        groups=("engine",),
        lag_max=12,
        trend=Track(15, NOW, (None, 2.0, 4.0)),
    )
    return replace(made, **changes)


def shown(*found: Topic, pattern: str = "", **query: str) -> Document:
    def matches(text: str) -> bool:
        return re.search(pattern, text) is not None

    asked = PageRequest(path="/topics", query=query, now_us=NOW, matches=matches if pattern else None)
    return topics.view(Cluster(time_us=NOW, topics={one.name: one for one in found}), asked)


def texts(document: Document) -> dict[str, dict[str, str]]:
    table = document.tables["topics"]
    keys = [column.key for column in table.columns]
    return {row.key: dict(zip(keys, (cell.text for cell in row.cells), strict=True)) for row in table.rows}


def order(document: Document) -> list[str]:
    return [row.key for row in document.tables["topics"].rows]


def test_a_topic_is_told_in_numbers_that_people_read() -> None:
    assert texts(shown(topic()))["quotes"] == {
        "name": "quotes",
        "partitions": "3",
        "replication": "3/3",
        "records": "1,204,331",
        "in": "1.23 k",
        "out": "20",
        "bytes": "2.50 MB",
        "retention": "7 d",
        "cleanup": "by age",
        "groups": "1",
        "lag": "12",
        "last": "1 min 30 s ago",
        "trend": "",
    }


def test_what_is_not_known_is_a_dash_and_never_zero() -> None:
    unknown = topic(records=None, bytes=None, in_rate=None, out_rate=None, last_us=None, lag_max=None, trend=None)
    found = texts(shown(unknown))["quotes"]
    assert {found[key] for key in ("records", "in", "out", "bytes", "lag", "last", "trend")} == {DASH}
    assert shown(unknown).fields["in"].text == shown(unknown).fields["size"].text == DASH


def test_sums_are_of_what_is_known() -> None:
    document = shown(topic("a", in_rate=2.0), topic("b", in_rate=None), topic("c", in_rate=3.5))
    assert document.fields["in"].value == 5.5
    assert document.fields["partitions"].text == "9"


@pytest.mark.parametrize("key", ["records", "in", "bytes", "lag", "last"])
@pytest.mark.parametrize("direction", ["", "-"])
def test_what_is_not_known_sorts_last_in_both_directions(key: str, direction: str) -> None:
    unknown = topic("a", records=None, in_rate=None, bytes=None, lag_max=None, last_us=None)
    document = shown(unknown, topic("b"), topic("c"), sort=direction + key)
    assert order(document)[-1] == "a"


def test_topics_that_nobody_reads_have_no_lag_and_say_so() -> None:
    lag = shown(topic(groups=(), lag_max=None)).tables["topics"].rows[0].cells[10]
    assert (lag.text, lag.title) == (DASH, "no group reads it")


def test_internal_topics_are_left_out_until_asked_for() -> None:
    own, theirs = topic("__groups"), topic("orders")
    hidden, all_ = shown(own, theirs), shown(own, theirs, internal="1")
    assert order(hidden) == ["orders"]
    assert hidden.tables["topics"].total == 1
    assert (hidden.fields["internal"].text, hidden.fields["internal"].href) == ("Show 1 internal", "/topics?internal=1")
    assert order(all_) == ["__groups", "orders"]
    assert (all_.fields["internal"].text, all_.fields["internal"].href) == ("Hide internal", "/topics")
    assert shown(theirs).fields["internal"].text == ""


def test_what_is_sorted_and_filtered_stays_so_when_internal_topics_are_shown() -> None:
    found = shown(topic("__groups"), sort="-in", page="3")
    assert found.fields["internal"].href == "/topics?sort=-in&internal=1"


@pytest.mark.parametrize(
    ("changes", "tone", "text"),
    [
        ({}, "good", "healthy"),
        ({"under_replicated": 2, "in_sync": 2}, "warn", "2 of 3 partitions under-replicated"),
        ({"under_replicated": 3, "offline": 1, "in_sync": 0}, "bad", "1 of 3 partitions without a leader"),
        ({"partitions": 1, "offline": 1}, "bad", "1 of 1 partition without a leader"),
    ],
)
def test_health_is_told_by_what_is_worst(changes: dict[str, Any], tone: str, text: str) -> None:
    found = topics.health(topic(**changes))
    assert (found.tone, found.text) == (tone, text)
    assert topics.replication(topic(**changes)).title == text


def test_the_least_replicated_sort_first() -> None:
    some, none = topic("some", in_sync=1, under_replicated=1), topic("none", in_sync=0, offline=1)
    assert order(shown(topic("all"), some, none, sort="replication")) == ["none", "some", "all"]


@pytest.mark.parametrize(
    ("limits", "retention", "cleanup"),
    [
        ({"ms": 7 * 86_400_000}, "7 d", "by age"),
        ({}, "unlimited", "never"),
        ({"bytes": 10**9}, "unlimited", "by size"),
        ({"ms": 7 * 86_400_000, "bytes": 10**9, "records": 5_000}, "7 d", "by age, size, count"),
    ],
)
def test_what_is_kept_is_told_by_its_bounds(limits: dict[str, int], retention: str, cleanup: str) -> None:
    found = texts(shown(topic(retention=limits)))["quotes"]
    assert (found["retention"], found["cleanup"]) == (retention, cleanup)


def test_what_is_kept_for_ever_sorts_behind_what_is_not() -> None:
    document = shown(topic("ever", retention={}), topic("day", retention={"ms": 86_400_000}), sort="retention")
    assert order(document) == ["day", "ever"]


def test_the_filter_counts_what_it_lets_through() -> None:
    document = shown(topic("orders"), topic("quotes"), topic("quotes.eu"), pattern="^quotes")
    assert order(document) == ["quotes", "quotes.eu"]
    table = document.tables["topics"]
    assert (table.matched, table.total) == (2, 3)


def test_a_hundred_are_on_a_page() -> None:
    found = [topic(f"t{number:03}") for number in range(250)]
    document = shown(*found, page="3")
    table = document.tables["topics"]
    assert (len(table.rows), table.page, table.pages, table.rows[0].key) == (50, 3, 3, "t200")


def test_names_stay_one_part_of_an_address() -> None:
    row = shown(topic("a/../b?c#d")).tables["topics"].rows[0]
    assert row.href == "/topics/a%2F..%2Fb%3Fc%23d"


def test_a_sparkline_says_what_it_shows() -> None:
    cell = shown(topic()).tables["topics"].rows[0].cells[-1]
    assert list(cell.spark or ()) == [None, 2.0, 4.0]
    assert cell.title == "from 2 to 4 records/s in 45 s"


def test_an_empty_cluster_has_nothing_and_says_nothing_of_health() -> None:
    document = shown()
    assert document.tables["topics"].total == 0
    assert document.fields["health"].text == ""
    assert document.fields["in"].text == "0"


def test_a_form_takes_the_names_that_brokers_take() -> None:
    pattern = re.search(r"NAME = /\^(.*)\$/;", render.static()["js/settings.js"].decode())
    assert pattern is not None
    assert pattern[1] == TOPIC_NAME.pattern
