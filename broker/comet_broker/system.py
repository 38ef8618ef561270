"""The real clock and the real worker threads."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_GROUPS: Final = Path("/proc/self/cgroup")
_MEMORY: Final = Path("/proc/meminfo")
_STATM: Final = Path("/proc/self/statm")
_STATM_BYTES: Final = 256
_SWITCH_S: Final = 0.0005


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
            return int(os.pread(_open_statm(), _STATM_BYTES, 0).split()[1]) * resource.getpagesize()
        except (OSError, IndexError, ValueError):
            return None

    def memory_limit_bytes(self) -> int | None:
        found = [_physical_bytes(), *_group_limits(_GROUPS)]
        return min((one for one in found if one is not None), default=None)

    def trim_memory(self) -> None:
        if _malloc_trim is not None:
            _malloc_trim(0)


@lru_cache(maxsize=1)
def _open_statm() -> int:
    """A descriptor that stays open: opening the file again takes most of a look, which follows each large frame."""
    return os.open(_STATM, os.O_RDONLY)


def share_one_heap() -> None:
    """Makes all threads of this process allocate from one heap. Call it before the first of them starts.

    By default glibc gives each thread a heap. What one thread frees is then of no use to the others, so that a broker
    whose workers read logs for many readers holds twice the memory that it uses. The environment's own choice stays.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and "GLIBC_TUNABLES" not in os.environ and _mallopt is not None:
        _mallopt(_M_ARENA_MAX, 1)


def prefer_the_loop() -> None:
    """Lets the thread of the loop have the interpreter soon after it asks for it, while a worker computes.

    It asks for it after each call that may wait, several times for one record. By default it gets it after 5 ms.
    """
    sys.setswitchinterval(_SWITCH_S)


def _of_glibc(name: str, *argument_types: type) -> Callable[..., int] | None:
    """A function that only glibc has."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = argument_types
    found: Callable[..., int] = function
    return found


_M_ARENA_MAX: Final = -8  # of malloc.h
_mallopt: Final = _of_glibc("mallopt", ctypes.c_int, ctypes.c_int)
_malloc_trim: Final = _of_glibc("malloc_trim", ctypes.c_size_t)


def _physical_bytes() -> int | None:
    """The machine's memory; None if unknown."""
    try:
        lines = _MEMORY.read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    except (OSError, ValueError, StopIteration):
        return None


def _group_limits(groups: Path, root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """The memory limits of the process's control group and all above it, of either version. Within a container the
    group may have another path than it is listed under: then the root of what is mounted is the container's."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        for folder in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            try:
                found.append(int((top / folder / name).read_text()))
            except (OSError, ValueError):  # the root has none, or the limit is "max"
                continue
    return found


class ThreadWorker:
    """ports.Worker: a small pool of threads for fsync and cold reads. Owned by the server."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="comet-worker")

    async def run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
