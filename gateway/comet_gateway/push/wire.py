"""The way out of one WebSocket: frames of bytes that are already JSON, many at once, with a bound on what waits.

    AsgiWire    on any ASGI server
    FastWire    where the server lends its connection (`comet.socket` among the scope's extensions, see sockets.py):
                a frame's bytes go out as they are, in one write with those beside them, and are never copied into text

Any task of the connection may write. Who is about to take records asks for `room` first, so that a client that does
not read holds nothing but its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.types import Scope, Send

Frame = Sequence[bytes]  # one message, in parts
EXTENSION = "comet.socket"


class Gone(Exception):
    """The connection is over."""


class Wire(Protocol):
    """One connection's way out."""

    async def room(self) -> None:
        """Returns once little enough waits to be sent. Raises Gone."""

    async def write(self, frames: Sequence[Frame]) -> None:
        """Sends them in order. Raises Gone."""

    def abort(self) -> None:
        """Ends the connection without a word, where the server allows it."""


class Socket(Protocol):
    """What a server lends: see sockets.py."""

    @property
    def full(self) -> bool: ...
    @property
    def gone(self) -> bool: ...
    async def drained(self) -> None: ...
    def bound(self, waiting_bytes: int) -> None: ...
    def write_frames(self, frames: Sequence[Frame]) -> None: ...
    def abort(self) -> None: ...


def wire_of(scope: Scope, send: Send, waiting_bytes_max: int) -> Wire:
    """The best there is."""
    lent: dict[str, Any] = scope.get("extensions", {}).get(EXTENSION, {})
    socket = lent.get("socket")
    return AsgiWire(send) if socket is None else FastWire(socket, waiting_bytes_max)


class FastWire:
    """Writes to the server's connection."""

    __slots__ = ("_socket",)

    def __init__(self, socket: Socket, waiting_bytes_max: int) -> None:
        self._socket = socket
        # Of what may wait, one half is for the write that goes over the mark.
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
        self._lock = asyncio.Lock()  # fair: whoever waits longest writes next

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
