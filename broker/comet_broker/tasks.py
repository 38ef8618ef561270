"""Background tasks that cannot get lost: each has a name and an owner, and its failure is reported.

`spawn` runs a task that ends by itself. `keep` runs a task that lives as long as its owner: after an unexpected error
it is restarted, with a pause that grows up to RESTART_S_MAX, and is in `failing` until it has run for RESTART_CALM_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from comet.errors import Closed

log = logging.getLogger(__name__)

FAILED_MAX: Final = 16
RESTART_S: Final = 0.2
RESTART_S_MAX: Final = 10.0
RESTART_CALM_S: Final = 30.0

Make = Callable[[], Coroutine[Any, Any, None]]


class Tasks:
    """The tasks of one owner. A task that fails with anything but cancellation is logged with its name, counted, and
    kept in `failed`, the last of them; `close` cancels and awaits all that still run."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.failures = 0
        self.failing: dict[str, str] = {}  # kept tasks that failed recently: name and reason
        self.on_failed: list[Callable[[str, BaseException], None]] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._restart = asyncio.Event()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, make: Make, name: str) -> asyncio.Task[Any]:
        """Runs `make()` until it returns; after an unexpected error again, with a pause."""
        return self.spawn(self.persist(make, name), name)

    async def persist(self, make: Make, name: str) -> None:
        """The loop of `keep`, for a task with work before or after it."""
        loop = asyncio.get_running_loop()
        pause_s = RESTART_S
        try:
            while True:
                began = loop.time()
                calm = loop.call_later(RESTART_CALM_S, self.failing.pop, name, None)
                try:
                    await make()
                except Closed:
                    raise  # a dependency is closed for good, for example the store
                except Exception as error:  # noqa: BLE001 - reported, and restarted
                    self.failing[name] = repr(error)
                    self.report(name, error)
                else:
                    return
                finally:
                    calm.cancel()
                if loop.time() - began >= RESTART_CALM_S:
                    pause_s = RESTART_S
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, RESTART_S_MAX)
        finally:
            self.failing.pop(name, None)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._restart.wait()
        except TimeoutError:
            return

    def restart(self) -> None:
        """Restarts waiting tasks now."""
        self._restart.set()
        self._restart = asyncio.Event()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(task.get_name(), error)

    def report(self, what: str, error: BaseException, *, shown: bool = False) -> None:
        """Logs and counts an unexpected error, of a task or of one step of a loop, which goes on. `shown`: the caller
        shows it."""
        self.failures += 1
        self.failed = [*self.failed[1 - FAILED_MAX :], f"{what}: {error!r}"]
        log.error("%s failed", what, exc_info=error)
        if not shown:
            for callback in self.on_failed:
                callback(what, error)

    def __len__(self) -> int:
        return len(self._running)

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
