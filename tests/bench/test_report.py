"""How runs become a result, and results a document: no process, no clock."""

from __future__ import annotations

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_bench import machine, report
from comet_bench.broker.broker_bench import SUBJECTS
from comet_bench.machine import EventCosts, ProcessMeter
from comet_bench.report import Result

PROMISED = [
    "produce_many",
    "produce_many_1k",
    "produce_many_10k",
    "produce_each",
    "sync_send",
    "consume_raw",
    "consume_raw_1k",
    "consume_raw_10k",
    "consume_each",
    "sync_consume",
    "consume_typed",
    "live",
    "live_1k",
    "live_10k",
    "live_each",
    "latency_1000",
    "latency_5000",
    "fanout_50",
    "fanout_50_processes_200",
    "fanout_50_processes_1000",
    "limit_wire_relay",
    "limit_grpc_stream",
    "limit_tcp",
    "limit_file",
    "limit_memcpy",
]
PROMISED_FIELDS = [
    *("records_per_s", "bytes_per_s", "p50_us", "p99_us", "p999_us", "broker_rss_bytes", "broker_cpu_s"),
    *("broker_event_us", "consumer_event_us", "producer_event_us", "all_event_us"),
]


def test_every_promised_name_and_field_is_there() -> None:
    assert set(PROMISED) <= SUBJECTS.keys()
    assert set(PROMISED_FIELDS) <= report.FIELDS.keys()


def test_speed_is_the_median_and_memory_the_worst() -> None:
    runs = [
        {"records_per_s": 3.0, "broker_rss_bytes": 10.0, "broker_cpu_s": 0.5},
        {"records_per_s": 1.0, "broker_rss_bytes": 30.0, "broker_cpu_s": 0.25},
        {"records_per_s": 9.0, "broker_rss_bytes": 20.0, "broker_cpu_s": 9.0},
    ]
    assert report.combine(runs) == {"records_per_s": 3, "broker_rss_bytes": 30, "broker_cpu_s": 0.5, "runs": 3}


def test_runs_that_measured_different_things_do_not_mix() -> None:
    with pytest.raises(AssertionError):
        report.combine([{"records_per_s": 1.0}, {"p50_us": 1.0}])
    with pytest.raises(AssertionError):
        report.combine([{"surprise": 1.0}])


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3000))
def test_quantiles_are_ranks(latencies: list[int]) -> None:
    found = report.quantiles(latencies)
    for name, share in (("p50_us", 500), ("p99_us", 990), ("p999_us", 999)):
        value = found[name]
        assert value in latencies
        assert sum(latency <= value for latency in latencies) * 1000 >= share * len(latencies)
        assert sum(latency < value for latency in latencies) * 1000 < share * len(latencies)


def test_the_document_is_json_with_two_parts() -> None:
    found = json.loads(json.dumps(report.document(machine.describe(), {"live": {"records_per_s": 1, "runs": 3}})))
    assert found.keys() == {"machine", "results"}
    assert found["results"] == {"live": {"records_per_s": 1, "runs": 3}}
    assert {"cpu", "cores", "memory_bytes", "kernel", "python", "grpcio", "comet"} <= found["machine"].keys()


def test_a_row_has_a_cell_for_every_column() -> None:
    row = report.table_row(
        "live", {"records_per_s": 2_500_000, "bytes_per_s": 250e6, "broker_rss_bytes": 9e7, "runs": 3}
    )
    assert len(row) == len(report.COLUMNS)
    assert row[:3] == ["live", "2,500,000", "250"] and row[3] == ""


def test_the_processor_time_of_an_event_is_shown_by_role() -> None:
    found = report.combine([{"broker_event_us": 90.4, "consumer_event_us": 75.0, "producer_event_us": 1_234.5}])
    assert report.table_row("latency_1000", found)[-1] == "CPU µs an event: broker 90 consumer 75 producer 1,234"


def test_a_pair_has_a_line_for_each_figure_and_its_ratio() -> None:
    results: dict[str, Result] = {
        "live_grpc": {"records_per_s": 2_000_000, "p50_us": 0.0, "broker_cpu_s": 0.25, "runs": 3},
        "live_wire": {"records_per_s": 3_000_000, "p50_us": 4.0, "broker_cpu_s": 0.125, "runs": 3},
        "alone_grpc": {"p50_us": 1.0},
        "limit_tcp": {"bytes_per_s": 1},
    }
    found = report.pairs(results)
    assert list(found) == ["live"]
    rows = report.pair_rows("live", *found["live"])
    assert rows == [
        ["live", "records_per_s", "2,000,000", "3,000,000", "1.50"],
        ["", "p50_us", "0", "4", ""],
        ["", "broker_cpu_s", "0.25", "0.125", "0.50"],
    ]
    assert {len(row) for row in rows} == {len(report.PAIR_COLUMNS)}


def test_the_time_of_a_process_is_shared_out_over_its_events() -> None:
    costs = EventCosts(consumer=[os.getpid(), os.getpid()], broker=[])
    start_s = time.process_time()
    sum(range(3_000_000))
    used_s = time.process_time() - start_s
    found = costs.per_event(10)
    assert found.keys() == {"consumer_event_us"}, "a role without a process has no figure"
    assert found["consumer_event_us"] >= 2 * used_s / 10 * 1e6


def test_a_meter_reads_this_process() -> None:
    meter = ProcessMeter(os.getpid())
    before, start_s = meter.read(), time.process_time()
    held = bytearray(b"x" * (32 << 20))
    sum(range(3_000_000))
    used_s = time.process_time() - start_s
    after = meter.read()
    assert after.rss_peak_bytes >= before.rss_bytes + len(held) // 2
    assert after.cpu_s >= before.cpu_s + used_s > before.cpu_s
    del held


def test_a_meter_of_a_process_that_is_gone_reads_nothing() -> None:
    assert ProcessMeter(2**22 + 1).read() == machine.Usage(0.0, 0, 0)
