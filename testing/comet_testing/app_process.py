"""A user's App as a process of its own in a simulated cluster."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from comet.app import App
from comet_testing.simulation.loop import Node
from comet_testing.world import World

READY_S_MAX: Final = 30.0
LOOK_S: Final = 0.01


class AppProcess:
    """Owned by a Cluster. The App is not copied: its module's variables survive a kill, as those of no process do."""

    def __init__(self, world: World, app: App, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.app = app
        self._world = world
        self._task: asyncio.Task[None] | None = None
        self._random: Random = app.random

    async def start(self) -> None:
        """Returns when all handlers read. Raises what ends the app."""
        world = self._world
        world.transcript.note(f"start {self.name}")
        self.app.random = world.random(f"{self.name}/app")
        self.node = world.process(self.name)
        self._task = self.node.spawn(self.app.serve(), "serve")
        async with asyncio.timeout(READY_S_MAX):
            while not self.app.healthy():
                if self._task.done():
                    self._task.result()
                    raise AssertionError(f"{self.name} ended at its start")
                await asyncio.sleep(LOOK_S)

    def kill(self) -> None:
        node = self.node
        if node is None or node.dead:
            return
        self._world.transcript.note(f"kill {self.name}")
        node.kill()
        self._world.network.forsake(self.name, silent=False)
        _forget(self.app)

    async def stop(self) -> None:
        node, task = self.node, self._task
        self.app.random = self._random
        if node is None or node.dead or task is None:
            return
        node.resume()
        self._world.transcript.note(f"stop {self.name}")
        self.app.stop()
        await asyncio.wait([task])
        node.kill()
        task.result()


def _forget(app: App) -> None:
    """The app forgets a run whose process was killed, to be started again."""
    app.clients.forget()
    app._transactional.clear()
    app._servings = []
    app._serving = app._stop_requested = False
    app._stopping = None
