"""The controller's role: one holds it, acts at once, and can do no harm when it does not know that it has lost it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from comet.errors import LimitExceeded
from comet.settings.topic import TopicConfig
from comet_broker.cluster import controller as runner
from comet_broker.cluster.controller import CHECK_S, Controller
from comet_broker.core import controller as core
from comet_broker.core.cluster import (
    CONTROLLER,
    ControllerRecord,
    PartitionState,
    TopicSpec,
    defective_key,
    partition_key,
    topic_key,
)
from comet_broker.failures import Failures
from comet_broker.metadata.store import Put
from tests.unit.cluster_world import SESSION_MS, Member, World, on_virtual_time
from tests.waiting import until

SESSION_S = SESSION_MS / 1000
TOPIC = "a" * 32
TP = (TOPIC, 0)


async def candidate(
    world: World, broker_id: int, *, exclusive: bool = False, clean: bool = True
) -> tuple[Member, Controller]:
    member = await world.member(broker_id, exclusive=exclusive, clean=clean, rebalance_ms=10_000)
    controller = Controller(
        member.config,
        store=world.store,
        view=member.view,
        membership=member.membership,
        clock=member.clock,
        failures=Failures(member.clock, member.tasks),
    )
    await member.membership.register()
    member.tasks.spawn(controller.run(), "controller")
    await asyncio.sleep(0.01)
    return member, controller


async def create(world: World, partitions: int = 1, replicas: int = 1, min_insync: int = 1) -> None:
    spec = TopicSpec(TOPIC, partitions, 0, TopicConfig(min_insync=min_insync), replicas)
    await world.put(topic_key("quotes"), spec.encode())
    await asyncio.sleep(0.01)


async def state_of(world: World, index: int = 0) -> PartitionState:
    item = await world.store.get(partition_key((TOPIC, index)))
    assert item is not None
    return PartitionState.decode(item.value)


@on_virtual_time
async def test_a_single_broker_is_its_own_controller(world: World) -> None:
    member, controller = await candidate(world, 1, exclusive=True)
    await create(world, partitions=250)
    assert controller.acting()
    assert len(member.view.state.partitions) == 250
    state = await state_of(world, 249)
    assert state == PartitionState(1, 1, (1,), {1: member.membership.broker_epoch}, folders={1: "folder-1"})


@on_virtual_time
async def test_one_of_them_holds_the_role_and_the_next_takes_it_at_once(world: World) -> None:
    candidates = [await candidate(world, broker_id) for broker_id in (1, 2, 3)]
    assert [controller.acting() for _, controller in candidates] == [True, False, False]
    await create(world, replicas=3)
    before = await state_of(world)
    assert before.leader == 1
    await candidates[0][0].membership.leave()  # its lease ends, and with it the role
    began = world.loop.time()
    assert await until(lambda: any(controller.acting() for _, controller in candidates[1:]), within_s=1, every_s=0.001)
    await asyncio.sleep(0.001)
    assert world.loop.time() - began < 0.01
    after = await state_of(world)
    assert (after.leader, after.epoch) == (2, 2)
    assert set(after.in_sync) == {2, 3}


@on_virtual_time
async def test_a_controller_that_was_replaced_can_change_nothing(world: World) -> None:
    """The role moved, and the old controller's view has not heard of it."""
    member, controller = await candidate(world, 1)
    assert controller.acting()
    item = await world.store.get(CONTROLLER)
    assert item is not None
    other = ControllerRecord(2, 999).encode()
    # In one transaction, so that the view shows both together and the old controller decides before it has seen them.
    spec = TopicSpec(TOPIC, 1, 0, TopicConfig())
    await world.put(topic_key("quotes"), spec.encode())
    await world.put(CONTROLLER, other)
    await asyncio.sleep(2 * SESSION_S)
    assert not controller.acting()
    assert await world.store.get(partition_key(TP)) is None
    assert member.membership.alive()


@on_virtual_time
async def test_an_answer_that_got_lost_does_not_stop_it(world: World) -> None:
    world.store.lost_answers = 3  # of the registration, of taking the role, of the placement
    _, controller = await candidate(world, 1)
    await create(world, partitions=3)
    await asyncio.sleep(1)
    assert controller.acting()
    assert (await state_of(world, 2)).leader == 1
    assert world.store.lost_answers == 0


@on_virtual_time
async def test_it_goes_on_when_the_store_is_back(world: World) -> None:
    member, controller = await candidate(world, 1)
    await create(world)
    world.store.down = True
    await asyncio.sleep(30)
    assert not controller.acting()
    assert not member.membership.alive()
    world.store.down = False
    await asyncio.sleep(2)
    assert controller.acting()
    state = await state_of(world)
    assert state.leader == 1
    assert state.epoch > 1
    assert state.in_sync == {1: member.membership.broker_epoch}


@on_virtual_time
async def test_what_was_overtaken_is_made_for_the_others(world: World) -> None:
    """A follower dies that many partitions share, and the leader of one of them is faster than the controller."""
    _, controller = await candidate(world, 1)
    second, _ = await candidate(world, 2)
    await create(world, partitions=10, replicas=2)
    item = await world.store.get(partition_key(TP))
    assert item is not None
    state = PartitionState.decode(item.value)
    world.store.overtake = Put(item.key, replace(state, in_sync={1: state.in_sync[1]}).encode())
    await world.store.revoke_lease(second.membership.lease)
    await second.die()
    await asyncio.sleep(0.01)
    assert controller.overtaken == 2  # all of them together, and the one of its own
    for index in range(10):
        state = await state_of(world, index)
        assert (state.leader, set(state.in_sync)) == (1, {1}), index


@on_virtual_time
async def test_leadership_goes_back_only_when_all_has_been_well(world: World) -> None:
    _, controller = await candidate(world, 1)
    first_view = controller
    second, _ = await candidate(world, 2)
    await create(world, replicas=2)
    item = await world.store.get(partition_key(TP))
    assert item is not None
    state = PartitionState.decode(item.value)
    moved = PartitionState(2, 2, (1, 2), state.in_sync)
    await world.put(item.key, moved.encode())
    await asyncio.sleep(5)
    assert (await state_of(world)).handover == 0
    await world.put("cluster/drains/7")  # something changes: it is too early
    await asyncio.sleep(9)
    assert (await state_of(world)).handover == 0
    await asyncio.sleep(1.5)
    assert (await state_of(world)).handover == 1
    assert first_view.acting()
    assert second.membership.alive()


@on_virtual_time
async def test_one_that_may_have_lost_something_leads_only_after_the_others_had_time_to_return(world: World) -> None:
    await candidate(world, 1)
    lossy, _ = await candidate(world, 2, clean=False)
    spec = TopicSpec(TOPIC, 1, 0, TopicConfig(), 2)
    await world.put(topic_key("quotes"), spec.encode())
    await world.put(partition_key(TP), PartitionState(0, 7, (3, 2), {3: 2, 2: 2}).encode())
    await asyncio.sleep(SESSION_S * 0.9)
    assert (await state_of(world)).leader == 0
    await asyncio.sleep(SESSION_S * 0.2)
    state = await state_of(world)
    assert (state.leader, state.epoch, state.in_sync) == (2, 8, {2: lossy.membership.broker_epoch})


@on_virtual_time
async def test_others_have_a_lease_to_return_when_a_leader_fails_whose_broker_runs(world: World) -> None:
    leader, _ = await candidate(world, 1)
    lossy, _ = await candidate(world, 2, clean=False)
    spec = TopicSpec(TOPIC, 1, 0, TopicConfig(min_insync=2), 3)
    await world.put(topic_key("quotes"), spec.encode())
    state = PartitionState(1, 7, (1, 2, 3), {1: leader.membership.broker_epoch}, {2: core.LOSSY, 3: 3})
    await world.put(partition_key(TP), state.encode())
    await asyncio.sleep(10 * SESSION_S)
    await world.put(defective_key(1, TP))
    await asyncio.sleep(SESSION_S * 0.9)
    assert (await state_of(world)).leader == 0
    await asyncio.sleep(SESSION_S * 0.2)
    assert (await state_of(world)).in_sync == {2: lossy.membership.broker_epoch}


@on_virtual_time
async def test_a_mark_is_acted_on_when_it_appears(world: World) -> None:
    await candidate(world, 1)
    await candidate(world, 2)
    await create(world, replicas=2)
    assert (await state_of(world)).leader == 1
    await world.put(defective_key(1, TP))
    await asyncio.sleep(0.001)
    state = await state_of(world)
    assert (state.leader, set(state.in_sync)) == (2, {2})


class Bug(Exception):
    """Neither a CometError nor an OSError."""


@on_virtual_time
async def test_a_partition_that_nobody_has_thought_of_keeps_no_other_from_having_a_leader(world: World) -> None:
    first, _ = await candidate(world, 1)
    second, controller = await candidate(world, 2)
    await create(world, partitions=2, replicas=2)
    real = core._Case.settle

    def settle(self: Any, **options: Any) -> PartitionState:
        if self._where == (TOPIC, 0):
            raise Bug("no such thing")
        return real(self, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core._Case, "settle", settle)
        await first.membership.leave()
        await asyncio.sleep(1)
        assert ((await state_of(world, 0)).leader, (await state_of(world, 1)).leader) == (1, 2)
        assert controller.statistics()["failures"] > 0
        (shown,) = controller._failures.all()
        assert (shown.kind, shown.name) == ("partition", "quotes/0 (its leader)") and "no such thing" in shown.reason
    await asyncio.sleep(CHECK_S)
    assert (await state_of(world, 0)).leader == 2
    assert not controller._failures.all(), "it is shown no longer than it lasts"
    second.tasks.failed.clear()


@on_virtual_time
async def test_a_change_that_cannot_be_made_keeps_no_other_from_being_made(world: World) -> None:
    first, _ = await candidate(world, 1)
    second, controller = await candidate(world, 2)
    await create(world, partitions=3, replicas=2)
    real = Controller._make

    async def make(self: Controller, change: core.Change) -> None:
        if any(key.key == partition_key((TOPIC, 0)) for key in change.compares):
            raise LimitExceeded("too many operations") if change.parts else Bug("no such thing")
        await real(self, change)

    def one_by_one(*arguments: Any, **options: Any) -> list[core.Change]:
        return [part for change in core.decide(*arguments, **options) for part in change.parts or (change,)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Controller, "_make", make)
        patch.setattr(runner, "decide", one_by_one)
        await first.membership.leave()
        await asyncio.sleep(1)
        assert [(await state_of(world, index)).leader for index in range(3)] == [1, 2, 2]
        assert controller.statistics()["failures"] > 0
    await asyncio.sleep(CHECK_S)
    assert (await state_of(world, 0)).leader == 2
    second.tasks.failed.clear()


@on_virtual_time
async def test_a_controller_that_meets_with_a_bug_goes_on(world: World) -> None:
    first, _ = await candidate(world, 1)
    second, controller = await candidate(world, 2)
    await create(world, replicas=2)

    def raises(*_: object, **__: object) -> None:
        raise Bug("no such thing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "decide", raises)
        await first.membership.leave()
        await asyncio.sleep(3)
        assert 0 < controller.failures <= 4, "it does not spin"
    await asyncio.sleep(CHECK_S)
    assert (await state_of(world)).leader == 2
    second.tasks.failed.clear()
