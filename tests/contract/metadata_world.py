"""Runs one scenario against every metadata store: on virtual time, and on etcd, a real one, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from comet_broker.metadata.embedded import EmbeddedStore
from comet_broker.metadata.etcd.store import EtcdStore
from comet_broker.metadata.history import HISTORY_REVISIONS_MAX
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put, WatchEvent
from comet_broker.ports import Clock
from comet_broker.system import SystemClock
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run
from comet_testing.simulation.worker import SimWorker, WorkerPace
from tests.etcd import Etcd

T = TypeVar("T")
LOCAL = ("memory", "embedded")  # those whose clock, timers and history are this process's own
KINDS = (*LOCAL, "etcd")


class PausingClock:
    """A clock that can run on while the loop stands still, as after SIGSTOP or in a callback that blocks."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self.paused_s = 0.0

    def wall_us(self) -> int:
        return self._base.wall_us()

    def monotonic(self) -> float:
        return self._base.monotonic() + self.paused_s


@dataclass
class World:
    """A store, and how to act on it in few words."""

    store: MetadataStore
    clock: PausingClock
    empty_revision: int = 1  # where the store stood before the scenario; an etcd that is shared has gone on
    etcd: Etcd | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def forget_before(self, revision: int) -> None:
        """Makes the store forget its history up to there; the others do so by themselves."""
        if self.etcd is not None:
            await self.etcd.compact(revision - 1)

    async def outlive(self, lease: int, ttl_s: float) -> None:
        """Waits until the lease is over, if nobody keeps it alive; etcd says when it is."""
        if self.etcd is not None:
            await self.etcd.lease_ended(lease)
        else:
            await asyncio.sleep(ttl_s + 0.1)

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


def contract(
    *, history_revisions_max: int = HISTORY_REVISIONS_MAX, kinds: Sequence[str] = KINDS
) -> Callable[[Scenario], Callable[..., None]]:
    """Turns a scenario into a test of every store."""

    def decorate(scenario: Scenario) -> Callable[..., None]:
        @pytest.mark.parametrize("kind", kinds)
        def test(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
            if kind == "etcd":
                asyncio.run(_on_etcd(scenario, request.getfixturevalue("etcd"), f"/comet/{tmp_path.name}/"))
            else:
                run(lambda loop: _simulated(scenario, loop, kind, tmp_path, history_revisions_max))

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


async def _simulated(scenario: Scenario, loop: SimLoop, kind: str, folder: Path, history_revisions_max: int) -> None:
    clock = PausingClock(SimClock(loop))
    store: MetadataStore
    if kind == "memory":
        store = MemoryStore(clock, history_revisions_max=history_revisions_max)
    else:
        store = await EmbeddedStore.open(
            folder / "metadata.db",
            clock,
            worker=SimWorker(Random(7), WorkerPace()),
            history_revisions_max=history_revisions_max,
        )
    await _play(scenario, World(store, clock))
    assert not loop.unhandled


async def _on_etcd(scenario: Scenario, etcd: Etcd, root: str) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    clock = PausingClock(SystemClock())
    store = await EtcdStore.open([etcd.endpoint], prefix=root, clock=clock, timeout_ms=10_000)
    try:
        await _play(scenario, World(store, clock, await etcd.revision(), etcd))
    finally:
        await etcd.empty(root)  # or the leases left behind would move the revision on under the next scenario
    assert not unhandled


async def _play(scenario: Scenario, world: World) -> None:
    try:
        await scenario(world)
    finally:
        for task in world.tasks:
            task.cancel()
        await world.store.close()
