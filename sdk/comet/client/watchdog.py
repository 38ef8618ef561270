"""Detects an event loop that is blocked so long that a member's session may time out, and names the code.

A member beats on its loop. One thread in the process, which runs only while there are members, checks all of them: if
no beat came for half a session it logs the code that the loop's thread runs and, once the loop runs again, how long it
was blocked. A process that was stopped as a whole is told apart: then this thread stood still as well.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

log = logging.getLogger("comet")

# Beats and checks for each session timeout.
_BEATS: Final = 8
_COMET: Final = __file__.removesuffix("client/watchdog.py")


class Watch:
    """The watch on one member. Made and beaten on the loop's thread, checked on the watchdog's."""

    def __init__(self, watchdog: Watchdog | None) -> None:
        self._watchdog = watchdog
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.name = ""
        self.session_s = 0.0
        self.thread = 0
        self.beaten_s = 0.0
        self._holder = ""  # the code that blocked the loop last,
        self._stood_still_s = 0.0  # how long,
        self._until_s = 0.0  # and until when

    def start(self, name: str, session_s: float) -> None:
        self.name, self.session_s = name, session_s
        if self._watchdog is None:
            return
        self.thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self.beaten_s = self._watchdog.clock()
        if self._timer is not None:
            self._timer.cancel()
        self._watchdog.add(self)
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watchdog is not None:
            self._watchdog.remove(self)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.session_s / _BEATS, self._beat)

    def _beat(self) -> None:
        assert self._watchdog is not None
        self.beat(self._watchdog.clock())
        self._schedule()

    def beat(self, now_s: float) -> None:
        """Notes that the loop runs."""
        stood_still_s = now_s - self.beaten_s
        self.beaten_s = now_s
        if stood_still_s < self.session_s / 2:
            return
        self._stood_still_s, self._until_s = stood_still_s, now_s
        log.warning(
            "comet: %s: the event loop was blocked for %.1f s, of a session of %g s: %s",
            self.name, stood_still_s, self.session_s, self._holder or "the process was stopped or starved",
        )  # fmt: skip

    def check(self, now_s: float, frames: Mapping[int, FrameType]) -> None:
        """Checks whether the loop is blocked, and by which code. Called by the watchdog's thread."""
        still_s = now_s - self.beaten_s
        if still_s < self.session_s / 2:
            self._holder = "" if now_s > self._until_s + self.session_s else self._holder
            return
        if self._loop is not None and not self._loop.is_running():
            return  # a loop that ended with members on it is not blocked
        first = not self._holder
        self._holder = holder(frames.get(self.thread))
        if first:
            log.warning(
                "comet: %s: the event loop has been blocked for %.1f s, of a session of %g s, by %s; "
                "await slow calls, or move them to a thread with asyncio.to_thread",
                self.name, still_s, self.session_s, self._holder,
            )  # fmt: skip

    def explain(self) -> str:
        """A recent stall that may have cost the membership; empty if there is none."""
        if self._watchdog is None or not self._stood_still_s:
            return ""
        if self._watchdog.clock() > self._until_s + self.session_s:
            return ""
        who = f" by {self._holder}" if self._holder else ", the process was stopped or starved"
        return f"its event loop was blocked for {self._stood_still_s:.1f} s{who}"


class Watchdog:
    """The thread that checks all members; one per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="comet: watchdog", daemon=True)
                self._thread.start()
            self._changed.set()

    def remove(self, watch: Watch) -> None:
        with self._lock:
            self._watches.discard(watch)
            self._changed.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                watches = list(self._watches)
                self._changed.clear()
                if not watches:
                    self._thread = None
                    return
            pause_s = min(watch.session_s for watch in watches) / _BEATS
            began = self.clock()
            self._changed.wait(pause_s)
            now_s = self.clock()
            if now_s - began < 2 * pause_s + 0.1:  # else this thread was stopped too, so the loops are not to blame
                frames = sys._current_frames()
                for watch in watches:
                    watch.check(now_s, frames)


def holder(frame: FrameType | None) -> str:
    """The code that a thread runs: its innermost frame, and the caller outside of libraries."""
    if frame is None:
        return "unknown code"
    innermost = _location(frame)
    own: FrameType | None = frame
    while own is not None and _library(own.f_code.co_filename):
        own = own.f_back
    if own is None or own is frame:
        return innermost
    return f"{_location(own)}, in {innermost}"


def _location(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})"


def _library(filename: str) -> bool:
    return filename.startswith(("<", sys.base_prefix + "/lib", _COMET)) or "site-packages" in filename


PROCESS = Watchdog()
