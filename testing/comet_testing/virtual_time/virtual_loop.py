"""The event loop of a test on virtual time, and the kinds of its timers.

    housekeeping    timers of brokers and clients: heartbeats, leases, time-outs
    user's timers   those of the user's own code, and of sources
    pauses          of handlers between two attempts

Where only housekeeping happens, time can be skipped: wall clocks go forward and the user's timers come nearer, and
housekeeping stays as far away as it was. A pause is not skipped. See advance.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from enum import Enum, auto
from pathlib import Path
from types import CodeType
from typing import Any, Final, TypeVar

import comet
import comet_broker
from comet_testing.simulation.clock import START_US
from comet_testing.simulation.loop import Node, SimLoop, SimTimerHandle
from comet_testing.virtual_time.patched_time import patched_time

T = TypeVar("T")

_SDK: Final = str(Path(comet.__file__).parent)
_OURS: Final = (
    str(Path(asyncio.__file__).parent), _SDK, str(Path(comet_broker.__file__).parent), str(Path(__file__).parents[1]),
)  # fmt: skip
# Sources wait for the user; so does a handler between two attempts, by monotonic time.
_SOURCES: Final = f"{_SDK}/sources/"
_PAUSE: Final = "GroupServing.pause"
_ASYNCIO: Final = _OURS[0]
WATCHED_MAX: Final = 4_096  # before those that are over are dropped


class Kind(Enum):
    """Of a timer."""

    HOUSEKEEPING = auto()
    USER = auto()
    PAUSE = auto()


class VirtualLoop(SimLoop):
    """Time is virtual; work for threads is done at once, in no time."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_us = 0  # in which nothing was due
        self._kinds: dict[CodeType, Kind] = {}  # of the timers that this code sets
        self._watched: dict[SimTimerHandle, Kind] = {}  # all but housekeeping

    def wall_us(self) -> int:
        return START_US + int(self.time() * 1_000_000) + self.skipped_us

    def elapsed_s(self) -> float:
        """Since the start, with what was skipped."""
        return self.time() + self.skipped_us / 1_000_000

    # ---- timers

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        kind = self._kind_of(sys._getframe(1))
        if kind is not Kind.HOUSEKEEPING:
            assert isinstance(timer, SimTimerHandle)
            self._watched[timer] = kind
            if len(self._watched) > WATCHED_MAX:
                self._watched = self._waiting()
        return timer

    def _kind_of(self, frame: Any) -> Kind:
        """Decided by the innermost code outside asyncio."""
        while frame is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
            frame = frame.f_back
        if frame is None:
            return Kind.HOUSEKEEPING
        code = frame.f_code
        found = self._kinds.get(code)
        if found is None:
            name = code.co_filename
            users = name.startswith(_SOURCES) or not name.startswith(_OURS)
            pauses = name.startswith(_SDK) and code.co_qualname == _PAUSE
            found = Kind.USER if users else Kind.PAUSE if pauses else Kind.HOUSEKEEPING
            self._kinds[code] = found
        return found

    def _waiting(self) -> dict[SimTimerHandle, Kind]:
        """Timers that still wait, in processes that live."""
        return {
            timer: kind
            for timer, kind in self._watched.items()
            if timer._scheduled and not timer.cancelled()  # type: ignore[attr-defined]
            and (timer.node is None or not timer.node.dead)
        }  # fmt: skip

    def user_timer_s(self) -> float | None:
        """Seconds to the user's next timer, 0 during a pause; None without either."""
        waiting = self._waiting()
        first = min((timer.when() for timer in waiting), default=None)
        if first is None:
            return None
        return 0.0 if Kind.PAUSE in waiting.values() else first - self.time()

    def waits(self, node: Node) -> bool:
        """Whether the user's code in a process waits for time to pass."""
        return any(timer.node is node for timer in self._waiting())

    def skip(self, seconds: int) -> None:
        """Moves wall time forward, and the user's timers with it."""
        self.skipped_us += seconds * 1_000_000
        self._watched = self._waiting()
        for timer in self._watched:
            timer._when -= seconds  # type: ignore[attr-defined]
        heapq.heapify(self._scheduled)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        else:
            future.set_result(result)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a virtual loop, and ends everything it started. Raises what the coroutine raises, and
    AssertionError for an exception that no task took."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with patched_time(loop.wall_us, loop.elapsed_s):
            result = loop.run_until_complete(main)
    finally:
        try:
            loop.finish()
        finally:
            asyncio.set_event_loop(None)
    if loop.unhandled:
        raise AssertionError("exceptions that no task took:\n" + "\n".join(loop.unhandled))
    return result
