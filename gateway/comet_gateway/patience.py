"""Waiting in the name of a client, for as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from comet_gateway.problems import Problem

T = TypeVar("T")


async def while_there(request: Request, work: Coroutine[Any, Any, T], draining: asyncio.Event) -> T:
    """Waits for it, unless the client goes away; a gateway that is about to stop lets nobody wait for long."""
    task = asyncio.create_task(work, name="gateway: wait for records")
    others = [
        asyncio.create_task(_until_gone(request), name="gateway: until the client goes"),
        asyncio.create_task(draining.wait(), name="gateway: until it stops"),
    ]
    try:
        done, _ = await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return await task
        raise Problem("DRAINING", "the gateway is about to stop")
    finally:
        for one in (task, *others):
            one.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
