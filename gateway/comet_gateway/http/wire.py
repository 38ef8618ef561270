"""Writers for one WebSocket: frames of encoded JSON, many at once, with a bound on bytes that wait.

    AsgiWire    on any ASGI server
    FastWire    if the server offers its connection (`comet.socket` among the scope's extensions, see
                `http.uvicorn_websocket`): frames are sent in one write, without a copy into text

Any task of the connection may write. A task waits for `room` before it takes records, so that a client that does not
read holds only a position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.types import Scope, Send

Frame = Sequence[bytes]  # one message, in parts
EXTENSION = "comet.socket"


class Gone(Exception):
    """The connection has ended."""


class Wire(Protocol):
    """Writes to one connection."""

    async def room(self) -> None:
        """Waits until there is room to send. Raises Gone."""

    async def write(self, frames: Sequence[Frame]) -> None:
        """Sends frames in order. Raises Gone."""

    def abort(self) -> None:
        """Cuts the connection, if the server allows it."""


class Socket(Protocol):
    """A server's connection: see `http.uvicorn_websocket`."""

    @property
    def full(self) -> bool: ...
    @property
    def gone(self) -> bool: ...
    async def drained(self) -> None: ...
    def bound(self, waiting_bytes: int) -> None: ...
    def write_frames(self, frames: Sequence[Frame]) -> None: ...
    def abort(self) -> None: ...


def wire_of(scope: Scope, send: Send, waiting_bytes_max: int) -> Wire:
    """The fastest available wire."""
    lent: dict[str, Any] = scope.get("extensions", {}).get(EXTENSION, {})
    socket = lent.get("socket")
    return AsgiWire(send) if socket is None else FastWire(socket, waiting_bytes_max)


class FastWire:
    """Writes to the server's connection directly."""

    __slots__ = ("_socket",)

    def __init__(self, socket: Socket, waiting_bytes_max: int) -> None:
        self._socket = socket
        # Half of the bound is left for the write that exceeds the mark.
        socket.bound(waiting_bytes_max // 2)

    async def room(self) -> None:
        while self._socket.full:
            await self._socket.drained()
        if self._socket.gone:
            raise Gone

    async def write(self, frames: Sequence[Frame]) -> None:
        if self._socket.gone:
            raise Gone
        self._socket.write_frames(frames)

    def abort(self) -> None:
        self._socket.abort()


class AsgiWire:
    """Writes by the server's `send`, which waits while the client does not read."""

    __slots__ = ("_lock", "_send")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()  # fair: first in, first out

    async def room(self) -> None:
        async with self._lock:
            pass

    async def write(self, frames: Sequence[Frame]) -> None:
        async with self._lock:
            try:
                for parts in frames:
                    await self._send({"type": "websocket.send", "text": b"".join(parts).decode()})
            except OSError:
                raise Gone from None

    def abort(self) -> None:
        pass
