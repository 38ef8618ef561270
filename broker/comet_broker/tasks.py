"""Background tasks that cannot get lost: each has a name, an owner, and a loud death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner. A task that dies of anything but cancellation is logged with its name and kept in
    `failed`, which makes the broker unhealthy; `close` cancels and awaits all that still run."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed = [*self.failed[-15:], f"{task.get_name()}: {error!r}"]
            log.error("task %s died", task.get_name(), exc_info=error)

    def __len__(self) -> int:
        return len(self._running)

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
