"""An operator whose etcd was restored from an old snapshot, or emptied: runs `comet cluster recover`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any, Final

from tests.robustness.cluster import ClusterProcesses

COMMAND_S_MAX: Final = 120
TRIES_MAX: Final = 60


def comet(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a process."""
    return subprocess.run(
        [sys.executable, "-m", "comet.cli", *words], capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
    )


def recover_command(one: ClusterProcesses, *more: str) -> subprocess.CompletedProcess[str]:
    brokers = [word for address in one.addresses for word in ("--broker", address)]
    return comet("cluster", "recover", *brokers, *more)


async def recover(one: ClusterProcesses) -> dict[str, Any]:
    """Shows, accepts, and restarts the brokers that have to be, once all have answered."""
    done: subprocess.CompletedProcess[str] | None = None
    for _ in range(TRIES_MAX):
        shown = await asyncio.to_thread(recover_command, one, "--json")
        if shown.returncode == 0 and not json.loads(shown.stdout)["silent"]:
            done = await asyncio.to_thread(recover_command, one, "--yes", "--json")
            if done.returncode == 0:
                plan: dict[str, Any] = json.loads(done.stdout)
                assert plan["done"]
                for number in plan["restart"]:
                    await asyncio.to_thread(one.brokers[number].terminate)
                    one.brokers[number].launch()
                return plan
    tried = f"{shown.stdout}{shown.stderr}{done.stdout if done else ''}{done.stderr if done else ''}"
    raise AssertionError(f"the cluster could not be recovered: {tried}")


async def ready(one: ClusterProcesses, *numbers: int) -> None:
    await asyncio.gather(*(asyncio.to_thread(one.brokers[number].wait_ready) for number in numbers))
