"""A real job with a real driver, whose processes and whose broker are killed: nothing is missing and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark import cycles


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_whatever_dies_of_a_job_each_result_is_there_once(tmp_path: Path) -> None:
    """A driver, a worker and a broker."""
    report = await cycles.run(tmp_path, seed=3, strikes=3)
    assert not report.violations, f"{report}\n" + "\n".join(report.violations[:10])
    assert report.strikes.keys() == {"drivers", "workers", "brokers"}, str(report)
    assert report.windows > 0
