"""A log that holds transactions: found again behind damage, after deaths, and by a reader of another version."""

from __future__ import annotations

from random import Random

import pytest
from crc32c import crc32c

from comet import records
from comet.errors import UnsupportedVersion
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import FOLDER, World, delete_before
from tests.unit.test_storage_rules import damage


def write(world: World, data: bytes) -> int:
    return world.log.append(records.verify(data, stamped=False), memoryview(data), 1).base_offset


def part(sequence: int = 0, *, epoch: int = 1, count: int = 1) -> bytes:
    parts = records.encode(
        [b"x"] * count, timestamps=1, producer_id=7, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return b"".join(parts)


def marker(*, epoch: int = 1, commit: bool = False, first: int = 0) -> bytes:
    return records.encode_marker(7, epoch, commit, first, 1)


def changed(data: bytes, at: int, value: int) -> bytes:
    """With a good checksum all the same."""
    whole = bytearray(data)
    whole[at] = value
    whole[28:32] = crc32c(whole[32:]).to_bytes(4, "little")
    return bytes(whole)


@pytest.mark.parametrize("first", [part(), marker()])
@pytest.mark.parametrize("where", ["header", "body"])
def test_transactional_batches_and_markers_are_found_again_behind_damage(first: bytes, where: str) -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    write(world, b"".join(records.encode([b"a"], timestamps=1)))
    start = files.open(world.path(world.segment_names()[0])).size
    write(world, first)
    write(world, marker(epoch=2))
    world.sync()
    damage(files, world.segment_names()[0], SEGMENT_HEADER_BYTES + 16 if where == "header" else start - 20)
    files.crash(power=False)
    log = world.open()
    assert log.lost == ((0, 1),)
    assert log.log_end == 3
    assert list(world.values()) == [1, 2]


@pytest.mark.parametrize("power", [False, True])
def test_what_is_open_and_what_was_aborted_survives_every_death(*, power: bool) -> None:
    world = World()
    for epoch in range(1, 40):
        write(world, part(epoch=epoch, count=3))
        write(world, part(3, epoch=epoch))
        if epoch < 39:
            write(world, marker(epoch=epoch, commit=epoch % 2 == 0))
        if epoch % 10 == 0:
            world.clock.now_us += world.config.segment_ms * 1000
            world.log.segments.roll_by_age()
            world.sync()
    world.sync()
    expected = world.log.producers.snapshot(0)
    assert isinstance(world.files, MemoryFiles)
    world.files.crash(power=power)
    assert world.open().producers.snapshot(0) == expected
    world.log.close()
    assert world.open().producers.snapshot(0) == expected
    for name in world.files.list(FOLDER):
        if not name.endswith(".log"):
            world.files.remove(world.path(name))
    assert world.open().producers.snapshot(0) == expected
    isolation = world.log.producers.isolation
    assert isolation.last_stable_offset(world.log.log_end) == 38 * 5
    assert [one.epoch for one in isolation.aborted(0, world.log.log_end)] == list(range(1, 39, 2))


def test_a_cut_takes_the_end_of_a_transaction_back() -> None:
    world = World()
    write(world, part())
    at = write(world, marker())
    world.log.deletion.truncate(at)
    isolation = world.log.producers.isolation
    assert (isolation.last_stable_offset(1), isolation.aborted(0, 9)) == (0, [])
    write(world, marker(commit=True))
    assert world.log.producers.isolation.last_stable_offset(2) == 2


def test_a_log_that_is_reset_below_its_start_waits_for_a_transaction_there() -> None:
    world = World()
    write(world, part())
    delete_before(world.log, 1)
    world.log.deletion.reset(0)
    write(world, part(epoch=2))
    assert world.log.producers.isolation.last_stable_offset(1) == 0


def test_markers_of_a_newer_format_are_neither_cut_nor_skipped() -> None:
    world = World()
    write(world, part())
    newer = changed(marker(), 96, 1)
    name = world.segment_names()[0]
    world.log.close()
    file = world.files.open(world.path(name))
    file.append((records.make_stamp(1, 0, 1, len(newer)) + newer[28:],))
    file.close()
    with pytest.raises(UnsupportedVersion, match="marker"):
        world.open()


def test_a_marker_that_says_nothing_is_damage() -> None:
    world = World()
    write(world, part())
    world.sync()
    senseless = changed(marker(), 97, 7)
    name = world.segment_names()[0]
    world.log.close()
    file = world.files.open(world.path(name))
    file.append((records.make_stamp(1, 0, 1, len(senseless)) + senseless[28:],))
    file.close()
    assert world.open().log_end == 1
    assert world.log.producers.isolation.last_stable_offset(1) == 0
