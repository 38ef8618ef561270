"""What every test shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from comet._tuning import tune_process

# No deadline: two cores are shared with real brokers. A failure prints the blob that replays it.
settings.register_profile(
    "comet", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=100
)
settings.register_profile("deep", settings.get_profile("comet"), max_examples=5_000)
# Before anything of gRPC is there; see comet._tuning.
tune_process()
settings.load_profile(os.environ.get("COMET_HYPOTHESIS", "comet"))

# What starts processes shares the machine and keeps time limits: one after the other, beside all that is computed.
# Pages wait for a browser most of the time, so they need not wait for the others.
GROUPS = {
    "bench": "processes",
    "integration": "processes",
    "robustness": "processes",
    "browser": "pages",
    "spark": "spark",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For `make test`, which has two workers (`-n 2 --dist loadgroup`): a group stays in one of them."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    here = Path(__file__).parent
    for item in items:
        group = GROUPS.get(item.path.relative_to(here).parts[0])
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
