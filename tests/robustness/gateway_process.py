"""A gateway as a real process, for tests that kill and stop it."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Final

import httpx
import psutil

from comet.processes.child import Child, python_module
from tests.pausing import stand_still
from tests.robustness.process import free_port
from tests.waiting import until_answered

READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
LOOK_S: Final = 0.1


class GatewayProcess:
    """`comet gateway`. Keeps its port over restarts, so that clients find it again."""

    def __init__(self, folder: Path, brokers: list[str], *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder.parent / f"{folder.name}.log"
        words = ("--bootstrap", ",".join(brokers), "--port", str(self.port), *options)
        self._child = Child("gateway", python_module("comet.cli", "gateway", *words), log=self.log)
        self.broker = brokers[0]
        self.ready_bytes = 0  # of memory, when it was ready last

    @property
    def pid(self) -> int:
        return self._child.pid

    def launch(self) -> None:
        self._child.start()

    async def ready(self) -> None:
        """Returns once it answers that it is ready."""
        async with httpx.AsyncClient(timeout=2) as http:

            async def holds() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    return (await http.get(f"{self.url}/readyz")).status_code == httpx.codes.OK
                return False

            ready = await until_answered(holds, within_s=READY_S_MAX, every_s=LOOK_S)
        assert ready, f"the gateway did not become ready:\n{self.said()}"
        self.ready_bytes = self.memory()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def memory(self) -> int:
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss) if self.pid else 0
        return 0

    def kill(self) -> None:
        """As `kill -9`."""
        self._child.kill()

    def terminate(self) -> int:
        """As `kill`: it tells its clients to move. Returns its exit code."""
        self._child.signal(signal.SIGTERM)
        return self._child.wait(STOP_S_MAX)

    def pause(self) -> None:
        stand_still(self.pid)

    def resume(self) -> None:
        self._child.signal(signal.SIGCONT)

    def complaints(self) -> list[str]:
        said = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        words = "Traceback", "never retrieved", "was destroyed", "never awaited"
        return [f"{self.log.name}: {line}" for line in said if any(word in line for word in words)]
