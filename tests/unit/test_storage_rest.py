"""Logs at rest: the files of idle logs are closed, and only with all of them on disk."""

from __future__ import annotations

import errno
from random import Random

import pytest

from comet.errors import LimitExceeded
from comet_broker.storage.limits import REST_S
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import World, read_from

REST_US = REST_S * 1_000_000


@pytest.fixture
def world() -> World:
    return World(MemoryFiles(Random(1)))


def open_segments(world: World) -> int:
    return sum(segment.file is not None for segment in world.log.segments.all)


def rest(world: World) -> None:
    """As the timer does it, after a time without a write."""
    world.clock.now_us += REST_US
    world.log.rest()


def test_a_log_is_at_rest_until_its_first_write(world: World) -> None:
    assert open_segments(world) == 0
    world.append(b"a")
    assert open_segments(world) == 1


def test_an_idle_log_rests_and_goes_on(world: World) -> None:
    world.append(b"a")
    world.sync()
    world.log.rest()
    assert open_segments(world) == 1, "it is not idle"
    rest(world)
    assert open_segments(world) == 0
    assert world.append(b"b").base_offset == 1
    assert world.values() == {0: b"a", 1: b"b"}
    world.log.close()
    world.open()
    assert world.log.recovered.clean
    assert world.values() == {0: b"a", 1: b"b"}


def test_a_log_at_rest_is_read(world: World) -> None:
    world.append(b"a")
    world.sync()
    rest(world)
    assert world.values() == {0: b"a"}
    rest(world)
    assert open_segments(world) == 0


def test_what_is_not_synced_is_not_closed(world: World) -> None:
    """The error of its sync is reported to the descriptor that wrote it."""
    files = world.files
    assert isinstance(files, MemoryFiles)
    world.append(b"a")
    rest(world)
    assert open_segments(world) == 1
    files.faults.sync_fails_in = 1
    world.sync()
    assert world.log.failed is not None
    rest(world)
    assert open_segments(world) == 1, "nothing of a failed log is given away"


def test_a_new_segment_is_not_closed_before_its_sync(world: World) -> None:
    world.append(b"a")
    world.sync()
    world.log.segments.roll()
    rest(world)
    assert open_segments(world) == 2, "the sealed one, and the header of the next"
    world.sync()
    rest(world)
    rest(world)
    assert open_segments(world) == 0


def test_what_is_being_read_stays_open(world: World) -> None:
    world.append(b"a")
    world.sync()
    extent = world.log.extent(0)
    rest(world)
    assert open_segments(world) == 1
    extent.release()
    rest(world)
    assert open_segments(world) == 0


def test_what_is_being_synced_stays_open(world: World) -> None:
    world.append(b"a")
    ticket = world.log.durability.start_sync()
    assert ticket is not None
    rest(world)
    assert open_segments(world) == 1
    ticket.run()
    world.log.durability.finish_sync(ticket, None)
    rest(world)
    assert open_segments(world) == 0


def test_sealed_segments_that_are_not_read_are_closed(world: World) -> None:
    world.fill(segments=4)
    world.sync()
    assert len(world.values()) == world.log.log_end
    world.log.rest()
    assert open_segments(world) > 1, "they were read"
    world.log.rest()
    assert open_segments(world) == 1
    read_from(world.log, 0)
    assert open_segments(world) == 2


def test_a_log_at_rest_survives_a_power_failure(world: World) -> None:
    files = world.files
    assert isinstance(files, MemoryFiles)
    world.append(b"a")
    world.sync()
    rest(world)
    files.crash(power=True)
    world.open()
    assert world.values() == {0: b"a"}


def test_a_lack_of_descriptors_refuses_a_write_and_a_roll_with_nothing_changed(world: World) -> None:
    files = world.files
    assert isinstance(files, MemoryFiles)
    world.append(b"a")
    world.sync()
    rest(world)
    for attempt in (lambda: world.append(b"b"), world.log.segments.roll):
        files.faults.open_fails_in = 1
        with pytest.raises(LimitExceeded) as refused:
            attempt()
        assert isinstance(refused.value.__cause__, OSError) and refused.value.__cause__.errno == errno.EMFILE
        assert (world.log.log_end, len(world.log.segments), world.log.failed) == (1, 1, None)
    world.append(b"b")
    world.sync()
    rest(world)
    world.log.segments.roll()
    files.faults.open_fails_in = 1  # of the index: the sync itself needs none
    world.sync()
    assert world.log.failed is None
    assert world.values() == {0: b"a", 1: b"b"}


def test_a_log_at_rest_is_truncated_and_closed(world: World) -> None:
    for value in (b"a", b"b"):
        world.append(value)
    world.sync()
    rest(world)
    world.log.deletion.truncate(1)
    rest(world)
    world.log.close()
    world.open()
    assert world.values() == {0: b"a"}
