"""The transactions of a slot, on the virtual time of tests.sim: what is written before what is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comet.errors import (
    CometError,
    CoordinatorLoading,
    InvalidArgument,
    MemberUnknown,
    NotCoordinator,
    NotLeader,
    ProducerFenced,
    StaleGeneration,
    TransactionAborted,
    TransactionNotOpen,
    Unavailable,
)
from comet.v1 import groups_pb2 as pb
from comet.wire.protobuf import error_to_pb
from comet_broker.coordination.markers import CALLS_MAX
from comet_broker.core.cluster import PartitionState, partition_key
from comet_broker.core.slots import slot_of_producer
from comet_broker.core.transactions import TransactionState
from comet_broker.metadata.store import KeyValue
from tests.unit.transactions_world import HERE, SLOT, SLOT_PREFIX, THERE, Cluster, Producer, settled, with_cluster

OFFSETS = pb.Commit(group="g", member="m", generation=1)
BOTH = [HERE, THERE]


async def state(cluster: Cluster, name: str = "tx") -> TransactionState:
    stored = await cluster.stored(name)
    assert stored is not None
    return stored.state


async def broken_get(key: str) -> KeyValue | None:
    raise KeyError(key)


async def open_both(cluster: Cluster, **fields: Any) -> Producer:
    one = await cluster.open(**fields)
    await asyncio.gather(one.add_partition(HERE), one.add_partition(THERE))
    return one


# ---- one coordinator


@with_cluster
async def test_a_commit_is_one_write_with_its_positions_and_then_the_markers(cluster: Cluster) -> None:
    one = await open_both(cluster, group="g")
    assert slot_of_producer(one.producer_id) == SLOT
    cluster.may_mark.clear()
    ending = asyncio.get_running_loop().create_task(one.end(commit=True, offsets=OFFSETS))
    await settled(lambda: cluster.asked == 2)
    assert await state(cluster) is TransactionState.COMMITTING
    decision = await cluster.world.store.get(SLOT_PREFIX + "transactions/tx")
    offsets = await cluster.world.store.get(SLOT_PREFIX + "offsets/g")
    assert decision is not None
    assert offsets is not None
    assert decision.mod_revision == offsets.mod_revision, "both or neither"
    assert cluster.groups.written_with == [decision.key], "not by chance: in one write"
    assert not ending.done(), "it is answered when readers see it"
    cluster.may_mark.set()
    assert await ending == 2
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)
    assert await state(cluster) is TransactionState.COMMITTING, "nothing waits for this to be stored"


@with_cluster
async def test_no_marker_is_written_before_the_decision_is(cluster: Cluster) -> None:
    one = await open_both(cluster)
    cluster.world.store.down = True
    ending = asyncio.get_running_loop().create_task(one.end(commit=True))
    await asyncio.sleep(5)
    assert cluster.asked == 0
    assert not ending.done()
    cluster.world.store.down = False
    assert await ending == 2


@with_cluster
async def test_a_partition_whose_adding_is_not_written_yet_is_part_of_the_decision(cluster: Cluster) -> None:
    one = await cluster.open()
    await one.add_partition(HERE)
    cluster.world.store.down = True
    loop = asyncio.get_running_loop()
    adding = loop.create_task(one.add_partition(THERE))
    await asyncio.sleep(0)
    ending = loop.create_task(one.end(commit=True))
    await asyncio.sleep(0)
    late = loop.create_task(one.add_partition(THERE))
    await asyncio.sleep(1)
    assert not adding.done()
    cluster.world.store.down = False
    await adding
    assert await ending == 2
    with pytest.raises(TransactionNotOpen):
        await late
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)


@with_cluster
async def test_one_who_asks_twice_is_told_the_same(cluster: Cluster) -> None:
    one = await open_both(cluster)
    ends = [one.end(commit=True, epoch=1) for _ in range(3)]
    assert await asyncio.gather(*ends) == [2, 2, 2]
    assert await one.end(commit=True, epoch=1) == 2
    assert cluster.asked == 2
    with pytest.raises(TransactionNotOpen):
        await one.end(commit=False, epoch=1)


@with_cluster
async def test_of_commit_and_abort_at_once_the_first_decides(cluster: Cluster) -> None:
    one = await open_both(cluster)
    answers = await asyncio.gather(
        one.end(commit=False, epoch=1), one.end(commit=True, epoch=1), return_exceptions=True
    )
    assert answers[0] == 2
    assert isinstance(answers[1], TransactionAborted)
    assert cluster.marked(1) == dict.fromkeys(BOTH, False)


@with_cluster
async def test_an_abort_is_told_to_nobody_before_it_is_written(cluster: Cluster) -> None:
    """Else another coordinator could still commit what was called aborted."""
    one = await open_both(cluster, timeout_ms=1000)
    cluster.world.store.down = True
    await asyncio.sleep(1.5)
    ending = asyncio.get_running_loop().create_task(one.end(commit=True))
    await asyncio.sleep(1)
    assert not ending.done()
    cluster.lose()
    with pytest.raises(NotCoordinator):
        await ending
    cluster.world.store.down = False
    await cluster.coordinate()
    assert await one.end(commit=True) == 2


@with_cluster
async def test_the_epoch_of_one_transaction_is_of_no_use_in_the_next(cluster: Cluster) -> None:
    one = await cluster.open()
    for epoch in range(1, 5):
        await one.add_partition(HERE)
        assert await one.end(commit=bool(epoch % 2)) == epoch + 1
    await one.add_partition(HERE)
    for epoch in range(1, 5):
        with pytest.raises((TransactionNotOpen, TransactionAborted)):
            await one.add_partition(THERE, epoch=epoch)
    assert await one.end(commit=False, epoch=4) == 5
    assert await one.end(commit=True) == 6
    assert cluster.marked(5) == {HERE: True}


@with_cluster
async def test_a_transaction_without_outputs_still_commits_positions(cluster: Cluster) -> None:
    one = await cluster.open(group="g")
    assert await one.end(commit=True, offsets=OFFSETS) == 2
    assert await cluster.world.store.get(SLOT_PREFIX + "offsets/g") is not None
    assert cluster.asked == 0


# ---- fences


@with_cluster
async def test_whoever_opens_the_id_anew_ends_and_fences_the_one_before(cluster: Cluster) -> None:
    old = await open_both(cluster)
    new = await cluster.open()
    assert cluster.marked(1) == dict.fromkeys(BOTH, False)
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch + 1
    for what in (
        old.add_partition(HERE),
        old.end(commit=True),
        old.end(commit=False),
        old.add_partition(HERE, old.epoch + 1),
    ):
        with pytest.raises(ProducerFenced):
            await what
    await new.add_partition(HERE)
    assert await new.end(commit=True) == new.epoch


@with_cluster
async def test_many_who_open_the_id_at_once_have_an_epoch_each(cluster: Cluster) -> None:
    await open_both(cluster)
    opened = await asyncio.gather(*(cluster.open() for _ in range(5)))
    epochs = [one.epoch for one in opened]
    assert len(set(epochs)) == 5
    for one in opened[:-1]:
        with pytest.raises(ProducerFenced):
            await one.add_partition(HERE)
    await opened[-1].add_partition(HERE)


@with_cluster
async def test_positions_that_are_refused_abort_the_transaction(cluster: Cluster) -> None:
    for refuse in ("mark", "member", "ends"):
        one = await open_both(cluster, group="g")
        epoch = one.epoch
        expected: CometError = StaleGeneration("it owns the partition no more")
        if refuse == "mark":
            cluster.groups.refused = [pb.RefusedOffset(topic="t", partition=0, error=error_to_pb(expected))]
        elif refuse == "member":
            cluster.groups.error = expected = MemberUnknown("it was put out")
        else:
            cluster.groups.unknown_ends = expected = InvalidArgument("too many positions")
        with pytest.raises(type(expected)):
            await one.end(commit=True, offsets=OFFSETS)
        await settled(lambda epoch=epoch: len(cluster.marked(epoch)) == 2)  # type: ignore[misc]
        assert cluster.marked(epoch) == dict.fromkeys(BOTH, False)
        assert await cluster.world.store.get(SLOT_PREFIX + "offsets/g") is None
        cluster.groups.refused, cluster.groups.error, cluster.groups.unknown_ends = [], None, None
        with pytest.raises(TransactionAborted, match=expected.message):
            await one.end(commit=True, offsets=OFFSETS)


@with_cluster
async def test_positions_that_cannot_be_checked_now_decide_nothing(cluster: Cluster) -> None:
    one = await open_both(cluster, group="g")
    cluster.groups.unknown_ends = Unavailable("the leader does not answer")
    with pytest.raises(Unavailable):
        await one.end(commit=True, offsets=OFFSETS)
    cluster.groups.unknown_ends, cluster.groups.error = None, Unavailable("not yet")
    with pytest.raises(Unavailable):
        await one.end(commit=True, offsets=OFFSETS)
    cluster.groups.error = None
    assert await one.end(commit=True, offsets=OFFSETS) == 2


@with_cluster
async def test_positions_of_another_group_are_refused(cluster: Cluster) -> None:
    one = await open_both(cluster, group="g")
    with pytest.raises(InvalidArgument):
        await one.end(commit=True, offsets=pb.Commit(group="other"))
    one.group = ""
    with pytest.raises(InvalidArgument):
        await one.end(commit=True)


@with_cluster
async def test_what_a_member_has_left_open_ends_when_it_is_put_out(cluster: Cluster) -> None:
    mine = await open_both(cluster, group="g", member="m")
    other = await cluster.open("other", group="g", member="n")
    await other.add_partition(HERE)
    cluster.transactions.evicted("g", "m")
    with pytest.raises(TransactionAborted, match="removed from the group"):
        await mine.end(commit=True)
    assert await other.end(commit=True) == 2


@with_cluster
async def test_a_producer_that_nobody_knows_has_nothing_open(cluster: Cluster) -> None:
    one = await cluster.open()
    stranger = Producer(cluster, "tx", one.producer_id + 1, 1, "")
    with pytest.raises(TransactionNotOpen):
        await stranger.add_partition()
    with pytest.raises(ProducerFenced):
        await stranger.end(commit=True)
    stranger.name = "nobody"
    with pytest.raises(TransactionNotOpen):
        await stranger.end(commit=True)


# ---- leaders


@with_cluster
async def test_a_marker_that_is_refused_is_sent_again(cluster: Cluster) -> None:
    cluster.refusals = [NotLeader("not me"), Unavailable("not yet"), KeyError("an unexpected error")]
    cluster.broken = [KeyError("nor of this")]
    one = await open_both(cluster)
    assert await one.end(commit=True) == 2
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)


@with_cluster
async def test_a_marker_is_sent_again_as_soon_as_the_cluster_has_moved(cluster: Cluster) -> None:
    one = await open_both(cluster)
    cluster.reachable = False
    ending = asyncio.get_running_loop().create_task(one.end(commit=True))
    await asyncio.sleep(10)  # by now it asks once a second
    failed = cluster.transactions.statistics()["marker_attempts_failed"]
    await settled(lambda: cluster.transactions.statistics()["marker_attempts_failed"] > failed)
    await asyncio.sleep(0.1)
    cluster.reachable = True
    cluster.transactions.view_moved([partition_key(THERE)])
    await asyncio.sleep(0.05)
    assert ending.done()


@with_cluster
async def test_a_partition_that_stands_still_keeps_no_marker_from_the_others_here(cluster: Cluster) -> None:
    await cluster.world.put(partition_key(THERE), PartitionState(1, 2, (1, 2), {1: 1, 2: 2}).encode())
    cluster.stuck.add(HERE)
    ends: list[asyncio.Task[int]] = []
    for number in range(CALLS_MAX):
        one = await cluster.open(f"stuck-{number}")
        await one.add_partition(HERE)
        ends.append(asyncio.create_task(one.end(commit=True)))
    await settled(lambda: cluster.asked == CALLS_MAX)
    other = await cluster.open("other")
    await other.add_partition(THERE)
    await other.end(commit=True)
    assert not any(end.done() for end in ends)
    cluster.stuck.clear()
    await asyncio.gather(*ends)


@with_cluster
async def test_an_end_that_waits_for_a_leader_is_answered_when_asked_again(cluster: Cluster) -> None:
    cluster.reachable = False
    one = await open_both(cluster)
    with pytest.raises(Unavailable, match="decided"):
        await one.end(commit=True)
    assert cluster.marked(1) == {HERE: True}
    with pytest.raises(CoordinatorLoading):
        await one.add_partition(HERE, epoch=2)
    with pytest.raises(Unavailable, match="decided"):
        await cluster.open()
    ending = asyncio.get_running_loop().create_task(one.end(commit=True))
    await asyncio.sleep(1)
    cluster.reachable = True
    assert await ending == 2
    with pytest.raises(ProducerFenced):
        await one.add_partition()


@with_cluster
async def test_a_topic_that_is_gone_needs_no_marker(cluster: Cluster) -> None:
    for buried in (False, True):
        one = await open_both(cluster)
        cluster.reachable = False
        ending = asyncio.get_running_loop().create_task(one.end(commit=True))
        await asyncio.sleep(1)
        assert not ending.done()
        await cluster.delete_topic(buried=buried)
        assert await ending == one.epoch
        if buried:
            return
        await cluster.restore_topic()
        cluster.reachable = True


@with_cluster
async def test_a_topic_that_this_broker_has_not_heard_of_is_not_gone(cluster: Cluster) -> None:
    one = await open_both(cluster)
    partitions = cluster.member.view.state.partitions
    hidden = {tp: partitions.pop(tp) for tp in BOTH}
    ending = asyncio.get_running_loop().create_task(one.end(commit=True))
    await asyncio.sleep(5)
    assert not ending.done()
    get, cluster.world.store.get = cluster.world.store.get, broken_get  # type: ignore[method-assign]
    await asyncio.sleep(5)
    cluster.world.store.get = get  # type: ignore[method-assign]
    assert not ending.done()
    partitions.update(hidden)
    assert await ending == 2
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)
