"""Kills a process that neither answers nor ends, such as a Java that only collects garbage: the calls that wait for it
then fail as if it had died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class HangWatchdog:
    """Watches the calls of one thread to a process; the thread reports each answer with `answered`. After more than
    `checks` checks without an answer it calls `kill`, from a thread of its own; None: the process is not ours to kill.
    Time that the machine sleeps does not count."""

    def __init__(self, kill: Callable[[], object] | None, *, checks: int = 120, every_s: float = 1.0) -> None:
        self._kill = kill
        self._checks = checks
        self._every_s = every_s
        self._unanswered = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang watchdog", daemon=True)

    def answered(self) -> None:
        self._unanswered = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> bool:
        """Counts a check; kills the process and returns True if it was one too many."""
        self._unanswered += 1
        if self._kill is None or self._unanswered <= self._checks:
            return False
        self._kill()
        return True

    def _watch(self) -> None:
        while not self._over.wait(self._every_s) and not self.check():
            pass
