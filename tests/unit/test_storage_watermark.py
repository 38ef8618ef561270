"""What a log remembers of the high watermark, over restarts and power cuts."""

from __future__ import annotations

from random import Random

from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import World


def test_the_high_watermark_is_known_over_a_restart() -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    assert world.log.high_watermark == 0
    world.append(*(b"x" for _ in range(10)))
    world.log.durability.note_high_watermark(7)
    world.log.durability.note_high_watermark(5)
    assert world.log.high_watermark == 7
    world.sync()
    files.crash(power=False)
    world.open()
    assert world.log.high_watermark == 7
    world.append(b"y")
    world.log.durability.note_high_watermark(11)
    world.log.close()
    world.open()
    assert world.log.high_watermark == 11
    world.log.deletion.truncate(10)
    assert world.log.high_watermark == 10
    files.crash()
    world.open()
    assert world.log.high_watermark == 10
    world.log.deletion.reset(4)
    files.crash()
    world.open()
    assert world.log.high_watermark == 4


def test_the_high_watermark_is_never_above_the_log_that_is_left() -> None:
    for seed in range(10):
        files = MemoryFiles(Random(seed))
        world = World(files)
        for _ in range(10):
            world.append(b"x")
            world.log.durability.note_high_watermark(world.log.log_end)
            ticket = world.log.durability.start_sync()
            assert ticket is not None
            world.append(b"y")
            world.log.durability.note_high_watermark(world.log.log_end)
            ticket.run()
            world.log.durability.finish_sync(ticket, None)
        files.crash(power=seed % 2 == 0)
        world.open()
        assert world.log.high_watermark <= world.log.log_end
        assert seed % 2 == 0 or world.log.high_watermark == 19
