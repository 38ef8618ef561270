"""The pump: writes the frames of one subscription of a WebSocket, the same for all kinds.

    begin ─► room ─► ready ─► room ─► take ─► write ─► room … ─► close

A source takes records and versions only when they can be written. Until then a subscriber is a position without bytes,
so that a client that does not read costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from comet_gateway.http.wire import Frame, Wire
from comet_gateway.push import frames


class FrameSource(Protocol):
    """The frames of one subscription: of topics, a replay, a group member, a page or a channel."""

    async def begin(self) -> None:
        """Starts it. Called once, before all others but `close`. Raises Problem, CometError."""

    async def ready(self) -> None:
        """Waits until there may be something to take. Raises Problem, CometError."""

    async def take(self) -> Sequence[Frame] | frames.EndFrame:
        """The frames to write now, without waiting for more; or its end."""

    async def close(self) -> None:
        """Ends it, also after a `begin` that failed or was cancelled."""


async def pump(source: FrameSource, wire: Wire) -> frames.EndFrame:
    """Runs a subscription to its end. Cancelled to end it sooner. Raises Problem, CometError, Gone."""
    try:
        await source.begin()
        while True:
            await wire.room()
            await source.ready()
            await wire.room()  # other subscriptions may have filled the connection meanwhile
            taken = await source.take()
            if isinstance(taken, frames.EndFrame):
                return taken
            if taken:
                await wire.write(taken)
    finally:
        await source.close()
