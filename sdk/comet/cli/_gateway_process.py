"""The gateway that `comet up` starts beside its brokers: a separate process, on which they do not depend.

It listens on this machine only; for access from other machines run `comet gateway` with a tokens file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from comet.cli._output import note
from comet.processes.child import Child, ChildEnded, python_module
from comet.processes.keeper import Keeper, KeeperEvent
from comet.processes.ports import LOCALHOST, HeldPorts, listening
from comet.processes.restart_policy import Schedule

DEFAULT_PORT: Final = 8080
START_S_MAX: Final = 60.0
WATCH_S: Final = 0.5
RESTARTS: Final = Schedule(pauses_s=(1.0, 2.0, 4.0, 8.0, 10.0), calm_s=5.0)


def restarting(children: Sequence[Child]) -> Keeper:
    """The keeper of the processes of `comet up`, which prints what it does."""
    return Keeper(children, RESTARTS, _note)


def _note(event: KeeperEvent) -> None:
    child = event.child
    if event.kind == "ended":
        reason = f": {child.last_line()}" if (child.ended or 0) > 0 else ""  # a killed process logged no reason
        note(f"{child.ending()}{reason}; restarting it in {event.pause_s:.0f} s")
    elif event.kind == "restarted":
        note(f"{child.name} restarted (pid {child.pid})")
    elif event.kind == "not started":
        note(f"cannot restart {child.name} yet: {event.reason}")


def banner(url: str | None, brokers: str) -> str:
    """The first lines of `comet up`, with the dashboard first. `brokers` says where they are."""
    if url is None:
        return f"Comet is up: {brokers}"
    return f"Comet is up: dashboard at {url}\n{brokers}\nHTTP, WebSocket and SSE at {url} too, the API at {url}/docs"


class GatewayProcess:
    """One gateway process."""

    def __init__(
        self,
        bootstrap: str,
        port: int,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._held = None if port else HeldPorts(1)
        port = port if self._held is None else self._held.numbers[0]
        address = f"{LOCALHOST}:{port}"
        self.url = f"http://{address}"
        command = python_module("comet.cli", "gateway", "--bootstrap", bootstrap, "--port", str(port), *options)
        self.child = Child("gateway", command, log=folder / "gateway.log", address=address, environment=environment)
        self._keeper = restarting([self.child])
        self._ending = asyncio.Event()

    def start(self, enough: Callable[[], bool] = lambda: False) -> str | None:
        """Returns its URL once it listens; prints the reason and returns None if it does not start."""
        if listening(self.child.address):
            note(
                f"no gateway: {self.child.address} is in use; choose another --gateway-port (0: any free one), "
                "or --no-gateway"
            )
            return None
        self.child.start()
        try:
            if not self.child.wait_ready(START_S_MAX, enough=enough) and not enough():
                note(f"the gateway is slow to start; see its log: {self.child.log}")
        except ChildEnded:
            note(f"no gateway: {self.child.last_line()}; see its log: {self.child.log}")
            return None
        return None if enough() else self.url

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
            await asyncio.to_thread(self.child.stop)

    async def _watch(self) -> None:
        while not self._ending.is_set():
            due_s = self._keeper.check(time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(min(due_s, WATCH_S)):
                    await self._ending.wait()

    def end(self) -> None:
        """Ends it, also while it is starting; `keep` returns when the process has ended."""
        self._ending.set()
