"""A log whose files were cut or damaged at every single byte, and one that dies at every single step."""

from __future__ import annotations

from random import Random

import pytest

from comet import records
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.log import Log
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import FOLDER, IDENTITY, SMALL_SEGMENTS, HandClock, World, delete_before, read_all

CLOCK = HandClock()
Values = dict[int, bytes | None]


def prepared(*, synced: bool) -> tuple[MemoryFiles, Values, dict[str, bytes]]:
    """A log of three segments, the last with a dozen batches of several records, and all its files."""
    files = MemoryFiles(Random(1))
    world = World(files)
    for number in range(4):
        world.append(b"%d" % number * 32_600)  # two fill a segment
    for number in range(13):
        world.append(*(b"%d.%d" % (number, at) for at in range(number % 3 + 1)), producer=(7, 0, 0))
    if synced:
        world.sync()
    values = world.values()
    files.crash(power=False)
    return files, values, {name: files.read_all(f"{FOLDER}/{name}") for name in files.list(FOLDER)}


def put_back(saved: dict[str, bytes]) -> MemoryFiles:
    files = MemoryFiles(Random(1))
    files.make_folder(FOLDER)
    for name, data in saved.items():
        files.open(f"{FOLDER}/{name}", create=True).append((data,))
    return files


def reopen(files: MemoryFiles) -> Log:
    return Log.open(files, FOLDER, IDENTITY, SMALL_SEGMENTS, CLOCK, lambda: None)


def batch_ends(base: int, data: bytes) -> list[tuple[int, int]]:
    """Position and offset after the header block and after each batch of a segment."""
    ends = [(SEGMENT_HEADER_BYTES, base)]
    while ends[-1][0] < len(data):
        header = records.read_header(data, ends[-1][0])
        ends.append((ends[-1][0] + header.length, header.next_offset))
    return ends


def test_the_last_segment_cut_at_every_byte_keeps_the_longest_prefix() -> None:
    _, values, saved = prepared(synced=False)
    last = max(name for name in saved if name.endswith(".log"))
    ends = batch_ends(int(last[:20]), saved[last])
    assert ends[-1] == (len(saved[last]), len(values))
    assert len(ends) == 14
    for size in range(len(saved[last])):
        log = reopen(put_back({**saved, last: saved[last][:size]}))
        expected = max((offset for position, offset in ends if position <= size), default=ends[0][1])
        assert log.log_end == expected, size
        assert read_all(log) == ({at: value for at, value in values.items() if at < expected}, []), size


def test_the_last_segment_cut_at_every_byte_after_it_was_synced_says_what_is_lost() -> None:
    _, values, saved = prepared(synced=True)
    last = max(name for name in saved if name.endswith(".log"))
    ends = batch_ends(int(last[:20]), saved[last])
    for size in range(0, len(saved[last]), 7):
        log = reopen(put_back({**saved, last: saved[last][:size]}))
        readable = max((offset for position, offset in ends if position <= size), default=ends[0][1])
        assert log.log_end == len(values)
        assert read_all(log) == (
            {at: value for at, value in values.items() if at < readable},
            [(readable, len(values))],
        ), size


def small_middle() -> tuple[dict[str, bytes], Values, str, int]:
    """Three segments, the middle one of few bytes, so that every one of them can be tried, and its records."""
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"first")
    world.append(b"x" * 65_000)
    for number in range(8):
        world.append(*(b"%d.%d" % (number, at) for at in range(number % 3 + 1)))
    world.append(b"y" * 65_000)
    world.sync()
    values = world.values()
    files.crash(power=False)
    saved = {name: files.read_all(f"{FOLDER}/{name}") for name in files.list(FOLDER)}
    segments = sorted(name for name in saved if name.endswith(".log"))
    assert len(segments) == 3
    middle = segments[1]
    assert len(saved[middle]) < 2500
    return saved, values, middle, int(segments[2][:20]) - int(middle[:20])


@pytest.mark.parametrize("with_index", [True, False])
def test_a_flipped_bit_at_every_byte_of_a_middle_segment(*, with_index: bool) -> None:
    """Each offset reads as it was written or says that it is lost, and at most one batch is."""
    saved, values, middle, records_in_it = small_middle()
    if not with_index:
        del saved[middle[:20] + ".index"]
    for at in range(len(saved[middle])):
        files = put_back(saved)
        files.flip(f"{FOLDER}/{middle}", at, at % 8)
        log = reopen(files)
        kept, lost = read_all(log)
        assert kept.items() <= values.items(), at
        assert log.log_end == len(values), at
        gone = {offset for first, end in lost for offset in range(first, end)}
        assert gone == values.keys() - kept.keys(), at
        if at < SEGMENT_HEADER_BYTES:
            assert len(gone) == records_in_it, "without its header nobody knows whose segment it is"
        else:
            assert 1 <= len(gone) <= 3, at
            assert tuple(lost) == log.lost


def test_a_flipped_bit_while_the_log_is_open() -> None:
    """What was good when the log was opened goes bad under it."""
    saved, values, middle, _ = small_middle()
    for at in range(SEGMENT_HEADER_BYTES, len(saved[middle]), 3):
        files = put_back(saved)
        log = reopen(files)
        files.flip(f"{FOLDER}/{middle}", at, at % 8)
        for _ in range(2):
            kept, lost = read_all(log)
            assert kept.items() <= values.items(), at
            assert 1 <= len(values) - len(kept) <= 3, at
            assert tuple(lost) == log.lost


def test_pages_of_zeros_in_a_middle_segment() -> None:
    """A lost page takes the batches that it touched, and no others."""
    _, values, saved = prepared(synced=True)
    middle = sorted(name for name in saved if name.endswith(".log"))[1]
    for start in range(4096, len(saved[middle]) - 4096, 4096):
        data = bytearray(saved[middle])
        data[start : start + 4096] = bytes(4096)
        log = reopen(put_back({**saved, middle: bytes(data)}))
        kept, lost = read_all(log)
        assert kept.items() <= values.items()
        assert len(lost) == 1
        assert 1 <= len(values) - len(kept) <= 2


def test_a_batch_written_over_another() -> None:
    """A misdirected write: every checksum holds, but the offsets are not those of the place."""
    files = MemoryFiles(Random(1))
    world = World(files)
    for number in range(30):
        world.append(b"%04d" % number)
    world.sync()
    values = world.values()
    files.crash(power=False)
    saved = {name: files.read_all(f"{FOLDER}/{name}") for name in files.list(FOLDER)}
    name = next(name for name in saved if name.endswith(".log"))
    size = (len(saved[name]) - SEGMENT_HEADER_BYTES) // 30
    for source, target in ((3, 7), (7, 3), (0, 29), (28, 29), (29, 0)):
        data = bytearray(saved[name])
        start, end = (SEGMENT_HEADER_BYTES + size * at for at in (source, target))
        data[end : end + size] = data[start : start + size]
        kept, lost = read_all(reopen(put_back({**saved, name: bytes(data)})))
        assert lost == [(target, target + 1)]
        assert kept == {at: value for at, value in values.items() if at != target}


class Died(BaseException):
    """The process was killed."""


class MortalFiles(MemoryFiles):
    """Dies at the n-th operation that changes anything."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.steps_left = -1

    def step(self) -> None:
        if self.steps_left == 0:
            raise Died
        self.steps_left -= 1

    def take_space(self, size: int) -> None:
        self.step()
        super().take_space(size)

    def give_space(self, size: int) -> None:
        self.step()
        super().give_space(size)

    def sync_folder(self, path: str) -> None:
        self.step()
        super().sync_folder(path)

    def rename(self, source: str, target: str) -> None:
        self.step()
        super().rename(source, target)


def life(files: MortalFiles, acked: Values) -> None:
    """Everything a log does; `acked` is what was synced and not deleted."""
    try:
        world = World(files)
        for _ in range(4):
            for _ in range(5):
                world.append(b"%d" % world.log.log_end * 3000)
                end = world.log.log_end
                world.sync()
                if world.log.flushed_end == end:
                    acked[end - 1] = b"%d" % (end - 1) * 3000
            for offset in [offset for offset in acked if offset < world.log.log_end - 4]:
                del acked[offset]  # from here on it may be gone
            delete_before(world.log, max(world.log.log_end - 4, world.log.log_start))
            world.log.close()
            world.open()
    except Died:
        pass


def test_dying_at_every_step_loses_nothing_that_was_promised() -> None:
    steps = 0
    for power in (False, True):
        for step in range(1000):
            files, acked = MortalFiles(Random(step)), dict[int, bytes | None]()
            files.steps_left = step
            life(files, acked)
            alive = files.steps_left > 0
            files.steps_left = -1
            files.crash(power=power)
            kept, lost = read_all(reopen(files))
            assert not lost, step
            assert acked.items() <= kept.items(), step
            assert list(kept) == list(range(min(kept, default=0), len(kept) + min(kept, default=0)))
            assert all(value == b"%d" % at * 3000 for at, value in kept.items())
            if alive:
                steps = max(steps, step)
                break
    assert steps > 100, "the scenario was too short to show anything"
