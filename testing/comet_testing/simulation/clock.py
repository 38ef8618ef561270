"""The broker's clocks on virtual time: monotonic follows the loop, wall time can be made to jump."""

from __future__ import annotations

import asyncio
from typing import Final

START_US: Final = 1_900_000_000_000_000  # 2030, so that nothing compares well with the machine's own clock


class SimClock:
    """ports.Clock of one node; `jump` moves its wall clock, as an administrator or a bad time server does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset_us = 0
        self._latest_us = 0  # at the last jump

    def jump(self, seconds: float) -> None:
        self._latest_us = self.latest_us()
        self._offset_us += int(seconds * 1_000_000)

    def wall_us(self) -> int:
        return START_US + int(self._loop.time() * 1_000_000) + self._offset_us

    def latest_us(self) -> int:
        """The latest time that it has shown."""
        return max(self._latest_us, self.wall_us())

    def monotonic(self) -> float:
        return self._loop.time()
