"""The sending side of a stream: takes frames from their source and passes them to the transport, one at a time.

    session ─rouse─► StreamWriter ─► Outbox ─flush─► StreamWriter ─poll─► session
                                                          └─────────────► the transport's write

Frames are written in the same turn of the loop in which they arise. A task that waits for frames would write one turn
after it was woken; a StreamWriter does the same without a task: it runs the coroutine of a write as far as it gets, and
continues when the future that it awaits is done. The coroutine may wait for futures only, and must not ask for its
task. A transport without such a write takes the frames with `next_frame`.

Frames that one received frame causes for other streams are held in the outbox until it is handled, so that nothing is
written in the middle of a decision.

A writer belongs to one side of one stream, an Outbox to a server; everything runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from comet.errors import CometError
from comet.wire.frames import Frame, Outgoing, joined
from comet_broker.streams.answers import AnswerQueue

log = logging.getLogger(__name__)

Write = Callable[[Outgoing], Coroutine[Any, Any, None]]


class Outbox:
    """The writers with frames to write."""

    def __init__(self) -> None:
        self._roused: list[StreamWriter] = []
        self._held = False

    def add(self, writer: StreamWriter) -> None:
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


class ServedStream(Protocol):
    """One side of a stream, as a transport sees it."""

    @property
    def writer(self) -> StreamWriter:
        """Its sending side."""

    @property
    def closed(self) -> bool: ...
    @property
    def pause(self) -> Callable[[], Awaitable[None]] | None:
        """To be awaited before more is read; None: nothing is."""

    @property
    def answers(self) -> AnswerQueue:
        """While it is full, reading should pause."""

    def receive(self, frame: Frame, /) -> None:
        """Takes one frame of the other side. Raises a CometError only where the stream cannot go on."""

    def heard(self) -> None:
        """Called when a part of a frame has come, where a transport knows."""

    def input_over(self) -> None:
        """Called after the other side's last frame."""

    def close(self) -> None:
        """Removes everything of the session when the call is over."""


class StreamWriter:
    """Writes what `poll` returns.

    poll    the next frame to send, if there is one now
    over    whether `poll` has returned the last frame; asked when it returns None
    close   ends the stream, where the transport has nothing else to end
    """

    def __init__(
        self, poll: Callable[[], Outgoing | None], *, over: Callable[[], bool], close: Callable[[], object]
    ) -> None:
        self.stopped = False
        self.sent = 0  # frames
        self.failure: CometError | None = None  # why this side ended the call
        self.on_failure = close  # set by a transport that has something to end
        self._poll = poll
        self._over = over
        self._write: Write | None = None
        self._outbox: Outbox | None = None
        self._done: Callable[[Exception | None], None] | None = None
        self._roused = False
        self._writing: Coroutine[Any, Any, None] | None = None
        self._waiter: asyncio.Future[None] | None = None  # of `next_frame`

    def start(self, write: Write, outbox: Outbox, done: Callable[[Exception | None], None]) -> None:
        """Writes to a transport from now on. `done` is called once: after the last frame or `stop`, or with the error
        of a write, after which nothing more is written."""
        assert self._write is None and self._waiter is None
        self._write, self._outbox, self._done = write, outbox, done

    def rouse(self) -> None:
        """Called when there may be a frame to poll, or no more to come."""
        if self._outbox is not None:
            if not self._roused and self._writing is None:
                self._roused = True
                self._outbox.add(self)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def advance(self) -> None:
        """Writes until the transport asks to wait, or all is written."""
        self._roused = False
        if self._writing is None:
            self._run()

    def stop(self) -> None:
        """Stops with the stream, even in the middle of a write."""
        self._finish(None)

    def end_call(self, error: CometError) -> None:
        """Ends the call from this side; the transport sends the error to the other side, if it can."""
        if self.failure is None:
            self.failure = error
            self.on_failure()

    async def next_frame(self) -> bytes | None:
        """The next frame to send; None after the last. For a transport that takes frames itself."""
        assert self._write is None
        while True:
            frame = self._poll()
            if frame is not None:
                self.sent += 1
                return joined(frame)
            if self._over():
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _finish(self, error: Exception | None) -> None:
        self.stopped = True
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.close()
        done, self._done = self._done, None
        if done is not None:
            done(error)

    def _go_on(self, awaited: asyncio.Future[Any]) -> None:
        if self._writing is not None:
            self._run()
        elif not awaited.cancelled():
            awaited.exception()  # the stream is over; its last error is ignored

    def _run(self) -> None:
        assert self._write is not None
        try:
            while not self.stopped:
                if self._writing is None:
                    frame = self._poll()
                    if frame is None:
                        break
                    self.sent += 1
                    self._writing = self._write(frame)
                if not self._step(self._writing):
                    return
            if self._over():
                self._finish(None)
        except Exception as error:  # noqa: BLE001 - it ends this stream, not the caller that caused the frame
            self._writing = None
            self._finish(error)

    def _step(self, writing: Coroutine[Any, Any, None]) -> bool:
        """Runs the write as far as it gets; True if it is complete."""
        try:
            awaited: asyncio.Future[Any] = writing.send(None)
        except StopIteration:
            self._writing = None
            return True
        awaited._asyncio_future_blocking = False  # marks it as awaited, as a task does
        awaited.add_done_callback(self._go_on)
        return False
