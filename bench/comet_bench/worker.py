"""A measuring process: `python -m comet_bench.worker NAME CONFIG`. See `processes` for its protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Work = Callable[["Link", Any], Awaitable[dict[str, Any]]]


class Link:
    """The connection to the command that started us; the process ends with it."""

    def __init__(self) -> None:
        self._held = b""
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(0, self._on_readable)

    def _on_readable(self) -> None:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            os._exit(1)  # the command has ended
        *lines, self._held = (self._held + chunk).split(b"\n")
        for line in lines:
            self._orders.put_nowait(json.loads(line)["go"])

    def report(self, kind: str, content: Any) -> None:
        sys.stdout.write(json.dumps({kind: content}) + "\n")
        sys.stdout.flush()

    async def go(self, **ready: Any) -> dict[str, Any]:
        """Reports ready and waits for the order to start. Excludes start-up objects from garbage collection."""
        gc.collect()
        gc.freeze()
        return await self.next_order(**ready)

    async def next_order(self, **state: Any) -> dict[str, Any]:
        """Answers the last order and waits for the next; for a worker that gets several orders."""
        self.report("ready", state)
        return await self._orders.get()


def main() -> None:
    import uvloop

    from comet_bench import clients, limits
    from comet_bench.cluster import failover_load
    from comet_bench.gateway import load
    from comet_bench.groups import clients as group_clients
    from comet_bench.spark import reads, stream

    name, config = sys.argv[1], json.loads(sys.argv[2])
    works: dict[str, Work] = {
        **clients.WORKS,
        **failover_load.WORKS,
        **load.WORKS,
        **group_clients.WORKS,
        **limits.WORKS,
        **reads.WORKS,
        **stream.WORKS,
    }

    async def run() -> None:
        link = Link()
        try:
            done = await works[name](link, config)
        except Exception as error:
            link.report("failed", f"{type(error).__name__}: {error}")
            raise
        link.report("done", done)

    uvloop.run(run())


if __name__ == "__main__":
    main()
