"""The frames that wait to be sent on one connection: control frames, and sources of produce frames.

Produce frames are pulled, not queued: a source is asked for its next batch when the stream can take one. So a waiting
batch still takes records, nothing piles up in front of a slow broker, and a batch that becomes ready while the stream
is idle is written in the next turn of the loop. While the client is over its quota, sources wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from comet import limits
from comet.errors import LimitExceeded
from comet.wire.frames import Outgoing

log = logging.getLogger("comet")


class FrameSource(Protocol):
    """A source of produce frames."""

    def next_frame(self, queue: SendQueue) -> Outgoing | None:
        """The next frame, or None when there is none now; called again only after `SendQueue.ready`."""

    def leave(self, queue: SendQueue) -> None:
        """Called instead of `next_frame` once the broker shuts down. Batches in flight are still answered."""


class SendQueue:
    """Owned by a connection, whose writer takes the frames. Control frames go first."""

    def __init__(self, address: str, *, over_wire: bool = False) -> None:
        self.over_wire = over_wire  # a frame costs a third of one of gRPC
        self._address = address
        self._control: deque[bytes] = deque()
        self._ready: deque[FrameSource] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._held: asyncio.TimerHandle | None = None  # until sources are asked again
        self._was_held = False

    def put(self, frame: bytes) -> None:
        """Queues a control frame."""
        if len(self._control) >= limits.CONTROL_FRAMES_MAX:
            raise LimitExceeded(f"{len(self._control)} frames wait to be sent to {self._address}")
        self._control.append(frame)
        self.wake()

    @property
    def waiting(self) -> bool:
        """Whether control frames wait to be sent."""
        return bool(self._control)

    def ready(self, source: FrameSource) -> None:
        """Queues a source that has a frame to send. The source makes sure that it is queued once at most."""
        self._ready.append(source)
        if self._wake is not None and not self._wake.done():  # as `wake`, without a call for each batch
            self._wake.set_result(None)

    def wake(self) -> None:
        """Wakes the writer."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def hold(self, hold_s: float) -> None:
        """Asks no source for so long, because the client is over its quota. The broker would read nothing after another
        batch."""
        if not self._was_held:
            log.info("comet: over the quota at %s: this client sends more slowly", self._address)
        self._was_held = True
        if self._held is not None:
            self._held.cancel()
        self._held = asyncio.get_running_loop().call_later(hold_s, self._go_on)

    @property
    def held(self) -> bool:
        return self._held is not None

    def _go_on(self) -> None:
        self._held = None
        self.wake()

    def changed(self) -> asyncio.Future[None]:
        """Done at the next change."""
        self._wake = asyncio.get_running_loop().create_future()
        return self._wake

    def next_frame(self, leaving: bool) -> Outgoing | None:
        """The next frame, or None when there is none now. Of a broker that is `leaving`, sources take leave."""
        if self._control:
            return self._control.popleft()
        if leaving:
            while self._ready:
                self._ready.popleft().leave(self)
            return None
        while self._ready and self._held is None:
            frame = self._ready.popleft().next_frame(self)
            if frame is not None:
                return frame
        return None

    def clear(self) -> None:
        self._control.clear()
        self._ready.clear()
        if self._held is not None:
            self._held.cancel()
