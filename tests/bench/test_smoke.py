"""The whole benchmark as tiny loads through real processes: every name, the right fields, no judgement of speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import comet
from comet_bench.broker.broker_bench import SUBJECTS, SUITE, Sizes, run_subjects, written
from comet_bench.machine import describe
from comet_bench.processes import BenchFailed, Worker
from comet_bench.report import FIELDS, Result, combine, document
from comet_bench.transports import run_suite
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

TINY = Sizes(
    records=3_000,
    each_records=2_000,
    sync_records=200,
    typed_records=2_500,
    fanout_records=500,
    fanout_processes=3,
    fanout_s=0.3,
    paced_s=0.3,
    idle_subscribers=20,
    limit_bytes=64 << 20,
    runs=2,
)
USED = {"broker_rss_bytes", "broker_cpu_s", "runs"}
SPEED = {"records_per_s", "bytes_per_s"}
LATENCY = {"p50_us", "p99_us", "p999_us"}
EVENT = {"broker_event_us", "consumer_event_us", "producer_event_us"}
RECORD_BYTES = {"produce_many": 100, "consume_raw": 100, "live": 100}
RECORD_BYTES |= {f"{name}_{end}": size for name in RECORD_BYTES for end, size in (("1k", 1_024), ("10k", 10_240))}
RECORD_BYTES |= dict.fromkeys(
    ("produce_each", "sync_send", "consume_each", "sync_consume", "consume_typed", "live_each", "fanout_50"), 100
)
PACED = ["latency_1000", "latency_5000", "fanout_50_processes_200", "fanout_50_processes_1000"]
EXPECTED: dict[str, set[str]] = {
    **dict.fromkeys(RECORD_BYTES, SPEED | USED),
    **dict.fromkeys(PACED, LATENCY | EVENT | USED),
    **{name: {"bytes_per_s", "runs"} for name in SUBJECTS if name.startswith("limit_")},
    "limit_wire_relay": LATENCY | EVENT | {"runs"},
    "limit_grpc_echo": LATENCY | {"runs"},
    "limit_clock": LATENCY | {"runs"},
    "idle_subscribers": {"broker_rss_bytes", "subscriber_rss_bytes", "runs"},
    "startup": {"startup_s", "import_s", "runs"},
}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


def check(name: str, result: Result) -> None:
    """The fields of a row, and their relations to each other."""
    assert result.keys() == EXPECTED[name]
    assert result["runs"] == TINY.runs
    assert all(value > 0 for field, value in result.items() if field not in {"broker_cpu_s", "subscriber_rss_bytes"})
    if name in RECORD_BYTES:
        assert result["bytes_per_s"] / result["records_per_s"] == pytest.approx(RECORD_BYTES[name], rel=0.01)
    if "p50_us" in result:
        assert result["p50_us"] <= result["p99_us"] <= result["p999_us"]


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_gives_its_fields(name: str, tmp_path: Path) -> None:
    results = run_subjects([name], TINY, address=None, folder=tmp_path, progress=nothing)
    check(name, results[name])
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))


def test_the_processor_time_of_the_broker_is_that_of_the_events_it_passes_on(tmp_path: Path) -> None:
    """Both figures have clocks of their own; that of the whole run includes its warm-up, and the time before it."""
    found = run_subjects(["latency_1000"], TINY, address=None, folder=tmp_path, progress=nothing)["latency_1000"]
    records = round(1_000 * TINY.paced_s)
    assert 0 < found["broker_event_us"] / 1e6 * records * 0.9 < found["broker_cpu_s"] * 2


def test_rows_with_a_broker_are_measured_over_both_transports_in_turn(tmp_path: Path) -> None:
    shown: list[tuple[int, str, int]] = []

    def show(runs: int, name: str, run: int, result: Result | None) -> None:
        if result is None:
            shown.append((runs, name, run))

    names = ["produce_each", "limit_memcpy"]
    results = run_suite(SUITE, names, TINY, "both", address=None, folder=tmp_path, show=show)
    assert list(results) == ["produce_each_grpc", "produce_each_wire", "limit_memcpy"]
    for name, result in results.items():
        check(name.removesuffix("_grpc").removesuffix("_wire"), result)
    turns = [(2, f"produce_each_{transport}", number) for number in (1, 2) for transport in ("grpc", "wire")]
    assert shown == [*turns, (2, "limit_memcpy", 1), (2, "limit_memcpy", 2)]


def test_the_command_writes_the_document(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    command = [sys.executable, "-m", "comet.cli", "bench", "limit_memcpy", "--quick", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "limit_memcpy" in done.stdout
    found = json.loads(target.read_text())
    assert found.keys() == {"machine", "results"}
    assert found["results"]["limit_memcpy"].keys() == {"bytes_per_s", "runs"}


def test_a_worker_that_fails_says_why() -> None:
    with Worker("produce_each", nonsense=True) as worker, pytest.raises(BenchFailed, match="produce_each: KeyError"):
        worker.ready()


def test_every_expected_field_can_be_combined() -> None:
    for fields in EXPECTED.values():
        names = fields - {"runs"}
        assert names <= FIELDS.keys()
        assert combine([dict.fromkeys(names, 1.0)]).keys() == fields


async def test_what_a_topic_was_given_is_asked_without_a_stream(tmp_path: Path) -> None:
    async with Server(BrokerConfig(data=tmp_path, port=0)) as server:
        async with comet.Admin(server.address) as admin:
            await admin.create_topic("t", partitions=2)
        assert await written(server.address, "t") == 0
        assert server.broker.statistics()["received_bytes"] == 0  # over streams
        async with comet.Producer(server.address) as producer:
            await (await producer.send_many("t", [b"1", b"2", b"3"]))
        assert await written(server.address, "t") == 3
