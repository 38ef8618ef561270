"""Sending what sessions have to say, in the turn of the loop in which they have it.

    Session ─rouse─► Outbox ─flush─► Writer ─poll─► Session
                                            └─────► gRPC's write

A task that waited for its session would write one turn of the loop after it was woken, which is a fair part of the
way of a single event. A Writer does what such a task would do, driven by calls. What a frame of one client sets off
for others is held until the broker is done with it, so that nobody is written to in the middle of a decision.

Everything runs on the loop's thread. One Outbox per server; a Writer lives as long as its call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import grpc.aio

from comet_broker.speaker import Speaker

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
                writer.advance()


class Writer:
    """Writes the frames of one session, one at a time; `done` when there will be no more."""

    def __init__(self, session: Speaker, write: Callable[[bytes], Coroutine[Any, Any, None]], outbox: Outbox) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session = session
        self._write = write
        self._outbox = outbox
        self._writing: Coroutine[Any, Any, None] | None = None
        self._roused = False
        session.listen(self.rouse)

    def rouse(self) -> None:
        if not self._roused and self._writing is None:
            self._roused = True
            self._outbox.add(self)

    def advance(self) -> None:
        """Writes until gRPC asks to wait, or until there is nothing to write."""
        self._roused = False
        if self._writing is None:
            self._run()

    def stop(self) -> None:
        """The call is over, whatever was being written."""
        if not self.done.done():
            self.done.set_result(None)
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.close()

    def _go_on(self, _: asyncio.Future[Any]) -> None:
        if self._writing is not None:
            self._run()

    def _run(self) -> None:
        try:
            while not self.done.done():
                if self._writing is None:
                    frame = self._session.poll()
                    if frame is None:
                        break
                    self._writing = self._write(frame)
                if not self._step(self._writing):
                    return
            if self._session.over:
                self.stop()
        except _GONE as error:
            log.debug("stream %d ended while writing: %r", self._session.number, error)
            self._break_off(None)
        except Exception as error:  # noqa: BLE001 - it ends this call, and not that of whoever caused the frame
            self._break_off(error)

    def _step(self, writing: Coroutine[Any, Any, None]) -> bool:
        """Takes the write as far as it gets; True if it is through."""
        try:
            awaited: asyncio.Future[Any] = writing.send(None)
        except StopIteration:
            self._writing = None
            return True
        awaited._asyncio_future_blocking = False  # as a task says that it has taken note
        awaited.add_done_callback(self._go_on)
        return False

    def _break_off(self, error: Exception | None) -> None:
        self._writing = None
        if error is not None and not self.done.done():
            self.done.set_exception(error)
        self.stop()
        self._session.close()
