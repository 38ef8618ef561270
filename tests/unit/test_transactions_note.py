"""What a transactional id remembers of its last commit: set by the decision, and by nothing else. The transactions of a
slot are on the virtual time of tests.sim."""

from __future__ import annotations

import asyncio

import pytest

from comet.errors import InvalidArgument, NotCoordinator, StaleGeneration, TransactionNotOpen
from comet.v1 import groups_pb2 as pb
from comet_broker import limits
from comet_broker.core.transactions import (
    EPOCH_END,
    AddPartition,
    End,
    Event,
    Evicted,
    Marked,
    Open,
    TimedOut,
    TransactionLoaded,
    TransactionRecord,
    step,
)
from tests.unit.test_transactions import NEW, OPEN, TP, run
from tests.unit.transactions_world import HERE, Cluster, with_cluster

AGAIN = Open(producer_id=8, timeout_ms=60_000, group="g")
NOTE = "n" * limits.TRANSACTION_NOTE_BYTES_MAX


# ---- the record


def test_the_note_of_a_commit_is_part_of_the_decision() -> None:
    assert run(NEW, End(1, commit=True, note=b"1")).note == b"1", "without outputs, too"
    committing = run(OPEN, End(1, commit=True, note=b"1"))
    assert committing.note == b"1"
    again = run(committing, End(1, commit=True, note=b"another"))
    assert again is committing, "it is decided"
    over = run(committing, Marked(1))
    assert run(over, End(1, commit=True, note=b"another")) is over
    assert run(over, End(2, commit=True, note=b"2")).note == b"2"


@pytest.mark.parametrize(
    "events",
    [
        [End(2, commit=True)],
        [End(2, commit=False, note=b"aborted")],
        [AddPartition(2, TP), End(2, commit=True), Marked(2)],
        [AddPartition(2, TP), End(2, commit=False, note=b"aborted"), Marked(2)],
        [AddPartition(2, TP), TimedOut(2), Marked(2)],
        [AddPartition(2, TP), Evicted(), Marked(2)],
        [AddPartition(2, TP), AGAIN, Marked(2)],
        [AGAIN, AGAIN, TransactionLoaded()],
    ],
    ids=repr,
)
def test_whatever_else_happens_leaves_the_note_alone(events: list[Event]) -> None:
    record = run(OPEN, End(1, commit=True, note=b"1"), Marked(1))
    for event in events:
        record = run(record, event)
        assert record.note == b"1"


def test_a_note_outlives_the_epochs_of_its_producer() -> None:
    last = TransactionRecord(7, 60_000, epoch=EPOCH_END - 1, first_epoch=1, last_epoch=EPOCH_END - 2)
    renewed = run(last, End(EPOCH_END - 1, commit=True, note=b"1"), AGAIN)
    assert (renewed.producer_id, renewed.epoch, renewed.note) == (8, 1, b"1")


def test_a_record_from_before_there_were_notes_has_none() -> None:
    old = (
        b'{"producer_id":7,"timeout_ms":60000,"epoch":3,"first_epoch":1,"state":"empty","topics":{},"group":"g",'
        b'"member":"","last_epoch":2,"last_committed":true,"reason":"","aborted":[],"known_from":1}'
    )
    record = TransactionRecord.decode(old)
    assert record == TransactionRecord(7, 60_000, epoch=3, group="g", last_epoch=2, last_committed=True)
    noted = step(record, End(3, commit=True, note=bytes(range(256)))).record
    assert TransactionRecord.decode(noted.encode()).note == bytes(range(256))
    assert len(noted.encode()) < len(old) + 400


# ---- the coordinator


@with_cluster
async def test_whoever_opens_the_id_is_told_the_note_of_the_last_commit(cluster: Cluster) -> None:
    one = await cluster.open()
    assert one.note == b""
    await one.add_partition(HERE)
    assert await one.end(commit=True, note=b"1") == 2
    assert await one.end(commit=True, epoch=1, note=b"another") == 2, "asked for again"
    await one.add_partition(HERE)
    await one.end(commit=False, note=b"2")
    await one.add_partition(HERE)
    for _ in range(2):
        assert (await cluster.open()).note == b"1"
        await cluster.take_over()
    assert (await cluster.open("another")).note == b""


@with_cluster
async def test_of_a_commit_that_is_not_written_yet_nobody_is_told_the_note(cluster: Cluster) -> None:
    one = await cluster.open()
    await one.end(commit=True, note=b"1")
    cluster.world.store.down = True
    ending = asyncio.ensure_future(one.end(commit=True, note=b"2"))
    await asyncio.sleep(0)
    opening = asyncio.ensure_future(cluster.open())
    await asyncio.sleep(5)
    assert not opening.done()
    cluster.world.store.down = False
    assert (await opening).note == b"2"
    assert await ending == 3


@with_cluster
async def test_a_commit_that_was_never_written_left_no_note(cluster: Cluster) -> None:
    one = await cluster.open()
    await one.end(commit=True, note=b"1")
    await one.add_partition(HERE)
    old = cluster.transactions
    await cluster.coordinate()  # the other has not heard
    with pytest.raises(NotCoordinator):
        await old.end(one.ending(commit=True, note=b"2"))
    assert (await cluster.open()).note == b"1"
    old.close(NotCoordinator("it has heard"))


@with_cluster
async def test_a_commit_whose_positions_are_refused_leaves_no_note(cluster: Cluster) -> None:
    one = await cluster.open(group="g")
    await one.end(commit=True, note=b"1")
    await one.add_partition(HERE)
    cluster.groups.error = StaleGeneration("a partition that it owns no more")
    with pytest.raises(StaleGeneration):
        await one.end(commit=True, offsets=pb.Commit(group="g"), note=b"2")
    assert (await cluster.open(group="g")).note == b"1"


@with_cluster
async def test_a_note_that_is_too_long_decides_nothing(cluster: Cluster) -> None:
    one = await cluster.open()
    await one.add_partition(HERE)
    with pytest.raises(InvalidArgument, match="at most 256 bytes"):
        await one.end(commit=True, note=NOTE.encode() + b"n")
    assert await one.end(commit=True, note=NOTE.encode()) == 2
    assert (await cluster.open()).note == NOTE.encode()


@with_cluster
async def test_a_note_goes_with_its_id(cluster: Cluster) -> None:
    one = await cluster.open()
    await one.end(commit=True, note=b"1")
    await asyncio.sleep(limits.TRANSACTIONAL_ID_IDLE_S_MAX + 2 * limits.TRANSACTIONAL_ID_ABANDONED_S)
    with pytest.raises(TransactionNotOpen):
        await one.end(commit=True, note=b"2")
    assert (await cluster.open()).note == b""
