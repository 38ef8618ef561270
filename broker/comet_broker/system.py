"""The real clock and the real worker threads."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_STATM: Final = Path("/proc/self/statm")


def boot_id() -> str:
    """An id of the machine's current boot; empty if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class SystemClock:
    """ports.Clock."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class SystemProcess:
    """ports.Process."""

    def cpu_s(self) -> float | None:
        return time.process_time()

    def memory_bytes(self) -> int | None:
        try:
            return int(_STATM.read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError, ValueError):
            return None


class ThreadWorker:
    """ports.Worker: a small pool of threads for fsync and cold reads. Owned by the server."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="comet-worker")

    async def run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
