"""Runs one scenario against every metadata store, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from comet_broker.metadata.embedded import EmbeddedStore
from comet_broker.metadata.history import HISTORY_REVISIONS_MAX
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put, WatchEvent
from tests.sim.clock import SimClock
from tests.sim.loop import SimLoop, run
from tests.sim.worker import SimWorker, WorkerPace

T = TypeVar("T")
KINDS = ("memory", "embedded")


class PausingClock(SimClock):
    """A clock that can run on while the loop stands still, as after SIGSTOP or in a callback that blocks."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.paused_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.paused_s


@dataclass
class World:
    """A store, and how to act on it in few words."""

    store: MetadataStore
    clock: PausingClock
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def put(self, key: str, value: bytes = b"", lease: int = 0) -> int:
        result = await self.store.transact([], [Put(key, value, lease)])
        assert result.applied
        return result.revision

    async def delete(self, key: str) -> int:
        return (await self.store.transact([], [Delete(key)])).revision

    async def item(self, key: str) -> KeyValue:
        item = await self.store.get(key)
        assert item is not None
        return item

    async def keys(self, prefix: str = "") -> list[str]:
        return [item.key for item in (await self.store.range(prefix)).items]

    async def swap(self, key: str, mod_revision: int, value: bytes) -> bool:
        return (await self.store.transact([Compare(key, mod_revision)], [Put(key, value)])).applied

    def start(self, awaitable: Awaitable[T]) -> asyncio.Task[T]:
        """Runs it beside the scenario."""

        async def wait() -> T:
            return await awaitable

        # A coroutine is started as it is: one that is cancelled before its first step is then closed, not lost.
        coroutine = awaitable if isinstance(awaitable, Coroutine) else wait()
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.append(task)
        return task

    def collect(self, prefix: str, from_revision: int, revisions: int) -> asyncio.Task[list[Sequence[WatchEvent]]]:
        """Watches until it has seen that many revisions."""
        watch = self.store.watch(prefix, from_revision)

        async def collecting() -> list[Sequence[WatchEvent]]:
            return [await anext(watch) for _ in range(revisions)]

        return self.start(collecting())


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def contract(*, history_revisions_max: int = HISTORY_REVISIONS_MAX) -> Callable[[Scenario], Callable[..., None]]:
    """Turns a scenario into a test of every store."""

    def decorate(scenario: Scenario) -> Callable[..., None]:
        @pytest.mark.parametrize("kind", KINDS)
        def test(kind: str, tmp_path: Path) -> None:
            async def main(loop: SimLoop) -> None:
                clock = PausingClock(loop)
                store: MetadataStore
                if kind == "memory":
                    store = MemoryStore(clock, history_revisions_max=history_revisions_max)
                else:
                    store = await EmbeddedStore.open(
                        tmp_path / "metadata.db",
                        clock,
                        worker=SimWorker(Random(7), WorkerPace()),
                        history_revisions_max=history_revisions_max,
                    )
                world = World(store, clock)
                try:
                    await scenario(world)
                finally:
                    for task in world.tasks:
                        task.cancel()
                    await store.close()
                assert not loop.unhandled

            run(main)

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate
