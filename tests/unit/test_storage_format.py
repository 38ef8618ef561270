"""The bytes on disk of version 1, frozen: what one version wrote, all later ones must read."""

from __future__ import annotations

from random import Random

import pytest

from comet.records import Flag, Marker
from comet_broker.core import producers
from comet_broker.core.producers import Duplicate, ProducerTable
from comet_broker.storage.checkpoint import (
    ENTRY_BYTES,
    JOURNAL_BYTES_MAX,
    Checkpoint,
    append_checkpoint,
    raise_checkpoint,
    read_checkpoint,
    replace_checkpoint,
)
from comet_broker.storage.index import Index, IndexHeader, read_index, read_index_header
from comet_broker.storage.layout import (
    LogIdentity,
    SegmentHeader,
    index_name,
    pack_segment_header,
    parse_name,
    producers_name,
    read_segment_header,
    segment_name,
)
from comet_broker.storage.memory import MemoryFiles
from tests.unit.test_producers import header

SEGMENT = bytes.fromhex(
    "434f4d45544c4f47 01000000 07000000 000102030405060708090a0b0c0d0e0f 6712000000000000"
    "00c012390ac00600 000000000000000000000000 1e2225a5"
)
INDEX_1 = bytes.fromhex(
    "434f4d4554494458 01000000 02000000 6712000000000000 7a12000000000000 8038010000000000"
    "0900000000000000 01c012390ac00600 00000000 8e0b4fa6"
    "6712000000000000 7012000000000000 4000000000000000 7011010000000000 fbffffffffffffff 0900000000000000 f5fa5f74"
)
INDEX = bytes.fromhex(
    "434f4d4554494458 02000000 02000000 6712000000000000 7a12000000000000 8038010000000000"
    "0900000000000000 01c012390ac00600 02000000 004377f0"
    "0300000000000000 0800000000000000 6712000000000000 7512000000000000 7f26e0b1"
    "6712000000000000 7012000000000000 4000000000000000 7011010000000000 fbffffffffffffff 0900000000000000 f5fa5f74"
)
CHECKPOINT = bytes.fromhex("434b5054 00000000 6712000000000000 2a00000000000000 00000000 d6c34d32")
MARK = bytes.fromhex("4d41524b 00000000 5c12000000000000 0000000000000000 00000000 00f2500f")
PRODUCERS_1 = bytes.fromhex(  # without transactions, as before there were any
    "434f4d4554505244 01000000 6900000000000000 02000000"
    "0700000000000000 02000000 0400000000000000 3800000000000000 08000000"
    "0000000000000000 0300000000000000 6400000000000000 3700000000000000"
    "0300000000000000 0100000000000000 6700000000000000 3800000000000000"
    "0100000000000000 00000000 0100000000000000 3900000000000000 04000000"
    "0000000000000000 0100000000000000 6800000000000000 3900000000000000 627c11d7"
)
PRODUCERS_2 = bytes.fromhex(  # without requests that have a key
    "434f4d4554505244020000006900000000000000020000000700000000000000"
    "0200000004000000000000003800000000000000080000000000000000000000"
    "0300000000000000640000000000000037000000000000000300000000000000"
    "0100000000000000670000000000000038000000000000000100000000000000"
    "0000000001000000000000003900000000000000040000000000000000000000"
    "0100000000000000680000000000000039000000000000000000000000000000"
    "00000000000000008e09393a"
)
PRODUCERS_3 = bytes.fromhex(  # with windows alone
    "434f4d4554505244030000007200000000000000020000000700000000000000"
    "0200000004000000000000003800000000000000080000000000000000000000"
    "0300000000000000640000000000000037000000000000000300000000000000"
    "0100000000000000670000000000000038000000000000000100000000000000"
    "0000000001000000000000003900000000000000040000000000000000000000"
    "0100000000000000680000000000000039000000000000000100000009000000"
    "0000000029000000000000000200000069000000000000003a00000000000000"
    "010000000100000001000000010000000b000000000000000400000002000000"
    "6b000000000000006c000000000000006d000000000000006e00000000000000"
    "7100000000000000010000006f0000000000000071000000000000000c000000"
    "00000000010000000071000000000000000c0000000000000001000000000000"
    "006f0000000000000071000000000000006b00000000000000044b739a"
)
PRODUCERS = bytes.fromhex(
    "434f4d4554505244040000007200000000000000010000001200000000000000"
    "3800000000000000070000000000000002000000040000000000000012000000"
    "0000000008000000000000000000000003000000000000006400000000000000"
    "3700000000000000030000000000000001000000000000006700000000000000"
    "3800000000000000010000000100000000000000000000000100000000000000"
    "1100000000000000000000000000000001000000000000006800000000000000"
    "3900000000000000010000000100000000000000000000001500000000000000"
    "0300000001000000090000000000000029000000000000000200000069000000"
    "000000003a000000000000000100000000000000000000000000008001000000"
    "0100000001000000010000000b0000000000000004000000020000006b000000"
    "000000006c000000000000006d000000000000006e0000000000000071000000"
    "00000000010000006f0000000000000071000000000000000c00000000000000"
    "010000000071000000000000000c0000000000000001000000000000006f0000"
    "000000000071000000000000006b000000000000008e94445e"
)
FOLDER = "log"


def test_the_header_of_a_segment() -> None:
    identity = LogIdentity(bytes(range(16)), 7)
    assert pack_segment_header(identity, 4711, 1_900_000_000_000_000) == SEGMENT
    assert read_segment_header(SEGMENT) == SegmentHeader(bytes(range(16)), 7, 4711, 1_900_000_000_000_000)
    for at in range(len(SEGMENT)):
        damaged = bytearray(SEGMENT)
        damaged[at] ^= 1
        assert read_segment_header(bytes(damaged)) is None
        assert read_segment_header(SEGMENT[:at]) is None


def test_the_index() -> None:
    index = Index()
    index.begin(4711, 64)
    index.begin_epoch(3, 4711)
    index.cover(-5)
    index.cover(-7)
    index.begin(4720, 70_000)
    index.begin_epoch(8, 4725)
    index.cover(9)
    about = IndexHeader(2, 4711, 4730, 80_000, 9, 1_900_000_000_000_001, ((3, 4711), (8, 4725)))
    assert index.encode(about) == INDEX
    loaded = read_index(INDEX)
    assert loaded is not None
    assert loaded[0] == read_index_header(INDEX) == about
    assert columns(loaded[1]) == [[4711, 4720], [64, 70_000], [-5, 9]]
    assert loaded[1].epochs == [(3, 4711), (8, 4725)]
    assert [index.find(offset) for offset in (4710, 4711, 4719, 4720, 9999)] == [-1, 0, 0, 1, 1]
    for at in range(len(INDEX)):
        damaged = bytearray(INDEX)
        damaged[at] ^= 1
        assert read_index(bytes(damaged)) is None
        assert read_index(INDEX[:at]) is None
    assert read_index(INDEX + b"\0") is None


def test_the_index_of_the_first_version_had_no_epochs() -> None:
    loaded = read_index(INDEX_1)
    assert loaded is not None
    assert loaded[0] == IndexHeader(2, 4711, 4730, 80_000, 9, 1_900_000_000_000_001, None)
    assert columns(loaded[1]) == [[4711, 4720], [64, 70_000], [-5, 9]]
    assert loaded[1].epochs == []


def columns(index: Index) -> list[list[int]]:
    return [list(column) for column in (index.offsets, index.positions, index.max_timestamps)]


def test_a_snapshot_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 1)
    monkeypatch.setattr(producers, "KNOWN_MAX", 2)
    table = ProducerTable()
    table.record(header(0, producer=21, epoch=3), 99, 40)  # of which the epoch is left
    table.record(header(0, producer=1), 104, 57)  # and the last batch
    table.record(header(0, 3, producer=7, epoch=2), 100, 55)
    table.record(header(3, 1, producer=7, epoch=2), 103, 56)
    table.record(header(41, 2, producer=9)._replace(flags=int(Flag.KEYED)), 105, 58)
    for at in (107, 109):  # with something of others between its parts
        table.isolation.note_batch(11, 4, at, at + 1)
    table.isolation.note_batch(12, 1, 111, 113)
    table.isolation.note_marker(12, 1, Marker(False, 111), 113)
    assert table.snapshot(114).encode() == PRODUCERS
    for known, end in ((PRODUCERS, 114), (PRODUCERS_3, 114), (PRODUCERS_2, 105), (PRODUCERS_1, 105)):
        offset, restored = ProducerTable.restore(known)
        assert offset == end
        assert len(restored.requests) == (end == 114)
        assert restored.isolation.last_stable_offset(114) == (107 if end == 114 else 114)
        assert restored.check(header(3, 1, producer=7, epoch=2)) == Duplicate(103, 56)
        assert restored.check(header(0, producer=1)) == Duplicate(104, 57)
        assert restored.statistics() == {"producers": 2, "producers_forgotten": int(known is PRODUCERS)}


def journal() -> MemoryFiles:
    files = MemoryFiles(Random(1))
    files.make_folder(FOLDER)
    return files


def test_the_checkpoint() -> None:
    files = journal()
    assert read_checkpoint(files, FOLDER) is None
    replace_checkpoint(files, FOLDER, Checkpoint(4711, 42))
    assert files.read_all("log/checkpoint") == 2 * CHECKPOINT
    assert read_checkpoint(files, FOLDER) == Checkpoint(4711, 42)


def test_the_high_watermark_beside_the_checkpoint() -> None:
    files = journal()
    replace_checkpoint(files, FOLDER, Checkpoint(4711, 42, 4700))
    assert files.read_all("log/checkpoint") == 2 * (CHECKPOINT + MARK)
    append_checkpoint(files, FOLDER, Checkpoint(4711, 42, 4699))
    assert read_checkpoint(files, FOLDER) == Checkpoint(4711, 42, 4700)
    replace_checkpoint(files, FOLDER, Checkpoint(20, 0, 10))
    assert read_checkpoint(files, FOLDER) == Checkpoint(20, 0, 10), "a log that was cut back"


def test_the_highest_of_each_number_counts() -> None:
    files = journal()
    for one in (Checkpoint(10, 5), Checkpoint(30, 2), Checkpoint(20, 7)):
        append_checkpoint(files, FOLDER, one)
    assert read_checkpoint(files, FOLDER) == Checkpoint(30, 7)


@pytest.mark.parametrize("torn", range(1, ENTRY_BYTES))
def test_an_entry_that_was_cut_off_does_not_hide_the_ones_after_it(torn: int) -> None:
    files = journal()
    append_checkpoint(files, FOLDER, Checkpoint(10, 5))
    files.open("log/checkpoint").append((CHECKPOINT[:torn],))
    assert read_checkpoint(files, FOLDER) == Checkpoint(10, 5)
    append_checkpoint(files, FOLDER, Checkpoint(20, 7))
    assert read_checkpoint(files, FOLDER) == Checkpoint(20, 7)


def test_the_checkpoint_does_not_grow_without_bound() -> None:
    files = journal()
    for number in range(JOURNAL_BYTES_MAX // ENTRY_BYTES + 10):
        append_checkpoint(files, FOLDER, Checkpoint(number, 0))
        assert len(files.read_all("log/checkpoint")) <= JOURNAL_BYTES_MAX
    for number in range(5000, 5000 + JOURNAL_BYTES_MAX // ENTRY_BYTES):
        raise_checkpoint(files, FOLDER, Checkpoint(number, number))
    assert read_checkpoint(files, FOLDER) == Checkpoint(number, number)
    assert len(files.read_all("log/checkpoint")) <= JOURNAL_BYTES_MAX + ENTRY_BYTES


def test_a_raised_checkpoint_is_on_disk() -> None:
    for seed in range(20):
        files = MemoryFiles(Random(seed))
        files.make_folder(FOLDER)
        replace_checkpoint(files, FOLDER, Checkpoint(1, 1))
        raise_checkpoint(files, FOLDER, Checkpoint(5, 4))
        append_checkpoint(files, FOLDER, Checkpoint(9, 4))
        files.crash()
        found = read_checkpoint(files, FOLDER)
        assert found in {Checkpoint(5, 4), Checkpoint(9, 4)}


def test_names() -> None:
    assert parse_name(segment_name(4711)) == (4711, "log")
    assert parse_name(index_name(0)) == (0, "index")
    assert parse_name(producers_name((1 << 63) - 1)) == ((1 << 63) - 1, "producers")
    for name in ("", "1.log", "checkpoint", f"{1 << 63:020d}.log", segment_name(1) + ".refused", segment_name(1)[:-1]):
        assert parse_name(name) is None
