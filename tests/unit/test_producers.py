"""What a partition remembers of its producers: each rule alone, and all of them against a plain model."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from comet import limits as sdk_limits
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
from comet_broker import limits
from comet_broker.core import forgotten, producers
from comet_broker.core.isolation import ABORTED_MAX, ENDED_MAX, OPEN_MAX, PARTS_MAX, Isolation
from comet_broker.core.producers import (
    BATCHES_MAX,
    KNOWN_MAX,
    PRODUCERS_MAX,
    PROTECTED_US,
    STEP_US,
    WINDOW_BATCHES,
    Duplicate,
    ProducerTable,
)

KNOWN, IDS, RUNS = 6, 4, 3  # of tables that are full soon, see `small`


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
    with pytest.raises(UnknownProducer, match="sequence 3 was written"):
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


def begun(table: ProducerTable, numbers: Iterable[int], at_us: int = 0, every_us: int = 1) -> int:
    """Each of these producers writes its first batch. Returns the time of the last one."""
    for number in numbers:
        assert table.check(header(0, producer=number)) is None
        table.record(header(0, producer=number), number, at_us)
        at_us += every_us
    return at_us


def test_a_first_batch_is_known_again_after_1100_other_producers() -> None:
    table = ProducerTable()
    begun(table, [7, *range(1000, 2100)])
    assert table.check(header(0, producer=7)) == Duplicate(7, 0)


def test_a_producer_loses_its_window_then_its_last_batch_and_is_never_new_again() -> None:
    table = written(header(0, 10), header(10, 5))
    begun(table, range(100, 100 + PRODUCERS_MAX))
    assert table.check(header(10, 5)) == Duplicate(110, 1100), "its last batch is known"
    with pytest.raises(SequenceTooOld):
        table.check(header(0, 10))
    assert table.check(header(15)) is None, "it may go on"
    begun(table, range(100 + PRODUCERS_MAX, 100 + KNOWN_MAX))
    assert len(table) == KNOWN_MAX
    for again in (header(0, 10), header(10, 5), header(15)):
        with pytest.raises(UnknownProducer):
            table.check(again)
    assert table.check(header(0, epoch=1)) is None, "the next epoch is a beginning"


def test_the_epochs_of_forgotten_producers_stay_fenced() -> None:
    table = written(header(0, epoch=4))
    begun(table, range(100, 100 + KNOWN_MAX))
    with pytest.raises(ProducerFenced):
        table.check(header(0, epoch=3))
    with pytest.raises(UnknownProducer):
        table.check(header(0, epoch=4))
    table.record(header(0, epoch=5), 1, 1)
    assert table.check(header(0, epoch=5)) == Duplicate(1, 1)
    begun(table, range(100_000, 100_000 + KNOWN_MAX))
    with pytest.raises(UnknownProducer):
        table.check(header(0, epoch=5))
    with pytest.raises(ProducerFenced):
        table.check(header(0, epoch=4))


def test_a_producer_that_goes_on_has_its_last_batch_and_the_next_in_its_window() -> None:
    table = written(header(0, 2), header(2, 2))
    begun(table, range(100, 100 + PRODUCERS_MAX))
    table.record(header(4, 2), 5000, 50)
    assert table.check(header(2, 2)) == Duplicate(102, 1020)
    assert table.check(header(4, 2)) == Duplicate(5000, 50)


def test_all_windows_together_are_bounded() -> None:
    table = ProducerTable()
    for number in range(1, BATCHES_MAX // WINDOW_BATCHES + 2):
        for sequence in range(WINDOW_BATCHES):
            table.record(header(sequence, producer=number), 0, 0)
    assert sum(len(window) for _, window in table.snapshot(0).entries) == 4 * BATCHES_MAX
    assert table.check(header(WINDOW_BATCHES - 1, producer=1)) == Duplicate(0, 0)


def test_no_new_producer_is_taken_where_one_that_is_protected_would_be_dropped(small: None) -> None:
    """By the table's clock, and by the leader's since the last batch; a wall clock that jumps counts for STEP_US."""
    table = ProducerTable()
    room = KNOWN + RUNS * IDS + IDS - 1
    now = begun(table, range(1, 1 + room))
    with pytest.raises(LimitExceeded, match="no new producers"):
        table.check(header(0, producer=9_999))
    assert table.check(header(1, producer=room)) is None, "it is none of the new ones"
    assert table.check(header(0, epoch=1, producer=room)) is None
    with pytest.raises(UnknownProducer):
        table.check(header(0, producer=1))
    assert table.check(header(0, producer=9_999), lambda: PROTECTED_US) is None
    for number in range(3):  # far ahead, back again
        table.record(header(1 + 2 * number, producer=room), 0, now + (1 << 50))
        table.record(header(2 + 2 * number, producer=room), 0, now)
    with pytest.raises(LimitExceeded):
        table.check(header(0, producer=9_999), lambda: PROTECTED_US - 3 * STEP_US - room - 1)
    assert table.check(header(0, producer=9_999), lambda: PROTECTED_US - 3 * STEP_US) is None
    with pytest.raises(UnknownProducer):
        table.check(header(0, producer=1))
    table.record(header(0, producer=9_999), 0, now)
    assert table.check(header(0, producer=1)) is None, "the oldest run is gone"


def test_what_followers_and_recovery_record_is_never_refused(small: None) -> None:
    table = ProducerTable()
    for number in range(1, 1000):
        table.record(header(0, producer=number), number, 0)
    assert len(table) == KNOWN
    assert table.statistics()["producers_forgotten"] <= (RUNS + 1) * IDS


def test_the_longest_timeout_of_a_producer_is_protected() -> None:
    assert sdk_limits.PRODUCER_TIMEOUT_MS_MAX <= limits.RETRY_MS_MAX
    assert PROTECTED_US >= 1000 * limits.RETRY_MS_MAX + 5 * STEP_US


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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are full soon."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    monkeypatch.setattr(producers, "KNOWN_MAX", KNOWN)
    monkeypatch.setattr(forgotten, "RUN_IDS", IDS)
    monkeypatch.setattr(forgotten, "RUNS_MAX", RUNS)


def test_a_snapshot_gives_short_and_forgotten_producers_back(small: None) -> None:
    table = ProducerTable()
    begun(table, range(1, 20), every_us=1000)
    data = table.snapshot(400).encode()
    restored = ProducerTable.restore(data)[1]
    assert restored.snapshot(400) == table.snapshot(400)
    assert restored.snapshot(400).encode() == data
    for one in (table, restored):
        for number in (*range(20, 50), 5, 48):
            one.record(header(1, producer=number), number, 1000 * number)
    assert restored.snapshot(0) == table.snapshot(0)
    for at in range(len(data)):
        with pytest.raises(CorruptBatch):
            ProducerTable.restore(data[:at])


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
    assert table.isolation.last_stable_offset(102) == 100
    assert table.isolation.last_stable_offset(103) == 103


def test_a_snapshot_gives_the_transactions_back() -> None:
    table = written(transactional(0, 2), transactional(0, producer=8), header(0, producer=9))
    table.isolation.note_marker(8, 1, Marker(False, 102), 104)
    data = table.snapshot(105).encode()
    restored = ProducerTable.restore(data)[1]
    assert restored.snapshot(105).encode() == data
    assert restored.isolation.last_stable_offset(105) == 100
    assert restored.isolation.aborted(0, 105) == [(8, 1, 102, 104)]


@pytest.mark.parametrize(
    ("version", "counts"), [(1, 0), (2, 4), (3, 5)]
)  # of those that follow the producers: transactions, and requests
def test_a_snapshot_of_an_earlier_version_is_read(version: int, counts: int) -> None:
    head = struct.pack("<8sIqI", b"COMETPRD", version, 9, 2)
    first = struct.pack("<qIqqI", 2, 1, 2, 1000, 4) + struct.pack("<4q", 0, 2, 100, 1000)
    second = struct.pack("<qIqqI", 3, 0, 1, 1020, 4) + struct.pack("<4q", 0, 1, 102, 1020)
    data = head + first + second + bytes(4 * counts)
    offset, table = ProducerTable.restore(data + crc32c(data).to_bytes(4, "little"))
    assert (offset, len(table)) == (9, 2)
    assert table.check(header(0, 2, producer=2, epoch=1)) == Duplicate(100, 1000)
    assert table.check(header(0, producer=3)) == Duplicate(102, 1020)
    assert table.check(header(1, producer=3)) is None
    assert ProducerTable.restore(table.snapshot(9).encode())[1].snapshot(9) == table.snapshot(9)


def test_of_transactions_in_a_snapshot_from_before_it_is_known_where_they_began() -> None:
    head = struct.pack("<8sIqI", b"COMETPRD", 2, 20, 0) + struct.pack("<IIII", 1, 1, 0, 1)
    body = struct.pack("<qIqq", 7, 3, 12, 15) + struct.pack("<qqq", 18, 10, 17)
    data = head + body + struct.pack("<5q", 8, 1, 10, 18, 10)
    offset, restored = ProducerTable.restore(data + crc32c(data).to_bytes(4, "little"))
    assert offset == 20
    isolation = restored.isolation
    assert (isolation.last_stable_offset(18), isolation.last_stable_offset(20)) == (10, 12)
    assert isolation.open_transactions() == [(7, 3)]
    assert isolation.aborted(0, 20) == [(8, 1, 10, 18)]
    assert ProducerTable.restore(restored.snapshot(20).encode())[1].snapshot(20) == restored.snapshot(20)


def test_of_a_transaction_of_many_parts_the_last_is_where_the_rest_is() -> None:
    isolation = Isolation()
    for at in range(0, 6 * PARTS_MAX, 2):
        isolation.note_batch(7, 1, at, at + 1)
    for log_start in range(2 * PARTS_MAX - 2):
        isolation.forget_before(log_start)
        assert max(isolation.last_stable_offset(6 * PARTS_MAX), log_start) == log_start + log_start % 2
    isolation.forget_before(5 * PARTS_MAX)
    assert isolation.last_stable_offset(6 * PARTS_MAX) == 2 * PARTS_MAX - 2, "too early, which harms nobody"
    isolation.forget_before(6 * PARTS_MAX - 1)
    assert isolation.last_stable_offset(6 * PARTS_MAX) == 6 * PARTS_MAX


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
    assert (isolation.last_stable_offset(2), isolation.aborted(0, 9)) == (2, [])


def test_only_the_last_ends_are_remembered() -> None:
    isolation = Isolation()
    for producer in range(1, ENDED_MAX + 2):
        isolation.note_marker(producer, 1, Marker(True, -1), producer)
    assert isolation.ended(1, 1) is None
    assert not isolation.check(1, 1), "the coordinator knows"
    assert isolation.ended(2, 1) is not None
