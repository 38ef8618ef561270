"""The functions of `time`, on the clock of a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock


@contextmanager
def patched_time(wall_us: Callable[[], int], monotonic: Callable[[], float]) -> Iterator[None]:
    """While the block runs, time.time, time.time_ns, time.monotonic and time.monotonic_ns are virtual."""
    virtual: dict[str, Callable[[], Any]] = {
        "time": lambda: wall_us() / 1_000_000,
        "time_ns": lambda: wall_us() * 1_000,
        "monotonic": monotonic,
        "monotonic_ns": lambda: int(monotonic() * 1_000_000_000),
    }
    with ExitStack() as stack:
        for name, function in virtual.items():
            stack.enter_context(mock.patch.object(time, name, function))
        yield
