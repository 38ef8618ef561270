"""How a program ends: at a signal in order, and with one line for an error."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext

import pytest

import comet
from comet.processes.program import run, until_first_ends, until_stopped


def failing(error: Exception) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (comet.Unavailable("no broker"), 1),
        (comet.InvalidArgument("no broker"), 2),
        (ExceptionGroup("two", [ExceptionGroup("one", [comet.Unavailable("no broker")]), OSError()]), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("prices", failing(error))
    assert ended.value.code == code
    assert capsys.readouterr().err == "prices: no broker\n"


def test_an_unexpected_error_is_raised() -> None:
    with pytest.raises(OSError, match="disk"):
        run("prices", failing(ExceptionGroup("one", [OSError("disk")])))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_work_in_order(number: signal.Signals) -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    comet.run(until_stopped(work()))
    assert ended == [True]


@pytest.mark.parametrize("error", [None, comet.Unavailable("no broker")])
async def test_the_first_part_to_end_ends_the_others(error: Exception | None) -> None:
    cancelled: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.append(True)

    async def ending() -> None:
        if error is not None:
            raise error

    with pytest.raises(type(error)) if error is not None else nullcontext():
        await until_first_ends(endless(), ending(), endless())
    assert cancelled == [True, True]
