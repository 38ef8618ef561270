"""Signals of a program with child processes: its stop signals, and signals that wait until a start is complete."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Waits for stop signals and deaths of child processes."""

    def __init__(self) -> None:
        self.stops = 0
        self._wake, self._written = socket.socketpair()

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._wake.setblocking(False)
        self._written.setblocking(False)
        earlier = {number: signal.signal(number, self._on_stop) for number in STOP_SIGNALS}
        earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        descriptor = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in earlier.items():
                signal.signal(number, handler)
            self._wake.close()
            self._written.close()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1

    def wait(self, timeout_s: float) -> None:
        """Returns at the next signal, or after the timeout."""
        select.select([self._wake], [], [], timeout_s)
        try:
            while self._wake.recv(4096):
                pass
        except BlockingIOError:
            return


@contextmanager
def held_back() -> Iterator[None]:
    """Delays signals until the end of the block: in the middle of it, a process that is started but not yet recorded
    would be left behind. Not for a program whose event loop handles the signals."""
    delayed: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        delayed.append(number)

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for one in delayed:
            signal.raise_signal(one)
