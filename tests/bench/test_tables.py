"""The benchmark of tables as a tiny load: every name, the right fields, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comet_bench.machine import describe
from comet_bench.report import Result, document, table_row
from comet_bench.tables.tables_bench import ABOUT, COMPARED, TableSizes, run_tables

TINY = TableSizes(scanned_records=20_000, compacted_records=40_000, keys=4_000, paced_s=0.1, calls=320, runs=1, pairs=2)
SCAN = {"records_per_s", "sent_bytes", "client_cpu_s", "broker_rss_bytes", "broker_cpu_s", "runs"}
LATENCY = {
    "p50_us", "p99_us", "p999_us", "broker_event_us", "consumer_event_us", "producer_event_us", "runs",
}  # fmt: skip
CALLS = {"calls_per_s", "client_cpu_s", "p50_us", "p99_us", "p999_us", "broker_rss_bytes", "broker_cpu_s", "runs"}
EXPECTED = {
    "scan_all": SCAN,
    "scan_filtered": SCAN,
    "latency_calm": LATENCY,
    "latency_scans": LATENCY,
    "latency_uncompacted": LATENCY,
    "compaction": LATENCY | {"compacted_s", "live_share", "broker_rss_bytes", "broker_cpu_s"},
    "kv_get": CALLS,
    "kv_update": CALLS,
}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


def test_what_was_promised_is_there_in_that_order() -> None:
    assert list(ABOUT) == list(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan_all", "latency_scans", "compaction", "kv_get", "kv_update"])
def test_tables_give_every_figure(name: str, tmp_path: Path) -> None:
    results = run_tables([name], TINY, address=None, folder=tmp_path, progress=nothing)
    assert name in results
    for found, result in results.items():
        assert result.keys() == EXPECTED[found]
        assert result["runs"] == (TINY.pairs if found in COMPARED else TINY.runs)
        assert table_row(found, result)[0] == found
    if name == "scan_all":
        assert results["scan_filtered"]["sent_bytes"] * 10 < results["scan_all"]["sent_bytes"]
    if name == "compaction":
        assert 1 <= results["compaction"]["live_share"] < 6, "of 4.9 MB the last segment stays, of 1 MiB"
    assert json.loads(json.dumps(document(describe(), results)))["results"].keys() == results.keys()
    assert not list(tmp_path.iterdir()), "nothing is left behind"
