"""The broker's worker threads on virtual time: the work happens at one instant, some time after it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class WorkerPace:
    """How slow the disk is; a fault may change it while the broker runs."""

    seconds_max: float = 0.004


class SimWorker:
    """ports.Worker. The function runs between two random delays, so that other events come both
    before and after what it sees: an fsync covers what was written before it ran, and its end is known later."""

    def __init__(self, random: Random, pace: WorkerPace) -> None:
        self._random = random
        self._pace = pace

    async def run(self, function: Callable[[], T]) -> T:
        whole = self._random.random() ** 3 * self._pace.seconds_max  # mostly quick, sometimes slow
        before = whole * self._random.random()
        await asyncio.sleep(before)
        result = function()
        await asyncio.sleep(whole - before)
        return result
