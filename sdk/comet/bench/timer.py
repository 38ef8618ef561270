"""Ticks at exact times for an event loop.

uvloop's own timers count whole milliseconds, which is as long as what we want to measure. A timerfd of the
kernel wakes the loop to the microsecond and says how many ticks are due, so that a late wake-up sends all of
them: a stall of the system shows up in the latencies instead of being left out (coordinated omission).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCKING: Final = os.O_NONBLOCK
_BILLION: Final = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("first", _Timespec)]


class Ticker:
    """Ticks every `interval_ns` from `start_ns` on (time.perf_counter_ns). Linux only. Close it after use."""

    def __init__(self, start_ns: int, interval_ns: int) -> None:
        assert interval_ns > 0 and start_ns > 0
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCKING))
        setting = _Setting(
            _Timespec(interval_ns // _BILLION, interval_ns % _BILLION),
            _Timespec(start_ns // _BILLION, start_ns % _BILLION),
        )
        self._checked(self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(setting), None))
        self._due = 0
        self._wake: asyncio.Future[None] | None = None
        self._loop.add_reader(self._descriptor, self._on_readable)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    async def due(self) -> int:
        """Waits for a tick and returns how many are due, at least 1. One caller at a time."""
        if not self._due:
            self._wake = self._loop.create_future()
            await self._wake
        count, self._due = self._due, 0
        return count

    def _on_readable(self) -> None:
        self._due += struct.unpack("Q", os.read(self._descriptor, 8))[0]
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


def monotonic_is_shared() -> bool:
    """On Linux perf_counter reads CLOCK_MONOTONIC, one clock for all processes; elsewhere latencies make no sense."""
    return time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"
