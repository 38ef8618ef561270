"""The whole benchmark as tiny loads through real processes: every name, the right fields, no judgement of speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import comet
from comet_bench.broker.broker_bench import SUBJECTS, Sizes, run_subjects, written
from comet_bench.machine import describe
from comet_bench.processes import BenchFailed, Worker
from comet_bench.report import FIELDS, Result, combine, document
from comet_broker.config import BrokerConfig
from comet_broker.server import Server

TINY = Sizes(
    records=3_000,
    each_records=2_000,
    typed_records=2_500,
    fanout_records=500,
    paced_s=0.3,
    idle_subscribers=20,
    limit_bytes=64 << 20,
    runs=2,
)
USED = {"broker_rss_bytes", "broker_cpu_s", "runs"}
SPEED = {"records_per_s", "bytes_per_s"}
LATENCY = {"p50_us", "p99_us", "p999_us"}
LOADS = ["produce_many", "produce_each", "consume_raw", "consume_typed", "live", "fanout_50"]
EXPECTED: dict[str, set[str]] = {
    **dict.fromkeys(LOADS, SPEED | USED),
    **dict.fromkeys(("latency_1000", "latency_5000"), LATENCY | USED),
    **{name: {"bytes_per_s", "runs"} for name in SUBJECTS if name.startswith("limit_")},
    "limit_grpc_echo": LATENCY | {"runs"},
    "limit_wire_echo": LATENCY | {"runs"},
    "limit_clock": LATENCY | {"runs"},
    "idle_subscribers": {"broker_rss_bytes", "subscriber_rss_bytes", "runs"},
    "startup": {"startup_s", "import_s", "runs"},
}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_gives_its_fields(name: str, tmp_path: Path) -> None:
    results = run_subjects([name], TINY, address=None, folder=tmp_path, progress=nothing)
    result = results[name]
    assert result.keys() == EXPECTED[name]
    assert result["runs"] == TINY.runs
    assert all(value > 0 for field, value in result.items() if field not in {"broker_cpu_s", "subscriber_rss_bytes"})
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))


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
