"""A gateway as a real process, for tests that kill and stop it."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Final

import httpx
import psutil

from tests.pausing import stand_still
from tests.robustness.process import free_port
from tests.waiting import until_answered

READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
LOOK_S: Final = 0.1


class GatewayProcess:
    """`python -m comet_gateway`. Keeps its port over restarts, so that clients find it again."""

    def __init__(self, folder: Path, brokers: list[str], *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder.parent / f"{folder.name}.log"
        self._command = [
            sys.executable, "-m", "comet_gateway", "--bootstrap", ",".join(brokers), "--port", str(self.port), *options
        ]  # fmt: skip
        self.broker = brokers[0]
        self._process: Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = Popen(self._command, stdout=log, stderr=log, stdin=DEVNULL)

    async def ready(self) -> None:
        """Returns once it answers that it is ready."""
        async with httpx.AsyncClient(timeout=2) as http:

            async def holds() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    return (await http.get(f"{self.url}/readyz")).status_code == httpx.codes.OK
                return False

            ready = await until_answered(holds, within_s=READY_S_MAX, every_s=LOOK_S)
        assert ready, f"the gateway did not become ready:\n{self.said()}"

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def memory(self) -> int:
        with contextlib.suppress(psutil.Error, AttributeError):
            return int(psutil.Process(self._process.pid).memory_info().rss) if self._process else 0
        return 0

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
            self._process = None

    def terminate(self) -> int:
        """As `kill`: it tells its clients to move. Returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_S_MAX)
        self._process = None
        return code

    def pause(self) -> None:
        assert self._process is not None
        stand_still(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def complaints(self) -> list[str]:
        said = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        words = "Traceback", "never retrieved", "was destroyed", "never awaited"
        return [f"{self.log.name}: {line}" for line in said if any(word in line for word in words)]
