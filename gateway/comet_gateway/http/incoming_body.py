"""The body of one request on its way in, for all routes: its bytes in memory, its place and its time.

    bytes   counted against `request_bytes_max` while the request holds them, also those that decompression makes
    place   one of `bodies_max`, from the first wait for more of the body to its end
    time    `body_grace_s`, and as long as its bytes take at `body_rate_min`; for a streamed body only `idle_s` a wait

A body that is complete when it is read takes no place and sets no timer.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Message, Receive, Scope

from comet_gateway.config import KIB, Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.shares import Holder, holder_of
from comet_gateway.http.timeouts import LATE_S, until
from comet_gateway.http.traffic import Traffic

SMALL_BYTES: Final = 64 * KIB  # bodies up to this size are not counted: requests_max and bodies_max bound them


class IncomingBody:
    """At `scope["comet.body"]` of each admitted request but GET. Created and closed by the route's admission."""

    __slots__ = (
        "_counted", "_deadline", "_document", "_ended", "_held", "_holder", "_limits", "_receive", "_received",
        "_scope", "_traffic", "_waited_s", "_waiting_since",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, traffic: Traffic, limits: Limits, *, document: bool) -> None:
        self._scope = scope
        self._receive = receive
        self._traffic = traffic
        self._limits = limits
        self._document = document  # a small one: never streamed
        length = scope["comet.headers"].get(b"content-length")
        self._counted = (length is None or int(length) > SMALL_BYTES) and not self._streamed  # by `receive`
        self._ended = False
        self._received = 0
        self._held = 0
        self._holder: Holder | None = None  # while it has a place
        self._waited_s = 0.0  # for the client in all
        self._waiting_since = 0.0
        self._deadline = 0.0

    @property
    def _streamed(self) -> bool:
        """Whether it is read line by line and answered meanwhile. The reader counts the bytes in memory."""
        kind: bytes = self._scope["comet.headers"].get(b"content-type", b"")
        return not self._document and kind.lower().startswith(b"application/x-ndjson")

    async def receive(self) -> Message:
        """ASGI's receive. Raises BODY_STALLED, OVERLOADED, TOO_MANY_REQUESTS."""
        if self._ended:
            return await self._receive()
        while True:
            try:
                message = await until(self._wait, _message(self._receive))
            except TimeoutError:
                self._timed_out()
            else:
                break
        if self._waiting_since:
            self._waited_s += asyncio.get_running_loop().time() - self._waiting_since
            self._waiting_since = 0.0
        size = len(message.get("body", b""))
        self._received += size
        if self._counted:
            self.hold(size)
        if not message.get("more_body", False):
            self._ended = True
            self._leave()
        return message

    def hold(self, size: int) -> None:
        """Counts bytes of the body in memory, until `release` or the end of the request. Raises OVERLOADED."""
        self._traffic.hold(size)
        self._held += size

    def release(self, size: int) -> None:
        self._traffic.release(size)
        self._held -= size

    def close(self) -> None:
        """The request has ended."""
        if self._held:
            self.release(self._held)
        self._leave()

    def _wait(self) -> float:
        """Takes a place, unless it has one. Returns when the wait has been too long, in loop time."""
        if self._holder is None:
            holder = holder_of(self._scope)
            self._traffic.await_body(holder)
            self._holder = holder
        limits = self._limits
        left_s = limits.idle_s
        if not self._streamed:
            allowed_s = limits.body_grace_s + self._received / limits.body_rate_min
            left_s = min(left_s, allowed_s - self._waited_s)
        self._waiting_since = asyncio.get_running_loop().time()
        self._deadline = self._waiting_since + left_s
        return self._deadline

    def _timed_out(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._deadline > LATE_S:
            return  # this process was paused: data that arrived meanwhile has not been read yet
        waited_s = self._waited_s + now - self._waiting_since
        detail = f"{self._received} bytes of the body arrived in {waited_s:.0f} s of waiting"
        raise Problem("BODY_STALLED", detail)

    def _leave(self) -> None:
        if self._holder is not None:
            self._traffic.resume(self._holder)
            self._holder = None


async def _message(receive: Receive) -> Message:
    return await receive()
