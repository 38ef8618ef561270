"""Ctrl-C while synchronous code waits for the background loop: a KeyboardInterrupt, wherever it strikes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import comet
from comet import event_loop


@pytest.fixture
def interrupts() -> Iterator[None]:
    before, tracer = signal.signal(signal.SIGINT, signal.default_int_handler), sys.gettrace()
    yield
    sys.settrace(tracer)
    signal.signal(signal.SIGINT, before)


async def _endless() -> None:
    await asyncio.get_running_loop().create_future()


def interrupted_at(line: int) -> BaseException:
    """The error of a wait that is interrupted at its n-th line, those of the modules below it included; at its end
    without one."""
    passed = 0

    def local(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal passed
        passed += event == "line"
        if event == "line" and passed == line:
            os.kill(os.getpid(), signal.SIGINT)
        return local

    def tracer(frame: FrameType, _event: str, _argument: Any) -> Any:
        return local if frame.f_code.co_name in ("_ended", "wait", "result") else None

    sys.settrace(tracer)
    try:
        event_loop.call(_endless(), 0.01)
    except BaseException as error:  # noqa: BLE001 - which one is the question
        return error
    finally:
        sys.settrace(None)
    raise AssertionError("the wait has no end")


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_is_a_keyboard_interrupt_at_each_line_of_the_wait() -> None:
    event_loop.call(asyncio.sleep(0))  # starts the loop, which is a wait of its own
    kinds = [type(interrupted_at(line)) for line in range(1, 40)]
    struck = kinds.index(comet.Timeout)  # no such line any more
    assert struck >= 4
    assert set(kinds[:struck]) == {KeyboardInterrupt}
    assert set(kinds[struck:]) == {comet.Timeout}


def test_a_result_and_an_error_pass_and_a_late_one_is_a_timeout() -> None:
    async def failing() -> None:
        raise TimeoutError("of the work itself")

    assert event_loop.call(asyncio.sleep(0, 7)) == 7
    with pytest.raises(TimeoutError, match="of the work itself"):
        event_loop.call(failing())
    with pytest.raises(comet.Timeout, match=r"no result within 0 s"):
        event_loop.call(_endless(), 0)
