"""A log that holds less than was written to it, though no machine went down, must say so: its disk failed or damaged
it, and who has the records should lead."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from comet_broker.storage.checkpoint import Checkpoint, append_checkpoint
from comet_broker.storage.data_folder import (
    DataFolder,
    Identity,
    close_clean,
    loss_is_known,
    mark_records_missing,
    open_identity,
)
from comet_broker.storage.layout import CHECKPOINT, CLEAN, SEGMENT_HEADER_BYTES
from comet_broker.storage.log import Log, LogIdentity
from comet_broker.storage.memory import MemoryFiles
from tests.unit.dying_files import Died, DyingFiles
from tests.unit.replica_world import HeldWorker
from tests.unit.storage_world import FOLDER, IDENTITY, SMALL_SEGMENTS, HandClock, World, nothing_missing


def written(records: int = 3) -> tuple[World, MemoryFiles, str]:
    """A log of single records, none of them synced, whose process was killed; with its files, and the last of them."""
    files = MemoryFiles(Random(1))
    world = World(files)
    for number in range(records):
        world.append(b"%d" % number * 100)
    files.crash(power=False)
    return world, files, world.path(world.segment_names()[-1])


def batch_bytes(files: MemoryFiles, path: str, records: int = 3) -> int:
    return (len(files.read_all(path)) - SEGMENT_HEADER_BYTES) // records


def test_a_kill_takes_nothing() -> None:
    world, _, _ = written()
    assert not world.open().recovered.short
    assert world.log.log_end == 3


@pytest.mark.parametrize("missing", [1, 50, 150])
def test_a_write_that_was_under_way_was_told_to_nobody(missing: int) -> None:
    world, files, path = written()
    assert missing < batch_bytes(files, path)
    files.open(path).truncate(len(files.read_all(path)) - missing)
    assert not world.open().recovered.short
    assert world.log.log_end == 2


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("byte", [0, 20, 100])
def test_a_flipped_bit_is_noticed_in_any_batch(number: int, byte: int) -> None:
    world, files, path = written()
    files.flip(path, SEGMENT_HEADER_BYTES + number * batch_bytes(files, path) + byte)
    assert world.open().recovered.short
    assert world.log.log_end == number


def test_what_a_failed_sync_took_is_noticed() -> None:
    world, files, _ = written()
    world.open()
    world.append(b"more")
    files.faults.sync_fails_in = 1
    world.sync()
    assert world.log.failed is not None
    files.crash(power=False)
    assert world.open().recovered.short
    assert world.log.log_end == 3


def test_it_is_noticed_once() -> None:
    world, files, path = written()
    files.flip(path, SEGMENT_HEADER_BYTES + 100)
    assert world.open().recovered.short
    files.crash(power=False)
    assert not world.open().recovered.short
    assert world.reports == 1


def test_the_process_that_closed_a_log_knows_where_it_ended() -> None:
    """Even if nothing on the disk shows it."""
    world, files, path = written()
    world.open().close()
    for name in files.list(FOLDER):
        if not name.endswith(".log"):
            files.remove(world.path(name))
    files.cut(path, SEGMENT_HEADER_BYTES + batch_bytes(files, path))
    world.open(closed_at=3)
    assert (world.log.log_end, world.log.recovered.short, world.reports) == (1, True, 1)


def test_a_loss_that_cannot_be_noted_changes_nothing() -> None:
    world, files, path = written()
    files.flip(path, SEGMENT_HEADER_BYTES + 100)
    before = files.snapshot()

    def full() -> None:
        raise OSError(errno.ENOSPC, "no room for the note")

    with pytest.raises(OSError, match="no room"):
        Log.open(files, FOLDER, IDENTITY, SMALL_SEGMENTS, HandClock(), full)
    assert files.snapshot() == before
    assert world.open().recovered.short and world.reports == 1


def start(files: MemoryFiles, boot: str = "boot 1") -> Identity:
    return open_identity(files, broker_id=1, cluster_id="c1", boot_id=boot, random=Random(2))


def test_a_broker_that_came_short_is_not_clean_until_that_is_known() -> None:
    files = MemoryFiles(Random(1))
    close_clean(files, start(files))
    identity = start(files)
    assert identity.clean
    identity = mark_records_missing(files, identity)
    assert not identity.clean
    identity = start(files)
    assert not identity.clean, "the next start finds nothing missing, but nobody knows yet what was"
    loss_is_known(files, identity)
    assert start(files).clean


# ---- killed at any change of the disk

SEGMENTS = 3


def damage_a_batch(files: DyingFiles, world: World) -> None:
    """In the first segment: all after it goes."""
    files.flip(world.path(world.segment_names()[0]), SEGMENT_HEADER_BYTES + 3100)


def damage_the_last_batch(files: DyingFiles, world: World) -> None:
    path = world.path(world.segment_names()[-1])
    files.flip(path, len(files.read_all(path)) - 10)


def damage_all_without_a_checkpoint(files: DyingFiles, world: World) -> None:
    damage_the_last_batch(files, world)
    files.remove(world.path(CHECKPOINT))


def remove_a_segment(files: DyingFiles, world: World) -> None:
    files.remove(world.path(world.segment_names()[1]))


def damage_a_header(files: DyingFiles, world: World) -> None:
    files.flip(world.path(world.segment_names()[-1]), 20)


def exchange_a_segment(files: DyingFiles, world: World) -> None:
    """With one of another partition."""
    identity = LogIdentity(IDENTITY.topic_id, 1)
    other = Log.open(files, "topics/one/1", identity, SMALL_SEGMENTS, HandClock(), nothing_missing)
    path = world.path(world.segment_names()[-1])
    size = len(files.read_all(path))
    files.rename(other.segments.active.path, path)
    files.open(path).append((bytes(size),))


def cut_below_the_high_watermark(files: DyingFiles, world: World) -> None:
    append_checkpoint(files, FOLDER, Checkpoint(0, 0, world.log.log_end))
    files.cut(world.path(world.segment_names()[-1]), SEGMENT_HEADER_BYTES)


def lose_what_a_failed_sync_lost(files: DyingFiles, world: World) -> None:
    world.open()
    for _ in range(2):
        world.append(b"unsynced" * 100)
    files.faults.sync_fails_in = 1
    world.sync()


def cut_a_closed_log(files: DyingFiles, world: World, kept: str) -> None:
    """Of the files that show where it ended only one is kept, and the checkpoint is an old one."""
    world.open()
    active = world.log.segments.active
    checkpoint, size = files.read_all(world.path(CHECKPOINT)), active.size
    for _ in range(3):
        world.append(b"more" * 100)
    world.log.close()
    files.write_atomic(world.path(CHECKPOINT), checkpoint)
    for name, path in (("index", active.index_path), ("clean marker", world.path(CLEAN))):
        if name != kept:
            files.remove(path)
    files.cut(active.path, size)


def cut_a_log_with_a_clean_marker(files: DyingFiles, world: World) -> None:
    cut_a_closed_log(files, world, "clean marker")


def cut_a_log_with_an_index(files: DyingFiles, world: World) -> None:
    cut_a_closed_log(files, world, "index")


class Folder:
    """The data folder of a broker with one log, which is started again and again on the same boot of its machine."""

    def __init__(self, shorten: Callable[[DyingFiles, World], None]) -> None:
        self.files = DyingFiles(Random(1))
        identity = start(self.files)
        loss_is_known(self.files, identity)
        world = World(self.files)
        world.fill(SEGMENTS)
        world.append(b"last" * 100)
        self.files.crash(power=False)
        shorten(self.files, world)
        self.files.crash(power=False)

    def start(self) -> bool:
        """Whether the next registration says, or the log shows, that records are missing."""
        folder = DataFolder(self.files, HeldWorker(), broker_id=1, boot_id="boot 1")
        folder.open("c1", Random(2))
        note_missing = partial(folder.note_missing, counted=False)
        log = Log.open(self.files, FOLDER, IDENTITY, SMALL_SEGMENTS, HandClock(), note_missing)
        return not folder.identity.clean or bool(log.lost)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "shorten",
    [
        damage_a_batch,
        damage_the_last_batch,
        damage_all_without_a_checkpoint,
        remove_a_segment,
        damage_a_header,
        exchange_a_segment,
        cut_below_the_high_watermark,
        lose_what_a_failed_sync_lost,
        cut_a_log_with_a_clean_marker,
        cut_a_log_with_an_index,
    ],
)
def test_a_start_that_is_killed_at_any_change_forgets_no_loss(
    shorten: Callable[[DyingFiles, World], None], *, after: bool
) -> None:
    for dies_at in range(1, 200):
        folder = Folder(shorten)
        files = folder.files
        files.after, files.dies_at = after, files.changes + dies_at
        died = False
        try:
            assert folder.start()
        except Died:
            died = True
        files.dies_at = -1
        files.crash(power=False)
        assert folder.start(), f"killed at change {dies_at}"
        if not died:
            assert dies_at > 10, "too few changes to show anything"
            return
    raise AssertionError("the start never completes")
