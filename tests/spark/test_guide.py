"""The guide for those who come from Spark with Kafka: its programs print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_walkthroughs import check
from tests.integration.walkthroughs import SPARK


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_prints_what_it_says(tmp_path: Path) -> None:
    check(SPARK, tmp_path)
