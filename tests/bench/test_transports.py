"""Rows over both transports: the order of runs, the names of results, and the transport of the started processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import comet
from comet.settings.client import TRANSPORT_VARIABLE, Transport
from comet_bench.harness import Progress, Suite
from comet_bench.processes import Worker
from comet_bench.report import Result
from comet_bench.transports import PAIR, broker_settings, over, run_suite


@dataclass(frozen=True)
class Rounds:
    runs: int = 2
    pairs: int = 3


class Runs:
    """A suite that notes what it is asked for. `limit_bare` and `beside` are compared, `machine` has no broker."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str, int]] = []
        self.shown: list[tuple[int, str, int]] = []

    def suite(self, *, undivided: bool = False) -> Suite:
        about = dict.fromkeys(("row", "limit_bare", "beside", "machine"), "")
        return Suite(
            about, Rounds(), Rounds(), self.run, frozenset({"limit_bare", "beside"}), frozenset({"machine"}),
            undivided=undivided,
        )  # fmt: skip

    def run(
        self, names: Sequence[str], sizes: Rounds, *, address: str | None, folder: Path | None, progress: Progress
    ) -> dict[str, Result]:
        found: dict[str, Result] = {}
        for together in (("row",), ("limit_bare", "beside"), ("machine",)):
            if not set(together) & set(names):
                continue
            for name in together:
                progress(name, 1, None)
                self.asked.append((os.environ.get(TRANSPORT_VARIABLE), name, sizes.runs))
                progress(name, 1, {})
                found[name] = {"p50_us": float(len(self.asked)), "runs": sizes.runs}
        return found

    def show(self, runs: int, name: str, run: int, result: Result | None) -> None:
        if result is not None:
            self.shown.append((runs, name, run))


def run(runs: Runs, names: Sequence[str], transport: str | None, *, undivided: bool = False) -> dict[str, Result]:
    suite = runs.suite(undivided=undivided)
    return run_suite(suite, names, Rounds(), transport, address=None, folder=None, show=runs.show)


def test_the_transports_take_turns_within_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRANSPORT_VARIABLE, raising=False)
    runs = Runs()
    results = run(runs, ["row", "machine"], "both")
    assert runs.asked == [("grpc", "row", 1), ("wire", "row", 1)] * 2 + [(None, "machine", 2)]
    assert runs.shown == [(2, f"row_{transport}", at) for at in (1, 2) for transport in ("grpc", "wire")] + [
        (2, "machine", 1)
    ]
    assert results == {
        "row_grpc": {"p50_us": 2, "runs": 2},  # medians of the first and the third run, of the second and the fourth
        "row_wire": {"p50_us": 3, "runs": 2},
        "machine": {"p50_us": 5, "runs": 2},
    }
    assert TRANSPORT_VARIABLE not in os.environ


def test_compared_rows_are_measured_once_and_their_limit_keeps_its_name() -> None:
    runs = Runs()
    results = run(runs, ["limit_bare", "beside"], "both")
    assert [name for _, name, _ in runs.asked] == ["limit_bare", "beside"] * 6
    assert {name: result["runs"] for name, result in results.items()} == {
        "limit_bare": 6, "beside_grpc": 3, "beside_wire": 3,
    }  # fmt: skip


def test_a_suite_that_is_not_divided_is_run_as_a_whole() -> None:
    runs = Runs()
    results = run(runs, ["row", "limit_bare", "beside"], "both", undivided=True)
    assert [name for _, name, _ in runs.asked] == ["row", "limit_bare", "beside"] * 4
    assert results.keys() == {"row_grpc", "row_wire", "limit_bare", "beside_grpc", "beside_wire"}


def test_one_transport_is_that_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, "grpc")
    runs = Runs()
    assert run(runs, ["row"], "wire").keys() == run(runs, ["row"], None).keys() == {"row"}
    assert runs.asked == [("wire", "row", 2), ("grpc", "row", 2)]
    assert os.environ[TRANSPORT_VARIABLE] == "grpc"
    with pytest.raises(comet.InvalidArgument, match="one of auto, wire, grpc and both, not 'udp'"):
        run(runs, ["row"], "udp")


def test_brokers_of_a_cluster_replicate_over_the_transport_too() -> None:
    with over("grpc"):
        assert broker_settings() == {"wire": "no"}
    with over("wire"):
        assert broker_settings() == {}


@pytest.mark.parametrize("transport", PAIR)
def test_started_processes_find_the_transport_in_their_environment(transport: Transport) -> None:
    with over(transport), Worker("clock", rate=1_000, records=1) as worker:
        worker.ready()
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    assert f"{TRANSPORT_VARIABLE}={transport}".encode() in environment
