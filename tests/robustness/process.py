"""A broker as a real process, for tests that kill, stop, starve and fill it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from comet.processes.child import Child, python_module
from tests.etcd import free_ports
from tests.pausing import stand_still

START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0


class BrokerProcess:
    """`comet broker` on a data folder. Keeps its port over restarts, so that clients find it again.

    `within` is a command that runs the one behind it, with less of something.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        options: tuple[str, ...] = (),
        within: tuple[str, ...] = (),
    ) -> None:
        self.data = data
        self.port = port or free_port()
        self.log = data.parent / f"{data.name}.log"
        self._options = options
        self._within = within
        self._child: Child | None = None  # while it runs

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._child is not None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def advertise(self, port: int) -> None:
        """From its next start on it tells others another port than its own, and none of the wire."""
        self._options = (*self._options, "--advertised-port", str(port))

    def advertise_wire(self, own: int, port: int) -> None:
        """The same of its wire alone."""
        self._options = (*self._options, "--wire-port", str(own), "--advertised-wire-port", str(port))

    def launch(self) -> None:
        """Starts the process; `wait_ready` says when it takes requests."""
        words = ("broker", "--json", "--data", str(self.data), "--port", str(self.port), *self._options)
        self._child = Child("broker", [*self._within, *python_module("comet.cli", *words)], log=self.log, piped=True)
        self._child.start()

    def wait_ready(self) -> None:
        """Returns once the broker has printed its address; fails with what it wrote instead."""
        assert self._child is not None
        line = self._child.line(START_S_MAX)
        assert line and json.loads(line)["address"] == self.address, f"the broker did not start:\n{self.said()}"

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """As `kill -9`."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """As `kill`: the broker drains. Returns its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        child = self._child
        if child is None:
            return 0
        child.signal(number)
        code = child.wait(STOP_S_MAX)
        child.stop()  # closes its pipe
        self._child = None
        return code

    def signal(self, number: int) -> None:
        if number == signal.SIGSTOP:
            stand_still(self.pid)
        else:
            os.kill(self.pid, number)

    def ports_to(self, port: int) -> set[int]:
        """Its own ports of the connections that it has made to one on loopback."""
        found = psutil.Process(self.pid).net_connections("tcp")
        return {one.laddr.port for one in found if one.raddr and one.raddr.port == port}

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def complaints(self) -> list[str]:
        """Tracebacks and tasks that died: what no fault from outside may cause."""
        return [line for line in self.said().splitlines() if "Traceback" in line or " died" in line or "BUG" in line]


@contextlib.contextmanager
def broker(data: Path, *, options: tuple[str, ...] = (), within: tuple[str, ...] = ()) -> Iterator[BrokerProcess]:
    """A running broker that is gone afterwards, whatever happens."""
    process = BrokerProcess(data, options=options, within=within)
    process.start()
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def free_port() -> int:
    return free_ports(1)[0]


async def highest_resident_bytes(process: BrokerProcess, until: asyncio.Event) -> int:
    """The most memory the broker had until then."""
    highest = 0
    while not until.is_set():
        highest = max(highest, process.resident_bytes())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await until.wait()
    return highest
