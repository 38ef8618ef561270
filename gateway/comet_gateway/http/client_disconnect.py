"""Waiting on behalf of a client, until it disconnects; work shared by several waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from comet.errors import Draining
from comet_gateway.http.problems import Problem

T = TypeVar("T")


async def while_there(request: Request, work: Coroutine[Any, Any, T], draining: asyncio.Event) -> T:
    """Waits for the work until the client disconnects or the gateway drains."""
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
    """The results of all, or the error of the first that fails, which cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Flight(Generic[T]):
    """Work that several callers wait for. It is cancelled when the last of them has left."""

    def __init__(self, work: Coroutine[Any, Any, T], name: str, landed: Callable[[Flight[T]], None]) -> None:
        self.began_s = asyncio.get_running_loop().time()
        self._landed = landed  # called at the end, in every case
        self._task = asyncio.create_task(work, name=name)
        self._task.add_done_callback(self._ended)
        self._waiting = 0

    @property
    def over(self) -> bool:
        """Whether it is too late to start to wait for the result."""
        return self._task.done() or self._task.cancelling() > 0

    async def wait(self) -> T:
        """Waits for the result. Raises the work's error; Draining if the gateway is shutting down."""
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
            task.exception()  # marks the error as retrieved: possibly no caller waits
        self._landed(self)
