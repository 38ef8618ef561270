"""The sending side of a stream without its transport: the common part of Session and ReplicaSession."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from comet.errors import CometError


class FrameSender(ABC):
    """A source of frames. A transport takes them with `poll` and is called back, or waits for them in `next_frame`."""

    def __init__(self, number: int, peer: str) -> None:
        self.number = number
        self.peer = peer
        self.closed = False
        self.failure: CometError | None = None  # why this side ended the call
        self.on_failure: Callable[[], object] = self.close  # set by a transport that has something to end
        self._writer: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None

    @abstractmethod
    def poll(self) -> bytes | None:
        """The next frame to send, if there is one now."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether `poll` returns the last frames now."""

    async def next_frame(self) -> bytes | None:
        """The next frame to send; None after the last."""
        while True:
            frame = self.poll()
            if frame is not None:
                return frame
            if self.over:
                return None
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls back whenever there may be a frame to `poll`, or no more to come; instead of `next_frame`."""
        assert self._listener is None and self._writer is None
        self._listener = listener

    def end_call(self, error: CometError) -> None:
        """Ends the call from this side; the transport sends the error to the other side, if it can."""
        if self.failure is None and not self.closed:
            self.failure = error
            self.on_failure()

    def rouse(self) -> None:
        """Called when there may be a frame to poll."""
        if self._listener is not None:
            self._listener()
        elif self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    # ---- the transport's view of the other direction

    @abstractmethod
    def receive(self, frame: bytes) -> None:
        """Takes one frame of the other side. Raises a CometError only where the stream cannot go on."""

    @property
    @abstractmethod
    def backlogged(self) -> bool:
        """Whether so many answers are queued that no more frames should be read."""

    @abstractmethod
    async def relieved(self) -> None:
        """Waits until half of the backlog is sent."""

    @abstractmethod
    def input_over(self) -> None:
        """Called after the other side's last frame."""

    @abstractmethod
    def close(self) -> None:
        """Removes everything of the session when the call is over."""
