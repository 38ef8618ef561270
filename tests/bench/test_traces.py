"""The benchmark of traces as a tiny load: every name, the right fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comet_bench.machine import describe
from comet_bench.report import Result, document
from comet_bench.traces.traces_bench import ABOUT, KINDS, VARIANTS, TraceSizes, run_traces

TINY = TraceSizes(sent=2_000, sent_many=2_000, consumed=2_000, handled=2_000, pairs=2)


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


@pytest.mark.slow
def test_work_with_and_without_traces_gives_every_figure(tmp_path: Path) -> None:
    results = run_traces(list(ABOUT), TINY, address=None, folder=tmp_path, progress=nothing)
    assert results.keys() == ABOUT.keys() == {f"{kind}_{variant}" for kind in KINDS for variant in VARIANTS}
    for name, result in results.items():
        share = set[str]() if name.endswith("_absent") else {"share"}
        assert result.keys() == {"records_per_s", "client_cpu_s", "runs"} | share
        assert all(value > 0 for value in result.values()) and result["runs"] == TINY.pairs
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))
