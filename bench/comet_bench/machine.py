"""The machine that a benchmark ran on, and the CPU and memory of a process, from /proc without further packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")
_CLOCK_OF_PROCESS: Final = 2  # beside the complement of its id: CPUCLOCK_SCHED
_PACKAGES: Final = (
    "grpcio",
    "protobuf",
    "uvloop",
    "msgspec",
    "crc32c",
    "uvicorn",
    "fastapi",
    "httptools",
    "websockets",
)


def describe() -> dict[str, Any]:
    """The facts about the machine that a reader needs to judge the figures."""
    import comet

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "system": platform.system(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "comet": comet.__version__,
        **{package: _version(package) for package in _PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float
    rss_bytes: int
    rss_peak_bytes: int


def cpu_ns(pid: int) -> int:
    """The processor time that a running process has used, all of its threads together; 0 if it is gone.

    Linux has a clock for each process, exact where /proc counts hundredths of a second."""
    with suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | _CLOCK_OF_PROCESS)
    return 0


class EventCosts:
    """The processor time of processes from its creation on, by role, shared out over events."""

    def __init__(self, **pids: Sequence[int]) -> None:
        self._pids = {role: found for role, found in pids.items() if found}
        self._before = self._now()

    def _now(self) -> dict[str, int]:
        return {role: sum(map(cpu_ns, found)) for role, found in self._pids.items()}

    def per_event(self, events: int) -> dict[str, float]:
        """`ROLE_event_us` of each role."""
        return {
            f"{role}_event_us": (used_ns - self._before[role]) / events / 1e3 for role, used_ns in self._now().items()
        }


class ProcessMeter:
    """CPU and memory of one running process; zeros without /proc."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._folder = _PROC / str(pid)

    def restart_peak(self) -> None:
        """Restarts the kernel's peak, so that an earlier load does not count."""
        # Not Linux, or not allowed: the peak since the process began is reported instead.
        with suppress(OSError):
            (self._folder / "clear_refs").write_text("5")

    def read(self) -> Usage:
        try:
            status = (self._folder / "status").read_text()
        except OSError:
            return Usage(0.0, 0, 0)
        return Usage(cpu_ns(self.pid) / 1e9, _status_bytes(status, "VmRSS:"), _status_bytes(status, "VmHWM:"))


def _status_bytes(status: str, name: str) -> int:
    line = next((line for line in status.splitlines() if line.startswith(name)), "")
    return int(line.split()[1]) * 1024 if line else 0
