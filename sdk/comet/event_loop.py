"""Event loops: the fastest one installed, and one in a background thread for synchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from comet.errors import Closed, InvalidArgument, Timeout

T = TypeVar("T")

# A signal that comes in the moment before a wait begins does not end it; Python looks for it between two waits.
_LOOK_S: Final = 0.5

_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's loop factory; None if it is not installed, as on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as asyncio.run does, on uvloop if it is installed: its latency is a third lower.

    >>> async def main() -> str:
    ...     return "done"
    >>> comet.run(main())
    'done'
    """
    if _is_running():
        main.close()
        raise RuntimeError(
            "an event loop is running here already, as it does in a notebook: await there what is to run, "
            "of an app `await app.serve()`"
        )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def _is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# ---- the background loop


def _background_loop() -> asyncio.AbstractEventLoop:
    """The loop of all synchronous objects, started at first use."""
    global _loop, _thread  # noqa: PLW0603 - exactly one per process
    with _starting:
        if _loop is None or _thread is None or not _thread.is_alive():
            _loop = (loop_factory() or asyncio.new_event_loop)()
            _thread = threading.Thread(target=_loop.run_forever, name="comet", daemon=True)
            _thread.start()
        return _loop


def begin(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Starts a coroutine on the background loop without waiting."""
    if sys.is_finalizing():
        work.close()
        raise Closed("the program is ending, and comet.sync with it: close producers and consumers before")
    loop = _background_loop()
    if threading.current_thread() is _thread:
        work.close()
        raise InvalidArgument("comet.sync cannot be used on its own event loop; use the asynchronous classes there")
    return asyncio.run_coroutine_threadsafe(work, loop)


def call(work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs a coroutine on the background loop and waits for it; when the wait is interrupted, it is cancelled."""
    future = begin(work)
    try:
        if not _ended(future, timeout_s):
            raise Timeout(f"no result within {timeout_s} s")
        return future.result()
    finally:
        future.cancel()


def _ended(future: concurrent.futures.Future[T], timeout_s: float | None) -> bool:
    """Waits for the end of a call, with a lock of its own.

    Ctrl-C in `future.result` can hit threading.Condition between its locks, and comes out as a RuntimeError."""
    waiting = threading.Lock()
    waiting.acquire()
    # On the loop's thread: an interrupt here could leave the future locked, and the loop waiting for it.
    _background_loop().call_soon_threadsafe(future.add_done_callback, lambda _: waiting.release())
    end = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not waiting.acquire(timeout=max(0.0, min(end - time.monotonic(), _LOOK_S))):
        if time.monotonic() >= end:
            return False
    return True


async def computed(function: Callable[[], T]) -> T:
    """Runs a function on the background loop and returns its result."""
    return function()


async def awaited(function: Callable[[], Awaitable[T]]) -> T:
    """Calls a function on the background loop and awaits its result."""
    return await function()
