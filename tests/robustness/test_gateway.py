"""Gateways as real processes, killed with the brokers behind them, under clients that come back with their cursors."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.robustness import gateway_cycles
from tests.robustness.gateway_cycles import Client

CLIENTS = 60  # `python -m tests.robustness.gateway_cycles` has 200, and longer


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_clients_that_come_back_get_every_record_once_while_gateways_and_leaders_die(tmp_path: Path) -> None:
    report = await gateway_cycles.run(tmp_path, seconds=30, seed=1, clients=CLIENTS)
    print(report)
    assert not report.violations, "\n".join(report.violations[:10])
    assert report.records > 100 and report.delivered == report.records * CLIENTS, str(report)
    assert report.recoveries > CLIENTS and not report.told_missing, str(report)
    assert len(report.faults) == 5, str(report)


# ---- the check itself


def client() -> Client:
    one = Client("one", [], Random(0))
    one.begun({"cursor": "c", "recovered": None, "missing": []})
    return one


def record(offset: int, partition: int = 0) -> dict[str, Any]:
    return {"partition": partition, "offset": str(offset), "text": "x"}


def test_what_comes_in_order_is_fine_over_connections_and_over_what_it_was_told_is_missing() -> None:
    one = client()
    one.take(record(0), "c1")
    one.take(record(0, 1), "c2")
    one.begun({"cursor": "c2", "recovered": True, "missing": []})
    one.take(record(1), "c3")
    one.begun({"cursor": "c4", "recovered": False, "missing": [{"partition": 0, "first": "2", "end": "5"}]})
    one.take(record(5), "c5")
    assert not one.violations and one.told_missing == [(0, 2, 5)] and one.connections == 3 and one.recoveries == 2


@pytest.mark.parametrize("offset", [0, 2])
def test_a_record_that_comes_twice_or_leaves_one_out_is_seen(offset: int) -> None:
    one = client()
    one.take(record(0), "c1")
    one.take(record(offset), "c2")
    assert one.violations


@pytest.mark.parametrize("told", [(True, [{"partition": 0, "first": "1", "end": "2"}]), (False, [])])
def test_who_is_told_the_wrong_thing_on_return_says_so(told: tuple[bool, list[Any]]) -> None:
    one = client()
    one.take(record(0), "c1")
    one.begun({"cursor": "c2", "recovered": told[0], "missing": told[1]})
    assert one.violations


def test_a_range_told_as_missing_that_does_not_follow_is_seen() -> None:
    one = client()
    one.take(record(0), "c1")
    one.begun({"cursor": "c2", "recovered": False, "missing": [{"partition": 0, "first": "3", "end": "5"}]})
    assert one.violations
