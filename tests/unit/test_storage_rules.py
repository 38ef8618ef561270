"""Recovery, row by row: every finding of the table is made to happen and must come out as the row says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from comet import records
from comet.settings.topic import TopicConfig
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, LogIdentity, pack_segment_header, segment_name
from comet_broker.storage.limits import LOST_RANGES_MAX
from comet_broker.storage.log import Log
from comet_broker.storage.lost import LostRanges
from comet_broker.storage.memory import MemoryFiles
from comet_broker.storage.rules import RULES, Action, Known, RecoveryFinding
from tests.unit.storage_world import (
    FOLDER,
    IDENTITY,
    SMALL_SEGMENTS,
    HandClock,
    World,
    delete_before,
    nothing_missing,
    read_all,
    stored,
)

CLOCK = HandClock()


def damage(files: MemoryFiles, name: str, position: int, size: int = 4) -> None:
    for at in range(position, position + size):
        files.flip(f"{FOLDER}/{name}", at)


def truncate(files: MemoryFiles, name: str, size: int) -> None:
    file = files.open(f"{FOLDER}/{name}")
    file.truncate(size)
    file.sync()


def size_of(files: MemoryFiles, name: str) -> int:
    return len(files.read_all(f"{FOLDER}/{name}"))


# Each takes the files of a log of three segments and damages them; `middle` and `last` are names.
Damage = Callable[[MemoryFiles, str, str], None]


def bad_then_good(files: MemoryFiles, middle: str, last: str) -> None:
    damage(files, middle, SEGMENT_HEADER_BYTES + 5000)
    index = f"{FOLDER}/{middle[:20]}.index"
    if files.exists(index):
        files.remove(index)  # else the segment is believed, and its readers find the damage


def bad_to_the_end(files: MemoryFiles, middle: str, last: str) -> None:
    truncate(files, middle, size_of(files, middle) - 100)


def bad_tail(files: MemoryFiles, middle: str, last: str) -> None:
    truncate(files, last, size_of(files, last) - 100)


def gap(files: MemoryFiles, middle: str, last: str) -> None:
    files.remove(f"{FOLDER}/{middle}")


def overlap(files: MemoryFiles, middle: str, last: str) -> None:
    base = int(middle[:20]) + 1
    file = files.open(f"{FOLDER}/{segment_name(base)}", create=True)
    file.append((pack_segment_header(IDENTITY, base, 0),))


def no_header(files: MemoryFiles, middle: str, last: str) -> None:
    damage(files, middle, 20)


def foreign(files: MemoryFiles, middle: str, last: str) -> None:
    data = files.read_all(f"{FOLDER}/{middle}")
    other = pack_segment_header(LogIdentity(bytes(16), 0), int(middle[:20]), 0)
    file = files.open(f"{FOLDER}/{middle}")
    file.truncate(0)
    file.append((other, data[SEGMENT_HEADER_BYTES:]))


MAKE: dict[RecoveryFinding, Damage] = {
    RecoveryFinding.BAD_THEN_GOOD: bad_then_good,
    RecoveryFinding.BAD_TO_THE_END: bad_to_the_end,
    RecoveryFinding.BAD_TAIL: bad_tail,
    RecoveryFinding.GAP: gap,
    RecoveryFinding.OVERLAP: overlap,
    RecoveryFinding.NO_HEADER: no_header,
    RecoveryFinding.FOREIGN: foreign,
}


def prepare(known: Known) -> tuple[MemoryFiles, dict[int, bytes | None]]:
    """A log of three segments of which recovery knows what it is to know, and what was in it."""
    files = MemoryFiles(Random(1))
    world = World(files)
    world.fill(segments=3)
    world.append(b"last" * 200)
    world.append(b"last" * 200)
    if known is Known.SYNCED:
        world.sync()
    values = world.values()
    files.crash(power=False)  # without power=True all bytes are there, synced or not
    if known is Known.UNKNOWN:
        files.remove(f"{FOLDER}/checkpoint")
    return files, values


def reopen(files: MemoryFiles) -> Log:
    return Log.open(files, FOLDER, IDENTITY, SMALL_SEGMENTS, CLOCK, lambda: None)


def names(files: MemoryFiles) -> list[str]:
    return [name for name in files.list(FOLDER) if ".log" in name]


def test_every_finding_has_a_row_and_a_reason() -> None:
    assert set(RULES) == {(finding, known) for finding in RecoveryFinding for known in Known}
    assert all(reason for _, reason in RULES.values())
    assert set(MAKE) == set(RecoveryFinding)


def test_what_was_synced_is_never_cut_or_removed() -> None:
    for (_, known), (action, _) in RULES.items():
        assert known is not Known.SYNCED or action in {Action.QUARANTINE, Action.SET_ASIDE}


def test_the_documentation_holds_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/log-format.md").read_text()
    for (finding, known), (action, reason) in RULES.items():
        assert f"| {finding.name}: {finding.value} | {known.value} | {action.name} | {reason} |" in page
    for action in Action:
        assert f"{action.name}: {action.value}" in " ".join(page.split())


@pytest.mark.parametrize("known", Known)
@pytest.mark.parametrize("finding", RecoveryFinding)
def test_recovery_does_what_the_table_says(finding: RecoveryFinding, known: Known) -> None:
    files, values = prepare(known)
    _, middle, last = names(files)
    MAKE[finding](files, middle, last)
    log = reopen(files)
    action, _ = RULES[finding, known]
    assert (finding, action) in [(found, done) for found, done, _ in log.recovered.events]
    kept, lost = read_all(log)

    assert kept.items() <= values.items(), "never a wrong byte"
    refused = [name for name in names(files) if name.endswith(".refused")]
    assert bool(refused) == (action is Action.SET_ASIDE)
    if action is Action.CUT:
        assert not lost and not log.lost
        assert list(kept) == list(range(log.log_end)), "a prefix, without holes"
        assert log.log_end < len(values)
    if known is Known.SYNCED:
        assert log.log_end == len(values), "an offset is not given twice"
    if known is not Known.NOT_SYNCED and action is not Action.CUT:
        assert len(kept) + sum(end - first for first, end in lost) == log.log_end
        assert lost == list(log.lost)

    # The log goes on, and what recovery decided holds when it is opened again.
    end = log.log_end
    world = World(files, SMALL_SEGMENTS)
    assert world.log.log_end == end
    assert read_all(world.log) == (kept, lost)
    assert world.append(b"next").base_offset == end
    world.sync()
    files.crash()
    world.open()
    assert read_all(world.log) == ({**kept, end: b"next"}, lost)


@pytest.mark.parametrize("known", Known)
def test_nothing_is_found_where_nothing_is_wrong(known: Known) -> None:
    files, values = prepare(known)
    log = reopen(files)
    assert log.recovered.events == []
    assert read_all(log) == (values, [])


def test_the_first_segments_are_gone() -> None:
    files, values = prepare(Known.SYNCED)
    first, middle, _ = names(files)
    files.remove(f"{FOLDER}/{first}")
    log = reopen(files)
    kept, lost = read_all(log)
    base = int(middle[:20])
    assert lost == [(0, base)]
    assert kept == {at: value for at, value in values.items() if at >= base}


def test_all_segments_are_gone() -> None:
    files, values = prepare(Known.SYNCED)
    for name in names(files):
        files.remove(f"{FOLDER}/{name}")
    log = reopen(files)
    assert read_all(log) == ({}, [(0, len(values))])
    assert log.log_end == len(values)


def test_two_segments_are_swapped() -> None:
    files, values = prepare(Known.SYNCED)
    first, middle, last = (f"{FOLDER}/{name}" for name in names(files))
    files.rename(first, "aside")
    files.rename(middle, first)
    files.rename("aside", middle)
    log = reopen(files)
    base = int(last[-24:-4])
    kept, lost = read_all(log)
    assert lost == [(0, base)]
    assert kept == {at: value for at, value in values.items() if at >= base}


def test_a_segment_of_another_partition_is_refused_and_kept() -> None:
    files, values = prepare(Known.SYNCED)
    other = Log.open(files, "topics/one/1", LogIdentity(IDENTITY.topic_id, 1), TopicConfig(), CLOCK, nothing_missing)
    other.close()
    foreign_bytes = files.read_all(f"topics/one/1/{segment_name(0)}")
    path = f"{FOLDER}/{segment_name(len(values))}"
    files.open(path, create=True).append((foreign_bytes,))
    log = reopen(files)
    assert read_all(log) == (values, [])
    assert files.read_all(path + ".refused") == foreign_bytes


def test_a_segment_that_ends_in_garbage_is_not_written_to() -> None:
    """Its end is bad but may have been promised, and the segment after it is refused: its bytes are kept."""
    files, values = prepare(Known.UNKNOWN)
    _, middle, last = names(files)
    truncate(files, middle, size_of(files, middle) - 100)
    files.remove(f"{FOLDER}/{last}")
    overlap(files, middle, last)
    log = reopen(files)
    kept, lost = read_all(log)
    assert kept.items() <= values.items() and not lost
    size = size_of(files, middle)
    world = World(files, SMALL_SEGMENTS)
    for _ in range(3):
        world.append(b"next")
    assert read_all(world.log)[0] == {**kept, **{log.log_end + n: b"next" for n in range(3)}}
    world.log.close()
    world.open()
    assert read_all(world.log)[0] == {**kept, **{log.log_end + n: b"next" for n in range(3)}}
    assert size_of(files, middle) == size


# ---- derived files


KINDS = {
    "plain": records.encode([b"whole"], timestamps=1),
    "with every column": records.encode([b"whole", None], timestamps=1, keys=[b"k", None], headers=[[("h", b"v")], []]),
    "of a producer": records.encode([b"whole"], timestamps=1, producer_id=7),
    "of a request with a key": records.encode([b"whole"], timestamps=1, producer_id=7, base_sequence=9, keyed=True),
    "of a transaction": records.encode([b"whole"], timestamps=1, producer_id=7, producer_epoch=1, transactional=True),
    "a marker": [records.encode_marker(7, 1, True, 0, 1)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_batch_of_any_kind_is_found_behind_a_damaged_header(kind: str) -> None:
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"before")
    at = world.log.segments.active.size
    world.append(b"damaged")
    data = memoryview(b"".join(KINDS[kind]))
    header = records.verify(data, stamped=False)
    world.log.append(header, data, 1)
    world.sync()
    files.flip(world.path(world.segment_names()[0]), at)
    world.open()
    assert world.log.lost == ((1, 2),)
    assert stored(world.log)[-1][0].flags == header.flags
    assert world.log.log_end == 2 + len(records.decode(data))


@pytest.mark.parametrize("bit", [0, 3])
def test_a_derived_file_damaged_at_any_byte_changes_nothing(bit: int) -> None:
    """Indexes, snapshots, checkpoint, clean marker: a bad one is rebuilt or done without, never trusted."""
    files = MemoryFiles(Random(1))
    world = World(files)
    world.append(b"a" * 40_000, producer=(7, 0, 0))
    world.append(b"b" * 40_000, producer=(7, 0, 1))
    world.append(b"c" * 10, producer=(8, 2, 0))
    delete_before(world.log, 1)
    values, producers = world.values(), world.log.producers.snapshot(0)
    world.log.close()
    saved = {name: files.read_all(world.path(name)) for name in files.list(FOLDER)}
    derived = [name for name in saved if not name.endswith(".log")]
    assert len(derived) == 5, derived
    for name in derived:
        for at in range(len(saved[name])):
            for other, data in saved.items():
                files.write_atomic(world.path(other), data)
            files.flip(world.path(name), at, bit)
            world.open()
            assert (world.log.log_start, world.values(), world.log.lost) == (1, values, ()), (name, at)
            assert world.log.producers.snapshot(0) == producers, (name, at)


@pytest.mark.parametrize("kind", ["index", "producers", "checkpoint", "clean"])
def test_a_derived_file_that_is_gone_or_empty(kind: str) -> None:
    for emptied in (True, False):
        files = MemoryFiles(Random(1))
        world = World(files)
        world.fill(segments=3)
        for number in range(5):
            world.append(b"x", producer=(7, 0, number))
        values, producers = world.values(), world.log.producers.snapshot(0)
        world.log.close()
        for name in files.list(FOLDER):
            if kind in name:
                files.write_atomic(world.path(name), b"") if emptied else files.remove(world.path(name))
        world.open()
        assert world.values() == values
        assert world.log.producers.snapshot(0) == producers


def test_the_whole_log_can_be_noted_as_damaged_also_when_no_more_ranges_are() -> None:
    lost = LostRanges((3 * at + 1, 3 * at + 2) for at in range(LOST_RANGES_MAX))
    lost.add(3 * LOST_RANGES_MAX + 1, 3 * LOST_RANGES_MAX + 2)
    assert len(lost.ranges) == LOST_RANGES_MAX
    lost.add(0, 4 * LOST_RANGES_MAX)
    assert lost.ranges == ((0, 4 * LOST_RANGES_MAX),)
