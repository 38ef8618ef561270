"""The processes of a benchmark: brokers and workers, started afresh and always ended.

A worker is `python -m comet_bench.worker NAME CONFIG`; it exchanges JSON lines with the command that started it:

    worker   {"ready": {...}}        set up, connected; facts for the others
    command  {"go": {...}}           start now (absent for workers that only serve)
    worker   {"done": {...}}         its measurements
             {"failed": "..."}       at any time

A worker whose stdin closes ends, so none outlives the command even if that is killed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from comet.errors import CometError, Timeout, Unavailable
from comet_bench.machine import ProcessMeter

START_TIMEOUT_S: Final = 30.0
RUN_TIMEOUT_S: Final = 300.0
STOP_TIMEOUT_S: Final = 15.0
LINE_BYTES_MAX: Final = 64 << 20


class BenchFailed(CometError):
    """A process of the benchmark failed; the message is its own."""


class Lines:
    """Lines of a pipe with a deadline. Owned by one process; blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = bytearray()

    def next(self, timeout_s: float) -> bytes | None:
        """The next line; None if the other side has closed."""
        deadline = time.monotonic() + timeout_s
        while (end := self._held.find(b"\n")) < 0:
            readable, _, _ = select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise Timeout(f"a process of the benchmark was silent for {timeout_s:.0f} s")
            chunk = os.read(self._descriptor, 1 << 16)
            if not chunk or len(self._held) > LINE_BYTES_MAX:
                return None
            self._held += chunk
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line


class Child:
    """A process we started, its stdout read line by line. Used as a context manager: it ends with the block."""

    def __init__(self, arguments: list[str]) -> None:
        self.name = arguments[1]
        # A session of its own, so that Ctrl-C reaches the command alone, which then ends us in order.
        self.process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin = self.process.stdin
        self._stdout = self.process.stdout
        self._lines = Lines(self._stdout.fileno())

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, timeout_s: float) -> bytes:
        line = self._lines.next(timeout_s)
        if line is None:
            raise BenchFailed(f"{self.name} ended with code {self.process.wait(STOP_TIMEOUT_S)}; see above")
        return line

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(message).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(f"{self.name} ended with code {self.process.wait(STOP_TIMEOUT_S)}; see above") from None

    def stop(self) -> None:
        """Ends the process: sends SIGTERM, waits, and kills it if it does not end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self._stdin, self._stdout):
            with suppress(BrokenPipeError):  # it needs no unread orders any more
                pipe.close()


class Worker(Child):
    """A measuring process."""

    def __init__(self, name: str, **config: Any) -> None:
        super().__init__(["comet_bench.worker", name, json.dumps(config)])
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def receive(self, kind: str, timeout_s: float) -> dict[str, Any]:
        message = json.loads(self.line(timeout_s))
        if "failed" in message:
            raise BenchFailed(f"{self.name}: {message['failed']}")
        assert kind in message, (self.name, kind, message)
        answer: dict[str, Any] = message[kind]
        return answer

    def ready(self) -> dict[str, Any]:
        return self.receive("ready", START_TIMEOUT_S)

    def go(self, **orders: Any) -> None:
        self.send({"go": orders})

    def done(self) -> dict[str, Any]:
        return self.receive("done", RUN_TIMEOUT_S)


class Broker:
    """A broker to measure: its address and, if the benchmark started it, its process."""

    def __init__(self, address: str, meter: ProcessMeter | None) -> None:
        self.address = address
        self.meter = meter


@contextmanager
def own_broker(folder: Path | None) -> Iterator[Broker]:
    """A fresh broker on a fresh folder (below `folder`, if one is given), both removed afterwards."""
    data = Path(tempfile.mkdtemp(prefix="comet-bench-", dir=folder))
    try:
        child = Child(["comet_broker", "--data", str(data), "--port", "0"])
        try:
            yield Broker(child.line(START_TIMEOUT_S).decode().strip(), ProcessMeter(child.pid))
        finally:
            child.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def given_broker(address: str) -> Iterator[Broker]:
    """A running broker; its memory and CPU are not measured."""
    if ":" not in address:
        raise Unavailable(f"{address!r} is not HOST:PORT")
    yield Broker(address, None)
