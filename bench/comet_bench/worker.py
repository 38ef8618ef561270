"""A measuring process: `python -m comet_bench.worker NAME CONFIG`. See `processes` for its protocol."""

from __future__ import annotations

import json
import sys

from comet_bench.link import Link, Work


def main() -> None:
    import uvloop

    from comet_bench import limits
    from comet_bench.broker import clients
    from comet_bench.cluster import failover_load
    from comet_bench.gateway import load
    from comet_bench.groups import clients as group_clients
    from comet_bench.security import clients as security_clients
    from comet_bench.spark import reads, stream

    name, config = sys.argv[1], json.loads(sys.argv[2])
    works: dict[str, Work] = {
        **clients.WORKS,
        **failover_load.WORKS,
        **load.WORKS,
        **group_clients.WORKS,
        **security_clients.WORKS,
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
