"""Waiting for something that nobody signals: another process, or the state of a whole world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool], *, within_s: float, every_s: float = 0.05) -> bool:
    """Looks again and again; whether it came to hold in time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not holds():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(every_s)
    return True
