"""Brokers without their data: a store, views and memberships on virtual time, and the means to disturb them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comet_broker.cluster.membership import Membership
from comet_broker.cluster.view import ClusterView
from comet_broker.config import BrokerConfig
from comet_broker.core.cluster import BrokerRecord
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    Put,
    RangeResult,
    StoreUnavailable,
    TransactionResult,
)
from comet_broker.tasks import Tasks
from comet_testing.simulation.clock import SimClock
from comet_testing.simulation.loop import SimLoop, run

SESSION_MS = 3_000


class PausingClock(SimClock):
    """A clock that can run on while the loop stands still, as after SIGSTOP or in a callback that blocks."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.paused_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.paused_s


class FaultyStore(MemoryStore):
    """A store whose connection can be cut, and whose answers can get lost after the change was made."""

    down = False  # calls fail at once
    silent = False  # calls never end
    overtake: Put | None = None  # is made just before the next transaction
    lost_answers = 0  # so many transactions are applied, but their callers do not hear of it

    async def _reach(self) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.down:
            raise StoreUnavailable("cut off by the test")

    async def get(self, key: str) -> KeyValue | None:
        await self._reach()
        return await super().get(key)

    async def range(self, prefix: str) -> RangeResult:
        await self._reach()
        return await super().range(prefix)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> TransactionResult:
        await self._reach()
        if self.overtake is not None:
            put, self.overtake = self.overtake, None
            await super().transact([], [put])
        result = await super().transact(compares, operations)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreUnavailable("the answer got lost")
        return result

    async def grant_lease(self, ttl_ms: int) -> int:
        await self._reach()
        return await super().grant_lease(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        await self._reach()
        return await super().keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._reach()
        await super().revoke_lease(lease)


@dataclass
class Member:
    """One broker as far as the cluster is concerned. `store` is its own connection's face to the shared one."""

    broker_id: int
    tasks: Tasks
    view: ClusterView
    membership: Membership
    clock: PausingClock
    config: BrokerConfig
    seen: list[str] = field(default_factory=list)  # lost, registered

    def die(self) -> Coroutine[Any, Any, None]:
        """As kill -9: nothing is said to anybody."""
        return self.tasks.close()


@dataclass
class World:
    loop: SimLoop
    store: FaultyStore
    members: list[Member] = field(default_factory=list)

    async def member(
        self, broker_id: int, *, folder: str = "", exclusive: bool = False, clean: bool = True, **settings: Any
    ) -> Member:
        """A broker whose view follows the store; not registered yet."""
        clock = PausingClock(self.loop)
        tasks = Tasks()
        view = ClusterView(self.store, tasks)
        record = BrokerRecord("127.0.0.1", 9000 + broker_id, "1", folder or f"folder-{broker_id}", 0, clean=clean)
        config = BrokerConfig(Path("data"), broker_id=broker_id, session_ms=SESSION_MS, **settings)
        membership = Membership(
            config,
            store=self.store,
            view=view,
            clock=clock,
            tasks=tasks,
            record=lambda: record,
            exclusive=exclusive,
        )
        member = Member(broker_id, tasks, view, membership, clock, config)
        membership.on_lost.append(lambda: member.seen.append("lost"))
        membership.on_registered.append(lambda: member.seen.append("registered"))
        await view.load()
        tasks.spawn(view.follow(), "follow")
        self.members.append(member)
        return member

    async def put(self, key: str, value: bytes = b"", lease: int = 0) -> int:
        result = await self.store.transact([], [Put(key, value, lease)])
        return result.revision

    async def keys(self, prefix: str = "") -> list[str]:
        return [item.key for item in (await self.store.range(prefix)).items]


Scenario = Callable[[World], Coroutine[Any, Any, None]]


def on_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """Turns a scenario into a test."""

    def test() -> None:
        async def main(loop: SimLoop) -> None:
            store = FaultyStore(PausingClock(loop), history_revisions_max=50)
            world = World(loop, store)
            try:
                await scenario(world)
                assert not [failed for member in world.members for failed in member.tasks.failed]
            finally:
                for member in world.members:
                    await member.tasks.close()
                await store.close()
            assert not loop.unhandled

        run(main)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test
