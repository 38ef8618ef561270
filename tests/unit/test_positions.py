"""What a broker says of an offset that its log does not reach, in each of the roles it may be in."""

from __future__ import annotations

from typing import Any

import pytest

from comet.errors import CometError, CorruptRecords, DataLoss, OffsetOutOfRange, Truncated, Unavailable
from comet.types import AtOffset, Gap
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


@pytest.mark.parametrize(
    ("error", "expected", "following"),
    [
        (OffsetOutOfRange("", details={"log_start": "7", "log_end": "9"}), (5, 7, "deleted"), 7),
        (OffsetOutOfRange("", details={"log_start": "0", "log_end": "4"}), (4, 5, "truncated"), 4),
        (Truncated("", details={"log_start": "0", "log_end": "3"}), (3, 5, "truncated"), 3),
        (DataLoss("", details={"first": "4", "end": "8"}), (5, 8, "damaged"), 8),
        (CorruptRecords("", details={"first": "6", "end": "8"}), (6, 8, "damaged"), 8),
        (DataLoss("", details={"first": "4", "end": "5"}), None, 0),
        (OffsetOutOfRange("", details={"log_start": "5", "log_end": "5"}), None, 0),
        (DataLoss(""), None, 0),
        (Unavailable(""), None, 0),
    ],
)
def test_an_error_reports_a_gap(error: CometError, expected: Any, following: int) -> None:
    gap = Gap.of(error, "quotes", 1, position=5)
    assert gap == (None if expected is None else Gap("quotes", 1, *expected))
    if gap is not None:
        assert gap.error is error
        assert gap.next_offset == following
