"""The benchmark of cores as a tiny load: every name, the right fields, each process on its cores, the model's sums."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from comet.errors import InvalidArgument
from comet.settings.client import Transport
from comet_bench.cores.cores_bench import ABOUT, LAYOUTS, CoresSizes, cost_model, pin, run_cores, usable_cores
from comet_bench.machine import describe
from comet_bench.processes import Worker
from comet_bench.report import Result, combine, document, table_row
from comet_bench.transports import PAIR, over

TINY = CoresSizes(records=5_000, each_records=2_000, pairs=2)
KINDS = ("broker", "producer", "consumer", "etcd")
MODEL = {*(f"{kind}_million_s" for kind in KINDS), "core_share", "model_core_records_per_s"}
FIELDS = MODEL | {"model_broker_records_per_s", "records_per_s", "bytes_per_s", "runs"}


@pytest.mark.slow
@pytest.mark.parametrize("transport", PAIR)
def test_one_broker_and_two_give_every_figure_on_one_core_and_on_two(transport: Transport, tmp_path: Path) -> None:
    shown: list[tuple[str, int]] = []

    def progress(name: str, run: int, result: Result | None) -> None:
        if result is None:
            shown.append((name, run))

    with over(transport):
        results = run_cores(list(ABOUT), TINY, address=None, folder=tmp_path, progress=progress)
    assert results.keys() == ABOUT.keys()
    for name, result in results.items():
        assert result.keys() == FIELDS and result["runs"] == TINY.pairs, name
        assert all(value > 0 for field, value in result.items() if field != "etcd_million_s"), name
        assert result["bytes_per_s"] / result["records_per_s"] == pytest.approx(100, rel=0.01)
    bulk = [f"bulk_{name}" for name in LAYOUTS]
    assert shown[: 2 * len(bulk)] == [(name, number) for number in (1, 2) for name in bulk], "they take turns"
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))


def test_a_core_more_carries_what_its_time_pays_for_in_all_processes() -> None:
    cpu_s = {"broker": 1.0, "producer": 1.5, "consumer": 1.0, "etcd": 0.5}
    found = cost_model(cpu_s, records=8_000_000, seconds=4.0, cores=2)
    assert found == {
        "broker_million_s": 0.125,
        "producer_million_s": 0.1875,
        "consumer_million_s": 0.125,
        "etcd_million_s": 0.0625,
        "core_share": 0.5,
        "model_core_records_per_s": 2_000_000,
        "model_broker_records_per_s": 8_000_000,
    }
    told = table_row("bulk_2_cores", combine([found]))[-1]
    assert "CPU s a million: broker 0.125 producer 0.188 consumer 0.125 etcd 0.062, 50% of the cores" in told
    assert "model: 2,000,000/s a core more, 8,000,000/s a broker with a core of its own" in told


def test_every_thread_of_a_pinned_process_stays_on_its_cores() -> None:
    core = usable_cores()[0]
    with Worker("grpc_sink", tuned=True) as worker:
        worker.ready()
        pin(worker.pid, [core])
        threads = [int(thread.name) for thread in Path(f"/proc/{worker.pid}/task").iterdir()]
        assert len(threads) > 1 and all(os.sched_getaffinity(thread) == {core} for thread in threads)


def test_a_machine_with_one_core_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    with pytest.raises(InvalidArgument, match="2 cores on Linux, and may use 1"):
        usable_cores()
