"""How runs become a result, and results a document: no process, no clock."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_bench import machine, report
from comet_bench.broker.broker_bench import SUBJECTS
from comet_bench.machine import ProcessMeter

PROMISED = [
    "produce_many",
    "produce_each",
    "consume_raw",
    "consume_typed",
    "live",
    "latency_1000",
    "latency_5000",
    "fanout_50",
    "limit_grpc_stream",
    "limit_tcp",
    "limit_file",
    "limit_memcpy",
]
PROMISED_FIELDS = ["records_per_s", "bytes_per_s", "p50_us", "p99_us", "p999_us", "broker_rss_bytes", "broker_cpu_s"]


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


def test_a_meter_reads_this_process() -> None:
    meter = ProcessMeter(os.getpid())
    before = meter.read()
    held = bytearray(b"x" * (32 << 20))
    sum(range(3_000_000))
    after = meter.read()
    assert after.rss_peak_bytes >= before.rss_bytes + len(held) // 2
    assert after.cpu_s >= before.cpu_s
    del held


def test_a_meter_of_a_process_that_is_gone_reads_nothing() -> None:
    assert ProcessMeter(2**22 + 1).read() == machine.Usage(0.0, 0, 0)
