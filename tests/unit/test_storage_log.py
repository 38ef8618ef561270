"""The log as its partition uses it: appending, reading, rolling, times, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from comet import records
from comet.errors import OffsetOutOfRange
from comet.settings.topic import TopicConfig
from comet_broker.storage.files import RealFiles
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.limits import WARM_SEGMENTS_MAX
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import (
    FOLDER,
    SMALL_SEGMENTS,
    START_US,
    World,
    apply_retention,
    batch,
    delete_before,
    read_all,
    read_from,
)


@pytest.fixture(params=["memory", "real"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """The same things happen on a real disk."""
    return World(MemoryFiles(Random(1)) if request.param == "memory" else RealFiles(tmp_path))


# ---- appending and reading


def test_what_is_appended_is_read(world: World) -> None:
    first = world.append(b"a", None, b"c")
    second = world.append(b"d")
    assert (first.base_offset, second.base_offset, world.log.log_end) == (0, 3, 4)
    assert world.values() == {0: b"a", 1: None, 2: b"c", 3: b"d"}


def test_a_stored_batch_is_the_producers_with_the_stamp_in_front(world: World) -> None:
    world.append(b"before")
    world.clock.now_us += 5
    header, data = batch([b"a", b"b"])
    appended = world.log.append(header, data, 9)
    stored, following = read_from(world.log, 1)
    assert stored == appended.stamp + bytes(data[28:])
    assert following == 3
    read = records.verify(stored, stamped=True)
    assert (read.base_offset, read.append_time_us, read.leader_epoch) == (1, START_US + 5, 9)


def test_reading_starts_at_the_batch_that_holds_the_offset(world: World) -> None:
    for _ in range(10):
        world.append(b"a", b"b", b"c")
    data, following = read_from(world.log, 16)
    assert records.read_header(data).base_offset == 15
    assert following == 30


def test_reading_stops_at_the_end_asked_for(world: World) -> None:
    for _ in range(10):
        world.append(b"a", b"b")
    assert read_from(world.log, 0, end=8)[1] == 8
    assert read_from(world.log, 5, end=8)[1] == 8


def test_an_extent_does_not_see_what_comes_after_it(world: World) -> None:
    world.append(b"a")
    extent = world.log.extent(0)
    world.append(b"b")
    result = extent.read(memoryview(bytearray(1 << 16)), wait=True)
    assert result is not None and result.next_offset == 1
    extent.release()


def test_a_buffer_too_small_for_one_batch_is_told_the_size(world: World) -> None:
    world.append(b"x" * 1000)
    extent = world.log.extent(0)
    length = records.read_header(read_from(world.log, 0)[0]).length
    for size in (0, 1, 87, 88, length - 1):
        result = extent.read(memoryview(bytearray(size)), wait=True)
        assert result is not None
        assert result.size == 0
        assert size < result.needed <= length
    result = extent.read(memoryview(bytearray(length)), wait=True)
    assert result is not None and result.size == length
    extent.release()


def test_small_buffers_read_everything(world: World) -> None:
    world.fill(segments=3, value_bytes=200)
    expected = world.values()
    assert len(expected) == world.log.log_end
    assert read_all(world.log, size=400)[0] == expected


def test_offsets_outside_the_log_are_refused(world: World) -> None:
    world.append(b"a", b"b", b"c")
    delete_before(world.log, 1)
    for offset in (-1, 0, 3, 4):
        with pytest.raises(OffsetOutOfRange) as caught:
            world.log.extent(offset)
        assert caught.value.details == {"log_start": "1", "log_end": "3"}


def test_without_waiting_only_what_is_in_memory_is_read() -> None:
    files = MemoryFiles(Random(1), cold=1.0)
    world = World(files)
    world.append(b"a")
    extent = world.log.extent(0)
    buffer = memoryview(bytearray(1 << 16))
    assert extent.read(buffer, wait=False) is None
    files.cold = 0.0
    result = extent.read(buffer, wait=False)
    assert result is not None and result.next_offset == 1
    extent.release()


def test_a_cold_segment_is_not_opened_without_waiting(world: World) -> None:
    world.fill(segments=WARM_SEGMENTS_MAX + 4)
    world.sync()
    world.log.close()
    world.open()
    extent = world.log.extent(0)
    buffer = memoryview(bytearray(1 << 16))
    assert extent.read(buffer, wait=False) is None
    result = extent.read(buffer, wait=True)
    assert result is not None and result.size
    extent.release()


def test_only_a_few_sealed_segments_stay_open(world: World) -> None:
    world.fill(segments=WARM_SEGMENTS_MAX + 5)
    world.sync()
    assert len(world.values()) == world.log.log_end
    opened = [segment for segment in world.log.segments.all if segment.file is not None]
    assert len(opened) <= WARM_SEGMENTS_MAX + 1
    assert world.log.segments.all[0].index is None


def test_an_index_that_is_gone_is_rebuilt_for_the_reader(world: World) -> None:
    world.fill(segments=3)
    expected = world.values()
    world.log.close()
    world.open()
    for name in world.files.list(FOLDER):
        if name.endswith(".index"):
            world.files.remove(world.path(name))
    assert world.values() == expected


# ---- rolling


def test_a_full_segment_is_followed_by_another(world: World) -> None:
    world.fill(segments=3)
    world.sync()
    sizes = [len(world.files.read_all(world.path(name))) for name in world.segment_names()]
    assert all(size <= SMALL_SEGMENTS.segment_bytes for size in sizes)
    assert all(size > SMALL_SEGMENTS.segment_bytes - 4000 for size in sizes[:-1])


def test_a_batch_larger_than_a_segment_gets_one_for_itself(world: World) -> None:
    world.append(b"small")
    world.append(b"x" * 200_000)
    world.append(b"small")
    assert len(world.segment_names()) == 3
    assert [len(value or b"") for value in world.values().values()] == [5, 200_000, 5]


def test_a_segment_is_rolled_when_it_is_old_enough_and_holds_something() -> None:
    world = World(config=replace(SMALL_SEGMENTS, segment_ms=1000))
    world.clock.now_us += 10_000_000
    world.log.segments.roll_by_age()
    assert len(world.segment_names()) == 1
    world.append(b"a")
    world.log.segments.roll_by_age()
    world.append(b"b")
    world.clock.now_us += 999_999
    world.log.segments.roll_by_age()
    assert len(world.segment_names()) == 2
    world.clock.now_us -= 10**15  # the clock jumps back by years: nothing happens
    world.log.segments.roll_by_age()
    assert len(world.segment_names()) == 2


def test_another_segment_size_holds_from_the_next_append() -> None:
    world = World()
    world.append(b"x" * 30_000)
    world.log.configure(replace(SMALL_SEGMENTS, segment_bytes=1 << 20))
    world.append(b"x" * 60_000)
    assert len(world.segment_names()) == 1
    world.log.configure(SMALL_SEGMENTS)
    world.append(b"x")
    assert len(world.segment_names()) == 2


def test_space_is_reserved_ahead_and_given_back(tmp_path: Path) -> None:
    world = World(RealFiles(tmp_path), TopicConfig(segment_bytes=6 << 20))
    for _ in range(25):
        world.append(b"x" * 100_000)
    name = world.segment_names()[0]
    path = tmp_path / FOLDER / name
    reserved = path.stat().st_blocks * 512 - path.stat().st_size
    if reserved < 1 << 20:
        pytest.skip("this file system does not reserve space")
    for _ in range(50):
        world.append(b"x" * 100_000)
    world.sync()
    assert path.stat().st_blocks * 512 - path.stat().st_size < 1 << 16
    assert len(world.values()) == 75


# ---- times


def times(world: World, *timestamps: Sequence[int]) -> None:
    for ones in timestamps:
        world.append(*(b"v" for _ in ones), timestamps=ones)


def test_a_time_is_found_precisely(world: World) -> None:
    times(world, [10, 20, 30], [40, 50], [60])
    assert [world.log.segments.find_time(at) for at in (0, 10, 11, 30, 31, 41, 60, 61)] == [0, 0, 1, 2, 3, 4, 5, 6]


def test_times_need_not_rise(world: World) -> None:
    times(world, [50, 10], [5], [100, 60], [7])
    assert [world.log.segments.find_time(at) for at in (1, 50, 51, 100, 101)] == [0, 0, 3, 3, 6]


def test_a_time_before_the_start_of_the_log_is_its_start(world: World) -> None:
    times(world, [10, 100, 20], [30])
    delete_before(world.log, 2)
    assert world.log.segments.find_time(5) == 2
    assert world.log.segments.find_time(25) == 3
    assert world.log.segments.find_time(100) == 4


@pytest.mark.parametrize("lowest", [-(1 << 63), -5, (1 << 63) - 4])
def test_extreme_times(world: World, lowest: int) -> None:
    times(world, [lowest, lowest + 3])
    assert [world.log.segments.find_time(lowest + n) for n in (0, 1, 3)] == [0, 1, 1]
    world.log.close()
    world.open()
    assert [world.log.segments.find_time(lowest + n) for n in (0, 1, 3)] == [0, 1, 1]


def test_times_over_many_segments(world: World) -> None:
    random = Random(3)
    stamps: list[int] = []
    while len(world.segment_names()) < 4:
        ones = [random.randrange(1000) for _ in range(random.randint(1, 4))]
        stamps += ones
        world.append(*(b"v" * 900 for _ in ones), timestamps=ones)
    for _ in range(2):
        for at in range(0, 1001, 13):
            expected = next((n for n, stamp in enumerate(stamps) if stamp >= at), len(stamps))
            assert world.log.segments.find_time(at) == expected
        world.log.close()
        world.open()


# ---- deleting


def test_records_before_an_offset_are_deleted(world: World) -> None:
    world.fill(segments=4)
    expected = world.values()
    assert delete_before(world.log, 40) == 40
    assert world.values() == {at: value for at, value in expected.items() if at >= 40}
    assert len(world.segment_names()) == 3
    assert delete_before(world.log, 7) == 40
    with pytest.raises(OffsetOutOfRange):
        delete_before(world.log, world.log.log_end + 1)
    with pytest.raises(OffsetOutOfRange):
        delete_before(world.log, -1)


def test_deleting_all_frees_all_and_offsets_go_on(world: World) -> None:
    world.fill(segments=3)
    end = world.log.log_end
    assert delete_before(world.log, end) == end
    assert world.log.statistics()["bytes"] == SEGMENT_HEADER_BYTES
    assert len(world.segment_names()) == 1
    assert world.append(b"next").base_offset == end
    assert world.values() == {end: b"next"}


def test_deleted_is_deleted_at_once_also_for_a_crash() -> None:
    for seed in range(30):
        files = MemoryFiles(Random(seed))
        world = World(files)
        world.fill(segments=4)
        delete_before(world.log, 50)
        files.crash()
        world.open()
        assert world.log.log_start >= 50
        assert world.log.log_end >= 50
        assert min(world.values(), default=50) >= 50


def test_an_index_left_over_from_a_deletion_goes() -> None:
    world = World()
    world.fill(segments=3)
    world.sync()
    first = world.segment_names()[0]
    index = world.files.read_all(world.path(first[:20] + ".index"))
    delete_before(world.log, world.log.log_end - 1)
    assert not world.files.exists(world.path(first[:20] + ".index"))
    world.log.close()
    world.files.write_atomic(world.path(first[:20] + ".index"), index)
    world.open()
    assert not world.files.exists(world.path(first[:20] + ".index"))


def test_what_was_deleted_need_not_have_been_synced() -> None:
    """The deletion is durable, the records around it are not: what the power cut tore is cut, not damage."""
    for seed in range(40):
        files = MemoryFiles(Random(seed))
        world = World(files)
        world.append(b"a", b"x" * 20_000)
        world.append(b"b")
        delete_before(world.log, 1)
        files.crash()
        world.open()
        assert world.log.lost == ()
        assert world.log.log_start == 1
        assert world.values().items() <= {1: b"x" * 20_000, 2: b"b"}.items()


def test_a_sync_that_began_before_a_deletion_does_not_undo_it(world: World) -> None:
    world.append(b"a", b"b", b"c")
    ticket = world.log.durability.start_sync()
    assert ticket is not None
    delete_before(world.log, 2)
    ticket.run()
    world.log.durability.finish_sync(ticket, None)
    world.open()
    assert world.log.log_start == 2


def test_what_is_being_read_stays_until_it_was_read(world: World) -> None:
    world.fill(segments=3)
    expected, _ = read_from(world.log, 3)
    extent = world.log.extent(3)
    names = world.segment_names()
    delete_before(world.log, world.log.log_end)
    assert world.segment_names()[0] == names[0]
    buffer = memoryview(bytearray(1 << 16))
    result = extent.read(buffer, wait=True)
    assert result is not None
    assert buffer[: result.size] == expected
    extent.release()
    assert names[0] not in world.segment_names()


def test_retention_deletes_whole_segments_from_the_start(world: World) -> None:
    world.fill(segments=5)
    starts = [int(name[:20]) for name in world.segment_names()]
    world.log.configure(replace(SMALL_SEGMENTS, retention_bytes=130_000))
    assert apply_retention(world.log, world.clock.now_us) == starts[2]
    assert apply_retention(world.log, world.clock.now_us) == starts[2]
    assert [int(name[:20]) for name in world.segment_names()] == starts[2:]
    assert min(world.values()) == starts[2]


def test_retention_goes_by_when_it_was_appended_not_by_what_records_say() -> None:
    world = World(config=replace(SMALL_SEGMENTS, retention_ms=1000))
    world.append(b"x" * 60_000, timestamps=1 << 62)  # dated far into the future
    world.append(b"x" * 60_000, timestamps=-(1 << 62))  # and long ago
    world.append(b"x" * 10_000)
    assert apply_retention(world.log, START_US + 1_000_000) == 0
    assert apply_retention(world.log, START_US + 1_000_001) == 2


def test_retention_by_age_survives_opening_again() -> None:
    world = World(config=replace(SMALL_SEGMENTS, retention_ms=1000))
    world.append(b"x" * 60_000)
    world.append(b"x" * 60_000)
    world.log.close()
    world.open()
    assert apply_retention(world.log, START_US + 1_000_000) == 0
    assert apply_retention(world.log, START_US + 1_000_001) == 1
