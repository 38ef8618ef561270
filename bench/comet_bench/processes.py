"""The processes of a benchmark: servers and workers, started afresh and always ended.

A worker is `python -m comet_bench.worker NAME CONFIG`; it exchanges JSON lines with the command that started it:

    worker   {"ready": {...}}        set up, connected; facts for the others
    command  {"go": {...}}           start now (absent for workers that only serve)
    worker   {"done": {...}}         its measurements
             {"failed": "..."}       at any time

A worker whose stdin closes ends, and every process is tied to the command: none outlives it, even if it is killed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from comet.errors import CometError, Unavailable
from comet.processes.child import Child, python_module, started, stop_all
from comet_bench.machine import ProcessMeter

START_TIMEOUT_S: Final = 30.0
RUN_TIMEOUT_S: Final = 300.0
STOP_TIMEOUT_S: Final = 15.0
STARTING_AT_ONCE: Final = 8  # interpreters that compete for the processor while they start


class BenchFailed(CometError):
    """A process of the benchmark failed; the message is its own."""


def served(name: str, module: str, *arguments: str, log: Path | None = None) -> AbstractContextManager[Child]:
    """A module as a process that ends with the block."""
    return started(Child(name, python_module(module, *arguments), log=log, piped=True), within_s=STOP_TIMEOUT_S)


class Worker:
    """A measuring process, started at once."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None, /, **config: Any) -> None:
        self.name = name
        command = python_module("comet_bench.worker", name, json.dumps(config))
        self.child = Child(name, command, piped=True, takes_input=True, environment=environment)
        self.child.start()

    @property
    def pid(self) -> int:
        return self.child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop(within_s=STOP_TIMEOUT_S)

    def receive(self, kind: str, timeout_s: float) -> dict[str, Any]:
        message = json.loads(self.child.line(timeout_s))
        if "failed" in message:
            raise BenchFailed(f"{self.name}: {message['failed']}")
        assert kind in message, (self.name, kind, message)
        answer: dict[str, Any] = message[kind]
        return answer

    def ready(self) -> dict[str, Any]:
        return self.receive("ready", START_TIMEOUT_S)

    def go(self, **orders: Any) -> None:
        self.child.send(json.dumps({"go": orders}).encode())

    def done(self) -> dict[str, Any]:
        return self.receive("done", RUN_TIMEOUT_S)


@contextmanager
def crowd(count: int, start: Callable[[], Worker]) -> Iterator[list[Worker]]:
    """Many workers, each ready. Some start at a time, all end together."""
    workers: list[Worker] = []
    try:
        while len(workers) < count:
            group = len(workers)
            while len(workers) < min(group + STARTING_AT_ONCE, count):
                workers.append(start())
            for worker in workers[group:]:
                worker.ready()
        yield workers
    finally:
        stop_all([worker.child for worker in workers], within_s=STOP_TIMEOUT_S)


class Broker:
    """A broker to measure: its address and, if the benchmark started it, its process."""

    def __init__(self, address: str, meter: ProcessMeter | None) -> None:
        self.address = address
        self.meter = meter

    @property
    def pids(self) -> list[int]:
        """Its process, if the benchmark started it."""
        return [] if self.meter is None else [self.meter.pid]


@contextmanager
def own_broker(folder: Path | None, *options: str, log: Path | None = None) -> Iterator[Broker]:
    """A fresh broker on a fresh folder (below `folder`, if one is given), both removed afterwards."""
    data = Path(tempfile.mkdtemp(prefix="comet-bench-", dir=folder))
    try:
        words = ("broker", "--json", "--data", str(data), "--port", "0", *options)
        with served("the broker", "comet.cli", *words, log=log) as child:
            yield Broker(json.loads(child.line(START_TIMEOUT_S))["address"], ProcessMeter(child.pid))
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def given_broker(address: str) -> Iterator[Broker]:
    """A running broker; its memory and CPU are not measured."""
    if ":" not in address:
        raise Unavailable(f"{address!r} is not HOST:PORT")
    yield Broker(address, None)
