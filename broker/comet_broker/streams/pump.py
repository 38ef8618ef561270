"""Writes frames to a stream one at a time, in the same turn of the loop in which they arise.

A task that waits for frames would write one turn of the loop after it was woken. A Pump does the same without a task:
it runs the coroutine of a write as far as it gets, and continues when the future that it awaits is done. The coroutine
may wait for futures only, and must not ask for its task.

Owned by one side of one stream; everything runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any


class Pump(ABC):
    def __init__(self, write: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self.stopped = False
        self._write = write
        self._writing: Coroutine[Any, Any, None] | None = None

    @abstractmethod
    def next(self) -> bytes | None:
        """The next frame to write, if there is one now."""

    @abstractmethod
    def rested(self) -> None:
        """Called when all frames are written."""

    @abstractmethod
    def write_failed(self, error: Exception) -> None:
        """Called when a write raised this; nothing more will be written."""

    @property
    def busy(self) -> bool:
        """A frame is being written; the next ones follow by themselves."""
        return self._writing is not None

    def advance(self) -> None:
        """Writes until the transport asks to wait, or until there is nothing to write."""
        if self._writing is None:
            self._run()

    def stop(self) -> None:
        """Stops with the stream, even in the middle of a write."""
        self.stopped = True
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.close()

    def _go_on(self, awaited: asyncio.Future[Any]) -> None:
        if self._writing is not None:
            self._run()
        elif not awaited.cancelled():
            awaited.exception()  # the stream is over; its last error is ignored

    def _run(self) -> None:
        try:
            while not self.stopped:
                if self._writing is None:
                    frame = self.next()
                    if frame is None:
                        break
                    self._writing = self._write(frame)
                if not self._step(self._writing):
                    return
            self.rested()
        except Exception as error:  # noqa: BLE001 - it ends this stream, not the caller that caused the frame
            self._writing = None
            self.stopped = True
            self.write_failed(error)

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
