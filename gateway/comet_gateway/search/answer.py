"""A streamed answer of a scan: its parts are sent as they are produced, until the client disconnects.

After the first part an error cannot set the status: the producer of the parts encodes it, or raises, and the answer is
cut off, which the client notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Send

from comet_gateway.http.origins import HeaderPairs
from comet_gateway.search.slots import Slots, share_key

T = TypeVar("T")


class WalkAnswer:
    """The answer to one request. `make` is called at the start; `give_up_s`: time for the client to read a part."""

    def __init__(
        self,
        request: Request,
        slots: Slots,
        make: Callable[[], AsyncGenerator[bytes]],
        headers: HeaderPairs,
        give_up_s: float,
    ) -> None:
        self._share_key = share_key(request.scope["comet.principal"])
        slots.check(self._share_key)
        self._request = request
        self._slots = slots
        self._make = make
        self._headers = headers
        self._give_up_s = give_up_s

    async def __call__(self, send: Send) -> None:
        with self._slots.take(self._share_key):
            gone = asyncio.create_task(_until_gone(self._request), name="gateway: until the client goes")
            parts = self._make()
            try:
                part: bytes | None = await _unless(gone, anext(parts, None))  # an error can still set the status
                await send({"type": "http.response.start", "status": 200, "headers": self._headers})
                while part is not None:
                    if part:
                        await self._send(send, part)
                    part = await _unless(gone, anext(parts, None))
                await send({"type": "http.response.body", "body": b""})
            finally:
                gone.cancel()
                await parts.aclose()
                await asyncio.gather(gone, return_exceptions=True)

    async def _send(self, send: Send, part: bytes) -> None:
        try:
            async with asyncio.timeout(self._give_up_s):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:  # the client does not read
            raise ClientDisconnect from None


async def _unless(gone: asyncio.Task[None], step: Awaitable[T]) -> T:
    """The result of the step, unless the client disconnects first."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
