"""What a broker says of an offset that its log does not reach, in each of the roles it may be in."""

from __future__ import annotations

import pytest

from comet.errors import OffsetOutOfRange, Unavailable
from comet.types import AtOffset
from comet_broker.partitions.offset_lookup import resolve
from tests.unit.replica_world import ReplicaWorld, replace_state, settle

RECORDS = 3


async def world_with_records() -> ReplicaWorld:
    world = ReplicaWorld()
    await world.lead()
    assert world.produce(RECORDS) == RECORDS
    return world


async def test_a_leader_knows_that_an_offset_is_not_there() -> None:
    world = await world_with_records()
    assert resolve(world.partition, AtOffset(RECORDS)) == RECORDS
    with pytest.raises(OffsetOutOfRange):
        resolve(world.partition, AtOffset(RECORDS + 1))
    await world.partition.close(Unavailable("the test is over"))


async def test_a_follower_says_that_it_has_not_got_it_and_the_reader_asks_the_leader() -> None:
    world = await world_with_records()
    state = world.partition.state
    assert state is not None
    world.partition.apply(await world.put(replace_state(state, leader=2, epoch=state.epoch + 1)))
    await settle()
    with pytest.raises(OffsetOutOfRange):
        resolve(world.partition, AtOffset(RECORDS + 1))
    await world.partition.close(Unavailable("the test is over"))


async def test_who_is_named_as_leader_and_is_not_one_tells_nobody_of_a_loss() -> None:
    """As after a restart, while the metadata store still has the life before it."""
    world = await world_with_records()
    state = world.partition.state
    assert state is not None
    world.partition.apply(await world.put(replace_state(state, in_sync={**state.in_sync, 1: 9})))
    assert world.partition.named and not world.partition.leads
    assert resolve(world.partition, AtOffset(RECORDS)) == RECORDS
    with pytest.raises(Unavailable):
        resolve(world.partition, AtOffset(RECORDS + 1))
    await world.partition.close(Unavailable("the test is over"))
