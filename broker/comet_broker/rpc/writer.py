"""Sending what sessions have to say, in the turn of the loop in which they have it.

    Session ─rouse─► Outbox ─flush─► Writer ─poll─► Session
                                            └─────► gRPC's write

What a frame of one client sets off for others is held until the broker is done with it, so that nobody is written to in
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
from comet_broker.streams.sender import Speaker

log = logging.getLogger(__name__)

# What gRPC raises for a write to a call that has ended or is about to.
_GONE: Final = (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError)


class Outbox:
    """The writers that have something to do."""

    def __init__(self) -> None:
        self._roused: list[Writer] = []
        self._held = False

    def add(self, writer: Writer) -> None:
        """To be advanced by the next flush, which comes in the next turn of the loop at the latest."""
        if not self._roused and not self._held:
            asyncio.get_running_loop().call_soon(self.flush)
        self._roused.append(writer)

    def hold(self) -> None:
        """The caller is going to flush by itself."""
        self._held = True

    def flush(self) -> None:
        self._held = False
        while self._roused:
            roused, self._roused = self._roused, []
            for writer in roused:
                try:
                    writer.advance()
                except Exception:  # one stream's error is not to hold up the others'
                    log.exception("a stream broke off")


class Writer(Pump):
    """Writes the frames of one session; `done` when there will be no more."""

    def __init__(self, session: Speaker, write: Callable[[bytes], Coroutine[Any, Any, None]], outbox: Outbox) -> None:
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

    def broke(self, error: Exception) -> None:
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
