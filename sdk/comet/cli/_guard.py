"""The boundary around every command: errors become one line and an exit code, never a traceback."""

from __future__ import annotations

import functools
import gc
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

import typer

from comet.cli._connection import connecting
from comet.cli._exit import ERROR, INTERRUPTED, OK, exit_code
from comet.cli._output import abandon_stdout, note, report_error
from comet.errors import CometError, Internal

P = ParamSpec("P")
DEBUG_VARIABLE = "COMET_DEBUG"


def guarded(command: Callable[P, Awaitable[None]] | Callable[P, None]) -> Callable[P, None]:
    """Runs a command, async ones on uvloop. The signature stays visible to typer, with --context where it connects."""
    connected = connecting(command)
    is_async = inspect.iscoroutinefunction(command)

    @functools.wraps(connected)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            _set_up_logging()
            if not is_async:
                gc.enable()
            outcome = connected(*arguments, **options)
            if inspect.isawaitable(outcome):
                run_async(outcome)
        except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - this is the boundary: no traceback passes
            code = _report(error, as_json=options.get("json_output") is True)
            raise typer.Exit(code) from None

    return run


def _set_up_logging() -> None:
    """In JSON what goes wrong is logged too; people see the command's own messages alone. A server sets up its own."""
    if os.environ.get("COMET_LOG_FORMAT"):
        from comet.processes.logs import log_format_of, set_up_logging

        if log_format_of(os.environ) == "json":
            set_up_logging("warning", "json")


def run_async(work: Awaitable[None]) -> None:
    """Runs `work` on uvloop, which halves the cost of a loop turn, or on asyncio's loop if it is missing (Windows)."""
    import asyncio

    async def main() -> None:
        asyncio.get_running_loop().call_soon(gc.enable)  # at its first wait: what it needs is imported by then
        await work

    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


def _report(error: BaseException, *, as_json: bool) -> int:
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if os.environ.get(DEBUG_VARIABLE) and not isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        raise error
    match error:
        case CometError():
            report_error(error, as_json=as_json)
            return exit_code(error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():  # the reader closed the pipe, as `head` does
            abandon_stdout()
            return OK
        case OSError():
            note(f"error: {_describe(error)}")
            return ERROR
        case typer.Abort():
            raise error
        case _ if type(error).__module__.startswith("typer"):  # wrong usage found in a command's body
            raise error
        case _:
            report_error(Internal(f"{type(error).__name__}: {error}"), as_json=as_json)
            return ERROR


def _describe(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def reraise_all(flag: bool) -> None:
    """`comet --debug`: shows tracebacks. Set in the environment, for child processes too."""
    if flag:
        os.environ[DEBUG_VARIABLE] = "1"


def drop_nones(**options: Any) -> dict[str, Any]:
    """The given options only; the SDK has the defaults."""
    return {name: value for name, value in options.items() if value is not None}
