"""Cutting a log back: at every offset, with a crash at every change of the disk, and beside who is reading."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from comet.errors import Closed, DataLoss, DiskFull, LimitExceeded, LogFailed, OffsetOutOfRange, Truncated
from comet_broker.core.producers import ProducerTable
from comet_broker.ports import Files
from comet_broker.storage.files import RealFiles
from comet_broker.storage.memory import MemoryFiles
from tests.unit.dying_files import Died, DyingFiles
from tests.unit.storage_world import (
    FOLDER,
    World,
    batch,
    delete_before,
    epochs_by_headers,
    epochs_of,
    read_from,
    stored,
)

BATCHES = 20
VALUE = b"x" * 7000
# Of one to three records each, in three segments; 0, 1, 3, 6, 7, 9, 12, ...
BOUNDS = [0]
for number in range(BATCHES):
    BOUNDS.append(BOUNDS[-1] + 1 + number % 3)
END = BOUNDS[-1]


def build(files: Files, *, synced: int = BATCHES) -> World:
    """Batches of two producers in four epochs, synced after so many of them."""
    world = World(files)
    sequences = {1: 0, 2: 0}
    for number in range(BATCHES):
        count, producer = 1 + number % 3, 1 + number % 2
        values = (b"%d.%d" % (number, at) + VALUE for at in range(count))
        world.append(*values, producer=(producer, 0, sequences[producer]), epoch=1 + number // 6 * 2)
        sequences[producer] += count
        if number + 1 == synced:
            world.sync()
    assert len(world.segment_names()) >= 3
    assert world.log.log_end == END
    return world


def boundary(offset: int) -> int:
    return max(bound for bound in BOUNDS if bound <= offset)


def check(world: World, values: dict[int, bytes | None], end: int) -> None:
    """A log that was never deleted from, whole up to `end`."""
    log = world.log
    assert (log.log_start, log.log_end, log.lost) == (0, end, ())
    assert world.values() == {at: value for at, value in values.items() if at < end}
    assert epochs_of(log) == epochs_by_headers(log)
    table = ProducerTable()
    for header, _ in stored(log):
        table.record(header, header.base_offset, header.append_time_us)
    assert log.producers.snapshot(0) == table.snapshot(0)


@pytest.fixture(params=["memory", "real"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return MemoryFiles(Random(1)) if request.param == "memory" else RealFiles(tmp_path)


@pytest.mark.parametrize("synced", [0, BATCHES // 2, BATCHES])
def test_cutting_at_every_offset(synced: int) -> None:
    for offset in range(END + 2):
        files = MemoryFiles(Random(offset))
        world = build(files, synced=synced)
        values, flushed = world.values(), world.log.flushed_end
        end = boundary(offset)
        assert world.log.deletion.truncate(offset) == end
        assert world.log.flushed_end == min(flushed, end)
        check(world, values, end)
        assert world.append(b"next", epoch=99).base_offset == end
        world.sync()
        values = {**{at: value for at, value in values.items() if at < end}, end: b"next"}
        check(world, values, end + 1)
        files.crash()
        world.open()
        check(world, values, end + 1)


def test_cutting_and_resetting_on_a_real_disk(files: Files) -> None:
    world = build(files)
    values = world.values()
    assert world.log.deletion.truncate(10) == 9
    check(world, values, 9)
    world.log.close()
    world.open()
    check(world, values, 9)
    world.fill(segments=3)
    world.log.deletion.reset(5)
    assert world.append(b"next").base_offset == 5
    assert world.values() == {5: b"next"}
    assert len(world.segment_names()) == 1
    world.log.close()
    world.open()
    assert world.log.recovered.clean
    assert world.values() == {5: b"next"}


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("synced", [BATCHES // 2, BATCHES])
def test_a_crash_at_any_moment_leaves_a_log_without_holes(*, power: bool, after: bool, synced: int) -> None:
    for offset in (0, 1, 9, 10, 14, 20, 29, END - 1):
        died, at = True, 0
        while died:
            at += 1
            files = DyingFiles(Random(offset * 100 + at))
            world = build(files, synced=synced)
            values, flushed = world.values(), world.log.flushed_end
            files.dies_at, files.after = files.changes + at, after
            end, died = boundary(offset), False
            try:
                world.log.deletion.truncate(offset)
            except Died:
                died = True
            files.dies_at = -1
            files.crash(power=power)
            world.open()
            least = min(end, flushed) if power else end
            assert least <= world.log.log_end <= (END if died else end), (offset, at)
            check(world, values, world.log.log_end)
            kept = world.log.log_end
            world.append(b"next", epoch=99)
            world.sync()
            files.crash()
            world.open()
            check(world, {**{n: v for n, v in values.items() if n < kept}, kept: b"next"}, kept + 1)
        assert at > 8, "there was something to die at"


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_a_crash_while_resetting(*, power: bool, after: bool) -> None:
    for offset, start in [(0, 0), (0, 4), (13, 0), (13, 4), (END, 4), (END + 50, 4), (3, 20), (20, 20)]:
        died, at = True, 0
        while died:
            at += 1
            files = DyingFiles(Random(offset * 100 + at))
            world = build(files)
            delete_before(world.log, start)
            values = world.values()
            files.dies_at, files.after = files.changes + at, after
            died = False
            try:
                world.log.deletion.reset(offset)
            except Died:
                died = True
            files.dies_at = -1
            files.crash(power=power)
            world.open()
            log = world.log
            assert log.lost == ()
            if not died or log.log_end == log.log_start == offset:
                assert (log.log_start, log.log_end) == (offset, offset)
            else:
                assert log.log_start == start, "what was deleted stays deleted"
                assert world.values() == {n: v for n, v in values.items() if n < log.log_end}
            end = log.log_end
            assert world.append(b"next").base_offset == end
            world.sync()
            files.crash()
            world.open()
            assert world.log.lost == () and world.values()[end] == b"next"


def test_resetting() -> None:
    for offset in (0, 3, 20, END, END + 1, 1000):
        for start in (0, 4, 20):
            files = MemoryFiles(Random(offset))
            world = build(files)
            delete_before(world.log, start)
            world.log.deletion.reset(offset)
            for _ in range(2):
                log = world.log
                assert (log.log_start, log.log_end, log.flushed_end, log.lost) == (offset, offset, offset, ())
                assert log.epochs.entries == () and len(log.producers) == 0
                files.crash()
                world.open()
            assert world.append(b"next", epoch=5).base_offset == offset
            assert world.values() == {offset: b"next"}
            assert world.log.epochs.entries == ((5, offset),)


# ---- with what was deleted, lost, or is being read


def test_cutting_into_the_batch_in_which_the_log_starts() -> None:
    files = MemoryFiles(Random(1))
    world = build(files)
    _, leaders = stored(world.log)[5]
    delete_before(world.log, 10)  # in the middle of the batch at 9
    assert world.log.deletion.truncate(11) == 10
    assert (world.log.log_start, world.log.log_end) == (10, 10)
    with pytest.raises(OffsetOutOfRange):
        world.log.deletion.truncate(9)
    files.crash()
    world.open()
    assert (world.log.log_start, world.log.log_end) == (10, 10)
    header, data = batch([b"a", b"b", b"c"])
    follower = World(MemoryFiles(Random(1)))
    follower.append(*(b"x" for _ in range(9)))
    follower.log.append(header, data, 3)
    header, whole = stored(follower.log)[1]
    world.log.append_stamped(header, whole)
    assert world.values() == {10: b"b", 11: b"c"}
    world.sync()
    files.crash()
    world.open()
    assert (world.log.log_start, world.values()) == (10, {10: b"b", 11: b"c"})
    assert world.log.epochs.entries == ((3, 9),)
    assert len(leaders)


def test_a_follower_takes_batches_as_they_are(files: Files) -> None:
    leader, follower = build(MemoryFiles(Random(2))), World(files)
    follower.clock.now_us += 1_000_000
    for header, data in stored(leader.log):
        follower.log.append_stamped(header, data)
    assert stored(follower.log) == stored(leader.log)
    assert follower.log.producers.snapshot(0) == leader.log.producers.snapshot(0)
    assert follower.log.epochs.entries == leader.log.epochs.entries
    header, data = stored(leader.log)[3]
    with pytest.raises(OffsetOutOfRange):
        follower.log.append_stamped(header, data)
    follower.log.close()
    follower.open()
    assert follower.log.recovered.clean and follower.log.recovered.scanned_bytes == 0
    assert stored(follower.log) == stored(leader.log)
    assert follower.log.epochs.entries == leader.log.epochs.entries


@pytest.mark.parametrize("cold", [True, False])
def test_damage_is_cut_away_and_fetched_again(*, cold: bool) -> None:
    """In a sealed segment, in the last one, and where a segment is missing."""
    for damaged in (0, 1, 2, -1):
        files = MemoryFiles(Random(1))
        world = build(files)
        whole, values = stored(world.log), world.values()
        names = world.segment_names()
        if damaged < 0:
            world.log.close()
            files.remove(world.path(names[1]))
            world.open()
        else:
            files.flip(world.path(names[damaged]), 15_000)
            if cold:
                world.log.close()
                world.open()
            world.values()  # finds it
        ((first, end),) = world.log.lost
        assert world.log.deletion.truncate(first) == first
        assert world.log.lost == ()
        check(world, values, first)
        for header, data in whole:
            if header.base_offset >= first:
                world.log.append_stamped(header, data)
        check(world, values, END)
        assert end <= END
        world.sync()
        files.crash()
        world.open()
        check(world, values, END)


def test_the_missing_start_of_a_log_is_cut_away() -> None:
    files = MemoryFiles(Random(1))
    world = build(files)
    whole, values = stored(world.log), world.values()
    world.log.close()
    files.remove(world.path(world.segment_names()[0]))
    world.open()
    ((first, _),) = world.log.lost
    assert world.log.deletion.truncate(first) == first == 0
    for header, data in whole:
        world.log.append_stamped(header, data)
    check(world, values, END)


def test_who_reads_what_goes_is_told_and_nothing_is_remembered(files: Files) -> None:
    world = build(files)
    values = world.values()
    extents = [world.log.extent(offset) for offset in (8, 12, END - 1)]
    world.log.deletion.truncate(9)
    for number in range(40):  # other records at the same offsets, and other files of the same names
        world.append(b"other" * 2000, b"%d" % number, epoch=9)
    for extent in extents:
        with suppress(Truncated):  # or it has the old bytes still in hand
            assert extent.read(memoryview(bytearray(100_000)), wait=True) is not None
        extent.release()
    assert world.log.lost == ()
    assert {at: value for at, value in world.values().items() if at < 9} == {n: v for n, v in values.items() if n < 9}
    assert len(world.values()) == 9 + 80
    world.log.close()
    world.open()
    assert len(world.values()) == 9 + 80


def test_a_deleted_segment_that_is_still_read_does_not_take_its_successor_with_it(files: Files) -> None:
    world = build(files)
    extent = world.log.extent(0)
    delete_before(world.log, END)
    world.log.deletion.reset(0)
    world.append(b"new")
    extent.release()
    assert world.values() == {0: b"new"}
    world.log.close()
    world.open()
    assert world.values() == {0: b"new"}


def test_a_sync_or_deletion_from_before_comes_to_nothing() -> None:
    files = MemoryFiles(Random(1))
    world = build(files, synced=0)
    sync, delete = world.log.durability.start_sync(), world.log.deletion.start_delete(20)
    assert sync is not None and delete is not None
    world.log.deletion.truncate(9)
    sync.run()
    delete.run()
    world.log.durability.finish_sync(sync, None)
    assert world.log.deletion.finish_delete(delete, None) == 0
    delete.remove()
    assert world.log.flushed_end == 0
    world.append(b"next", epoch=99)
    world.sync()
    files.crash()
    world.open()
    assert (world.log.log_start, world.log.log_end, world.log.lost) == (0, 10, ())


# ---- failures


def test_a_disk_that_is_full_changes_nothing() -> None:
    files = MemoryFiles(Random(1))
    world = build(files)
    files.faults.capacity_bytes = files.used_bytes
    for cut in (lambda: world.log.deletion.truncate(9), lambda: world.log.deletion.reset(9)):
        with pytest.raises(DiskFull):
            cut()
    files.faults.capacity_bytes = None
    check(world, world.values(), END)
    world.append(b"next", epoch=9)
    world.log.deletion.truncate(9)


def test_a_lack_of_descriptors_changes_nothing() -> None:
    refused = 0
    for strikes_at in range(1, 6):
        files = MemoryFiles(Random(1))
        world = build(files)
        files.faults.open_fails_in = strikes_at
        try:
            assert world.log.deletion.truncate(9) == 9  # an index that cannot be read is rebuilt
        except LimitExceeded:
            refused += 1
            check(world, world.values(), END)
        files.faults.open_fails_in = None
        assert world.log.deletion.truncate(9) == 9
        assert world.log.failed is None
    assert refused


def test_a_failing_sync_poisons_the_log_and_leaves_no_hole() -> None:
    for strikes_at in range(1, 7):
        files = MemoryFiles(Random(strikes_at))
        world = build(files)
        values = world.values()
        files.faults.sync_fails_in = strikes_at
        try:
            world.log.deletion.truncate(10)
        except LogFailed:
            with pytest.raises(LogFailed):
                world.log.deletion.truncate(3)
        else:
            assert files.faults.sync_fails_in is not None
        files.crash(power=strikes_at % 2 == 0)
        world.open()
        assert world.log.log_end >= 9
        check(world, values, world.log.log_end)


def test_a_closed_log_is_not_cut(files: Files) -> None:
    world = build(files)
    world.log.close()
    with pytest.raises(Closed):
        world.log.deletion.truncate(3)
    with pytest.raises(Closed):
        world.log.deletion.reset(3)


# ---- what a disk cannot read


def test_what_cannot_be_read_is_lost_and_the_rest_is_not() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    for number in range(100):
        world.append(b"%02d" % number * 1000)
    world.append(b"x" * 64_000)  # so that it is sealed
    world.sync()
    whole, values = stored(world.log), world.values()
    files.wear_out(world.path(world.segment_names()[0]), 33_000, 10)
    kept = world.values()
    ((first, end),) = world.log.lost
    assert 14 <= first <= 16 and end <= 32
    assert kept == {at: value for at, value in values.items() if not first <= at < end}
    with pytest.raises(DataLoss):
        read_from(world.log, first)
    assert world.log.deletion.truncate(first) <= first
    for header, data in whole[world.log.log_end :]:
        world.log.append_stamped(header, data)
    assert world.log.lost == () and world.values() == values


def test_other_failures_to_read_are_no_damage() -> None:
    files = MemoryFiles(Random(1))
    world = build(files)
    world.log.close()
    world.open()
    files.faults.open_fails_in = 1
    with pytest.raises(OSError, match="EMFILE") as caught:
        read_from(world.log, 0)
    assert caught.value.errno == errno.EMFILE
    assert world.log.lost == ()


def test_a_log_that_begins_anew_knows_no_producer_of_its_former_life() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"old", producer=(7, 0, 0))
    delete_before(world.log, 1)  # puts on disk what the producer had written
    world.log.deletion.reset(0)
    world.append(b"new", b"new")
    world.sync()
    for _ in range(2):
        assert len(world.log.producers) == 0
        assert [name for name in files.list(FOLDER) if name.endswith("1.producers")] == []
        files.crash()
        world.open()


def test_a_time_is_not_found_beyond_a_cut_that_failed() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a", b"b", timestamps=[1, 9])
    files.faults.sync_fails_in = 3
    with pytest.raises(LogFailed):
        world.log.deletion.truncate(0)
    assert world.log.segments.find_time(9) == world.log.log_end == 0
