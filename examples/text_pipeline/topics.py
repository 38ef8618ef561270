"""The topics of the pipeline, created by the part that starts first."""

from __future__ import annotations

import asyncio
import contextlib

import comet

PARTITIONS = 3


async def make(address: str, *names: str) -> None:
    """Returns when the topics exist; waits for a broker that is away."""
    async with comet.Admin(address) as admin:
        for name in names:
            await _make(admin, name)


async def _make(admin: comet.Admin, name: str) -> None:
    while True:
        try:
            with contextlib.suppress(comet.TopicExists):
                await admin.create_topic(name, partitions=PARTITIONS)
        except (comet.Unavailable, comet.Timeout):
            await asyncio.sleep(0.2)
        else:
            return
