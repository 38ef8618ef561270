"""The benchmark of a cluster as a tiny load: every name, the right fields, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comet.settings.client import Transport
from comet_bench.cluster.cluster_bench import ABOUT, ClusterSizes, run_cluster
from comet_bench.machine import describe
from comet_bench.report import Result, document
from comet_bench.transports import PAIR, over

TINY = ClusterSizes(records=5_000, paced_s=0.3, kills=1, runs=1)
USED = {"broker_rss_bytes", "broker_cpu_s", "runs"}
SPEED = {"records_per_s", "bytes_per_s"} | USED
LATENCY = {"p50_us", "p99_us", "p999_us"}
ROLES = ("broker", "etcd", "consumer", "producer")


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


@pytest.mark.slow
@pytest.mark.parametrize("transport", PAIR)
def test_a_cluster_gives_every_figure(transport: Transport, tmp_path: Path) -> None:
    with over(transport):
        results = run_cluster(TINY, folder=tmp_path, progress=nothing)
    assert results.keys() == ABOUT.keys()
    for name in ("single_broker", "produce_many_acks_1", "produce_many_acks_all"):
        assert results[name].keys() == SPEED and results[name]["records_per_s"] > 0
    latency = results["latency_1000_acks_all"]
    assert latency.keys() == LATENCY | {*(f"{role}_event_us" for role in ROLES), "all_event_us"} | USED
    assert 0 < latency["p50_us"] <= latency["p99_us"] <= latency["p999_us"]
    each_us = [latency[f"{role}_event_us"] for role in ROLES]
    assert all(value > 0 for value in each_us) and latency["all_event_us"] == pytest.approx(sum(each_us), abs=1)
    failover = results["failover"]
    assert failover.keys() == {"median_ms", "max_ms", "kills", "lost", "duplicated", "runs"}
    assert (failover["kills"], failover["lost"], failover["duplicated"]) == (1, 0, 0)
    assert 0 < failover["median_ms"] <= failover["max_ms"]
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))
