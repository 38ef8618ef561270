"""The gateway that `comet up` starts beside its brokers: a separate process, on which they do not depend.

It listens on this machine only; for access from other machines run `comet gateway` with a tokens file.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from comet.cli._keeper import Keeper
from comet.cli._local_cluster import LOCALHOST, ClusterProcess, HeldPorts, listening
from comet.cli._output import note

DEFAULT_PORT: Final = 8080
START_S_MAX: Final = 60.0
POLL_S: Final = 0.05
WATCH_S: Final = 0.5


class GatewayProcess:
    """One gateway process."""

    def __init__(self, bootstrap: str, port: int, folder: Path) -> None:
        self._held = None if port else HeldPorts(1)
        port = port if self._held is None else self._held.numbers[0]
        self.url = f"http://{LOCALHOST}:{port}"
        address = f"{LOCALHOST}:{port}"
        command = [sys.executable, "-m", "comet_gateway", "--bootstrap", bootstrap, "--port", str(port)]
        self.member = ClusterProcess("gateway", command, address, folder / "gateway.log")
        self._keeper = Keeper([self.member])
        self._ending = asyncio.Event()

    def start(self, enough: Callable[[], bool] = lambda: False) -> str | None:
        """Returns its URL once it listens; prints the reason and returns None if it does not start."""
        if listening(self.member.address):
            note(
                f"no gateway: {self.member.address} is in use; choose another --gateway-port (0: any free one), "
                "or --no-gateway"
            )
            return None
        self.member.start()
        deadline = time.monotonic() + START_S_MAX
        while not listening(self.member.address):
            if self.member.ended is not None or enough():
                if self.member.ended is not None:
                    note(f"no gateway: {self.member.last_line()}; see its log: {self.member.log}")
                return None
            if time.monotonic() > deadline:
                note(f"the gateway is slow to start; see its log: {self.member.log}")
                break
            time.sleep(POLL_S)
        return self.url

    # ---- beside a broker in this process

    async def keep(self, started: Callable[[str | None], None]) -> None:
        """Starts the gateway without blocking the loop and passes the result to `started`, unless `end` comes first;
        restarts it until `end`, then drains it."""
        try:
            url = await asyncio.to_thread(self.start, self._ending.is_set)
            if not self._ending.is_set():
                started(url)
            if url is not None:
                await self._watch()
        finally:
            await asyncio.to_thread(self.member.stop)

    async def _watch(self) -> None:
        while not self._ending.is_set():
            try:
                due_s = self._keeper.check(time.monotonic())
            except OSError as error:  # no memory for a process, no folder for its log: the broker continues
                note(f"cannot restart the gateway yet: {error}")
                due_s = WATCH_S
            with suppress(TimeoutError):
                async with asyncio.timeout(min(due_s, WATCH_S)):
                    await self._ending.wait()

    def end(self) -> None:
        """Ends it, also while it is starting; `keep` returns when the process has ended."""
        self._ending.set()
