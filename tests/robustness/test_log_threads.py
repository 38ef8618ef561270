"""One thread owns the log; syncs and reads run on others meanwhile, on a real disk, as under a broker."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from comet import records
from comet.errors import LimitExceeded
from comet_broker.storage.files import RealFiles
from comet_broker.storage.log import Extent, SyncTicket
from tests.unit.storage_world import FOLDER, SMALL_SEGMENTS, World, apply_retention, delete_before

BATCHES = 4000


def value(offset: int) -> bytes:
    return b"%08d" % offset * (offset % 200)


def read(extent: Extent) -> tuple[int, int]:
    """On a worker: checks every record of one read, and returns where it began and ended."""
    buffer = memoryview(bytearray(100_000))
    result = extent.read(buffer, wait=True)
    assert result is not None and result.size
    offsets: list[int] = []
    for one in records.iterate(buffer[: result.size]):
        assert one.values == [value(offset) for offset in one.offsets]
        offsets += one.offsets
    assert offsets == list(range(offsets[0], result.next_offset))
    return offsets[0], result.next_offset


def test_reading_and_syncing_while_it_is_written_rolled_and_deleted(tmp_path: Path) -> None:
    world = World(RealFiles(tmp_path), replace(SMALL_SEGMENTS, retention_bytes=500_000))
    log = world.log
    reads: deque[tuple[Extent, Future[tuple[int, int]]]] = deque()
    syncs: deque[tuple[SyncTicket, Future[None]]] = deque()
    seen = 0
    with ThreadPoolExecutor(4) as pool:

        def settle(limit: int) -> None:
            nonlocal seen
            while len(reads) > limit:
                extent, reading = reads.popleft()
                first, end = reading.result()
                assert first < end <= log.log_end
                extent.release()
                seen += end - first
            while len(syncs) > limit:
                ticket, syncing = syncs.popleft()
                syncing.result()
                log.durability.finish_sync(ticket, None)

        for number in range(BATCHES):
            first = log.log_end
            world.append(*(value(first + at) for at in range(number % 3 + 1)))
            if number % 5 == 0:
                for offset in (log.log_start, (log.log_start + log.log_end) // 2, log.log_end - 1):
                    extent = log.extent(offset)
                    reads.append((extent, pool.submit(read, extent)))
            if number % 50 == 0 and (ticket := log.durability.start_sync()) is not None:
                syncs.append((ticket, pool.submit(ticket.run)))
            if number % 300 == 0:
                apply_retention(log, world.clock.now_us)
            if number % 1000 == 999:
                delete_before(log, (log.log_start + log.log_end) // 2)
            if number % 97 == 0:
                assert log.segments.find_time(0) == log.log_start
            settle(8)
        settle(0)
    assert log.lost == () and log.failed is None
    assert seen > 10 * BATCHES
    assert log.log_start > 0
    log.close()
    world.open()
    kept = world.values()
    assert list(kept) == list(range(log.log_start, log.log_end))
    assert all(kept[offset] == value(offset) for offset in kept)


def test_a_write_cut_short_by_the_system_leaves_whole_batches(tmp_path: Path) -> None:
    """A limit on the size of files makes the kernel stop in the middle of a write."""
    code = """
import resource, signal, sys
from pathlib import Path
from comet.errors import LogFailed
from comet_broker.storage.files import RealFiles
from tests.unit.storage_world import World
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
world = World(RealFiles(Path(sys.argv[1])))
world.append(b"first" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    world.append(b"x" * 5000)
except LogFailed as error:
    print(error.details["errno"])
print(len((Path(sys.argv[1]) / sys.argv[2]).read_bytes()) , len(world.values()))
"""
    name = f"{FOLDER}/00000000000000000000.log"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), name],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    size, count = ran.stdout.splitlines()[-1].split()
    assert ran.stdout.startswith(errno.errorcode[errno.EFBIG])
    assert int(size) < 1000 and int(count) == 1
    world = World(RealFiles(tmp_path))
    assert world.values() == {0: b"first" * 100}
    assert world.log.recovered.cut_bytes == 0


def test_running_out_of_file_descriptors_is_no_damage(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = RealFiles(tmp_path)
    files.lock()
    world = World(files)
    world.fill(segments=8)
    world.sync()
    world.append(b"x" * 60_000)  # a new segment, so that the folder is to be synced, too
    expected = world.values()
    world.log.close()
    world.open()
    world.append(b"y" * 60_000)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with suppress(OSError):
            while True:
                held.append((tmp_path / "held").open("wb"))
        extent = world.log.extent(0)
        with pytest.raises(OSError, match="Too many open files"):
            extent.read(memoryview(bytearray(100)), wait=True)
        extent.release()
        world.append(b"z" * 100)
        with pytest.raises(LimitExceeded, match="descriptors"):
            world.append(b"z" * 60_000)
        world.sync()
        assert world.log.flushed_end == world.log.log_end, "what is in the log can be made durable all the same"
    finally:
        for file in held:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    expected |= {len(expected): b"y" * 60_000, len(expected) + 1: b"z" * 100}
    assert world.log.failed is None
    assert world.values() == expected
    assert world.append(b"z" * 60_000).base_offset == len(expected)
    files.unlock()
