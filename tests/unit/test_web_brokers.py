"""What the pages of brokers say of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comet.entities import BrokerFailure
from comet.wire.expiry import DAY_US
from comet_web import facts
from comet_web.components.table import shaped
from comet_web.document import DASH, Column, Table
from comet_web.page_request import PageRequest
from comet_web.views import broker as broker_view
from comet_web.views import brokers as brokers_view

NOW = 1_795_298_240_000_000
ONE = facts.Broker(
    1, "127.0.0.1:9092", up=True, controller=True, version="0.1.0", started_us=NOW - 3_661_000_000, leading=12,
    replicas=30, in_rate=1234.5, ack_p99_ms=4.25, disk_used=5_000_000, disk_free=75_000_000_000, cpu=0.25,
)  # fmt: skip
TWO = replace(ONE, id=2, address="127.0.0.1:9093", controller=False, leading=2)
GONE = facts.Broker(3, "127.0.0.1:9094")
CLUSTER = facts.Cluster(
    NOW,
    brokers=(ONE, TWO, GONE),
    events=(
        facts.Event(NOW - 60_000_000, "broker", "broker 3 is gone", broker=3),
        facts.Event(NOW - 90_000_000, "broker", "broker 3 is there", broker=3),
        facts.Event(NOW - 95_000_000, "broker", "broker 1 is there", broker=1),
    ),
)


def cell(table: Table, row: str, column: str) -> str:
    at = [one.key for one in table.columns].index(column)
    return next(one for one in table.rows if one.key == row).cells[at].text


def test_a_broker_that_is_gone_stays_listed_with_when_it_went() -> None:
    document = brokers_view.view(CLUSTER, PageRequest("/brokers"))
    table = document.tables["brokers"]
    assert [row.key for row in table.rows] == ["1", "2", "3"]
    assert cell(table, "3", "status") == "down since 21:56:20"
    assert cell(table, "3", "uptime") == DASH
    assert cell(table, "3", "in") == DASH, "what it carries is not known, which is not nothing"
    assert document.fields["summary"].text == "2 of 3 brokers up"
    assert document.fields["summary"].tone == "bad"


def test_numbers_are_written_for_people() -> None:
    table = brokers_view.view(CLUSTER, PageRequest("/brokers")).tables["brokers"]
    assert cell(table, "1", "uptime") == "1 h 1 min"
    assert cell(table, "1", "in") == "1.23 k"
    assert cell(table, "1", "cpu") == "25 %"
    assert cell(table, "1", "status") == "controller"


def test_leaders_that_are_spread_unevenly_are_seen() -> None:
    document = brokers_view.view(CLUSTER, PageRequest("/brokers"))
    at = [one.key for one in brokers_view.COLUMNS].index("skew")
    first, second, third = (row.cells[at] for row in document.tables["brokers"].rows)
    assert (first.text, first.tone, first.bar) == ("171 %", "warn", 12 / 7 / 2)
    assert (second.text, second.tone) == ("29 %", "warn")
    assert third.text == DASH
    assert document.fields["skew"].text == "leaders are spread unevenly: 2 to 12 per broker"
    even = replace(CLUSTER, brokers=(ONE, replace(TWO, leading=11), GONE))
    assert brokers_view.view(even, PageRequest("/brokers")).fields["skew"].tone == "good"


def test_a_broker_that_drains_counts_no_more_among_those_that_are_to_lead() -> None:
    drains = replace(CLUSTER, brokers=(ONE, replace(TWO, draining=True)))
    document = brokers_view.view(drains, PageRequest("/brokers"))
    assert cell(document.tables["brokers"], "2", "status") == "draining: 2 left"
    assert cell(document.tables["brokers"], "1", "skew") == "86 %"
    assert document.fields["draining"].text == "draining: 2"
    done = replace(CLUSTER, brokers=(ONE, replace(TWO, draining=True, leading=0)))
    assert cell(brokers_view.view(done, PageRequest("/brokers")).tables["brokers"], "2", "status") == "drained"


def test_brokers_are_filtered_by_address_and_sorted_by_number() -> None:
    asked = PageRequest("/brokers", query={"filter": "9093", "sort": "-leading"}, matches=lambda text: "9093" in text)
    table = brokers_view.view(CLUSTER, asked).tables["brokers"]
    assert [row.key for row in table.rows] == ["2"]
    by_lead = brokers_view.view(CLUSTER, PageRequest("/brokers", query={"sort": "-leading"})).tables["brokers"]
    assert [row.key for row in by_lead.rows] == ["1", "2", "3"]


def test_nothing_known_is_nothing_said() -> None:
    document = brokers_view.view(facts.Cluster(0, reachable=False), PageRequest("/brokers"))
    assert document.fields["summary"].text == DASH
    assert document.tables["brokers"].total == 0


# ---- one of them

LOGS = (
    {"topic": "quotes", "partition": 10, "leader": True, "log_start": 5, "log_end": 105, "flushed_end": 100,
     "bytes": 2_000_000, "segments": 2, "followers": {"2": 3, "3": 40}, "failed": "", "readers": 1},
    {"topic": "quotes", "partition": 2, "leader": False, "log_start": 0, "log_end": 9, "failed": "disk <b>gone</b>"},
)  # fmt: skip
DETAIL = facts.BrokerDetail(
    CLUSTER,
    ONE,
    tracks={
        "records_in": facts.Track(1, NOW, (1.0, None, 3.0)),
        "records_out": facts.Track(1, NOW, (2.0,)),
        "cpu": facts.Track(1, NOW, (0.5, 0.25)),
    },
    sessions=({"client": "feed", "peer": "127.0.0.1:4711", "transport": "grpc", "stream": 4, "received_bytes": 1500},),
    logs=LOGS,
    settings=(
        facts.Setting("rack", "", "", "default", "Where it stands."),
        facts.Setting("segment_bytes", "1000000", "134217728", "file", "How large; see `rack`.", unit="bytes"),
    ),
)


def test_logs_say_where_they_are_and_what_is_wrong() -> None:
    table = broker_view.view(DETAIL, PageRequest("/brokers/1")).tables["logs"]
    assert [row.key for row in table.rows] == ["quotes/2", "quotes/10"], "partitions are numbers"
    assert cell(table, "quotes/10", "behind") == "40"
    assert cell(table, "quotes/10", "records") == "100"
    assert cell(table, "quotes/10", "unflushed") == "5"
    assert cell(table, "quotes/2", "state") == "failed: disk <b>gone</b>"
    assert cell(table, "quotes/2", "behind") == DASH


@pytest.mark.parametrize("column", broker_view.LOGS, ids=lambda column: column.key)
def test_logs_are_sorted_by_whole_rows_though_none_is_made_for_it(column: Column) -> None:
    logs = tuple({**LOGS[number % 2], "partition": number, "log_end": 7 * number % 120} for number in range(150))
    detail = replace(DETAIL, logs=logs)
    whole = {row.key: row for log in logs for row in [broker_view._log(log)]}
    for sort in (column.key, f"-{column.key}"):
        asked = PageRequest(
            "/brokers/1", query={"sort": sort, "filter": "quotes/1"}, matches=lambda text: "quotes/1" in text
        )
        shown = broker_view.view(detail, asked).tables["logs"]
        assert shown == shaped("logs", broker_view.LOGS, whole.values(), asked, text=lambda row: row.key)


def test_charts_share_an_axis_and_leave_gaps() -> None:
    charts = broker_view.view(DETAIL, PageRequest("/brokers/1")).charts
    assert charts["records"].values == ([1.0, None, 3.0], [None, None, 2.0])
    assert charts["records"].summary == "in 3, max 3; out 2, max 2"
    assert charts["cpu"].values == ([50.0, 25.0],)
    assert charts["latency"].values == ([], [], [], []), "of what nobody has measured there is nothing"


def test_settings_that_somebody_chose_come_first() -> None:
    document = broker_view.view(DETAIL, PageRequest("/brokers/1"))
    assert [row.key for row in document.tables["settings"].rows] == ["segment_bytes", "rack"]
    texts = [cell.text for cell in document.tables["settings"].rows[0].cells]
    assert texts == ["segment_bytes", "1000000 B", "128 MiB", "file", "How large; see rack."]
    assert [cell.text for cell in document.tables["sessions"].rows[0].cells[2:6:3]] == ["gRPC", "1.50 kB"]


def test_the_transport_of_a_stream_is_shown() -> None:
    sessions = tuple({"stream": number, "transport": name} for number, name in enumerate(("unix", "wire", "grpc", "x")))
    rows = broker_view.view(replace(DETAIL, sessions=sessions), PageRequest("/brokers/1")).tables["sessions"].rows
    assert {row.key: row.cells[2].text for row in rows} == {"0": "wire (Unix)", "1": "wire", "2": "gRPC", "3": DASH}


def test_a_broker_that_is_down_says_since_when() -> None:
    document = broker_view.view(replace(DETAIL, broker=GONE), PageRequest("/brokers/3"))
    assert document.fields["down"].text.startswith("Broker does not answer since 2026-")
    assert document.fields["uptime"].text == DASH


def test_what_has_failed_is_listed_with_its_reason_and_what_stands_still_first() -> None:
    standing = BrokerFailure(
        1, "partition", "quotes/3", "following", "AssertionError()", NOW - 5_000_000, 2, stopped=True
    )
    passing = BrokerFailure(1, "task", "record", "", "KeyError('x')", NOW - 9_000_000, 1, stopped=False)
    ill = replace(ONE, failed=(passing, standing))
    document = broker_view.view(facts.BrokerDetail(CLUSTER, ill), PageRequest("/brokers/1"))
    table = document.tables["failed"]
    assert [row.key for row in table.rows] == ["partition quotes/3", "task record"]
    assert cell(table, "partition quotes/3", "reason") == "AssertionError()"
    assert cell(table, "partition quotes/3", "state") == "stopped"
    assert cell(table, "task record", "state") == "running"
    assert document.fields["failed"].text == "yes"
    listed = brokers_view.view(replace(CLUSTER, brokers=(ill,)), PageRequest("/brokers")).tables["brokers"]
    assert cell(listed, "1", "status") == "failed"
    assert broker_view.view(facts.BrokerDetail(CLUSTER, ONE), PageRequest("/brokers/1")).fields["failed"].text == "no"


def test_the_page_of_brokers_has_notices_about_security() -> None:
    week = {"brokers": NOW + 6 * DAY_US, "clients": NOW + 20 * DAY_US}
    ill = replace(CLUSTER, brokers=(replace(ONE, insecure=True), replace(TWO, certificates=week), GONE))
    notices = brokers_view.view(ill, PageRequest("/brokers")).tables["notices"].rows
    assert [(row.key, row.cells[0].tone) for row in notices] == [
        ("broker 1 insecure", "bad"),
        ("broker 2 certificate brokers", "bad"),
        ("broker 2 certificate clients", "warn"),
    ]
    assert not brokers_view.view(CLUSTER, PageRequest("/brokers")).tables["notices"].rows


def test_clients_are_added_up_by_name_and_the_busiest_comes_first() -> None:
    sessions = (
        {"client": "feed", "stream": 1, "received_bytes": 1000, "sent_bytes": 0},
        {"client": "spark", "stream": 2, "received_bytes": 0, "sent_bytes": 2000},
        {"client": "spark", "stream": 3, "received_bytes": 0, "sent_bytes": 7000},
        {"stream": 4},
    )
    table = broker_view.view(replace(DETAIL, sessions=sessions), PageRequest("/brokers/1")).tables["clients"]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["spark", "2", "0 B", "9.00 kB", "90 %"],
        ["feed", "1", "1.00 kB", "0 B", "10 %"],
        ["unnamed", "1", "0 B", "0 B", "0 %"],
    ]
    idle = broker_view.view(replace(DETAIL, sessions=({},)), PageRequest("/brokers/1")).tables["clients"]
    assert idle.rows[0].cells[-1].text == "0 %"
