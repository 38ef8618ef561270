"""The view of the cluster: in step with the store whatever happens to the watch, and never back in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from comet.errors import Unavailable
from comet_broker.cluster.view import RECONCILE_S, ClusterView
from comet_broker.core.cluster import CLUSTER, DRAINS, ID, ClusterState, broker_key
from comet_broker.metadata.store import Delete, Put, RangeResult, StoreUnavailable, WatchEvent
from comet_broker.tasks import Tasks
from comet_testing.simulation.loop import SimLoop
from tests.unit.cluster_world import FaultyStore, PausingClock, World, on_virtual_time


class Tampered(FaultyStore):
    """Its watches lose, repeat or break off."""

    lose = 0  # so many batches are not delivered
    repeat = False  # each batch comes again, after the next one
    break_off = False  # the next batch is an error instead
    old_listing: RangeResult | None = None

    async def range(self, prefix: str) -> RangeResult:
        if self.old_listing is not None:
            return self.old_listing
        return await super().range(prefix)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Sequence[WatchEvent]]:
        before: Sequence[WatchEvent] = ()
        async for events in super().watch(prefix, from_revision):
            if self.break_off:
                self.break_off = False
                raise StoreUnavailable("the watch broke off")
            if self.lose:
                self.lose -= 1
                continue
            yield events
            if self.repeat and before:
                yield before
            before = events


class Follower:
    """A view that follows, and what its listeners have been told."""

    def __init__(self, loop: SimLoop) -> None:
        self.store = Tampered(PausingClock(loop), history_revisions_max=20)
        self.tasks = Tasks()
        self.view = ClusterView(self.store, self.tasks)
        self.told: list[tuple[int, list[str]]] = []
        self.view.listen(lambda keys: self.told.append((self.view.state.revision, sorted(keys))))

    async def start(self) -> None:
        await self.view.load()
        self.tasks.spawn(self.view.follow(), "follow")
        await asyncio.sleep(0)

    async def put(self, key: str, value: bytes = b"") -> int:
        return (await self.store.transact([], [Put(key, value)])).revision

    async def delete(self, *keys: str) -> int:
        return (await self.store.transact([], [Delete(key) for key in keys])).revision

    async def check(self) -> None:
        """The view shows what the store has, and has only ever gone forward."""
        listing = await FaultyStore.range(self.store, CLUSTER)
        expected = ClusterState.of(listing.items, self.view.state.revision)
        assert self.view.state == expected
        revisions = [revision for revision, _ in self.told]
        assert revisions == sorted(set(revisions))

    async def close(self) -> None:
        await self.tasks.close()
        await self.store.close()
        assert not self.tasks.failed


@on_virtual_time
async def test_it_shows_what_was_there_and_what_comes(world: World) -> None:
    follower = Follower(world.loop)
    first = await follower.put(f"{DRAINS}1")
    await follower.start()
    assert follower.view.state.drains.keys() == {1}
    assert follower.view.applied.value == first
    await follower.put("elsewhere")
    second = await follower.put(f"{DRAINS}2")
    third = await follower.delete(f"{DRAINS}1")
    await follower.view.applied.wait(third)
    assert follower.told == [
        (first, ["cluster/drains/1"]),
        (second, ["cluster/drains/2"]),
        (third, ["cluster/drains/1"]),
    ]
    await follower.check()
    await follower.close()


@on_virtual_time
async def test_a_listener_that_breaks_keeps_no_other_from_listening(world: World) -> None:
    follower = Follower(world.loop)

    def broken(_: Sequence[str]) -> None:
        raise LookupError("an unexpected error")

    follower.view._listeners.insert(0, broken)
    await follower.put(f"{DRAINS}1")
    await follower.start()
    last = await follower.put(f"{DRAINS}2")
    await follower.view.applied.wait(last)
    assert follower.told[-1] == (last, [f"{DRAINS}2"])
    assert follower.tasks.failures == 2
    follower.tasks.failed.clear()
    await follower.check()
    await follower.close()


@on_virtual_time
async def test_what_the_store_has_forgotten_is_found_by_listing(world: World) -> None:
    """All of it at once, deletions as well."""
    follower = Follower(world.loop)
    await follower.put(f"{DRAINS}1")
    await follower.put(f"{DRAINS}2")
    await follower.start()
    await follower.delete(f"{DRAINS}1")
    for number in range(30):  # no turn for the watch, and more than the history keeps
        last = await follower.put(f"{DRAINS}{3 + number % 2}")
    await follower.view.applied.wait(last)
    assert follower.told[-1] == (last, ["cluster/drains/1", "cluster/drains/3", "cluster/drains/4"])
    await follower.put(f"{DRAINS}9")
    await asyncio.sleep(0)
    assert 9 in follower.view.state.drains
    await follower.check()
    await follower.close()


@on_virtual_time
async def test_a_watch_that_breaks_off_is_begun_again(world: World) -> None:
    follower = Follower(world.loop)
    await follower.start()
    follower.store.break_off = True
    await follower.put(f"{DRAINS}1")
    await asyncio.sleep(0)
    follower.store.down = True
    await asyncio.sleep(20)
    assert not follower.view.state.drains
    follower.store.down = False
    await asyncio.sleep(3)
    assert 1 in follower.view.state.drains
    last = await follower.put(f"{DRAINS}2")
    await follower.view.applied.wait(last)
    await follower.check()
    await follower.close()


@on_virtual_time
async def test_events_and_listings_from_the_past_are_dropped(world: World) -> None:
    follower = Follower(world.loop)
    await follower.start()
    follower.store.repeat = True
    listings: list[RangeResult] = []
    for number in range(10):
        await follower.put(f"{DRAINS}{number % 3}")
        await follower.delete(f"{DRAINS}{(number + 1) % 3}")
        await asyncio.sleep(0)
        listings.append(await follower.store.range(CLUSTER))
    await follower.check()
    before = len(follower.told)
    follower.store.old_listing = listings[3]
    await asyncio.sleep(2 * RECONCILE_S)
    follower.store.old_listing = None
    assert len(follower.told) == before
    await follower.check()
    await follower.close()


@on_virtual_time
async def test_what_a_watch_has_lost_is_found_in_time(world: World) -> None:
    follower = Follower(world.loop)
    await follower.put(f"{DRAINS}1")
    await follower.start()
    follower.store.lose = 2
    await follower.put(f"{DRAINS}2")
    lost = await follower.delete(f"{DRAINS}1")
    await asyncio.sleep(1)
    assert follower.view.state.drains.keys() == {1}
    await asyncio.sleep(RECONCILE_S)
    assert follower.view.state.drains.keys() == {2}
    assert follower.told[-1] == (lost, ["cluster/drains/1", "cluster/drains/2"])
    await follower.check()
    await follower.close()


@on_virtual_time
async def test_a_value_that_cannot_be_read_harms_nothing_else(world: World) -> None:
    follower = Follower(world.loop)
    await follower.start()
    await follower.put(broker_key(1), b"{")
    await follower.put("cluster/brokers/x", b"{}")
    await follower.put(f"{DRAINS}1")
    await follower.put(ID, b"the cluster")
    await asyncio.sleep(0)
    assert follower.view.problems.keys() == {broker_key(1), "cluster/brokers/x"}
    assert follower.view.state.drains.keys() == {1}
    assert follower.view.state.cluster_id == "the cluster"
    await follower.delete(broker_key(1))
    await follower.delete("cluster/brokers/x")
    await asyncio.sleep(0)
    assert not follower.view.problems
    await follower.close()


@on_virtual_time
async def test_loading_waits_for_the_store(world: World) -> None:
    follower = Follower(world.loop)
    await follower.put(f"{DRAINS}1")
    follower.store.down = True
    loading = asyncio.get_running_loop().create_task(follower.start())
    await asyncio.sleep(10)
    assert not loading.done()
    follower.store.down = False
    await loading
    assert follower.view.state.drains.keys() == {1}
    await follower.close()


@on_virtual_time
async def test_when_it_ends_those_who_wait_are_told(world: World) -> None:
    follower = Follower(world.loop)
    await follower.start()
    waiting = asyncio.get_running_loop().create_task(follower.view.applied.wait(1_000))
    await asyncio.sleep(0)
    await follower.store.close()
    with pytest.raises(Unavailable):
        await waiting
    await follower.close()
