"""How a leader agrees with the store on who is in sync, and passes leadership on."""

from __future__ import annotations

import pytest

from comet.errors import Unavailable
from comet_broker.core.cluster import PartitionState
from comet_broker.metadata.memory import MemoryStore
from comet_broker.metadata.store import Put
from comet_broker.partitions.leader_state import HANDOVER_S_MAX
from tests.unit.replica_world import KEY, STATE, ReplicaWorld, replace_state, settle


async def test_news_that_are_known_do_not_end_the_change_that_is_under_way() -> None:
    """The store's answer tells of a change first, and its watch tells of it again, when the next one has begun."""
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    world.follow(2, 0)
    leadership = world.partition.leadership
    assert leadership is not None
    seen = await world.stored()
    world.store.free.clear()
    world.follow(3, 0)  # it has everything: it is to be taken in, and the store may have done so already
    await settle()
    assert leadership.replicas.proposed is not None
    world.partition.apply(seen)
    end = world.produce()
    world.progress(2, end)
    assert world.partition.committed == 0, "who may be in sync has not got it"
    world.progress(3, end)
    assert world.partition.committed == end
    world.store.free.set()
    await settle()
    assert leadership.replicas.state.in_sync == {1: 10, 2: 20, 3: 30}
    await world.tasks.close()


async def test_a_replica_that_must_not_lead_is_not_taken_in() -> None:
    """It is about to be cut back to below its damage, and would then be in sync without having everything."""
    world = ReplicaWorld(unfit={2})
    await world.lead()
    world.follow(2, 0)
    await settle()
    assert (await world.stored()).value.in_sync == {1: 10}
    world.unfit.clear()
    world.progress(2, 0)
    await settle()
    assert (await world.stored()).value.in_sync == {1: 10, 2: 20}
    await world.tasks.close()


async def test_a_handover_that_is_meant_for_another_now_takes_place() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20, 3: 30})
    world.follow(2, 0)
    world.follow(3, 0)
    end = world.produce()
    world.progress(3, end)
    asked = (await world.stored()).value
    world.partition.apply(await world.put(_handover(asked, 2)))
    with pytest.raises(Unavailable):
        world.produce()
    # Broker 2 is slow. Broker 3, which is asked for now, has everything and nothing more to say.
    world.partition.apply(await world.put(_handover(asked, 3)))
    await settle()
    stored = (await world.stored()).value
    assert (stored.leader, stored.epoch) == (3, 2)
    await world.tasks.close()


async def test_appends_are_not_held_back_for_longer_because_the_store_was_slow() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20, 3: 30})
    world.follow(2, 0)
    world.follow(3, 0)
    world.produce()
    leadership = world.partition.leadership
    assert leadership is not None
    world.partition.apply(await world.put(_handover((await world.stored()).value, 2)))
    assert leadership.handing_over
    world.pass_time(4)
    world.store.free.clear()
    leadership.check()  # both are too far behind: a change of in_sync is under way
    await settle()
    leadership._resume()  # the time for the handover is up
    world.store.free.set()
    await settle()
    world.pass_time(HANDOVER_S_MAX + 0.1)
    leadership.check()
    world.produce()
    await world.tasks.close()


async def test_a_state_that_cannot_be_read_ends_leadership_until_there_is_one_that_can() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    await MemoryStore.transact(world.store, [], [Put(KEY, b'{"leader": "of a later version"}')])
    world.follow(3, 0)  # it is to be taken in
    await settle()
    assert not world.partition.leads, "another may lead by now"
    assert not world.tasks.failed
    world.partition.apply(await world.put(replace_state(STATE, in_sync={1: 10, 2: 20})))
    world.follow(2, 0)  # it leads
    world.follow(3, 0)
    await settle()
    assert (await world.stored()).value.in_sync == {1: 10, 2: 20, 3: 30}
    await world.tasks.close()


async def test_a_change_that_failed_for_whatever_reason_is_not_under_way_any_more() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    leadership = world.partition.leadership
    assert leadership is not None
    world.follow(3, 0)
    world.store.broken = RuntimeError("an unexpected error")
    await settle()
    assert world.tasks.failures == 1
    world.store.broken = None
    # What the store has is not known: until it says so, broker 3 counts as if it were in sync.
    end = world.produce()
    world.follow(2, end)
    assert world.partition.committed == 0
    world.partition.apply(await world.put((await world.stored()).value))
    await settle()
    world.progress(3, end)
    await settle()
    assert (await world.stored()).value.in_sync == {1: 10, 2: 20, 3: 30}
    await world.tasks.close()


def _handover(state: PartitionState, broker: int) -> PartitionState:
    return replace_state(state, handover=broker)
