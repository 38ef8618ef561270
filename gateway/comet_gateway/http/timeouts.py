"""Time limits that cost nothing if the work does not wait.

`asyncio.timeout` sets a timer and cancels it, which is a good part of the cost of a small request; most of the time
the result is there already. So the work starts first, and the timer is set when it has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
LATE_S: Final = 1.0  # of a timer, on a busy machine; later: this process was paused


async def until(deadline: float | Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, with a deadline in loop time; a function is called only if the work has to wait.

    Raises TimeoutError, and the errors of that function."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    try:
        timeout = asyncio.timeout_at(deadline() if callable(deadline) else deadline)
    except BaseException:
        work.close()
        raise
    async with timeout:
        return await _resumed(work, awaited)


@coroutine
def _resumed(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Continues the started work, which waits for `awaited`."""
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - thrown in by a cancellation
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        found: T = done.value
        return found
