"""The servers that `comet bench gateway` measures, each a process of its own that ends with the block."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from comet_bench.machine import ProcessMeter
from comet_bench.processes import START_TIMEOUT_S, Child


class Served:
    """A started HTTP server: its address and the meter of its process."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.meter = ProcessMeter(child.pid)
        self.at = {"host": "127.0.0.1", "port": port}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()


def start_gateway(address: str) -> Served:
    child = Child(["comet_gateway", "--bootstrap", address, "--port", "0"])
    child.name = "the gateway"
    try:
        port = urlsplit(child.line(START_TIMEOUT_S).decode().strip()).port
        assert port is not None
    except BaseException:
        child.stop()
        raise
    return Served(child, port)


def start_bare(frames: Path | None = None) -> Served:
    child = Child(["comet_bench.gateway.bare_servers", str(frames or "-")])
    child.name = "the bare server"
    try:
        return Served(child, int(child.line(START_TIMEOUT_S)))
    except BaseException:
        child.stop()
        raise
