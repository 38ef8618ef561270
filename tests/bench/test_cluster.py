"""The benchmark of a cluster as a tiny load: every name, the right fields, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comet_bench.cluster.cluster_bench import ABOUT, ClusterSizes, run_cluster
from comet_bench.machine import describe
from comet_bench.report import Result, document

TINY = ClusterSizes(records=5_000, paced_s=0.3, kills=1, runs=1)
SPEED = {"records_per_s", "bytes_per_s", "broker_rss_bytes", "broker_cpu_s", "runs"}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


@pytest.mark.slow
def test_a_cluster_gives_every_figure(tmp_path: Path) -> None:
    results = run_cluster(TINY, folder=tmp_path, progress=nothing)
    assert results.keys() == ABOUT.keys()
    for name in ("single_broker", "produce_many_acks_1", "produce_many_acks_all"):
        assert results[name].keys() == SPEED and results[name]["records_per_s"] > 0
    latency = results["latency_1000_acks_all"]
    assert 0 < latency["p50_us"] <= latency["p99_us"] <= latency["p999_us"]
    failover = results["failover"]
    assert failover.keys() == {"median_ms", "max_ms", "kills", "lost", "duplicated", "runs"}
    assert (failover["kills"], failover["lost"], failover["duplicated"]) == (1, 0, 0)
    assert 0 < failover["median_ms"] <= failover["max_ms"]
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))
