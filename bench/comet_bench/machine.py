"""The machine that a benchmark ran on, and the CPU and memory of a process, from /proc without further packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")
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


class ProcessMeter:
    """CPU and memory of one running process; zeros without /proc."""

    def __init__(self, pid: int) -> None:
        self._folder = _PROC / str(pid)
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")

    def restart_peak(self) -> None:
        """Restarts the kernel's peak, so that an earlier load does not count."""
        # Not Linux, or not allowed: the peak since the process began is reported instead.
        with suppress(OSError):
            (self._folder / "clear_refs").write_text("5")

    def read(self) -> Usage:
        try:
            # The second field is the command in brackets and may hold spaces.
            fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
            status = (self._folder / "status").read_text()
        except OSError:
            return Usage(0.0, 0, 0)
        cpu_s = (int(fields[11]) + int(fields[12])) * self._tick_s
        return Usage(cpu_s, _status_bytes(status, "VmRSS:"), _status_bytes(status, "VmHWM:"))


def _status_bytes(status: str, name: str) -> int:
    line = next((line for line in status.splitlines() if line.startswith(name)), "")
    return int(line.split()[1]) * 1024 if line else 0
