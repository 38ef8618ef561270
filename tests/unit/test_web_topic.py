"""A topic's pages: its header, its partitions, what it is set to, who reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from comet.entities import PartitionInfo
from comet.settings.topic import TOPIC_SETTINGS
from comet_web.components import numbers
from comet_web.document import DASH, Document
from comet_web.facts import Cluster, Event, Group, Lag, Setting, TopicConsumers, TopicDetail, Track
from comet_web.page_request import PageRequest
from comet_web.views import topic, topic_config, topic_consumers
from tests.unit.test_web_topics import NOW, SECOND
from tests.unit.test_web_topics import topic as a_topic


def partition(index: int, **changes: Any) -> PartitionInfo:
    made = PartitionInfo(
        partition=index,
        leader=1,
        leader_epoch=4,
        replicas=(1, 2, 3),
        in_sync=(1, 2, 3),
        log_start=10,
        log_end=110,
        high_watermark=110,
        bytes=5_000,
        in_rate=10.0,
        last_us=NOW,
    )
    return replace(made, **changes)


def detail(*partitions: PartitionInfo, settings: tuple[Setting, ...] = (), **cluster: Any) -> TopicDetail:
    tracks = {
        "records_in": Track(1, NOW, (None, 5.0, 20.0)),
        "records_out": Track(1, NOW, (1.0, 1.0, 3.0)),
        "bytes_in": Track(1, NOW, (None, None, 2_000.0)),
        "bytes_out": Track(1, NOW, (None, None, None)),
    }
    return TopicDetail(Cluster(time_us=NOW, **cluster), a_topic(), partitions, settings, tracks)


def asked(path: str = "/topics/quotes", **query: str) -> PageRequest:
    return PageRequest(path=path, query=query, now_us=NOW)


def column(document: Document, table: str, key: str) -> dict[str, str]:
    found = document.tables[table]
    index = next(number for number, column in enumerate(found.columns) if column.key == key)
    return {row.key: row.cells[index].text for row in found.rows}


# ---- partitions


def test_partitions_that_are_not_well_come_first() -> None:
    found = detail(
        partition(0),
        partition(1, log_start=None, log_end=None),
        partition(2, in_sync=(1, 3)),
        partition(3, failed=True),
        partition(4, leader=None, in_sync=()),
        partition(5),
    )
    document = topic.view(found, asked())
    assert column(document, "partitions", "state") == {
        "4": "no leader",
        "3": "failed",
        "2": "under-replicated",
        "1": "silent",
        "0": "in sync",
        "5": "in sync",
    }
    assert list(column(document, "partitions", "state")) == ["4", "3", "2", "1", "0", "5"]


def test_what_is_missing_is_named() -> None:
    row = topic.view(detail(partition(0, in_sync=(1,))), asked()).tables["partitions"].rows[0]
    assert row.cells[1].title == "not in sync: broker 2, 3"
    assert (row.cells[3].text, row.cells[4].text) == ("1, 2, 3", "1")


def test_a_partition_is_told_by_its_offsets() -> None:
    document = topic.view(detail(partition(0)), asked())
    found = {key: column(document, "partitions", key)["0"] for key in ("first", "next", "records", "bytes", "in")}
    assert found == {"first": "10", "next": "110", "records": "100", "bytes": "5.00 kB", "in": "10"}


def test_a_partition_without_a_leader_has_dashes() -> None:
    lost = partition(0, leader=None, log_start=None, log_end=None, bytes=None, in_rate=None, last_us=None)
    document = topic.view(detail(lost), asked())
    keys = ("leader", "first", "next", "records", "bytes", "in", "skew", "last")
    assert {column(document, "partitions", key)["0"] for key in keys} == {DASH}


def test_rows_lead_to_the_messages_of_the_partition() -> None:
    row = topic.view(detail(partition(7)), asked()).tables["partitions"].rows[0]
    assert row.href == "/topics/quotes/records?partition=7"
    assert row.cells[2].href == "/brokers/1"


def test_skew_is_against_the_average_of_what_comes_in() -> None:
    document = topic.view(detail(partition(0, in_rate=30.0), partition(1, in_rate=10.0)), asked())
    assert column(document, "partitions", "skew") == {"0": "1.5×", "1": "0.5×"}
    rows = {row.key: row.cells[10] for row in document.tables["partitions"].rows}
    assert rows["0"].bar == 1.0
    assert rows["1"].bar == pytest.approx(1 / 3)
    assert document.fields["skew"].text == "1.5×"
    assert document.fields["skew"].title == "partition 0 gets the most, records/s in"


def test_where_nothing_comes_in_skew_is_of_what_did() -> None:
    found = detail(partition(0, in_rate=0.0, log_end=300), partition(1, in_rate=None, log_end=100))
    document = topic.view(found, asked())
    assert column(document, "partitions", "skew") == {"0": "1.5×", "1": "0.5×"}
    assert document.tables["partitions"].rows[0].cells[10].title == "1.50 times the average, records in total"


def test_an_empty_topic_has_nothing_to_compare() -> None:
    empty = partition(0, in_rate=0.0, log_start=0, log_end=0)
    document = topic.view(detail(empty), asked())
    assert column(document, "partitions", "skew") == {"0": DASH}
    assert document.fields["skew"].text == DASH


@pytest.mark.parametrize(("filter_", "keys"), [("under", ["2"]), ("leader 5", ["1"]), ("0 ", ["0"])])
def test_the_filter_finds_number_state_and_leader(filter_: str, keys: list[str]) -> None:
    found = detail(partition(0), partition(1, leader=5), partition(2, in_sync=(1,)))
    document = topic.view(found, replace(asked(filter=filter_), matches=lambda text: filter_ in text))
    assert [row.key for row in document.tables["partitions"].rows] == keys


@pytest.mark.parametrize(("count", "bars", "each"), [(3, 3, 1), (128, 128, 1), (129, 65, 2), (1000, 125, 8)])
def test_there_are_no_more_bars_than_can_be_told_apart(count: int, bars: int, each: int) -> None:
    found = topic.view(detail(*(partition(index, in_rate=2.0) for index in range(count))), asked())
    chart = found.charts["by_partition"]
    assert len(chart.values[0]) == bars
    assert chart.values[0][0] == 2.0 * each
    assert sum(value or 0 for value in chart.values[0]) == 2.0 * count
    assert chart.summary == "all get the same, 2"


def test_bars_say_which_partition_gets_most() -> None:
    chart = topic.view(detail(partition(0, in_rate=3.0), partition(1, in_rate=5.0)), asked()).charts["by_partition"]
    assert (chart.values, chart.summary) == (([3.0, 5.0],), "partition 1 gets most, 5; 0 least, 3")
    assert topic.view(detail(), asked()).charts["by_partition"].names == ()


# ---- the header, and what goes on over time


def test_all_pages_of_a_topic_have_the_same_header() -> None:
    found = detail(partition(0))
    headers = topic.header(found)
    consumers = topic_consumers.view(TopicConsumers(found), asked())
    for document in (topic.view(found, asked()), topic_config.view(found, asked()), consumers):
        assert document.title == "quotes"
        assert {name: document.fields[name] for name in headers} == headers
    assert (headers["health"].text, headers["records"].text, headers["retention"].text) == (
        "healthy",
        "1,204,331",
        "7 d",
    )


def test_charts_say_what_they_show() -> None:
    charts = topic.view(detail(partition(0)), asked()).charts
    assert charts["records"].names == ("in", "out")
    assert charts["records"].summary == "in 20, max 20; out 3, max 3"
    assert charts["bytes"].summary == "in 2.00 kB, max 2.00 kB"


def test_without_figures_charts_are_empty_and_say_so() -> None:
    charts = topic.view(replace(detail(partition(0)), tracks={}), asked()).charts
    assert (charts["records"].names, charts["records"].summary) == (("in", "out"), "no data yet")


def test_what_happened_to_the_topic_is_marked() -> None:
    events = (
        Event(NOW - 1 * SECOND, "election", "broker 2 leads partition 0", topic="quotes", partition=0),
        Event(NOW - 2 * SECOND, "election", "broker 1 leads partition 1", topic="quotes", partition=1),
        Event(NOW - 2 * SECOND, "election", "of another topic", topic="orders"),
        Event(NOW - 9 * SECOND, "created", "before what is shown", topic="quotes"),
    )
    marks = topic.view(detail(partition(0), events=events), asked()).charts["records"].marks
    assert [text for _, text in marks] == ["broker 1 leads partition 1", "broker 2 leads partition 0"]


# ---- what it is set to


def setting(name: str, value: str, source: str = "built-in", default: str = "") -> Setting:
    unit = TOPIC_SETTINGS[name].unit if name in TOPIC_SETTINGS else ""
    return Setting(name, value, default or value, source, "what it does", unit)


def test_what_was_set_comes_first() -> None:
    found = detail(
        settings=(
            setting("flush", "os", "cluster", "always"),  # the cluster's default was another one then
            setting("retention_ms", "604800000", "topic"),  # though it is the default
            setting("a", "1"),
        )
    )
    document = topic_config.view(found, asked())
    assert [row.key for row in document.tables["settings"].rows] == ["retention_ms", "flush", "a"]
    assert document.fields["changed"].text == "1 of 3 settings is set for this topic"
    assert topic_config.view(detail(), asked()).fields["changed"].text == "all settings have their defaults"


def test_the_source_of_a_setting_is_shown_as_told() -> None:
    found = detail(
        settings=(setting("retention_ms", "604800000", "topic"), setting("flush", "os", "cluster", "always"))
    )
    rows = topic_config.view(found, asked()).tables["settings"].rows
    assert [(row.cells[1].text, row.cells[2].text, row.cells[3].text, row.cells[1].tone) for row in rows] == [
        ("7 d", "7 d", "topic", "info"),
        ("os", "always", "cluster", ""),
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention_ms", "604800000", "7 d"),
        ("retention_ms", "-1", "none"),
        ("retention_bytes", "-1", "none"),
        ("flush_interval_ms", "50", "50 ms"),
        ("segment_ms", "5400000", "90 min"),
        ("segment_bytes", "134217728", "128 MiB"),
        ("record_bytes_max", "1000", "1000 B"),
        ("retention_ms", "0", "0 ms"),
        ("min_insync", "2", "2"),
        ("flush", "interval", "interval"),
    ],
)
def test_settings_are_written_so_that_they_read_back(name: str, value: str, text: str) -> None:
    assert numbers.exact_text(value, setting(name, value).unit) == text


# ---- who reads it


def group(name: str, lag: int | None, **changes: Any) -> Group:
    own = {} if lag is None else {"quotes": lag}
    made = Group(name, "consumer", "stable", 2, ("quotes",), 1, lag=lag, lags=own, last_commit_us=NOW)
    return replace(made, **changes)


def consumers(*groups: Group, chosen: str = "", lags: tuple[Lag, ...] = (), **query: str) -> Document:
    found = detail(partition(0), groups={one.name: one for one in groups})
    return topic_consumers.view(TopicConsumers(found, chosen, lags), asked("/topics/quotes/consumers", **query))


def test_who_is_furthest_behind_comes_first() -> None:
    document = consumers(group("a", 3), group("b", 700), group("c", None), group("d", 9, topics=("orders",)))
    assert column(document, "consumers", "lag") == {"b": "700", "a": "3", "c": DASH}
    assert list(column(document, "consumers", "lag")) == ["b", "a", "c"]
    assert document.fields["lag"].text == "700"
    assert document.fields["groups"].text == "3"


def test_lag_is_that_of_this_topic() -> None:
    both = replace(group("a", 900), topics=("quotes", "orders"), lags={"quotes": 3, "orders": 897})
    assert column(consumers(both), "consumers", "lag") == {"a": "3"}


def test_partitions_of_the_chosen_group_are_shown() -> None:
    lags = (
        Lag("quotes", 0, "", None, 40, 100, 60, 30.0, None),
        Lag("quotes", 1, "engine-1", 90, 0, 100, 10, 2.0, 1.0),
        Lag("quotes", 2, "engine-1", 100, 0, 100, 0, 0.0, None),
    )
    document = consumers(group("engine", 70), chosen="engine", lags=lags, group="engine")
    assert column(document, "lags", "lag") == {"0": "60", "1": "10", "2": "0"}
    assert column(document, "lags", "committed") == {"0": "never", "1": "90", "2": "100"}
    assert column(document, "lags", "member") == {"0": "unassigned", "1": "engine-1", "2": "engine-1"}
    rows = document.tables["lags"].rows
    assert [row.href for row in rows][:2] == [
        "/topics/quotes/records?start=offset&partition=0&offset=40",
        "/topics/quotes/records?start=offset&partition=1&offset=90",
    ]
    assert [row.cells[3].bar for row in rows] == [1.0, pytest.approx(1 / 6), 0.0]
    assert (document.fields["chosen"].text, document.fields["chosen"].href) == ("engine", "/groups/engine")


def test_others_are_offered() -> None:
    document = consumers(group("a", 1), group("b", 2), chosen="a", group="a")
    cells = {row.key: row.cells[-1] for row in document.tables["consumers"].rows}
    assert cells["a"].text == "below"
    assert (cells["b"].text, cells["b"].href) == ("show", "/topics/quotes/consumers?group=b#lags")


def test_a_topic_that_nobody_reads() -> None:
    document = consumers()
    assert document.tables["consumers"].total == 0
    assert document.fields["lag"].title == "no group reads it"
