"""Ticks at exact times for an event loop.

uvloop's own timers count whole milliseconds, as long as the latencies to measure, and even a timerfd of the kernel
wakes a sleeping process some 50 µs late: a cost of the load generator, not of the system under test. So the timerfd
wakes us early, and the loop turns without sleeping until the tick is due. If the system under test needs every core,
`sleepy` disables that: the busy loop would cost more than those 50 µs.

Ticks are due by the clock alone, and a late caller gets all that are due: a stall of the system shows up in the
latencies instead of being left out (coordinated omission).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCKING: Final = os.O_NONBLOCK
_BILLION: Final = 1_000_000_000
# How early to wake: long enough for a sleeping processor, and at high rates never most of the time.
_EARLY_NS_MAX: Final = 200_000
_EARLY_SHARE: Final = 4


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("first", _Timespec)]


class Ticker:
    """Ticks every `interval_ns` from `start_ns` on (time.perf_counter_ns). Linux only. Close it after use."""

    def __init__(self, start_ns: int, interval_ns: int, *, sleepy: bool = False) -> None:
        assert interval_ns > 0 and start_ns > 0
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCKING))
        self._interval_ns = interval_ns
        self._next_ns = start_ns
        self.turned_ns = 0  # processor time of turning until ticks were due: the load generator's own
        self._early_ns = 0 if sleepy else min(_EARLY_NS_MAX, interval_ns // _EARLY_SHARE)
        first_ns = start_ns - self._early_ns
        setting = _Setting(
            _Timespec(interval_ns // _BILLION, interval_ns % _BILLION),
            _Timespec(first_ns // _BILLION, first_ns % _BILLION),
        )
        self._checked(self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(setting), None))
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
        while time.perf_counter_ns() < self._next_ns - self._early_ns:
            self._wake = self._loop.create_future()
            await self._wake
        now_ns = time.perf_counter_ns()
        if now_ns < self._next_ns:
            turning_ns = time.thread_time_ns()
            while (now_ns := time.perf_counter_ns()) < self._next_ns:  # noqa: ASYNC110 - it must not sleep
                await asyncio.sleep(0)
            self.turned_ns += time.thread_time_ns() - turning_ns
        count = (now_ns - self._next_ns) // self._interval_ns + 1
        self._next_ns += count * self._interval_ns
        return count

    def _on_readable(self) -> None:
        os.read(self._descriptor, 8)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class SenderCosts:
    """The processor time of this process, a paced sender, without the turns that wait for a record to be due."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._before_ns = self._used_ns()

    def _used_ns(self) -> int:
        return time.process_time_ns() - self._ticker.turned_ns

    def per_event(self, events: int) -> dict[str, float]:
        return {"producer_event_us": (self._used_ns() - self._before_ns) / events / 1e3}


def monotonic_is_shared() -> bool:
    """On Linux perf_counter reads CLOCK_MONOTONIC, one clock for all processes; elsewhere latencies make no sense."""
    return time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"
