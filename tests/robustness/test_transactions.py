"""Transactions while the broker dies again and again: none is torn, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness import transaction_cycles


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("flush", "cycles"), [("interval", 10), ("os", 5), ("always", 5)])
async def test_killing_the_broker_tears_no_transaction(tmp_path: Path, flush: str, cycles: int) -> None:
    report = await transaction_cycles.run(tmp_path / "data", cycles, seed=cycles, flush=flush)
    assert not report.violations, "\n".join(report.violations[:10])
    assert report.cycles == cycles
    assert len(report.committed) > cycles and report.aborted, str(report)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_leaders_and_coordinators_that_die_or_stand_still_tear_no_transaction(tmp_path: Path) -> None:
    report = await transaction_cycles.run_cluster(tmp_path, 6, seed=3)
    assert not report.violations, "\n".join(report.violations[:10])
    assert len(report.committed) > report.cycles == 6 and report.aborted, str(report)
