"""The benchmark of Spark as a tiny load: every name, the right fields, nothing left behind."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from comet.records import partition_for
from comet.serde import serde_for
from comet_bench.machine import describe
from comet_bench.report import Result, combine, document, table_row
from comet_bench.spark.reads import cpu_s
from comet_bench.spark.spark_bench import ABOUT, SparkSizes, run_spark
from comet_bench.spark.spark_bench import describe as describe_spark
from comet_bench.spark.stream import SECOND_US, Bars, loads, quote_values, turns
from comet_demo.model import Quote

TINY = SparkSizes(
    records=20_000,
    typed_records=8_000,
    rate=2_000,
    symbols=20,
    warm_s=0.0,
    stream_s=4,  # longer than a feed may stand still: there would be no quote
    runs=1,
    master="local[1]",
    memory="512m",
    # Nobody waits for the best code of a benchmark that runs for a second.
    java="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    warming=False,
)
LIMIT = {"records_per_s", "bytes_per_s", "java_cpu_s", "python_cpu_s", "runs"}
BROKER = {"broker_rss_bytes", "broker_cpu_s"}
EXPECTED = {
    "limit_arrow_count": LIMIT,
    "read_arrow_count": LIMIT | BROKER | {"share"},
    "read_rows_count": LIMIT | BROKER | {"share"},
    "read_arrow_whole": LIMIT | BROKER | {"share"},
    "limit_typed_aggregate": LIMIT,
    "read_typed_aggregate": LIMIT | BROKER | {"share"},
    "stream_bars": (LIMIT | BROKER | {"delay_p50_ms", "delay_p95_ms", "lag_half_ms", "lag_ms"} | {"lost", "unwritten"})
    - {"bytes_per_s"}
    | {"requested_per_s", "symbols"},
}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


def test_what_was_promised_is_there_in_that_order() -> None:
    assert list(ABOUT) == list(EXPECTED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_gives_every_figure(tmp_path: Path) -> None:
    results = run_spark(list(ABOUT), TINY, folder=tmp_path, progress=nothing)
    assert results.keys() == EXPECTED.keys()
    for name, result in results.items():
        assert result.keys() == EXPECTED[name], name
        assert result["runs"] == 1
        assert result["records_per_s"] > 0
        assert len(table_row(name, result)) == len(table_row("nothing", {}))
    stream = results["stream_bars"]
    assert (stream["lost"], stream["unwritten"]) == (0, 0)
    # From the end of the window: a feed that stands still in its middle has had its last word before.
    assert -1_000 < stream["delay_p50_ms"] <= stream["delay_p95_ms"]
    assert list(tmp_path.iterdir()) == []
    found = document(describe() | describe_spark(TINY), results)
    assert found["machine"]["java"] and found["machine"]["pyspark"] and found["machine"]["pyarrow"]
    json.dumps(found)


def test_every_field_can_be_combined_and_is_shown() -> None:
    for name, fields in EXPECTED.items():
        result = combine([dict.fromkeys(fields - {"runs"}, 0.875), dict.fromkeys(fields - {"runs"}, 0.875)])
        assert result.keys() == fields
        also = table_row(name, result)[-1]
        assert "CPU s a million: 0.88 Java, 0.88 Python" in also
        assert ("behind 1 ms half way" in also) == ("lag_ms" in fields)


def test_quotes_are_those_of_the_demo_and_lie_where_their_keys_belong() -> None:
    decode = serde_for(Quote).decode
    assert [decode(value).symbol for value in quote_values(3)] == ["SYM0000", "SYM0001", "SYM0002"]
    found = loads(50, 4)
    for load in found:
        assert {partition_for(key.encode(), 4) for key in load.keys} == {load.partition}
        assert [decode(head + b"1}").symbol for head in load.heads] == load.keys
    assert len({key for load in found for key in load.keys}) == 50
    assert turns(3, 12, 5) == [(3, 5), (0, 5), (0, 2)]
    assert sum(end - start for start, end in turns(7, 30, 5)) == 23


def test_the_last_version_of_a_bar_counts() -> None:
    bars = Bars()
    for quotes, came_us in ((3, 5), (7, 9)):
        bars.take("bars", [{"symbol": "A", "start_us": SECOND_US, "quotes": quotes}], came_us, "job")
    bars.take("bars", [{"symbol": "A", "start_us": 2 * SECOND_US, "quotes": 1}], 11, "job")
    bars.take("job", [{"state": "running", "event_us": None, "at_us": 50}], 12, "job")
    assert bars.lag_us is None
    bars.take("job", [{"state": "running", "event_us": 20, "at_us": 50}], 12, "job")
    assert bars.report(SECOND_US, 2 * SECOND_US) == {
        "bars": 1, "quotes": 7, "last_us": 9, "lag_us": 30, "state": "running", "problem": "",
    }  # fmt: skip
    assert bars.report()["quotes"] == 8
    assert bars.delays_ms(SECOND_US, 2 * SECOND_US) == [pytest.approx((9 - 2 * SECOND_US) / 1e3)]
    assert len(bars.delays_ms(SECOND_US, 3 * SECOND_US)) == 2


def test_the_processor_s_time_of_processes_below_is_seen() -> None:
    before = time.process_time()
    used = cpu_s(os.getpid())
    assert used.keys() == {"java", "python"}
    assert used["python"] > 0 and before <= used["python"] + 0.1
