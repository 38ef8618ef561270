"""Background tasks that cannot get lost: each has a name, an owner, and a loud death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

log = logging.getLogger(__name__)

FAILED_MAX: Final = 16


class Tasks:
    """The tasks of one owner. A task that dies of anything but cancellation is logged with its name, counted, and kept
    in `failed`, the last of them; `close` cancels and awaits all that still run."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.failures = 0
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(task.get_name(), error)

    def report(self, what: str, error: BaseException) -> None:
        """What nobody has thought of went wrong. Who does it for many calls this for one of them, and goes on."""
        self.failures += 1
        self.failed = [*self.failed[1 - FAILED_MAX :], f"{what}: {error!r}"]
        log.error("%s died", what, exc_info=error)

    def __len__(self) -> int:
        return len(self._running)

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
