"""What every test shares."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from comet.wire.tuning import tune_process
from comet_testing.simulation.loop import SimLoop

# No deadline: two cores are shared with real brokers. A failure prints the blob that replays it.
settings.register_profile(
    "comet", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=100
)
settings.register_profile("deep", settings.get_profile("comet"), max_examples=5_000)
# Before anything of gRPC is there; see comet.wire.tuning.
tune_process()
os.environ["COMET_CONTEXT"] = "none"  # the developer's clusters are not those of the tests
settings.load_profile(os.environ.get("COMET_HYPOTHESIS", "comet"))

pytest_plugins = ["comet_testing.plugin"]  # as its entry point has it

TESTS = str(Path(__file__).parent)
WAITING = str(Path(__file__).with_name("waiting.py"))
_sleep = asyncio.sleep


def _checked_sleep(delay: float, result: Any = None) -> Coroutine[Any, Any, Any]:
    """asyncio.sleep, which a test may call on the simulated loop alone. Real time passes in tests.waiting."""
    caller = sys._getframe(1).f_code.co_filename
    if delay > 0 and caller.startswith(TESTS) and caller != WAITING:
        assert isinstance(asyncio.get_running_loop(), SimLoop), "a test slept in real time; see tests/waiting.py"
    return _sleep(delay, result)


asyncio.sleep = _checked_sleep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses two tests with one id: xdist would run only one of them, and count both as run."""
    twice = [nodeid for nodeid, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"tests with the same id: {', '.join(twice)}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `make test`, which has two workers."""
    from tests.groups import Groups

    return Groups(config, log)
