"""What both sides of a connection of the wire do alike: frames are written, and wait while the transport is full."""

from __future__ import annotations

import asyncio
from typing import cast

from comet import limits
from comet.wire import framing
from comet.wire.frames import Outgoing


class WireProtocol(asyncio.BufferedProtocol):
    """Used on one event loop. One task or writer at a time awaits `send`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.heard = False  # bytes have come since the owner looked
        self.writable: asyncio.Future[None] | None = None  # while the transport is full

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # those of uvloop are of another class
        self.transport.set_write_buffer_limits(128 * limits.KIB)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.writable is None:
            self.writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writable, self.writable = self.writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    async def send(self, frame: Outgoing) -> None:
        """Writes a frame of the call."""
        assert self.transport is not None
        head = framing.head(len(frame))
        self.transport.writelines((head, frame) if isinstance(frame, bytes) else (head, *frame.parts))
        if self.writable is not None:
            await self.writable
