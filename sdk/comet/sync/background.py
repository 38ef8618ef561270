"""The event loop of comet.sync: one in a background thread, shared by all synchronous objects."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from comet.client.client import Addresses
from comet.errors import Closed, InvalidArgument, Timeout
from comet.event_loop import loop_factory

T = TypeVar("T")

_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


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
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise
        raise Timeout(f"no result within {timeout_s} s") from None
    finally:
        future.cancel()


async def made(cls: Any, addresses: Addresses, settings: dict[str, Any], *names: str) -> Any:
    """Makes an asynchronous object on the background loop."""
    return cls(addresses, *names, **settings)


async def computed(function: Callable[[], T]) -> T:
    """Runs a function on the background loop and returns its result."""
    return function()
