"""Transactions on their way into a partition: what waits for the coordinator, in which order, what comes too late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from comet import records
from comet.errors import (
    CometError,
    CorruptBatch,
    Internal,
    InvalidArgument,
    LeadershipLost,
    LimitExceeded,
    NotLeader,
    ProducerFenced,
    TransactionAborted,
    TransactionNotOpen,
    Unavailable,
)
from comet.settings.topic import Consistency, TopicConfig
from comet.v1 import coordination_pb2 as pb
from comet.v1 import types_pb2 as types
from comet_broker import limits
from comet_broker.coordination.markers import write_here
from comet_broker.core.slots import producer_in
from comet_broker.partitions import transaction_batches
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.transaction_batches import NotInTransaction
from tests.unit.replica_world import STATE, ReplicaWorld, replace_state, settle

ME = producer_in(3, 17)
ALL = 2


def acks_waiting(partition: Partition) -> int:
    assert partition.leadership is not None
    return partition.leadership.acks.pending


def part(sequence: int = 0, *, epoch: int = 1, producer: int = ME, value: bytes = b"x") -> memoryview:
    parts = records.encode(
        [value], timestamps=1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return memoryview(b"".join(parts))


async def leading(**config: object) -> ReplicaWorld:
    """A partition with one replica that leads."""
    world = ReplicaWorld(TopicConfig(min_insync=1, **config))  # type: ignore[arg-type]
    await world.lead(in_sync={1: 10}, replicas=(1,))
    return world


class Sender:
    """A stream that produces, and what it was told."""

    def __init__(self, world: ReplicaWorld) -> None:
        self.partition = world.partition
        self.told: list[int | type[CometError]] = []

    def send(self, batch: memoryview) -> None:
        try:
            self.done(self.partition.produce(batch, ALL))
        except NotInTransaction:
            self.partition.transaction_batches.take(batch, self.done)
        except CometError as error:
            self.done(error)

    def done(self, result: Accepted | CometError) -> None:
        self.told.append(type(result) if isinstance(result, CometError) else result.base_offset)


async def test_the_first_batch_waits_for_the_coordinator_and_those_behind_it_keep_their_order() -> None:
    world = await leading()
    sender = Sender(world)
    world.coordinator.clear()
    for sequence in range(3):
        sender.send(part(sequence))
    sender.send(part(producer=producer_in(4, 1)))
    assert world.partition.produce(memoryview(b"".join(records.encode([b"plain"], timestamps=1))), 1).base_offset == 0
    await settle()
    assert (sender.told, world.log.log_end) == ([], 1)
    assert world.added == [(ME, 1), (producer_in(4, 1), 1)], "each asks once"
    world.coordinator.set()
    await settle()
    assert sender.told == [1, 2, 3, 4]
    sender.send(part(3))
    assert sender.told[-1] == 5 and len(world.added) == 2, "it is open: nobody is asked again"
    assert len(world.partition.transaction_batches) == 0
    await world.tasks.close()


async def test_no_batch_overtakes_one_that_waits() -> None:
    """Even where the transaction is open by now: this broker has followed another meanwhile."""
    world = await leading()
    sender = Sender(world)
    world.coordinator.clear()
    sender.send(part(0))
    world.log.append(records.verify(part(0), stamped=False), part(0), 1)
    sender.send(part(1))
    assert sender.told == []
    world.coordinator.set()
    await settle()
    assert sender.told == [0, 1], "the first one is there already"
    await world.tasks.close()


@pytest.mark.parametrize("error", [ProducerFenced("x"), TransactionAborted("x"), Unavailable("x")])
async def test_what_the_coordinator_refuses_is_not_written(error: CometError) -> None:
    world = await leading()
    sender = Sender(world)
    world.not_added = error
    sender.send(part(0))
    sender.send(part(1))
    await settle()
    assert sender.told == [type(error)] * 2
    assert world.log.log_end == 0
    world.not_added = None
    sender.send(part(0))
    await settle()
    assert sender.told[-1] == 0, "it may try again"
    await world.tasks.close()


async def test_a_bug_in_asking_is_told_to_who_waits() -> None:
    world = await leading()
    sender = Sender(world)
    world.not_added = RuntimeError("an unexpected error")  # type: ignore[assignment]
    sender.send(part(0))
    await settle()
    assert sender.told == [Internal]
    assert len(world.partition.transaction_batches) == 0
    assert world.tasks.failed
    world.tasks.failed.clear()
    await world.tasks.close()


async def test_who_is_refused_takes_those_behind_it_along() -> None:
    """They would leave a gap, or be taken for the first."""
    world = await leading()
    sender = Sender(world)
    world.coordinator.clear()
    sender.send(part(5))  # not where the transaction begins
    sender.send(part(0))
    world.coordinator.set()
    await settle()
    assert len(sender.told) == 2 and sender.told[0] is sender.told[1]
    assert world.log.log_end == 0
    await world.tasks.close()


async def test_an_end_that_overtakes_the_coordinators_answer_keeps_the_batch_out() -> None:
    world = await leading()
    sender = Sender(world)
    world.coordinator.clear()
    sender.send(part())
    await settle()
    await world.partition.transaction_batches.write_marker(ME, 1, False)
    world.coordinator.set()
    await settle()
    assert sender.told == [TransactionAborted]
    assert world.log.log_end == 1, "the marker, and nothing behind it"
    assert world.partition.last_stable_offset == 1
    await world.tasks.close()


async def test_a_leader_that_steps_down_meanwhile_writes_nothing() -> None:
    world = await leading()
    sender = Sender(world)
    world.coordinator.clear()
    sender.send(part())
    await settle()
    world.partition.apply(await world.put(replace_state(STATE, leader=2, epoch=9)))
    world.coordinator.set()
    await settle()
    assert sender.told == [NotLeader]
    assert world.log.log_end == 0
    await world.tasks.close()


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_WAITING_BYTES_MAX", 1000)
    world = await leading()
    sender = Sender(world)
    world.coordinator.clear()
    for sequence in range(2):
        sender.send(part(sequence, value=bytes(300)))
    with pytest.raises(LimitExceeded):
        sender.send(part(2, value=bytes(300)))
    world.coordinator.set()
    await settle()
    assert sender.told == [0, 1]
    await world.tasks.close()


@pytest.mark.parametrize(
    ("batch", "acks", "error"),
    [
        (part(), 1, InvalidArgument),
        (part(producer=1 << 62), ALL, InvalidArgument),
        (memoryview(records.encode_marker(ME, 1, True, 0, 1)), ALL, CorruptBatch),
    ],
)
async def test_what_no_producer_may_send(batch: memoryview, acks: int, error: type[CometError]) -> None:
    world = await leading()
    with pytest.raises(error):
        world.partition.produce(batch, acks)
    assert world.log.log_end == 0
    await world.tasks.close()


async def test_an_available_topic_takes_no_transactions() -> None:
    world = await leading(consistency=Consistency.AVAILABLE)
    with pytest.raises(InvalidArgument, match="available"):
        world.partition.produce(part(), ALL)
    await world.tasks.close()


# ---- markers


async def test_readers_of_what_is_committed_wait_for_the_end() -> None:
    world = await leading()
    one, sender = world.partition, Sender(world)
    world.produce()
    sender.send(part())
    await settle()
    world.produce()
    assert (one.high_watermark, one.last_stable_offset) == (3, 1)
    await one.transaction_batches.write_marker(ME, 1, True)
    assert (one.high_watermark, one.last_stable_offset) == (4, 4)
    assert one.watermarks.isolation.aborted(0, 4) == []
    sender.send(part(1))
    sender.send(part(0, epoch=2))
    await settle()
    await one.transaction_batches.write_marker(ME, 2, False)
    assert [tuple(found) for found in one.watermarks.isolation.aborted(0, 9)] == [(ME, 2, 4, 5)]
    sender.send(part(0, epoch=1))
    assert sender.told[1:] == [TransactionNotOpen, 4, ProducerFenced]
    await world.tasks.close()


async def test_a_transaction_is_not_ended_twice_nor_in_another_way() -> None:
    world = await leading()
    one, sender = world.partition, Sender(world)
    sender.send(part())
    await settle()
    for _ in range(3):
        await one.transaction_batches.write_marker(ME, 1, True)
    assert one.log.log_end == 2
    with pytest.raises(Internal):
        await one.transaction_batches.write_marker(ME, 1, False)
    await one.transaction_batches.write_marker(ME, 2, False)  # where it wrote nothing
    await one.transaction_batches.write_marker(ME, 1, True)
    assert one.log.log_end == 3
    await world.tasks.close()


async def test_an_end_counts_once_the_marker_is_on_all_in_sync_replicas() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    one, sender = world.partition, Sender(world)
    world.follow(2, 0)
    sender.send(part())
    await settle()
    world.progress(2, 1)
    assert (one.high_watermark, one.last_stable_offset) == (1, 0)
    marking = asyncio.get_running_loop().create_task(one.transaction_batches.write_marker(ME, 1, True))
    again = asyncio.get_running_loop().create_task(one.transaction_batches.write_marker(ME, 1, True))
    await settle()
    assert (one.log.log_end, one.last_stable_offset, marking.done(), again.done()) == (2, 0, False, False)
    world.progress(2, 2)
    await asyncio.gather(marking, again)
    assert one.last_stable_offset == 2
    await world.tasks.close()


async def test_whoever_asks_again_and_again_for_a_marker_that_cannot_count_now_is_not_kept_waiting() -> None:
    world = ReplicaWorld(TopicConfig(min_insync=2))
    await world.lead(in_sync={1: 10, 2: 20})
    partition = world.partition
    view: Any = SimpleNamespace(state=SimpleNamespace(deleted={}))
    topics: Any = SimpleNamespace(state_of=lambda *_: partition.state, leading=lambda *_: partition)
    tp = pb.PartitionId(topic_id=partition.topic_id, partition=partition.index)
    request = pb.WriteMarkersRequest(producer_id=ME, epoch=1, commit=True, partitions=[tp])
    waiting = asyncio.create_task(write_here(topics, view, request))
    await settle()
    assert (partition.log.log_end, acks_waiting(partition)) == (1, 1)
    partition.apply(await world.put(replace_state(STATE, in_sync={1: 10}, eligible={2: 20})))
    for _ in range(3):
        async with asyncio.timeout(30):
            answer = await write_here(topics, view, request)
        assert list(answer.codes) == [types.ERROR_CODE_NOT_ENOUGH_REPLICAS]
    assert (partition.log.log_end, acks_waiting(partition)) == (1, 1)
    world.follow(2, 1)
    partition.apply(await world.put(replace_state(STATE, in_sync={1: 10, 2: 20})))
    assert list((await waiting).codes) == [0]
    partition.apply(await world.put(replace_state(STATE, in_sync={1: 10}, eligible={2: 20})))
    assert list((await write_here(topics, view, request)).codes) == [0], "it counts already"
    await world.tasks.close()


async def test_a_marker_whose_leader_is_replaced_may_or_may_not_be_kept() -> None:
    world = ReplicaWorld()
    await world.lead(in_sync={1: 10, 2: 20})
    one = world.partition
    world.follow(2, 0)
    marking = asyncio.get_running_loop().create_task(one.transaction_batches.write_marker(ME, 1, False))
    await settle()
    one.apply(await world.put(replace_state(STATE, leader=2, epoch=9)))
    with pytest.raises(LeadershipLost):
        await marking
    with pytest.raises(NotLeader):
        await one.transaction_batches.write_marker(ME, 1, False)
    await world.tasks.close()


async def test_what_was_deleted_of_an_open_transaction_holds_nobody_up() -> None:
    world = await leading()
    one, sender = world.partition, Sender(world)
    sender.send(part())
    await settle()
    world.produce()
    assert one.last_stable_offset == 0
    await one.housekeeping.delete_before(1)
    assert one.last_stable_offset == 2
    sender.send(part(1))
    await settle()
    assert sender.told == [0, 2] and len(world.added) == 2, "nothing of it was known here any more"
    assert one.last_stable_offset == 2
    await world.tasks.close()


async def test_a_follower_that_is_cut_back_knows_what_is_open_in_what_stays() -> None:
    world = await leading()
    one, sender = world.partition, Sender(world)
    sender.send(part())
    await settle()
    await one.transaction_batches.write_marker(ME, 1, False)
    assert one.last_stable_offset == 2
    one.apply(await world.put(replace_state(STATE, leader=2, epoch=9)))
    await one.follower.truncate(1, 9, restart=False)
    assert (one.log.log_end, one.last_stable_offset) == (1, 0)
    assert one.watermarks.isolation.aborted(0, 9) == []
    await one.follower.truncate(0, 9, restart=False)
    assert (one.log.log_end, one.last_stable_offset) == (0, 0)
    assert one.watermarks.isolation.first_offset(ME, 1) == -1
    await world.tasks.close()


# ---- what was left open


async def test_a_new_leader_ends_what_is_over_and_has_lost_its_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_batches, "LEFT_OPEN_S", 0.0)
    monkeypatch.setattr(transaction_batches, "LEFT_OPEN_S_MAX", 0.0)
    world = await leading()
    one, sender = world.partition, Sender(world)
    for producer in (1, 2, 3):
        sender.send(part(producer=producer_in(3, producer)))
    await settle()
    one.apply(await world.put(replace_state(STATE, leader=2, epoch=9)))
    await world.lead(in_sync={1: 10}, replicas=(1,), epoch=10)
    world.outcomes = {(producer_in(3, 1), 1): True, (producer_in(3, 2), 1): False}
    await settle(200)
    assert one.watermarks.isolation.open_transactions() == [(producer_in(3, 3), 1)], (
        "it may still be open, or its marker come"
    )
    assert (one.log.log_end, one.last_stable_offset) == (5, 2)
    assert [found.producer_id for found in one.watermarks.isolation.aborted(0, 5)] == [producer_in(3, 2)]
    await one.transaction_batches.write_marker(producer_in(3, 3), 1, True)
    await settle()
    assert one.last_stable_offset == one.log.log_end == 6
    await world.tasks.close()


async def test_who_leads_no_longer_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_batches, "LEFT_OPEN_S", 0.0)
    world = await leading()
    one, sender = world.partition, Sender(world)
    sender.send(part())
    await settle()
    one.apply(await world.put(replace_state(STATE, leader=2, epoch=9)))
    await world.lead(in_sync={1: 10}, replicas=(1,), epoch=10)
    one.apply(await world.put(replace_state(STATE, leader=2, epoch=11)))
    world.outcomes = {(ME, 1): True}
    await settle()
    assert one.log.log_end == 1
    await world.tasks.close()
