"""One log: syncing, failing writes, closing and opening again."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from comet import records
from comet.errors import Closed, DiskFull, LimitExceeded, LogFailed, UnsupportedVersion
from comet_broker.ports import Files
from comet_broker.storage.files import RealFiles
from comet_broker.storage.limits import FREE_BYTES_MIN
from comet_broker.storage.log import Log
from comet_broker.storage.memory import MemoryFile, MemoryFiles
from tests.unit.storage_world import FOLDER, SMALL_SEGMENTS, World, apply_retention, batch, delete_before


@pytest.fixture(params=["memory", "real"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """The same things happen on a real disk."""
    return World(MemoryFiles(Random(1)) if request.param == "memory" else RealFiles(tmp_path))


class SmallDisk(MemoryFiles):
    """Looks large until a write does not fit, so that writes are what fails."""

    def free_bytes(self) -> int:
        return 1 << 40

    def take_space(self, size: int) -> None:
        if self.faults.capacity_bytes is not None and self.used_bytes + size > self.faults.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.used_bytes += size


# ---- syncing


def test_what_was_synced_is_told(world: World) -> None:
    assert world.log.durability.start_sync() is None
    world.append(b"a", b"b")
    ticket = world.log.durability.start_sync()
    assert ticket is not None
    world.append(b"c")
    ticket.run()
    world.log.durability.finish_sync(ticket, None)
    assert world.log.flushed_end == 2
    world.sync()
    assert world.log.flushed_end == 3
    assert world.log.durability.start_sync() is None


def test_one_sync_covers_what_was_rolled() -> None:
    files = MemoryFiles(Random(5))
    world = World(files)
    world.fill(segments=4)
    world.sync()
    assert world.log.flushed_end == world.log.log_end
    expected = world.values()
    for _ in range(5):
        files.crash()
        world.open()
        assert world.values() == expected


def test_two_syncs_at_once_take_turns(world: World) -> None:
    world.append(b"a")
    first = world.log.durability.start_sync()
    world.append(b"b")
    second = world.log.durability.start_sync()
    assert first is not None and second is not None
    second.run()
    first.run()
    world.log.durability.finish_sync(second, None)
    world.log.durability.finish_sync(first, None)
    assert world.log.flushed_end == 2


@pytest.mark.parametrize("strikes_at", [1, 2, 3, 4])
def test_a_failed_sync_poisons_the_log(strikes_at: int) -> None:
    """Wherever it strikes: in a sealed segment, the last one, or the folder. Derived files are no promise."""
    files = MemoryFiles(Random(1))
    world = World(files)
    world.fill(segments=3)
    readable = world.values()
    files.faults.sync_fails_in = strikes_at
    world.sync()
    assert isinstance(world.log.failed, LogFailed)
    assert world.log.flushed_end == 0
    with pytest.raises(LogFailed):
        world.append(b"more")
    assert world.log.durability.start_sync() is None
    assert world.values() == readable
    world.log.close()
    assert not files.exists(world.path("clean"))


def test_no_sync_is_believed_after_a_failed_one() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a")
    first = world.log.durability.start_sync()
    world.append(b"b")
    second = world.log.durability.start_sync()
    assert first is not None and second is not None
    files.faults.sync_fails_in = 1
    with pytest.raises(OSError, match="Errno") as caught:
        first.run()
    syncs = files.faults.syncs
    with pytest.raises(OSError, match="Errno"):
        second.run()
    assert files.faults.syncs == syncs, "nothing is synced after a failure"
    world.log.durability.finish_sync(first, caught.value)
    world.log.durability.finish_sync(second, None)
    assert world.log.flushed_end == 0


def test_what_a_failed_sync_lost_is_found_out_when_the_log_is_opened() -> None:
    """The page cache still shows the bytes; the disk does not have them."""
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a" * 100)
    world.sync()
    world.append(b"b" * 100)
    files.faults.sync_fails_in = 1
    world.sync()
    files.crash(power=False)
    world.open()
    assert world.values() == {0: b"a" * 100}
    assert world.log.failed is None


# ---- failing writes


def test_a_full_disk_refuses_and_heals_by_itself() -> None:
    files = SmallDisk(Random(1))
    world = World(files)
    world.append(b"a")
    files.faults.capacity_bytes = files.used_bytes + 150
    for _ in range(3):
        with pytest.raises(DiskFull) as caught:
            world.append(b"x" * 100)
        assert caught.value.retriable and caught.value.retry_after_ms
    assert world.log.log_end == 1
    assert world.values() == {0: b"a"}
    files.faults.capacity_bytes += 100
    assert world.append(b"x" * 100).base_offset == 1
    assert world.values() == {0: b"a", 1: b"x" * 100}


def test_a_full_disk_at_a_roll_refuses_and_heals() -> None:
    files = SmallDisk(Random(1))
    world = World(files)
    world.append(b"x" * 60_000)
    files.faults.capacity_bytes = files.used_bytes + 10
    for _ in range(3):
        with pytest.raises(DiskFull):
            world.append(b"x" * 60_000)
    assert len(world.segment_names()) == 1
    files.faults.capacity_bytes = None
    world.append(b"x" * 60_000)
    assert len(world.segment_names()) == 2
    world.sync()
    assert world.log.flushed_end == 2


def test_a_full_disk_at_derived_files_disturbs_nobody() -> None:
    files = SmallDisk(Random(1))
    world = World(files)
    world.fill(segments=3)
    files.faults.capacity_bytes = files.used_bytes
    world.sync()
    assert world.log.flushed_end == world.log.log_end
    assert world.log.statistics()["derived_failures"] > 0
    expected = world.values()
    assert not any(name.endswith(".index") for name in files.list(FOLDER))
    files.faults.capacity_bytes = None
    world.append(b"last")
    world.sync()
    assert len([name for name in files.list(FOLDER) if name.endswith(".index")]) == 2, "made up for"
    files.crash()
    world.open()
    assert world.values() == {**expected, world.log.log_end - 1: b"last"}


def test_deleting_works_on_a_full_disk_and_frees_it() -> None:
    files = SmallDisk(Random(1))
    world = World(files)
    world.fill(segments=4)
    world.sync()
    files.faults.capacity_bytes = files.used_bytes
    end = world.log.log_end
    world.log.configure(replace(SMALL_SEGMENTS, retention_bytes=70_000))
    assert apply_retention(world.log, world.clock.now_us) > 0
    assert delete_before(world.log, end - 1) == end - 1
    world.append(b"x" * 1000)
    files.crash()
    world.open()
    assert world.log.log_start == end - 1


def test_what_cannot_be_noted_is_not_deleted() -> None:
    files = SmallDisk(Random(1))
    world = World(files)
    world.append(b"a", b"b")
    files.faults.capacity_bytes = files.used_bytes
    with pytest.raises(DiskFull):
        delete_before(world.log, 1)
    assert world.log.log_start == 0
    assert world.values() == {0: b"a", 1: b"b"}


def test_the_last_of_the_space_is_not_for_appends() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    files.faults.capacity_bytes = FREE_BYTES_MIN - 1
    with pytest.raises(DiskFull, match="are left"):
        world.append(b"a")
    files.faults.capacity_bytes = FREE_BYTES_MIN + 10_000
    world.append(b"a")


def test_a_full_disk_when_opening_leaves_a_log_to_read() -> None:
    files = SmallDisk(Random(1))
    world = World(files)
    world.fill(segments=3)
    world.sync()
    expected = world.values()
    files.crash(power=False)
    files.faults.capacity_bytes = files.used_bytes
    world.open()
    assert world.values() == expected
    with pytest.raises(DiskFull):
        world.append(b"x" * 70_000)


def test_a_failing_write_poisons_the_log() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a")
    files.faults.append_fails_in = 1
    with pytest.raises(LogFailed, match="writing to"):
        world.append(b"b")
    with pytest.raises(LogFailed):
        world.append(b"c")
    assert world.values() == {0: b"a"}
    files.crash(power=False)
    world.open()
    assert world.append(b"d").base_offset == 1


def test_a_write_that_tears_poisons_the_log_and_is_cut_later() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a")
    files.faults.append_tears_in = 1
    with pytest.raises(LogFailed):
        world.append(b"b" * 1000)
    files.crash(power=False)
    world.open()
    assert world.values() == {0: b"a"}
    assert world.log.recovered.cut_bytes > 0
    world.append(b"c")
    assert world.values() == {0: b"a", 1: b"c"}


def test_running_out_of_descriptors_is_no_damage() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"x" * 60_000)
    files.faults.open_fails_in = 1
    with pytest.raises(LimitExceeded):
        world.append(b"x" * 60_000)
    world.append(b"y" * 60_000)
    assert [(value or b"")[:1] for value in world.values().values()] == [b"x", b"y"]


def test_the_last_offset_there_is() -> None:
    """A log cannot come to the end of its offsets; a crafted one that does must not wrap."""
    world = World()
    world.log.state.log_end = (1 << 63) - 1
    with pytest.raises(LimitExceeded):
        world.append(b"a")


# ---- closing and opening again


def test_a_log_that_was_closed_is_opened_without_reading_it(world: World) -> None:
    world.fill(segments=3)
    expected, producers = world.values(), world.log.producers.snapshot(0)
    world.log.close()
    world.open()
    assert world.log.recovered.clean
    assert world.log.recovered.scanned_bytes == 0
    assert world.values() == expected
    assert world.log.producers.snapshot(0) == producers
    assert world.log.flushed_end == world.log.log_end == len(expected)


def test_a_closed_log_does_nothing_more(world: World) -> None:
    world.append(b"a")
    world.log.close()
    world.log.close()
    with pytest.raises(Closed):
        world.append(b"b")
    with pytest.raises(Closed):
        world.log.extent(0)
    with pytest.raises(Closed):
        delete_before(world.log, 1)
    assert world.log.durability.start_sync() is None
    world.log.segments.roll_by_age()
    assert apply_retention(world.log, 1 << 62) == 0


def test_closing_does_not_disturb_who_is_reading(world: World) -> None:
    world.append(b"a")
    extent = world.log.extent(0)
    world.log.close()
    result = extent.read(memoryview(bytearray(1000)), wait=True)
    assert result is not None and result.next_offset == 1
    extent.release()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("power", [False, True])
def test_the_clean_marker_is_gone_before_anything_is_written(*, power: bool, seed: int) -> None:
    """Closed, opened, killed at once: the marker of the first life must not be found after the second."""
    files = MemoryFiles(Random(seed))
    world = World(files)
    world.append(b"a")
    world.log.close()
    assert files.exists(world.path("clean"))
    world.open()
    files.crash(power=power)
    assert not files.exists(world.path("clean"))


def test_a_clean_marker_that_describes_another_log_is_not_believed() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a")
    world.log.close()
    marker = files.read_all(world.path("clean"))
    world.open()
    world.append(b"b")
    world.sync()
    files.crash(power=False)
    files.write_atomic(world.path("clean"), marker)
    world.open()
    assert world.values() == {0: b"a", 1: b"b"}
    assert not world.log.recovered.clean


def test_files_that_are_not_ours_are_left_alone(world: World) -> None:
    world.append(b"a")
    for name in ("notes.txt", "1.log", "99999999999999999999.log"):
        world.files.open(world.path(name), create=True).close()
    world.files.open(world.path("checkpoint.tmp"), create=True).close()
    world.log.close()
    world.open()
    assert world.values() == {0: b"a"}
    assert {"notes.txt", "1.log", "99999999999999999999.log"} < set(world.files.list(FOLDER))
    assert "checkpoint.tmp" not in world.files.list(FOLDER)


def test_old_snapshots_of_the_producers_are_deleted() -> None:
    world = World()
    for segments in range(2, 7):
        world.fill(segments=segments)
        world.sync()
    assert len([name for name in world.files.list(FOLDER) if name.endswith(".producers")]) == 2


def test_producers_are_remembered_over_closing_and_crashing() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    sequence = 0
    for clean in (True, False, True, False):
        for _ in range(50):
            world.append(b"x" * 900, producer=(7, 0, sequence))
            sequence += 1
        world.sync()
        before = world.log.producers.snapshot(0)
        if clean:
            world.log.close()
        else:
            files.crash()
        world.open()
        assert world.log.producers.snapshot(0) == before


def test_producers_outlive_the_records_they_wrote() -> None:
    """Deleting does not make a producer unknown, whether or not anything was synced before."""
    for seed in range(20):
        files = MemoryFiles(Random(seed))
        world = World(files)
        world.append(b"x", producer=(7, 0, 0))
        if seed % 2:
            world.sync()
        delete_before(world.log, 1)
        files.crash()
        world.open()
        header, _ = batch([b"y"], producer=(7, 0, 1))
        assert world.log.producers.check(header) is None


def test_batches_of_a_newer_format_are_neither_cut_nor_skipped(world: World) -> None:
    """After a downgrade: the batch is whole, only this version cannot know what it means."""
    world.append(b"a")
    _, data = batch([b"newer"])
    newer = bytearray(data)
    newer[35] = 0x40  # a flag that does not exist yet
    newer[28:32] = crc32c(newer[32:]).to_bytes(4, "little")
    newer[:28] = records.make_stamp(1, 0, 0, len(newer))
    name = world.segment_names()[0]
    world.log.close()
    file = world.files.open(world.path(name))
    file.append((newer,))
    file.close()
    with pytest.raises(UnsupportedVersion, match="flags"):
        world.open()
    assert world.files.read_all(world.path(name)).endswith(newer)


def test_statistics(world: World) -> None:
    world.fill(segments=3)
    numbers = world.log.statistics()
    sizes = [len(world.files.read_all(world.path(name))) for name in world.segment_names()]
    assert numbers["bytes"] == sum(sizes)
    assert numbers["segments"] == 3
    assert numbers["rolls"] == 2
    assert numbers["log_end"] == world.log.log_end
    assert numbers["flushed_end"] == 0
    assert not numbers["failed"]


def test_files_in_memory_are_a_files_port() -> None:
    files: Files = MemoryFiles()
    assert isinstance(files.open("one", create=True), MemoryFile)
    assert isinstance(World(files).log, Log)
