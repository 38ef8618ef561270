"""The transactions of a slot, on the virtual time of tests.sim: time-outs, and what the next coordinator does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from comet.errors import (
    CoordinatorLoading,
    InvalidArgument,
    LimitExceeded,
    NotCoordinator,
    StoreDamaged,
    TransactionAborted,
    TransactionNotOpen,
)
from comet.v1 import groups_pb2 as pb
from comet_broker import limits
from comet_broker.coordination.timekeeping import FORGET_S, TIDY_S
from comet_broker.core.transactions import TransactionState
from tests.unit.transactions_world import HERE, SLOT_PREFIX, THERE, Cluster, Producer, settled, with_cluster
from tests.waiting import until

OFFSETS = pb.Commit(group="g", member="m", generation=1)
BOTH = [HERE, THERE]


async def state(cluster: Cluster, name: str = "tx") -> TransactionState:
    stored = await cluster.stored(name)
    assert stored is not None
    return stored.state


async def open_both(cluster: Cluster, **fields: Any) -> Producer:
    one = await cluster.open(**fields)
    await asyncio.gather(one.add_partition(HERE), one.add_partition(THERE))
    return one


# ---- time


@with_cluster
async def test_what_is_open_for_too_long_is_aborted_for_its_readers(cluster: Cluster) -> None:
    one = await open_both(cluster, timeout_ms=2000)
    await asyncio.sleep(1.9)
    assert cluster.asked == 0
    await asyncio.sleep(0.2)
    assert cluster.marked(1) == dict.fromkeys(BOTH, False)
    with pytest.raises(TransactionAborted, match="2000 ms"):
        await one.end(commit=True)
    one.epoch = 2
    await one.add_partition(HERE)
    await asyncio.sleep(1.9)
    assert await one.end(commit=True) == 3, "each transaction has its own time"


@with_cluster
async def test_a_coordinator_that_was_stopped_blames_nobody(cluster: Cluster) -> None:
    one = await open_both(cluster, timeout_ms=2000)
    await asyncio.sleep(1)
    cluster.member.clock.paused_s += 60
    await asyncio.sleep(1.5)
    assert cluster.asked == 0
    assert await one.end(commit=True) == 2
    await one.add_partition(HERE)
    await asyncio.sleep(2.1)
    assert cluster.marked(2) == {HERE: False}


@with_cluster
async def test_made_up_ids_are_forgotten_when_their_stream_is_gone(cluster: Cluster) -> None:
    line = SimpleNamespace(closed=False)
    stream: Any = line
    opened = await cluster.transactions.open(pb.OpenTransactions(group="g"), stream)
    again = await cluster.transactions.open(pb.OpenTransactions(group="g"), stream)
    assert opened.transactional_id != again.transactional_id
    named = await cluster.open("named")
    await asyncio.sleep(limits.TRANSACTIONAL_ID_ABANDONED_S + 2 * FORGET_S)
    assert await cluster.stored(opened.transactional_id) is not None
    line.closed = True
    await asyncio.sleep(2 * FORGET_S)
    assert await cluster.stored(opened.transactional_id) is None
    with pytest.raises(TransactionNotOpen):
        await Producer(cluster, opened.transactional_id, opened.producer_id, opened.epoch, "g").add_partition()
    reopened = await cluster.transactions.open(
        pb.OpenTransactions(group="g", transactional_id=opened.transactional_id), stream
    )
    assert reopened.producer_id != opened.producer_id
    await asyncio.sleep(limits.TRANSACTIONAL_ID_IDLE_S_MAX - 2 * limits.TRANSACTIONAL_ID_ABANDONED_S)
    assert await cluster.stored("named") is not None
    await asyncio.sleep(2 * limits.TRANSACTIONAL_ID_ABANDONED_S)
    assert await cluster.stored("named") is None
    with pytest.raises(TransactionNotOpen):
        await named.add_partition()


@with_cluster
async def test_the_number_of_ids_is_bounded(cluster: Cluster) -> None:
    first = await cluster.open("id-0")
    await first.add_partition()
    await asyncio.gather(*(cluster.open(f"id-{number}") for number in range(1, limits.TRANSACTIONAL_IDS_MAX)))
    with pytest.raises(LimitExceeded):
        await cluster.open("one-more")
    await asyncio.sleep(limits.TRANSACTIONAL_ID_IDLE_S_MIN)
    await cluster.open("one-more")
    assert cluster.transactions.statistics()["transactional_ids"] == limits.TRANSACTIONAL_IDS_MAX
    await asyncio.sleep(0.1)
    assert await cluster.stored("id-1") is None, "the longest idle one"


# ---- the next coordinator


@with_cluster
async def test_lost_before_the_decision_it_goes_on(cluster: Cluster) -> None:
    one = await open_both(cluster, timeout_ms=2000)
    await asyncio.sleep(1.5)
    await cluster.take_over()
    await asyncio.sleep(1.5)
    assert cluster.asked == 0, "its time began anew"
    assert await one.end(commit=True) == 2
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)


@with_cluster
async def test_lost_before_the_decision_it_is_aborted_when_nobody_comes(cluster: Cluster) -> None:
    await open_both(cluster, timeout_ms=2000)
    await cluster.take_over()
    await asyncio.sleep(2.5)
    assert cluster.marked(1) == dict.fromkeys(BOTH, False)


@with_cluster
async def test_lost_after_the_decision_the_next_one_completes_it(cluster: Cluster) -> None:
    for commit in (True, False):
        one = await open_both(cluster)
        epoch = one.epoch
        cluster.may_mark.clear()
        ending = asyncio.get_running_loop().create_task(one.end(commit=commit))
        await settled(lambda before=cluster.asked: cluster.asked >= before + 2)  # type: ignore[misc]
        cluster.lose()
        with pytest.raises(NotCoordinator):
            await ending
        cluster.may_mark.set()
        await cluster.coordinate()
        await settled(lambda epoch=epoch: len(cluster.marked(epoch)) == 2)  # type: ignore[misc]
        assert cluster.marked(epoch) == dict.fromkeys(BOTH, commit)
        assert await one.end(commit=commit) == epoch + 1


@with_cluster
async def test_lost_between_markers_it_is_not_torn(cluster: Cluster) -> None:
    one = await open_both(cluster)
    cluster.reachable = False
    ending = asyncio.get_running_loop().create_task(one.end(commit=True))
    await settled(lambda: cluster.marked(1) == {HERE: True})
    cluster.lose()
    with pytest.raises(NotCoordinator):
        await ending
    cluster.reachable = True
    await cluster.coordinate()
    assert await one.end(commit=True) == 2
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)


@with_cluster
async def test_the_next_epoch_counts_though_nobody_stored_that_the_last_one_is_over(cluster: Cluster) -> None:
    one = await open_both(cluster)
    assert await one.end(commit=True) == 2
    cluster.may_mark.clear()
    await cluster.take_over()
    with pytest.raises(CoordinatorLoading):
        await one.add_partition(HERE)
    cluster.may_mark.set()
    await settled(lambda: cluster.transactions.statistics()["transactions_ending"] == 0)
    await one.add_partition(HERE)
    assert await one.end(commit=True) == 3


@with_cluster
async def test_what_is_over_for_a_while_is_stored_so(cluster: Cluster) -> None:
    one = await open_both(cluster)
    await one.end(commit=True)
    await asyncio.sleep(2 * TIDY_S)
    assert await state(cluster) is TransactionState.EMPTY
    asked = cluster.asked
    await cluster.take_over()
    await asyncio.sleep(1)
    assert cluster.asked == asked, "no marker is written again"
    assert await one.end(commit=True, epoch=1) == 2


@with_cluster
async def test_a_coordinator_that_was_replaced_decides_nothing(cluster: Cluster) -> None:
    one = await open_both(cluster)
    old = cluster.transactions
    await cluster.coordinate()  # the other has not heard
    with pytest.raises(NotCoordinator):
        await old.end(one.ending(commit=False))
    assert cluster.asked == 0
    assert await one.end(commit=True) == 2
    assert cluster.marked(1) == dict.fromkeys(BOTH, True)
    old.close(NotCoordinator("it has heard"))


@with_cluster
async def test_a_record_that_cannot_be_read_is_left_alone(cluster: Cluster) -> None:
    await cluster.open()
    await cluster.world.put(SLOT_PREFIX + "transactions/tx", b"{broken")
    await cluster.take_over()
    with pytest.raises(StoreDamaged):
        await cluster.open()
    await cluster.open("another")
    assert await until(lambda: cluster.transactions.statistics()["transactional_ids"] == 1, within_s=1)


@with_cluster
async def test_what_makes_no_sense_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgument):
        await cluster.open(timeout_ms=limits.TRANSACTION_TIMEOUT_MS_MAX + 1)
    with pytest.raises(InvalidArgument):
        await cluster.open("no/name")
    one = await cluster.open()
    with pytest.raises(InvalidArgument):
        await one.add_partition(("ab", 0))
