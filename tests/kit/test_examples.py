"""The examples' applications, tested with the kit as a user would."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from comet_testing.cluster import Cluster
from tests.tidy.tree import ROOT


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh module of an example, which takes the addresses from its command line."""
    path = ROOT / f"examples/{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path)])
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


async def test_signals_follow_quotes_over_the_death_of_a_leader(
    comet: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = example("app", monkeypatch)
    await comet.topic("quotes")
    await comet.topic("signals")
    async with comet.app(app.app):
        await comet.publish("quotes", {"symbol": "EURUSD", "bid": 1.0, "ask": 1.5}, key="EURUSD")
        await comet.kill(leader_of="quotes/0")
        await comet.publish("quotes", {"symbol": "EURUSD", "bid": 1.0, "ask": 1.25}, key="EURUSD")
        await comet.advance("10s")
    assert [signal["spread"] for signal in await comet.values("signals", dict)] == [0.5, 0.25]
    assert "the last for EURUSD" in capsys.readouterr().out


@pytest.mark.comet(seed=3)
async def test_the_last_balance_counts_under_chaos(comet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = example("at_least_once", monkeypatch)

    @comet.invariant
    def the_last_balance_counts() -> None:
        assert ledger.balances == {f"a{number}": 9.0 for number in range(5)}

    await comet.topic("balances", partitions=2)
    await comet.topic("balances-failed")
    async with comet.app(ledger.app), comet.chaos(minutes=1):
        await comet.publish("balances", {"account": "b", "amount": -1}, key="b")
        for amount in range(10):
            for number in range(5):
                await comet.publish("balances", {"account": f"a{number}", "amount": amount}, key=f"a{number}")
            await comet.advance(5)
    assert {letter["account"] for letter in await comet.values("balances-failed", dict)} == {"b"}


@pytest.mark.comet(seed=4)
async def test_each_order_counts_once_under_chaos(comet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    billing = example("exactly_once", monkeypatch)

    @comet.invariant
    async def each_order_counts_once() -> None:
        totals = [found["total"] for found in await comet.values("totals", dict)]
        assert sorted(totals) == [2.0 * pieces for pieces in range(20)]

    await comet.topic("orders", partitions=2)
    await comet.topic("totals")
    async with comet.app(billing.app), comet.chaos(minutes=1):
        for pieces in range(20):
            await comet.publish("orders", {"customer": "c1", "pieces": pieces, "price": 2.0})
            await comet.advance(2)


async def test_a_message_under_way_is_not_sent_twice(
    comet: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texting = example("at_most_once", monkeypatch)
    await comet.topic("alerts")
    async with comet.app(texting.app):
        for number in range(10):
            await comet.publish("alerts", {"phone": "555-1", "text": f"message {number}"})
        await comet.kill(texting.app)
        await comet.restart(texting.app)
        await comet.settled()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines))


async def test_jobs_of_a_worker_that_died_are_done_by_its_successor(
    comet: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = example("share_group", monkeypatch)
    await comet.topic("jobs")
    await comet.topic("jobs-failed")
    async with comet.app(workers.app):
        await comet.publish("jobs", {"number": 1, "takes_ms": 5_000})
        await comet.publish("jobs", {"number": 2, "takes_ms": -1})
        await comet.advance(2)
        await comet.kill(workers.app)
        await comet.restart(workers.app)
        await comet.advance(60)
        await comet.settled()
    assert capsys.readouterr().out.count("job 1 done") == 1
    assert [job["number"] for job in await comet.values("jobs-failed", dict)] == [2]
