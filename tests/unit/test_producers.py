"""What a partition remembers of its producers: each rule alone, and all of them against a plain model."""

from __future__ import annotations

import struct
from contextlib import suppress
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import (
    CorruptBatch,
    LimitExceeded,
    ProducerError,
    ProducerFenced,
    SequenceGap,
    SequenceTooOld,
    TransactionAborted,
    TransactionNotOpen,
    UnknownProducer,
)
from comet.records import BatchHeader, Flag, Marker
from comet_broker.core.isolation import ABORTED_MAX, ENDED_MAX, OPEN_MAX, PARTS_MAX, Isolation
from comet_broker.core.producers import (
    PRODUCERS_MAX,
    WINDOW_BATCHES,
    Duplicate,
    ProducerTable,
)


def header(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=0, append_time_us=0, leader_epoch=0, length=0, stamp_crc=0, crc=0, version=1, codec=0, flags=0,
        record_count=count, producer_id=producer, base_sequence=sequence, min_timestamp_us=0, max_timestamp_us=0,
        last_offset_delta=count - 1, producer_epoch=epoch, body_size=0, schema_id=0,
    )  # fmt: skip


def written(*batches: BatchHeader, at: int = 100) -> ProducerTable:
    """A table after these batches were written one after the other from offset `at`."""
    table = ProducerTable()
    for one in batches:
        assert table.check(one) is None
        table.record(one, at, at * 10)
        at += one.record_count
    return table


def test_batches_without_a_producer_are_no_concern() -> None:
    table = written(header(0, producer=0), header(0, producer=0))
    assert len(table) == 0


def test_a_producer_begins_at_zero() -> None:
    assert ProducerTable().check(header(0)) is None
    with pytest.raises(UnknownProducer, match="begins at sequence 3"):
        ProducerTable().check(header(3))


def test_the_next_sequence_counts_records() -> None:
    table = written(header(0, 10))
    assert table.check(header(10, 5)) is None
    with pytest.raises(SequenceGap) as caught:
        table.check(header(11))
    assert caught.value.details == {"expected": "10"}


def test_an_exact_repeat_is_answered_with_where_it_was_written() -> None:
    table = written(header(0, 10), header(10, 5), header(15))
    assert table.check(header(0, 10)) == Duplicate(100, 1000)
    assert table.check(header(10, 5)) == Duplicate(110, 1100)
    assert table.check(header(15)) == Duplicate(115, 1150)


def test_a_repeat_in_other_batches_was_written_but_nobody_knows_where() -> None:
    table = written(header(0, 10), header(10, 5))
    with pytest.raises(SequenceTooOld):
        table.check(header(0, 15))
    with pytest.raises(SequenceTooOld):
        table.check(header(3, 2))


def test_a_repeat_that_holds_something_new_is_no_repeat() -> None:
    table = written(header(0, 10))
    with pytest.raises(SequenceGap):
        table.check(header(5, 10))


def test_the_window_is_bounded() -> None:
    table = written(*(header(n) for n in range(WINDOW_BATCHES + 1)))
    assert table.check(header(1)) == Duplicate(101, 1010)
    with pytest.raises(SequenceTooOld):
        table.check(header(0))


def test_a_newer_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    table = written(header(0, 10), header(10))
    with pytest.raises(SequenceGap):
        table.check(header(11, epoch=1))
    assert table.check(header(0, epoch=1)) is None
    table.record(header(0, epoch=1), 200, 0)
    for stale in (header(11), header(10), header(0, 10)):
        with pytest.raises(ProducerFenced):
            table.check(stale)
    assert table.check(header(1, epoch=1)) is None


def test_producers_do_not_disturb_each_other() -> None:
    table = written(header(0, producer=1), header(0, producer=2), header(1, producer=1))
    assert table.check(header(2, producer=1)) is None
    assert table.check(header(1, producer=2)) is None


def test_checking_changes_nothing() -> None:
    table = written(header(0, 10))
    before = table.snapshot(5).encode()
    for one in (header(10), header(0, 10), header(11), header(3), header(0, epoch=4), header(9, producer=9)):
        with suppress(ProducerError):
            table.check(one)
    assert table.snapshot(5).encode() == before


def test_the_one_idle_longest_is_forgotten_when_there_are_too_many() -> None:
    table = ProducerTable()
    for number in range(1, PRODUCERS_MAX + 1):
        table.record(header(0, producer=number), number, number)
    table.record(header(1, producer=1), 5000, 5000)  # so that 2 is the one idle longest
    table.record(header(0, producer=9999), 5001, 5001)
    assert len(table) == PRODUCERS_MAX
    assert table.check(header(2, producer=1)) is None
    with pytest.raises(UnknownProducer):
        table.check(header(1, producer=2))


def test_a_clock_that_jumps_makes_nobody_forgotten() -> None:
    table = written(header(0, producer=1), at=0)
    table.record(header(0, producer=2), 1, 1 << 60)
    table.record(header(0, producer=3), 2, -(1 << 60))
    assert len(table) == 3
    assert table.check(header(1, producer=1)) is None


def test_sequences_near_the_end_of_their_range() -> None:
    """Numbers are 64 bits, so that they cannot be used up; they do not wrap."""
    top = (1 << 63) - 1
    table = ProducerTable()
    table.record(header(top - 1), 0, 0)
    assert table.check(header(top - 1)) == Duplicate(0, 0)
    restored = ProducerTable.restore(table.snapshot(1).encode())[1]
    with pytest.raises(SequenceTooOld):
        restored.check(header(0))


# ---- snapshots


def filled() -> ProducerTable:
    table = written(
        *(header(n * 3, 3, producer=1) for n in range(WINDOW_BATCHES + 5)), header(0, 2, producer=2, epoch=4)
    )
    table.record(header(0, producer=3), 1 << 62, -5)
    return table


def test_a_snapshot_gives_the_table_back() -> None:
    table = filled()
    data = table.snapshot(400).encode()
    offset, restored = ProducerTable.restore(data)
    assert offset == 400
    assert restored.snapshot(400).encode() == data
    assert restored.check(header(0, 2, producer=2, epoch=4)) == table.check(header(0, 2, producer=2, epoch=4))


def test_a_snapshot_is_a_copy() -> None:
    table = written(header(0))
    snapshot = table.snapshot(1)
    before = snapshot.encode()
    table.record(header(1), 5, 5)
    assert snapshot.encode() == before


def test_a_snapshot_damaged_anywhere_is_refused() -> None:
    data = written(header(0, 2, producer=2), header(0, producer=3)).snapshot(9).encode()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(CorruptBatch):
            ProducerTable.restore(bytes(damaged))
        with pytest.raises(CorruptBatch):
            ProducerTable.restore(data[:at])
    with pytest.raises(CorruptBatch):
        ProducerTable.restore(data + b"\0")


# ---- against a model that remembers everything


@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 9), max_size=150))
def test_a_record_is_written_once_and_in_order(seed: int, moves: list[int]) -> None:
    """A producer that resends at random, behind a network that repeats at random, gets each record in once."""
    random = Random(seed)
    table = ProducerTable()
    log: list[int] = []  # the sequences in it
    sent: list[BatchHeader] = []
    following = 0
    for move in moves:
        if move < 4 or not sent:
            batch = header(following, random.randint(1, 3))
        elif move < 9:
            batch = random.choice(sent[-70:])
        else:
            batch = header(random.randint(0, following + 3), random.randint(1, 3))
        try:
            duplicate = table.check(batch)
        except SequenceGap:
            assert batch.end_sequence > following
            assert batch.base_sequence != following
        except SequenceTooOld:
            assert batch.end_sequence <= following
            assert batch not in sent[-WINDOW_BATCHES:]
        else:
            if duplicate is None:
                assert batch.base_sequence == following
                table.record(batch, len(log), 0)
                log += range(batch.base_sequence, batch.end_sequence)
                sent.append(batch)
                following = batch.end_sequence
            else:
                assert batch in sent
                assert log[duplicate.base_offset] == batch.base_sequence
    assert log == list(range(following))


# ---- transactions


def transactional(first: int, count: int = 1, *, epoch: int = 1, producer: int = 7) -> BatchHeader:
    return header(first, count, producer=producer, epoch=epoch)._replace(flags=int(Flag.TRANSACTIONAL))


def test_a_marker_is_nothing_that_its_producer_wrote() -> None:
    table = written(transactional(0, 2))
    marker = transactional(0)._replace(flags=int(Flag.TRANSACTIONAL | Flag.CONTROL))
    table.record(marker, 102, 1020, Marker(True, 100))
    assert table.check(transactional(2)) is None, "the sequence is where it was"
    assert table.isolation.ended(7, 1) == (1, True, 102)
    assert table.isolation.stable_end(102) == 100
    assert table.isolation.stable_end(103) == 103


def test_a_snapshot_gives_the_transactions_back() -> None:
    table = written(transactional(0, 2), transactional(0, producer=8), header(0, producer=9))
    table.isolation.note_marker(8, 1, Marker(False, 102), 104)
    data = table.snapshot(105).encode()
    restored = ProducerTable.restore(data)[1]
    assert restored.snapshot(105).encode() == data
    assert restored.isolation.stable_end(105) == 100
    assert restored.isolation.aborted(0, 105) == [(8, 1, 102, 104)]


def test_a_snapshot_from_before_there_were_transactions_or_requests_is_read() -> None:
    table = written(header(0, 2, producer=2), header(0, producer=3))
    now = table.snapshot(9).encode()
    for version, counts in ((1, 5), (2, 1)):  # that were not there: of requests, and the four of transactions
        before = bytearray(now[:-4][: -4 * counts])
        before[8:12] = version.to_bytes(4, "little")
        offset, restored = ProducerTable.restore(bytes(before) + crc32c(before).to_bytes(4, "little"))
        assert offset == 9
        assert restored.snapshot(9).encode() == now


def test_of_transactions_in_a_snapshot_from_before_it_is_known_where_they_began() -> None:
    head = struct.pack("<8sIqI", b"COMETPRD", 2, 20, 0) + struct.pack("<IIII", 1, 1, 0, 1)
    body = struct.pack("<qIqq", 7, 3, 12, 15) + struct.pack("<qqq", 18, 10, 17)
    data = head + body + struct.pack("<5q", 8, 1, 10, 18, 10)
    offset, restored = ProducerTable.restore(data + crc32c(data).to_bytes(4, "little"))
    assert offset == 20
    isolation = restored.isolation
    assert (isolation.stable_end(18), isolation.stable_end(20)) == (10, 12)
    assert isolation.open_transactions() == [(7, 3)]
    assert isolation.aborted(0, 20) == [(8, 1, 10, 18)]
    assert ProducerTable.restore(restored.snapshot(20).encode())[1].snapshot(20) == restored.snapshot(20)


def test_of_a_transaction_of_many_parts_the_last_is_where_the_rest_is() -> None:
    isolation = Isolation()
    for at in range(0, 6 * PARTS_MAX, 2):
        isolation.note_batch(7, 1, at, at + 1)
    for log_start in range(2 * PARTS_MAX - 2):
        isolation.forget_before(log_start)
        assert max(isolation.stable_end(6 * PARTS_MAX), log_start) == log_start + log_start % 2
    isolation.forget_before(5 * PARTS_MAX)
    assert isolation.stable_end(6 * PARTS_MAX) == 2 * PARTS_MAX - 2, "too early, which harms nobody"
    isolation.forget_before(6 * PARTS_MAX - 1)
    assert isolation.stable_end(6 * PARTS_MAX) == 6 * PARTS_MAX


@pytest.mark.parametrize(
    ("epoch", "error"), [(1, ProducerFenced), (2, TransactionAborted), (3, None)]
)  # fmt: skip
def test_what_is_over_is_refused(epoch: int, error: type[Exception] | None) -> None:
    isolation = Isolation()
    isolation.note_batch(7, 2, 0, 1)
    isolation.note_marker(7, 2, Marker(False, 0), 1)
    if error is None:
        assert not isolation.check(7, epoch)
    else:
        with pytest.raises(error):
            isolation.check(7, epoch)
    isolation.note_marker(7, 4, Marker(True, -1), 2)
    with pytest.raises(TransactionNotOpen, match="committed"):
        isolation.check(7, 4)


def test_no_partition_takes_more_open_transactions_than_its_limit() -> None:
    isolation = Isolation()
    for producer in range(1, OPEN_MAX + 1):
        isolation.note_batch(producer, 1, producer, producer + 1)
    assert isolation.check(5, 1)
    with pytest.raises(LimitExceeded, match="are open"):
        isolation.check(OPEN_MAX + 1, 1)


def test_no_abort_is_forgotten_to_make_room() -> None:
    isolation = Isolation()
    for at in range(ABORTED_MAX):
        isolation.note_batch(7, at + 1, 2 * at, 2 * at + 1)
        isolation.note_marker(7, at + 1, Marker(False, 2 * at), 2 * at + 1)
    assert isolation.aborted(0, 2) == [(7, 1, 0, 1)]
    with pytest.raises(LimitExceeded, match="aborted"):
        isolation.check(8, 1)
    isolation.forget_before(2)
    assert not isolation.check(8, 1)


def test_a_log_that_is_read_again_waits_for_nothing_that_is_deleted() -> None:
    """Nor did it before, when the transaction was forgotten while it was open."""
    isolation = Isolation()
    isolation.forget_before(1)
    isolation.note_batch(7, 1, 0, 1)
    isolation.note_marker(7, 1, Marker(False, 0), 2)
    assert (isolation.stable_end(2), isolation.aborted(0, 9)) == (2, [])


def test_only_the_last_ends_are_remembered() -> None:
    isolation = Isolation()
    for producer in range(1, ENDED_MAX + 2):
        isolation.note_marker(producer, 1, Marker(True, -1), producer)
    assert isolation.ended(1, 1) is None
    assert not isolation.check(1, 1), "the coordinator knows"
    assert isolation.ended(2, 1) is not None
