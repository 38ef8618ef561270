"""Time limits that cost nothing where nothing has to be waited for.

`asyncio.timeout` makes a timer and takes it away again, which is a good part of what a small request costs; most of
what a request waits for is there already. So what is to be limited is begun first, and the timer made if it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def until(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """What it returns, if it does by that time of the loop. Raises TimeoutError."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    async with asyncio.timeout_at(deadline):
        return await _resumed(work, awaited)


@coroutine
def _resumed(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Goes on with what was begun, and waits for `awaited`."""
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - thrown in, by whoever cancels
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        found: T = done.value
        return found
