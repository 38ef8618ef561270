"""The benchmark of security as a tiny load: every name, the right fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comet_bench.machine import describe
from comet_bench.report import Result, document
from comet_bench.security.security_bench import ABOUT, VARIANTS, SecuritySizes, run_security

TINY = SecuritySizes(records=5_000, paced_s=0.3, calls=20, connections=8, rules=3, pairs=2)
USED = {"broker_rss_bytes", "broker_cpu_s", "runs"}
LATENCY = {"p50_us", "p99_us", "p999_us"}
FIELDS = {
    "send_many": {"records_per_s", "bytes_per_s"},
    "latency": LATENCY | {"broker_event_us", "consumer_event_us", "producer_event_us"},
    "calls": LATENCY,
    "connect": {"connections_per_s"},
}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


@pytest.mark.slow
def test_brokers_with_and_without_security_give_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_CLIENT_CA", str(tmp_path / "none"))  # of a user's own brokers, which these are not
    results = run_security(list(ABOUT), TINY, address=None, folder=tmp_path, progress=nothing)
    assert results.keys() == ABOUT.keys()
    for kind, fields in FIELDS.items():
        for variant in VARIANTS:
            result = results[f"{kind}_{variant}"]
            assert result.keys() == fields | USED
            assert all(result[field] > 0 for field in fields) and result["runs"] == TINY.pairs
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))
