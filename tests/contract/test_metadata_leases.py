"""What every metadata store promises about leases, and about calls that are given up.

On etcd their time is real: what is not to be over yet lasts some seconds, for a machine that stands still for a while.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from comet_broker.metadata.store import LEASE_TTL_MS_MAX, Compare, LeaseLost, Put, WatchEvent
from tests.contract.metadata_world import LOCAL, World, contract
from tests.waiting import pace

# ---- leases


@contract()
async def test_a_lease_that_runs_out_takes_its_keys_along(world: World) -> None:
    lease = await world.store.grant_lease(4000)
    await world.put("/brokers/1", b"here", lease)
    await world.put("/brokers/2", b"here", lease)
    last = await world.put("/topics/a")
    assert (await world.item("/brokers/1")).lease == lease
    seen = world.collect("", last + 1, 1)
    await pace(0.5)
    assert len(await world.keys()) == 3
    await world.outlive(lease, 3.5)
    assert await world.keys() == ["/topics/a"]
    (events,) = await seen
    assert events == (WatchEvent("/brokers/1", None, last + 1), WatchEvent("/brokers/2", None, last + 1))


@contract()
async def test_a_lease_kept_alive_stays(world: World) -> None:
    lease = await world.store.grant_lease(4000)
    await world.put("a", b"", lease)
    for _ in range(4):
        await pace(1.1)
        assert await world.store.keep_alive(lease) == 4000
    assert await world.keys() == ["a"]
    await world.outlive(lease, 4)
    assert await world.keys() == []


@contract()
async def test_a_lease_that_is_over_stays_over(world: World) -> None:
    lease = await world.store.grant_lease(1000)
    await world.outlive(lease, 1)
    with pytest.raises(LeaseLost):
        await world.store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        await world.put("a", b"", lease)
    await world.store.revoke_lease(lease)  # ended already: no error
    assert await world.keys() == []


@contract(kinds=LOCAL)  # etcd's leases are on etcd's clock
async def test_a_lease_is_over_when_the_clock_says_so_not_when_the_timer_fires(world: World) -> None:
    lease = await world.store.grant_lease(1000)
    await world.put("a", b"", lease)
    world.clock.paused_s = 1.0
    assert await world.keys() == ["a"], "the timer has not fired yet"
    with pytest.raises(LeaseLost):
        await world.store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        await world.put("b", b"", lease)


@contract()
async def test_revoking_a_lease_deletes_its_keys_at_once(world: World) -> None:
    lease = await world.store.grant_lease(60_000)
    other = await world.store.grant_lease(60_000)
    await world.put("a", b"", lease)
    await world.put("b", b"", other)
    await world.store.revoke_lease(lease)
    assert await world.keys() == ["b"]
    with pytest.raises(LeaseLost):
        await world.store.keep_alive(lease)
    assert await world.store.keep_alive(other) == 60_000


@contract()
async def test_a_lease_without_keys_ends_without_a_revision(world: World) -> None:
    before = await world.put("a")
    await world.store.revoke_lease(await world.store.grant_lease(1000))
    assert (await world.store.range("")).revision == before


@contract()
async def test_a_key_follows_its_last_put(world: World) -> None:
    short, long = await world.store.grant_lease(3000), await world.store.grant_lease(8000)
    for key in ["stays", "moves", "ends"]:
        await world.put(key, b"", short)
    await world.put("stays")
    await world.put("moves", b"", long)
    await world.outlive(short, 3)
    assert await world.keys() == ["moves", "stays"]
    await world.outlive(long, 5)
    assert await world.keys() == ["stays"]


@contract()
async def test_a_put_under_a_lease_never_granted_is_refused_whole(world: World) -> None:
    with pytest.raises(LeaseLost):
        await world.store.transact([], [Put("a", b""), Put("b", b"", lease=4711)])
    assert await world.keys() == []


@contract()
async def test_a_compare_that_fails_comes_before_a_lease_that_is_lost(world: World) -> None:
    result = await world.store.transact([Compare("a", 9)], [Put("a", b"", lease=4711)])
    assert not result.applied


@contract()
async def test_leases_have_ids_of_their_own_and_a_bounded_life(world: World) -> None:
    leases = [await world.store.grant_lease(1000) for _ in range(20)]
    assert len(set(leases)) == 20
    assert min(leases) > 0
    for ttl_ms in [0, -1, LEASE_TTL_MS_MAX + 1]:
        with pytest.raises(ValueError, match="a lease lives"):
            await world.store.grant_lease(ttl_ms)


# ---- giving up


@contract()
async def test_a_call_given_up_leaves_the_store_whole(world: World) -> None:
    """Whatever moment it strikes at, each transaction applies wholly or not at all, and the store goes on."""
    for turns in range(6):
        call = world.start(world.store.transact([], [Put(f"{turns}/a", b"1"), Put(f"{turns}/b", b"2")]))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    await world.put("last")
    for turns in range(6):
        assert len(await world.keys(f"{turns}/")) in {0, 2}
    assert await world.swap("last", (await world.item("last")).mod_revision, b"on")


@contract()
async def test_a_lease_asked_for_and_given_up_costs_nothing_for_ever(world: World) -> None:
    call = world.start(world.store.grant_lease(1000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    lease = await world.store.grant_lease(3000)
    assert await world.store.keep_alive(lease) == 3000
    await world.outlive(lease, 3)
    with pytest.raises(LeaseLost):
        await world.store.keep_alive(lease)
