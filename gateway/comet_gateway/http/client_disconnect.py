"""Waiting in the name of a client, for as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from comet.errors import Draining
from comet_gateway.http.problems import Problem

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


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them give, or what the first that fails raises. Nothing of the others goes on after that."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Flight(Generic[T]):
    """Work that several wait for. It ends when nobody waits for it any more."""

    def __init__(self, work: Coroutine[Any, Any, T], name: str, landed: Callable[[Flight[T]], None]) -> None:
        self.began_s = asyncio.get_running_loop().time()
        self._landed = landed  # is told of its end, whichever that is
        self._task = asyncio.create_task(work, name=name)
        self._task.add_done_callback(self._ended)
        self._waiting = 0

    @property
    def over(self) -> bool:
        """Nothing comes of it any more to somebody who begins to wait now."""
        return self._task.done() or self._task.cancelling() > 0

    async def wait(self) -> T:
        """What comes of it. Raises what it raises; Draining, where it was closed."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is None or me.cancelling():
                raise
            raise Draining("the gateway is stopping") from None
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # whoever waits is told; nobody may
        self._landed(self)
