"""Writes the frames of sessions to gRPC, in the turn of the loop in which they arise.

    Session ─rouse─► Outbox ─flush─► Writer ─poll─► Session
                                            └─────► gRPC's write

Frames that one client's frame causes for others are held until the broker has handled it, so that nothing is written in
the middle of a decision.

Everything runs on the loop's thread. One Outbox per server; a Writer lives as long as its call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import grpc.aio

from comet_broker.streams.pump import Pump
from comet_broker.streams.sender import FrameSender

log = logging.getLogger(__name__)

# What gRPC raises for a write to a call that has ended or is about to.
_GONE: Final = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError)


class Outbox:
    """The writers with frames to write."""

    def __init__(self) -> None:
        self._roused: list[Writer] = []
        self._held = False

    def add(self, writer: Writer) -> None:
        """Queues a writer for the next flush, in the next turn of the loop at the latest."""
        if not self._roused and not self._held:
            asyncio.get_running_loop().call_soon(self.flush)
        self._roused.append(writer)

    def hold(self) -> None:
        """Holds back until the caller flushes."""
        self._held = True

    def flush(self) -> None:
        self._held = False
        while self._roused:
            roused, self._roused = self._roused, []
            for writer in roused:
                try:
                    writer.advance()
                except Exception:  # an error of one stream must not delay the others
                    log.exception("a stream broke off")


class Writer(Pump):
    """Writes the frames of one session; sets `done` after the last."""

    def __init__(
        self, session: FrameSender, write: Callable[[bytes], Coroutine[Any, Any, None]], outbox: Outbox
    ) -> None:
        super().__init__(write)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session = session
        self._outbox = outbox
        self._roused = False
        session.listen(self.rouse)

    def rouse(self) -> None:
        if not self._roused and not self.busy:
            self._roused = True
            self._outbox.add(self)

    def advance(self) -> None:
        self._roused = False
        super().advance()

    def next(self) -> bytes | None:
        return self._session.poll()

    def rested(self) -> None:
        if self._session.over:
            self.stop()

    def write_failed(self, error: Exception) -> None:
        if isinstance(error, _GONE):
            log.debug("stream %d ended while writing: %r", self._session.number, error)
        elif not self.done.done():
            self.done.set_exception(error)
        self.stop()
        self._session.close()

    def stop(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        super().stop()
