"""The servers that `comet bench gateway` measures, each a process of its own that ends with the block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from comet.processes.child import Child
from comet_bench.machine import ProcessMeter
from comet_bench.processes import START_TIMEOUT_S, served


class Served:
    """A started HTTP server: its address and the meter of its process."""

    def __init__(self, child: Child, port: int) -> None:
        self.meter = ProcessMeter(child.pid)
        self.at = {"host": "127.0.0.1", "port": port}


@contextmanager
def start_gateway(address: str) -> Iterator[Served]:
    with served("the gateway", "comet.cli", "gateway", "--bootstrap", address, "--port", "0", "--json") as child:
        port = urlsplit(json.loads(child.line(START_TIMEOUT_S))["url"]).port
        assert port is not None
        yield Served(child, port)


@contextmanager
def start_bare(frames: Path | None = None) -> Iterator[Served]:
    with served("the bare server", "comet_bench.gateway.bare_servers", str(frames or "-")) as child:
        yield Served(child, int(child.line(START_TIMEOUT_S)))
