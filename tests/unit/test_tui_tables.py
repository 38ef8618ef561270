"""`comet tui` without a terminal: order and filter of rows, age of figures, tables with unknown parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from comet.cli.tui.figures import cluster_tables, group_tables, record_tables, topic_tables
from comet.cli.tui.queries import RecentRecord, Snapshot
from comet.cli.tui.tables import FigureRow, FigureTable, TableView, figure, next_index, staleness, word
from comet.entities import BrokerInfo, ClusterInfo, PartitionInfo, TopicDetails, TopicInfo
from comet.errors import Forbidden, Unavailable
from comet.settings.topic import TopicConfig
from comet.types import GroupInfo, GroupSummary, PartitionLag

PLACES = ("quotes", "Orders", "bars", "orders-eu")
TABLE = FigureTable(
    "topics",
    ("topic", "records"),
    tuple(
        FigureRow(name, (word(name), figure(records))) for name, records in zip(PLACES, (5, None, 70, 6), strict=True)
    ),
)


def keys(view: TableView) -> list[str]:
    return [row.key for row in view.rows(TABLE)]


def test_numbers_are_sorted_down_at_first_names_up_and_unknown_ones_are_last() -> None:
    assert keys(TableView()) == list(PLACES)
    down = TableView().by(1, TABLE)
    assert keys(down) == ["bars", "orders-eu", "quotes", "Orders"]
    assert keys(down.by(1, TABLE)) == ["quotes", "orders-eu", "bars", "Orders"]
    assert keys(down.by(0, TABLE)) == ["Orders", "bars", "orders-eu", "quotes"]


def test_a_filter_looks_at_words_in_any_case_and_keeps_the_order() -> None:
    view = replace(TableView().by(1, TABLE), filter="ORDERS")
    assert keys(view) == ["orders-eu", "Orders"]
    assert keys(view.by(1, TABLE)) == ["orders-eu", "Orders"], "sorting keeps the filter"
    assert keys(TableView(filter="7")) == [], "numbers are no words"


def test_the_cursor_follows_its_row_except_at_the_top() -> None:
    rows = list(TABLE.rows)
    assert next_index("bars", 1, rows) == 2
    assert next_index("bars", 0, rows) == 0
    assert next_index("deleted", 3, rows[:2]) == 1
    assert next_index("deleted", 3, []) == 0


def test_figures_are_old_after_a_failure_or_a_silence() -> None:
    assert staleness(1.9, "") == ""
    assert staleness(3.0, "") == "no answer for 3 s"
    assert staleness(1.0, "it refused") == "no answer for 1 s: it refused"


# ---- the cluster


def topic(name: str, *leaders: int | None) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(at, leader, 0, (1, 2), (1, 2) if leader else ()) for at, leader in enumerate(leaders)
    )
    return TopicInfo(name, bytes(16), partitions, TopicConfig(), created_us=0)


def answer(led: dict[str, int], **more: Any) -> dict[str, Any]:
    topics = {
        name: {"records": records, "bytes": 2048, "in_rate": 10.0, "out_rate": None} for name, records in led.items()
    }
    return {"topics": topics, "rates": {"records_in": 20.0, "records_out": 5.0}, "disk_used": 4096} | more


def snapshot(**more: Any) -> Snapshot:
    brokers = (
        BrokerInfo(1, "b1", 9092, "0.1.0", controller=True),
        BrokerInfo(2, "b2", 9092, "0.1.0", draining=True),
    )
    engine = GroupSummary("engine", "consumer", "stable", 2, 1, 7, ("quotes",))
    lag = {"group": "engine", "lag": 900, "age_s": 1.5, "drain_s": None}
    found = Snapshot(
        ClusterInfo("c0ffee", 1, brokers, 2, 3),
        [topic("quotes", 1, 2), topic("bars", 1)],
        [engine, replace(engine, name="idle", state="empty")],
        {1: answer({"quotes": 600, "bars": 7}, groups=[lag]), 2: answer({"quotes": 400})},
        {},
    )
    return replace(found, **more)


def texts(table: FigureTable) -> dict[str, dict[str, str]]:
    return {row.key: dict(zip(table.columns, (cell.text for cell in row.cells), strict=True)) for row in table.rows}


def test_figures_of_a_topic_are_sums_over_its_leaders() -> None:
    topics, groups, brokers = cluster_tables(snapshot())
    quotes = texts(topics)["quotes"]
    assert (quotes["records"], quotes["size"], quotes["in"], quotes["out"]) == ("1,000", "4.0 KiB", "20 /s", "-")
    assert (quotes["state"], quotes["partitions"]) == ("ok", "2")
    assert texts(groups)["engine"] | {"topics": ""} == {
        "group": "engine", "state": "stable", "members": "2", "lag": "900", "age": "1.5 s", "drained in": "never",
        "topics": "",
    }  # fmt: skip
    assert groups.about == "2, lag 900"
    assert texts(groups)["idle"]["lag"] == "-", "its coordinator has not measured yet"
    assert [row["state"] for row in texts(brokers).values()] == ["controller", "draining"]
    assert texts(brokers)["1"]["leads"] == "2"
    never = next(row for row in groups.rows if row.key == "engine").cells[groups.columns.index("drained in")]
    assert never.order == math.inf


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    silent = snapshot(statistics={1: answer({"quotes": 600, "bars": 7})}, failures={2: Unavailable("gone")})
    topics, groups, brokers = cluster_tables(silent)
    assert (texts(topics)["quotes"]["records"], texts(topics)["bars"]["records"]) == ("-", "7")
    assert texts(groups)["engine"]["lag"] == "-"
    assert texts(brokers)["2"]["state"] == "silent; draining" and texts(brokers)["2"]["in"] == "-"
    assert brokers.about == "2, 1 without figures"
    offline = snapshot(topics=[topic("quotes", 1, None)])
    assert texts(cluster_tables(offline)[0])["quotes"]["records"] == "-"
    assert texts(cluster_tables(offline)[0])["quotes"]["state"] == "1 offline; 1 under-replicated"


def test_brokers_say_why_they_give_no_figures() -> None:
    refused = snapshot(statistics={}, failures={1: Forbidden("no"), 2: Forbidden("no")})
    assert [row["state"] for row in texts(cluster_tables(refused)[2]).values()] == ["forbidden", "forbidden; draining"]
    alone = ClusterInfo("c0ffee", 1, snapshot().cluster.brokers[:1], 2, 3)
    gone = texts(cluster_tables(snapshot(cluster=alone))[2])["2"]
    assert (gone["state"], gone["address"]) == ("offline", "-")
    failed = {1: answer({}, failed_count=3, problems={"bars": "disk"}), 2: answer({})}
    states = [row["state"] for row in texts(cluster_tables(snapshot(statistics=failed))[2]).values()]
    assert states == ["3 failed; 1 topic unavailable", "draining"]


# ---- details


def test_details_have_each_partition() -> None:
    known = PartitionInfo(0, 1, 0, (1, 2), (1,), log_start=40, log_end=1_040, bytes=7_168, in_rate=3.0)
    found = TopicDetails("quotes", bytes(16), (known, PartitionInfo(1, None, 0, (2,), ())), TopicConfig(), 0)
    (table,) = topic_tables(found)
    rows = texts(table)
    assert (rows["0"]["state"], rows["0"]["records"], rows["0"]["size"]) == ("under-replicated", "1,000", "7.0 KiB")
    assert rows["1"]["state"] == "offline; under-replicated"
    assert [rows["1"][name] for name in ("leader", "first", "next", "records", "in")] == ["-"] * 5

    summary = GroupSummary("engine", "consumer", "stable", 1, 1, 7, ("quotes",))
    lags = (
        PartitionLag("quotes", 0, "m1", committed=40, log_start=0, end=100, lag=60, age_s=1.5, drain_s=12.0),
        PartitionLag("quotes", 1, None, committed=None, log_start=0, end=0, lag=0, age_s=0.0),
    )
    (table,) = group_tables(GroupInfo(summary, (), lags))
    assert table.about == "2, stable with 0 members"
    assert list(texts(table)["quotes/0"].values()) == ["quotes", "0", "60", "1.5 s", "12.0 s", "40", "100", "m1"]
    assert list(texts(table)["quotes/1"].values()) == ["quotes", "1", "0", "-", "-", "-", "0", "-"]


@pytest.mark.parametrize(
    ("record", "time", "value"),
    [
        (RecentRecord(0, 7, 1_700_000_000_123_000, b"k", b"1.08"), "22:13:20.123", "1.08"),
        (RecentRecord(0, 7, 0, None, None), "00:00:00.000", "(tombstone)"),
        (RecentRecord(0, 7, 1 << 62, b"k", b"\xff\xfe"), str(1 << 62), "\ufffd\ufffd"),
        (RecentRecord(0, 7, -(1 << 62), b"k", b""), str(-(1 << 62)), "-"),
        (RecentRecord(0, 7, 0, b"k", None, "its key is unknown"), "00:00:00.000", "(its key is unknown)"),
    ],
)
def test_any_record_is_shown(record: RecentRecord, time: str, value: str) -> None:
    (table,) = record_tables([record])
    cells = texts(table)["0/7"]
    assert (cells["time (UTC)"], cells["value"]) == (time, value)


def test_long_values_are_cut_before_they_are_decoded() -> None:
    (table,) = record_tables([RecentRecord(0, 0, 0, b"", b"x" * 10_000_000)])
    assert len(texts(table)["0/0"]["value"]) < 10_000
