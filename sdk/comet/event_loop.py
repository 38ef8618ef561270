"""Runs a coroutine on the fastest event loop installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
