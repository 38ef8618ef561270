"""A measuring process: `python -m comet_bench.worker NAME CONFIG`. See `processes` for its protocol."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Final

from comet_bench.link import Link, Work

# Each has WORKS. Only those up to the requested one are imported: some benchmarks start fifty workers.
MODULES: Final = (
    "comet_bench.broker.clients",
    "comet_bench.broker.filters",
    "comet_bench.broker.relay",
    "comet_bench.limits",
    "comet_bench.cluster.failover_load",
    "comet_bench.gateway.load",
    "comet_bench.groups.clients",
    "comet_bench.security.clients",
    "comet_bench.spark.reads",
    "comet_bench.spark.stream",
    "comet_bench.tables.clients",
    "comet_bench.traces.clients",
)


def find_work(name: str) -> Work:
    """The work of that name. Raises KeyError."""
    for module in MODULES:
        works: dict[str, Work] = import_module(module).WORKS
        if name in works:
            return works[name]
    raise KeyError(name)


def main() -> None:
    import uvloop

    name, config = sys.argv[1], json.loads(sys.argv[2])

    async def run() -> None:
        link = Link()
        try:
            done = await find_work(name)(link, config)
        except Exception as error:
            link.report("failed", f"{type(error).__name__}: {error}")
            raise
        link.report("done", done)

    uvloop.run(run())


if __name__ == "__main__":
    main()
