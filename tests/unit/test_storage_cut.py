"""Cutting a log back: at every offset, with a crash at every operation, and beside who is reading."""

from __future__ import annotations

from random import Random

import pytest

from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import World


@pytest.mark.parametrize("synced", [True, False])
def test_cutting_at_every_offset(*, synced: bool) -> None:
    for offset in range(60):
        files = MemoryFiles(Random(offset))
        world = World(files)
        for number in range(30):
            world.append(*(b"x" * 2800 for _ in range(1 + number % 2)))
        if synced:
            world.sync()
        values = world.values()
        bounds = [n for n in range(46) if n % 3 != 2]
        end = world.log.truncate(offset)
        assert end == world.log.log_end == (max(b for b in bounds if b <= offset) if offset < 45 else 45)
        assert world.values() == {at: value for at, value in values.items() if at < end}
        assert world.append(b"next").base_offset == end
        world.sync()
        files.crash()
        world.open()
        assert world.log.lost == ()
        assert world.values() == {**{at: value for at, value in values.items() if at < end}, end: b"next"}


def test_resetting() -> None:
    for offset in (0, 3, 20, 45, 46, 1000):
        files = MemoryFiles(Random(offset))
        world = World(files)
        for number in range(30):
            world.append(*(b"x" * 2800 for _ in range(1 + number % 2)))
        world.sync()
        world.log.reset(offset)
        assert (world.log.log_start, world.log.log_end, world.log.flushed_end) == (offset, offset, offset)
        files.crash()
        world.open()
        assert (world.log.log_start, world.log.log_end, world.log.lost) == (offset, offset, ())
        assert world.append(b"next").base_offset == offset
        assert world.values() == {offset: b"next"}
