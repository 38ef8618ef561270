"""Writing frames to a stream one at a time, in the turn of the loop in which there is one to write.

A task that waited for something to write would write one turn of the loop after it was woken. A Pump does what such a
task would do, driven by calls: it takes the coroutine of a write as far as it gets, and goes on when what that waits
for has come. The coroutine may wait for futures only, and must not ask for its task.

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
        """All there was has been written."""

    @abstractmethod
    def broke(self, error: Exception) -> None:
        """A write raised this; nothing more will be written."""

    @property
    def busy(self) -> bool:
        """A frame is on its way to the transport; the next ones follow by themselves."""
        return self._writing is not None

    def advance(self) -> None:
        """Writes until the transport asks to wait, or until there is nothing to write."""
        if self._writing is None:
            self._run()

    def stop(self) -> None:
        """The stream is over, whatever was being written."""
        self.stopped = True
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.close()

    def _go_on(self, awaited: asyncio.Future[Any]) -> None:
        if self._writing is not None:
            self._run()
        elif not awaited.cancelled():
            awaited.exception()  # the stream is over, and nobody wants to know how its last write did

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
        except Exception as error:  # noqa: BLE001 - it ends this stream, and not whoever caused the frame
            self._writing = None
            self.stopped = True
            self.broke(error)

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
