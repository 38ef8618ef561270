"""Output of child processes: lines of a pipe with a deadline, lines passed on with a prefix, the end of a log."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from comet.errors import Timeout
from comet.processes.logs import message_in

LINE_BYTES_MAX: Final = 64 << 20
RELAYED_BYTES_MAX: Final = 64 << 10  # of a line; a longer one is passed on in parts
TAIL_BYTES: Final = 16_384
TAIL_LINES: Final = 20
SHOWN_CHARS_MAX: Final = 300


class PipeLines:
    """Lines of a pipe with a deadline. Owned by one child; blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = bytearray()

    def next(self, within_s: float) -> bytes | None:
        """The next line; None if the other side has closed, or its line is too long. Raises Timeout."""
        deadline = time.monotonic() + within_s
        searched = 0
        while (end := self._held.find(b"\n", searched)) < 0:
            searched = len(self._held)
            readable, _, _ = select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise Timeout(f"no line for {within_s:.0f} s")
            chunk = os.read(self._descriptor, 1 << 16)
            if not chunk or len(self._held) > LINE_BYTES_MAX:
                return None
            self._held += chunk
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line


class Relay:
    """Passes the lines of a pipe on to our stderr, text with a prefix, and remembers the last ones. A thread of its own
    reads, until the child and its children have closed the pipe."""

    def __init__(self, pipe: IO[bytes], prefix: str) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pipe = pipe
        self._prefix = prefix
        self._thread = threading.Thread(target=self._run, name=f"output of {prefix}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._pipe, suppress(ValueError):
            while line := self._pipe.readline(RELAYED_BYTES_MAX):
                text = line.decode(errors="replace").rstrip()
                message = message_in(text)
                self.tail.append(message)
                with suppress(OSError, ValueError):  # our own stderr is closed
                    sys.stderr.write(f"{self._prefix}: {text}\n" if message is text else f"{text}\n")

    def wait(self, within_s: float) -> None:
        """Returns when all lines have been passed on, or after a time: a grandchild may keep the pipe open."""
        self._thread.join(within_s)


def log_lines(log: Path, start: int) -> list[str]:
    """The last lines of a log file, without empty ones, from an offset on."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL_BYTES))
        lines = [
            message_in(line.strip())[:SHOWN_CHARS_MAX] for line in file.read().decode(errors="replace").splitlines()
        ]
        return [line for line in lines if line]
    return []
