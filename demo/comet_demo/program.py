"""How the demo's programs end: in order at a signal, and with one line for an error."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import comet


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs the work until it ends, or until a signal cancels it."""
    running = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


def run(module: str, main: Callable[[], None]) -> None:
    """Runs a program. A CometError is printed as one line, and gives exit code 1, or 2 for an invalid argument."""
    try:
        main()
    except (comet.CometError, ExceptionGroup) as error:
        cause = _cause(error)
        print(f"{module}: {cause}", file=sys.stderr, flush=True)  # noqa: T201 - what a terminal program does
        raise SystemExit(2 if isinstance(cause, comet.InvalidArgument) else 1) from None


def _cause(error: Exception) -> comet.CometError:
    """The first CometError of a group; any other error is raised."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, comet.CometError):
        raise error
    return error
