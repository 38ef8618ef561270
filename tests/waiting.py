"""The only real time that tests spend: waiting for a condition that sends no signal, and pacing a load or a fault.

Works on the simulated loop as well, where time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], bool], *, within_s: float, every_s: float = 0.05) -> bool:
    """Looks again and again; whether it came to hold in time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not holds():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(every_s)
    return True


async def until_answered(holds: Callable[[], Awaitable[bool]], *, within_s: float, every_s: float = 0.05) -> bool:
    """The same for a condition that has to ask another process."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not await holds():
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(every_s)
    return True


async def pace(seconds: float) -> None:
    """Lets time pass as part of the scenario: the rate of a load, the length of a fault, the life of a lease.

    Never a wait for a result: what the test expects must hold however late it comes.
    """
    await asyncio.sleep(seconds)
