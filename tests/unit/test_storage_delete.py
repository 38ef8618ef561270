"""Deleting in two steps, with what happens to the log in between; and folders that an earlier version wrote."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from comet.errors import DiskFull, LimitExceeded, LogFailed, OffsetOutOfRange
from comet_broker.ports import Files
from comet_broker.storage.files import RealFiles
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import (
    FOLDER,
    SMALL_SEGMENTS,
    World,
    delete_before,
    epochs_by_headers,
    epochs_of,
    read_from,
)


@pytest.fixture(params=["memory", "real"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(MemoryFiles(Random(1)) if request.param == "memory" else RealFiles(tmp_path))


def test_nothing_is_gone_before_it_is_finished(world: World) -> None:
    world.fill(segments=4)
    values, names = world.values(), world.segment_names()
    before = int(names[2][:20]) + 1
    ticket = world.log.deletion.start_delete(before)
    assert ticket is not None
    ticket.run()
    assert world.values() == values, "the log's start has not moved yet"
    reader = world.log.extent(0)
    assert world.log.deletion.finish_delete(ticket, None) == before == world.log.log_start
    with pytest.raises(OffsetOutOfRange):
        read_from(world.log, before - 1)
    assert world.segment_names() == names, "deleting files is for the worker"
    ticket.remove()
    assert world.segment_names() == [names[0], *names[2:]], "but for those that are read"
    result = reader.read(memoryview(bytearray(100_000)), wait=True)
    assert result is not None and result.next_offset > 0
    reader.release()
    assert world.segment_names() == names[2:]
    assert world.values() == {at: value for at, value in values.items() if at >= before}
    assert world.log.deletion.start_delete(before) is None


def test_a_log_grows_while_it_is_deleted_from(world: World) -> None:
    world.fill(segments=3)
    one, two = world.log.deletion.start_delete(3), world.log.deletion.start_delete(world.log.log_end)
    assert one is not None and two is not None
    end = world.log.log_end
    world.fill(segments=6)
    world.sync()
    two.run()
    one.run()
    assert world.log.deletion.finish_delete(two, None) == end
    assert world.log.deletion.finish_delete(one, None) == end, "it does not go back"
    one.remove()
    two.remove()
    world.log.close()
    world.open()
    assert (world.log.log_start, list(world.values())) == (end, list(range(end, world.log.log_end)))


def test_retention_in_two_steps(world: World) -> None:
    world.fill(segments=5)
    assert world.log.deletion.start_retention(world.clock.now_us) is None
    world.log.configure(replace(SMALL_SEGMENTS, retention_bytes=70_000))
    ticket = world.log.deletion.start_retention(world.clock.now_us)
    assert ticket is not None
    ticket.run()
    start = world.log.deletion.finish_delete(ticket, None)
    ticket.remove()
    assert start == int(world.segment_names()[0][:20]) > 0
    assert epochs_of(world.log) == epochs_by_headers(world.log)


def test_a_lack_of_descriptors_can_be_tried_again() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.fill(segments=3)
    files.faults.open_fails_in = 1
    with pytest.raises(LimitExceeded) as caught:
        delete_before(world.log, 5)
    assert caught.value.retriable and caught.value.retry_after_ms
    assert (world.log.log_start, world.log.failed) == (0, None)
    assert delete_before(world.log, 5) == 5


def test_a_start_that_cannot_be_put_on_disk_poisons_the_log() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a", b"b")
    files.faults.sync_fails_in = 1
    with pytest.raises(LogFailed):
        delete_before(world.log, 1)
    assert world.log.log_start == 0
    with pytest.raises(LogFailed):
        world.log.deletion.start_delete(1)


def test_on_a_full_disk_the_files_make_the_room() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.fill(segments=4)
    world.sync()
    files.faults.capacity_bytes = files.used_bytes
    start = int(world.segment_names()[2][:20])
    ticket = world.log.deletion.start_delete(start)
    assert ticket is not None
    with pytest.raises(OSError, match="ENOSPC") as caught:
        ticket.run()
    assert world.log.deletion.finish_delete(ticket, caught.value) == start
    ticket.remove()
    small = world.log.deletion.start_delete(start + 1)
    assert small is not None
    small.run()
    files.crash()
    world.open()
    assert world.log.log_start == start + 1 and world.log.lost == ()
    files.faults.capacity_bytes = files.used_bytes
    with pytest.raises(DiskFull):
        delete_before(world.log, start + 2)
    assert world.log.log_start == start + 1


# ---- what an earlier version wrote


def in_the_first_version(files: Files) -> None:
    """Makes the index files what version 1 would have written."""
    for name in files.list(FOLDER):
        if name.endswith(".index"):
            data = files.read_all(f"{FOLDER}/{name}")
            (epochs,) = struct.unpack_from("<I", data, 56)
            head = data[:8] + struct.pack("<I", 1) + data[12:56] + bytes(4)
            columns = data[64 + 16 * epochs + 4 :]
            files.write_atomic(f"{FOLDER}/{name}", head + struct.pack("<I", crc32c(head)) + columns)


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_of_the_first_version(world: World, *, clean: bool) -> None:
    for number in range(80):
        world.append(b"%d" % number * 1000, epoch=1 + number // 15, producer=(7, 0, number))
    world.sync()
    values, epochs, producers = world.values(), world.log.epochs.entries, world.log.producers.snapshot(0)
    assert len(world.segment_names()) >= 3 and len(epochs) == 6
    if clean:
        world.log.close()
    in_the_first_version(world.files)
    for _ in range(2):
        world.open()
        assert world.log.recovered.clean == clean
        assert world.log.recovered.scanned_bytes == 0 or not clean
        assert world.values() == values
        assert world.log.epochs.entries == epochs
        assert world.log.producers.snapshot(0) == producers
        clean = True
        world.log.close()
    world.open()
    assert world.log.deletion.truncate(40) == 40
    world.append(b"next", epoch=9)
    world.log.close()
    world.open()
    assert epochs_of(world.log) == epochs_by_headers(world.log) == (*epochs[:3], (9, 40))


def test_an_index_with_the_wrong_epochs_is_not_believed(world: World) -> None:
    """Whole, but not what the segment says."""
    for number in range(80):
        world.append(b"%d" % number * 1000, epoch=1 + number // 15)
    values, epochs = world.values(), world.log.epochs.entries
    world.log.close()
    for name in world.files.list(FOLDER):
        if name.endswith(".index"):
            data = bytearray(world.files.read_all(world.path(name)))
            (count,) = struct.unpack_from("<I", data, 56)
            data[64] += 100
            data[64 + 16 * count : 68 + 16 * count] = struct.pack("<I", crc32c(bytes(data[64 : 64 + 16 * count])))
            world.files.write_atomic(world.path(name), bytes(data))
    world.open()
    assert world.log.epochs.entries == epochs
    assert world.values() == values
    assert world.log.lost == ()
