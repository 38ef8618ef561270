"""Registering, staying registered, and knowing when one is not any more."""

from __future__ import annotations

import asyncio

import pytest

from comet.errors import InvalidArgument
from comet_broker.core.cluster import BrokerRecord, broker_key
from comet_broker.metadata.store import LeaseLost
from tests.unit.cluster_world import SESSION_MS, World, on_virtual_time
from tests.waiting import until

SESSION_S = SESSION_MS / 1000


@on_virtual_time
async def test_a_registration_stands_as_long_as_the_broker_runs(world: World) -> None:
    member = await world.member(1)
    assert not member.membership.alive()
    await member.membership.register()
    item = await world.store.get(broker_key(1))
    assert item is not None
    assert item.create_revision == member.membership.broker_epoch
    assert BrokerRecord.decode(item.value).lease == item.lease == member.membership.lease
    for _ in range(20):
        await asyncio.sleep(SESSION_S)
        assert member.membership.alive()
    assert member.view.state.broker_epoch(1) == member.membership.broker_epoch == item.create_revision
    assert member.seen == ["registered"]


@on_virtual_time
async def test_leaving_ends_the_registration_at_once(world: World) -> None:
    member = await world.member(1)
    await member.membership.register()
    await member.membership.leave()
    assert await world.keys() == []
    assert not member.membership.alive()
    assert member.seen == ["registered"]


@on_virtual_time
async def test_a_killed_broker_comes_back_without_waiting_for_its_old_lease(world: World) -> None:
    first = await world.member(1)
    await first.membership.register()
    await first.die()
    second = await world.member(1)
    began = world.loop.time()
    await second.membership.register()
    assert world.loop.time() == began
    assert second.membership.broker_epoch > first.membership.broker_epoch
    with pytest.raises(LeaseLost):
        await world.store.keep_alive(first.membership.lease)


@on_virtual_time
async def test_a_second_broker_with_the_same_id_is_refused(world: World) -> None:
    first = await world.member(1, folder="one")
    await first.membership.register()
    second = await world.member(1, folder="two")
    with pytest.raises(InvalidArgument, match=r"127\.0\.0\.1:9001") as caught:
        await second.membership.register()
    assert caught.value.details["port"] == "9001"
    assert not second.membership.alive()
    assert first.membership.alive()
    assert first.seen == ["registered"]


@on_virtual_time
async def test_a_broker_with_a_new_folder_waits_for_the_lease_of_the_old_one(world: World) -> None:
    first = await world.member(1, folder="one")
    await first.membership.register()
    await first.die()
    second = await world.member(1, folder="two")
    began = world.loop.time()
    await second.membership.register()
    assert SESSION_S / 2 < world.loop.time() - began < 2 * SESSION_S
    assert second.membership.alive()


@on_virtual_time
async def test_an_answer_that_got_lost_is_found_out(world: World) -> None:
    member = await world.member(1)
    world.store.lost_answers = 1
    await member.membership.register()
    assert member.membership.broker_epoch == member.view.state.broker_epoch(1)
    assert member.membership.alive()


@on_virtual_time
async def test_the_deadline_is_over_before_the_lease_is(world: World) -> None:
    """Cut off from the store, a broker knows that it may be taken for dead before it can be."""
    member = await world.member(1)
    other = await world.member(2)
    await member.membership.register()
    await asyncio.sleep(10)
    world.store.silent = True
    assert await until(lambda: not member.membership.alive(), within_s=SESSION_S, every_s=0.01)
    assert other.view.state.broker_epoch(1)
    await asyncio.sleep(0.01)
    assert member.seen == ["registered", "lost"]
    assert await until(lambda: other.view.state.broker_epoch(1) == 0, within_s=SESSION_S)


@on_virtual_time
async def test_after_the_store_was_away_the_broker_registers_again(world: World) -> None:
    member = await world.member(1)
    await member.membership.register()
    before = member.membership.broker_epoch
    world.store.down = True
    await asyncio.sleep(60)
    assert member.seen == ["registered", "lost"]
    world.store.down = False
    await asyncio.sleep(1)
    assert member.seen == ["registered", "lost", "registered"]
    assert member.membership.alive()
    assert member.membership.broker_epoch > before


@on_virtual_time
async def test_a_process_that_was_stopped_knows_it_at_the_first_question(world: World) -> None:
    member = await world.member(1)
    await member.membership.register()
    await asyncio.sleep(10)
    before = member.membership.broker_epoch
    member.clock.paused_s += SESSION_S  # nothing has run since: no timer, no task
    assert not member.membership.alive()
    await asyncio.sleep(SESSION_S)
    assert member.seen == ["registered", "lost", "registered"]
    assert member.membership.broker_epoch > before


@on_virtual_time
async def test_a_revoked_registration_is_noticed_at_once(world: World) -> None:
    member = await world.member(1)
    other = await world.member(2)
    await member.membership.register()
    await asyncio.sleep(0.1)
    before = member.membership.broker_epoch
    await other.membership.revoke(1, before + 1)
    assert await world.keys() == [broker_key(1)]
    await other.membership.revoke(1, before)
    await asyncio.sleep(0.001)
    assert member.seen == ["registered", "lost", "registered"]
    assert member.membership.broker_epoch > before


@on_virtual_time
async def test_a_broker_that_drains_keeps_its_broker_epoch(world: World) -> None:
    member = await world.member(1)
    await member.membership.register()
    before = member.membership.broker_epoch
    world.store.lost_answers = 1
    await member.membership.set_draining()
    await asyncio.sleep(0)
    assert member.view.state.brokers[1].value.draining
    assert member.membership.broker_epoch == before == member.view.state.broker_epoch(1)
    await asyncio.sleep(10 * SESSION_S)
    assert member.membership.alive()


@on_virtual_time
async def test_with_the_store_to_itself_a_broker_is_always_alive(world: World) -> None:
    first = await world.member(1, exclusive=True)
    await first.membership.register()
    first.clock.paused_s += 1_000
    assert first.membership.alive()
    await asyncio.sleep(100)
    assert first.seen == ["registered"]
    await first.die()
    second = await world.member(1, exclusive=True)
    began = world.loop.time()
    await second.membership.register()
    assert world.loop.time() == began


@on_virtual_time
async def test_who_took_the_place_of_a_broker_that_was_away_keeps_it(world: World) -> None:
    """R18, the other way round: the one that comes back is the one that has to wait."""
    first = await world.member(1, folder="one")
    await first.membership.register()
    await world.store.revoke_lease(first.membership.lease)
    second = await world.member(1, folder="two")
    await second.membership.register()
    await asyncio.sleep(20 * SESSION_S)
    assert second.seen == ["registered"]
    assert first.seen == ["registered", "lost"]
    assert first.membership.fenced is not None
    assert not first.membership.alive()
    await second.membership.leave()
    await asyncio.sleep(3 * SESSION_S)
    assert first.membership.alive()
    assert first.membership.fenced is None
