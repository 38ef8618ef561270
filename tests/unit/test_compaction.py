"""When a partition is compacted, and what stands in the way of a round."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from comet import records
from comet.records import ROUNDS_MAX, CompactionPlan, CompactionRound
from comet.settings.topic import CleanupPolicy, TopicConfig
from comet_broker.core.compaction import LastPlan, overdue_us, plan_compaction
from comet_broker.core.retention import SegmentFacts
from comet_broker.storage import rewrite
from comet_broker.storage.compaction import DamagedSource
from comet_broker.storage.compaction_notes import NOTES
from comet_broker.storage.log import Log
from comet_broker.storage.memory import MemoryFiles
from tests.unit.dying_files import Died, DyingFiles
from tests.unit.storage_world import FOLDER, World, append_plan, carry_out, stored, sync

SECOND = 1_000_000
NOW = 1_000 * SECOND
COMPACT = TopicConfig(cleanup_policy=CleanupPolicy.COMPACT)


def segments(*sizes: int, age_s: int = 100) -> list[SegmentFacts]:
    """Full segments of 100 offsets each, all of one age."""
    return [SegmentFacts(100 * at, 100 * at + 100, size, NOW - age_s * SECOND) for at, size in enumerate(sizes)]


def last(clean_end: int, *rounds: tuple[int, int], tombstones: int = 0, tombstones_end: int = 0) -> LastPlan:
    plan = CompactionPlan(clean_end, NOW, tombstones_end, rounds=tuple(CompactionRound(*one) for one in rounds))
    return LastPlan(plan, offset=1_000, digest=7, tombstones=tombstones)


def end_of(plan: CompactionPlan | None) -> int | None:
    return None if plan is None else plan.clean_end


def test_a_plan_covers_full_segments_below_the_limit() -> None:
    assert end_of(plan_compaction(segments(10, 10, 10), COMPACT, NOW, 250, None)) == 200
    assert plan_compaction(segments(10), COMPACT, NOW, 99, None) is None
    assert plan_compaction([], COMPACT, NOW, 99, None) is None


def test_a_plan_waits_until_enough_is_new() -> None:
    known = last(300)
    assert plan_compaction(segments(10, 10, 10, 29), COMPACT, NOW, 400, known) is None
    assert end_of(plan_compaction(segments(10, 10, 10, 30), COMPACT, NOW, 400, known)) == 400
    assert (
        end_of(plan_compaction(segments(10, 10, 10, 4), replace(COMPACT, min_dirty_percent=10), NOW, 400, known)) == 400
    )


def test_young_segments_wait_and_old_ones_do_not() -> None:
    young = segments(10, 10, age_s=5)
    assert plan_compaction(young, replace(COMPACT, min_compaction_lag_ms=6_000), NOW, 200, None) is None
    assert end_of(plan_compaction(young, replace(COMPACT, min_compaction_lag_ms=4_000), NOW, 200, None)) == 200
    little = segments(100, 1, age_s=5)
    assert plan_compaction(little, replace(COMPACT, max_compaction_lag_ms=6_000), NOW, 200, last(100)) is None
    assert end_of(plan_compaction(little, replace(COMPACT, max_compaction_lag_ms=4_000), NOW, 200, last(100))) == 200


def test_compaction_is_overdue_by_its_oldest_segment_without_a_plan() -> None:
    old, config = segments(10, 10, age_s=5), replace(COMPACT, max_compaction_lag_ms=4_000)
    assert overdue_us(old, config, NOW, 0) == 1_000_000
    assert overdue_us(old, config, NOW, old[-1].next_offset) == 0, "a plan covers all"
    assert overdue_us(old, replace(config, max_compaction_lag_ms=6_000), NOW, 0) == 0
    assert overdue_us(old, COMPACT, NOW, 0) == 0, "without a limit"


def test_tombstones_go_a_while_after_the_first_plan_that_met_them() -> None:
    met = (100, NOW - 50 * SECOND), (200, NOW - 10 * SECOND)
    keep = replace(COMPACT, delete_retention_ms=20_000)
    plan = plan_compaction(segments(10, 10), keep, NOW, 200, last(200, *met, tombstones=3))
    assert plan is not None and (plan.clean_end, plan.tombstones_end) == (200, 100)
    assert plan.rounds == (CompactionRound(*met[1]),), "those below are not needed any more"
    assert (plan.checked, plan.digest) == (1_000, 7)
    assert plan_compaction(segments(10, 10), keep, NOW, 200, last(200, *met)) is None, "no tombstone is there"
    done = last(200, met[1], tombstones=3, tombstones_end=100)
    assert plan_compaction(segments(10, 10), keep, NOW, 200, done) is None, "the others have time left"


def test_the_rounds_of_a_plan_are_bounded_and_tombstones_then_live_longer() -> None:
    rounds = [(at + 1, NOW - SECOND) for at in range(ROUNDS_MAX)]
    plan = plan_compaction(segments(10, 10), COMPACT, NOW, 200, last(100, *rounds))
    assert plan is not None and len(plan.rounds) == ROUNDS_MAX
    assert plan.rounds[0].clean_end == 2 and plan.rounds[-1] == CompactionRound(200, NOW)


def test_a_damaged_segment_is_reported_with_its_offsets() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    sync(world.log)
    end = world.log.segments.active.base_offset
    append_plan(world.log, CompactionPlan(end, 1))
    sync(world.log)
    first = world.log.segments.all[0]
    world.files._seen[first.path].seen[5_000] ^= 1  # type: ignore[attr-defined]
    with pytest.raises(DamagedSource) as caught:
        carry_out(world.log)
    assert 0 < caught.value.first < caught.value.end < first.next_offset
    assert world.log.compaction.notes.due is not None


def test_a_log_knows_up_to_where_records_may_be_gone_also_if_the_plan_is_forgotten() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    sync(world.log)
    notes, end = world.log.compaction.notes, world.log.segments.active.base_offset
    assert notes.clean_end == 0
    append_plan(world.log, CompactionPlan(end, 1))
    assert notes.clean_end == end, "from now on they may go"
    sync(world.log)
    carry_out(world.log)
    notes.planned = None
    assert notes.clean_end == end
    sync(world.log)
    world.log.close()
    world.files.remove(f"{FOLDER}/{NOTES}")
    notes = world.open().compaction.notes
    assert (notes.planned, notes.applied, notes.clean_end) == (None, None, end)
    notes.truncate(7)
    assert notes.clean_end == 7


@pytest.mark.parametrize("clean", [True, False])
def test_a_plan_is_known_after_a_restart_also_if_its_segment_is_not_read(clean: bool) -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    plan = CompactionPlan(world.log.segments.active.base_offset, 1)
    offset = append_plan(world.log, plan, epoch=4)
    if not clean:
        world.fill(6)  # so that the segment with the plan is full
        sync(world.log)
    else:
        world.log.close()
    for _ in range(2):
        planned = world.open().compaction.notes.planned
        assert planned is not None and (planned.offset, planned.epoch, planned.plan) == (offset, 4, plan)


def test_a_plan_that_was_read_is_noted_before_its_segment_counts_as_read() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    offset = append_plan(world.log, CompactionPlan(world.log.segments.active.base_offset, 1))
    world.fill(6)
    sync(world.log)
    world.files.remove(f"{FOLDER}/{NOTES}")
    for segment in world.log.segments.all[:-1]:
        world.files.remove(segment.index_path)
    for _ in range(3):  # the first one reads all
        planned = world.open().compaction.notes.planned
        assert planned is not None and planned.offset == offset


def test_a_plan_that_was_truncated_is_not_carried_out_after_a_restart() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    end = world.log.segments.active.base_offset
    offset = append_plan(world.log, CompactionPlan(end, 1))
    world.log.close()
    notes = world.files.read_all(f"{FOLDER}/{NOTES}")
    log = world.open()
    log.deletion.truncate(offset)
    world.append(b"of another leader", epoch=2)
    assert log.compaction.notes.due is None
    log.close()
    world.files.write_atomic(f"{FOLDER}/{NOTES}", notes)  # as if the process had died before it was written
    found = world.open().compaction.notes
    assert (found.planned, found.due, found.clean_end) == (None, None, end)


def test_a_later_plan_that_reaches_less_far_lowers_no_end() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(4)
    end = world.log.segments.active.base_offset
    append_plan(world.log, CompactionPlan(end, 1))
    append_plan(world.log, CompactionPlan(1, 1))
    assert world.log.compaction.notes.clean_end == end
    world.log.deletion.truncate(end)
    assert world.log.compaction.notes.planned is None
    assert world.log.compaction.notes.clean_end == end


def of_key(key: bytes, *values: bytes | None) -> tuple[records.BatchHeader, memoryview]:
    data = memoryview(b"".join(records.encode(values, keys=[key] * len(values), timestamps=1)))
    return records.verify(data, stamped=False), data


def last_of(log: Log, key: bytes) -> list[bytes | None]:
    batches = [records.decode(data) for header, data in stored(log) if not header.control]
    return [value for one in batches for at, value in zip(one.keys, one.values, strict=True) if at == key]


@pytest.mark.parametrize("power", [False, True])
def test_a_deleted_key_does_not_come_back_wherever_a_round_ends(monkeypatch: pytest.MonkeyPatch, power: bool) -> None:
    monkeypatch.setattr(rewrite, "SOURCES_MAX", 1)  # each segment for itself
    seen: set[tuple[bytes | None, ...]] = set()
    for dies_at in range(1, 200):
        files = DyingFiles(Random(dies_at))
        log = World(files).log
        log.append(*of_key(b"a", b"old"), 1)
        log.segments.roll()
        log.append(*of_key(b"b", b"1" * 100), 1)
        log.segments.roll()
        log.append(*of_key(b"a", None), 1)
        log.segments.roll()
        end = log.log_end
        append_plan(log, CompactionPlan(end, 1, tombstones_end=end))
        sync(log)
        files.dies_at = files.changes + dies_at
        try:
            carry_out(log)
            done = True
        except Died:
            done = False
        files.dies_at = -1
        if power:
            files.crash()
        found = last_of(World(files).log, b"a")
        assert not found or found[-1] is None, f"it is back after change {dies_at}"
        seen.add(tuple(found))
        if done:
            break
    assert done and seen == {(b"old", None), (None,), ()}


def test_nothing_is_compacted_before_what_producers_wrote_is_on_disk() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    sync(world.log)
    append_plan(world.log, CompactionPlan(world.log.segments.active.base_offset, 1))
    snapshots = world.log.durability.sync_state.snapshots
    kept, snapshots[:] = list(snapshots), [0]
    assert world.log.compaction.begin(world.log.log_end, 1 << 20) is None
    snapshots[:] = kept
    begun = world.log.compaction.begin(world.log.log_end, 1 << 20)
    assert begun is not None
    begun.release()


def test_a_plan_is_not_carried_out_before_it_is_committed() -> None:
    world = World(MemoryFiles(Random(1)))
    world.fill(3)
    sync(world.log)
    offset = append_plan(world.log, CompactionPlan(world.log.segments.active.base_offset, 1))
    assert world.log.compaction.begin(offset, 1 << 20) is None
    begun = world.log.compaction.begin(offset + 1, 1 << 20)
    assert begun is not None
    begun.release()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """The keys that were divided among several passes."""
    found: list[bytes | None] = []

    def noted(key: bytes | None) -> int:
        found.append(key)
        return hash(key)

    monkeypatch.setattr(rewrite, "key_hash", noted)
    return found


@pytest.mark.parametrize(("records_of_each", "several"), [(10, False), (1_000, True)])
def test_the_memory_of_a_pass_is_also_that_of_the_bits(
    monkeypatch: pytest.MonkeyPatch, hashed: list[bytes | None], records_of_each: int, several: bool
) -> None:
    """Of 18 keys, which fit into 4 KiB, but not into half of them."""
    monkeypatch.setattr(rewrite, "BUFFER_BYTES", 0)
    log = World(MemoryFiles(Random(1))).log
    for number in range(18):
        log.append(*of_key(b"%d" % number, *[b"1"] * records_of_each), 1)
    log.segments.roll()
    append_plan(log, CompactionPlan(log.log_end, 1))
    sync(log)
    applied = carry_out(log, memory_bytes=4 << 10)
    assert applied is not None and applied.removed == 18 * (records_of_each - 1)
    assert bool(hashed) is several


@pytest.mark.parametrize(("key_bytes", "value_bytes", "several"), [(20, 20_000, False), (6_000, 20, True)])
def test_the_memory_of_a_pass_is_that_of_its_keys(
    hashed: list[bytes | None], key_bytes: int, value_bytes: int, several: bool
) -> None:
    """Of 64 keys, whatever their values take; a pass reads the whole log once."""
    log = World(MemoryFiles(Random(1))).log
    random = Random(2)
    for number in range(128):
        log.append(*of_key(b"%0*d" % (key_bytes, number % 64), random.randbytes(value_bytes)), 1)
    log.segments.roll()
    append_plan(log, CompactionPlan(log.log_end, 1))
    sync(log)
    applied = carry_out(log, memory_bytes=128 << 10)
    assert applied is not None and applied.removed == 64
    assert bool(hashed) is several
