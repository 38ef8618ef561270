"""The whole benchmark as tiny loads through real processes: every name, the right fields, no judgement of speed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import comet
from comet_bench.broker.broker_bench import SUBJECTS, SUITE, Sizes, run_subjects, written
from comet_bench.machine import describe
from comet_bench.processes import STARTING_AT_ONCE, BenchFailed, Worker, crowd
from comet_bench.report import FIELDS, Result, combine, document
from comet_bench.transports import run_suite
from comet_bench.worker import MODULES, find_work
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

TINY = Sizes(
    records=3_000,
    each_records=2_000,
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
    **{name: SPEED | {"runs"} for name in SUBJECTS if name.startswith("filter_")},
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


def test_the_command_shows_both_transports_side_by_side() -> None:
    command = [sys.executable, "-m", "comet.cli", "bench", "produce_many_10k", "limit_memcpy"]
    done = subprocess.run(
        [*command, "--quick", "--transport", "both"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    _, head, *rows = map(str.split, done.stdout.splitlines())
    assert head == ["what", "figure", "gRPC", "wire", "wire/gRPC"]
    assert rows[0][:2] == ["produce_many_10k", "records_per_s"]
    grpc, wire, ratio = (float(cell.replace(",", "")) for cell in rows[0][2:])
    assert ratio == pytest.approx(wire / grpc, abs=0.01)
    assert rows[-1][0] == "limit_memcpy", "a row without a broker has the other columns"


def test_many_workers_are_ready_and_end_together() -> None:
    with crowd(STARTING_AT_ONCE + 1, lambda: Worker("idle", address="127.0.0.1:1", topic="t", subscribers=0)) as many:
        assert len(many) == len({worker.pid for worker in many}) == STARTING_AT_ONCE + 1
        assert all(worker.child.ended is None for worker in many)
    assert all(worker.child.ended is not None for worker in many)


def test_one_worker_that_fails_ends_all_of_them() -> None:
    started: list[Worker] = []

    def start() -> Worker:
        config = {"subscribers": 0} if len(started) < STARTING_AT_ONCE else {}
        started.append(Worker("idle", address="127.0.0.1:1", topic="t", **config))
        return started[-1]

    with pytest.raises(BenchFailed, match="idle: KeyError"), crowd(3 * STARTING_AT_ONCE, start):
        raise AssertionError("it is not ready")
    assert len(started) == 2 * STARTING_AT_ONCE
    assert all(worker.child.ended is not None for worker in started)


def test_no_two_workers_have_the_same_name() -> None:
    names = [name for module in MODULES for name in import_module(module).WORKS]
    assert len(names) == len(set(names))
    assert all(find_work(name) for name in names)


def test_an_unknown_worker_says_so() -> None:
    with Worker("nonsense") as worker, pytest.raises(BenchFailed, match="nonsense: KeyError"):
        worker.ready()


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
