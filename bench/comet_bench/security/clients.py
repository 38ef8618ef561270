"""The clients of `comet bench security`, beside those of `comet bench`. They find their files in the environment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from comet_bench.report import quantiles

if TYPE_CHECKING:
    from comet_bench.link import Link, Work

CONNECTING_AT_ONCE: Final = 8
WARM_SHARE: Final = 0.1


async def calls(link: Link, config: Any) -> dict[str, Any]:
    """One unary call after the other over one connection."""
    import comet

    times_us: list[float] = []
    async with comet.Admin(config["address"]) as admin:
        await admin.describe_topic(config["topic"])
        await link.go()
        for _ in range(config["calls"]):
            start_ns = time.perf_counter_ns()
            await admin.describe_topic(config["topic"])
            times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return quantiles(times_us[round(len(times_us) * WARM_SHARE) :])


async def connections(link: Link, config: Any) -> dict[str, Any]:
    """Connections, each with one call; some are opened at once."""
    import comet

    async def connect() -> None:
        async with comet.Admin(config["address"]) as admin:
            await admin.describe_topic(config["topic"])

    async def connect_many(count: int) -> None:
        for _ in range(count):
            await connect()

    await connect()
    await link.go()
    start = time.perf_counter()
    count = config["connections"] // CONNECTING_AT_ONCE
    await asyncio.gather(*(connect_many(count) for _ in range(CONNECTING_AT_ONCE)))
    return {"connections_per_s": count * CONNECTING_AT_ONCE / (time.perf_counter() - start)}


WORKS: Final[dict[str, Work]] = {"calls": calls, "connect": connections}
