"""A log that holds less than was written to it, though no machine went down, must say so: its disk failed or damaged
it, and who has the records should lead."""

from __future__ import annotations

from random import Random

import pytest

from comet_broker.storage.data_folder import Identity, close_clean, loss_is_known, mark_records_missing, open_identity
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import World


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
