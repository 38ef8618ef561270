"""How a program ends: in order at a signal, with the first of its parts, and with one line for an error."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from comet.errors import CometError, InvalidArgument
from comet.processes.logs import PROGRAM_TEXT, log_format_of, logs_json, set_up_logging


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Runs the work until it ends, or until a signal cancels it."""
    running = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


async def until_first_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs the parts of a program until one of them ends, and cancels the others. Raises the error of the one."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(module: str, main: Callable[[], None]) -> None:
    """Runs a program, with its log. A CometError is logged as one line, and gives exit code 1, or 2 for an invalid
    argument."""
    try:
        set_up_logging("warning", log_format_of(os.environ), PROGRAM_TEXT)
        main()
    except (CometError, ExceptionGroup) as error:
        cause = _cause(error)
        if logs_json():
            logging.getLogger(module).error("%s", cause)
        else:
            print(f"{module}: {cause}", file=sys.stderr, flush=True)  # noqa: T201 - what a terminal program does
        raise SystemExit(2 if isinstance(cause, InvalidArgument) else 1) from None


def _cause(error: Exception) -> CometError:
    """The first CometError of a group; any other error is raised."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, CometError):
        raise error
    return error
