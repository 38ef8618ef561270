"""What is kept of a share group's partition, and how large it can get."""

from __future__ import annotations

import zlib
from random import Random

from comet_broker import limits
from comet_broker.core.share_record import ShareRecord, record_of, share_key, truncated_to
from comet_broker.core.shares import Dead, WindowSnapshot
from comet_broker.metadata.store import TRANSACTION_BYTES_MAX

WINDOW = limits.SHARE_WINDOW_RECORDS_MAX


def stored(snapshot: WindowSnapshot) -> bytes:
    return record_of(snapshot, broker=1, broker_epoch=77, epoch=3, sequence=9).encode()


def test_what_is_kept_comes_back() -> None:
    snapshot = WindowSnapshot(100, b"\xff\xff\x01\x00\x02\x00\x00", {7: Dead(3, "no such account")})
    record = ShareRecord.decode(stored(snapshot))
    back = record.snapshot(WINDOW)
    assert back == WindowSnapshot(100, b"\xff\xff\x01\x00\x02", {7: Dead(3, "no such account")}), "zeros say nothing"
    assert record.written_by(1, 77, 3)
    assert not record.written_by(1, 78, 3)
    assert share_key(b"\x01\xff", 4, "g") == "shares/01ff/4/g"


def test_a_new_group_is_little() -> None:
    assert len(stored(WindowSnapshot(5, b"", {}))) < 150
    assert len(stored(WindowSnapshot(5, b"\xff\x01" * (WINDOW // 2), {}))) < 500, "regular marks compress"


def test_the_worst_fits_twice_into_a_transaction() -> None:
    marks = bytes(Random(1).choice((0, 1, 2, 255)) for _ in range(WINDOW))
    dead = {offset: Dead(250, "\U0001f4a5" * limits.SHARE_REASON_CHARS_MAX) for offset in range(limits.SHARE_DEAD_MAX)}
    size = len(stored(WindowSnapshot(1 << 60, marks, dead)))
    assert size + TRANSACTION_BYTES_MAX // 2 < TRANSACTION_BYTES_MAX


def test_what_lies_beyond_the_window_is_not_unpacked() -> None:
    record = ShareRecord(broker=1, broker_epoch=1, epoch=1, sequence=1, floor=0, marks=zlib.compress(bytes(1 << 20)))
    assert len(record.snapshot(WINDOW).marks) == WINDOW


def test_nothing_is_said_of_records_that_were_cut_off() -> None:
    snapshot = WindowSnapshot(10, b"\xff\x01\xff\x02", {3: Dead(1, "a"), 13: Dead(1, "b")})
    assert truncated_to(snapshot, 12) == WindowSnapshot(10, b"\xff\x01", {3: Dead(1, "a")})
    assert truncated_to(snapshot, 4) == WindowSnapshot(4, b"", {3: Dead(1, "a")})
