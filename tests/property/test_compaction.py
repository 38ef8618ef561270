"""Compaction against a list of records: the last record of each key stays, in any log, also if the process dies.

Hypothesis draws a log of keys, tombstones, expiries, transactions, requests with a key, epochs and rolls, and a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from comet import records
from comet.records import CompactionPlan
from comet.settings.topic import CleanupPolicy, TopicConfig
from comet_broker.core.producers import ProducerTable
from comet_broker.storage.memory import MemoryFiles
from tests.unit.dying_files import Died, DyingFiles
from tests.unit.storage_world import (
    FOLDER,
    World,
    append_plan,
    carry_out,
    delete_before,
    epochs_of,
    stored,
    sync,
)

CONFIG = TopicConfig(segment_bytes=64 << 10, retention_ms=-1, cleanup_policy=CleanupPolicy.COMPACT)
KEYS = st.sampled_from([*(b"%d" % one for one in range(8)), b"hot", b"hot", b"hot", None])


@dataclass(frozen=True)
class Row:
    """One record of the model."""

    offset: int
    key: bytes | None
    value: bytes | None
    expiry: int
    transaction: tuple[int, int] | None


@dataclass
class Model:
    world: World
    rows: list[Row] = field(default_factory=list)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    open: dict[int, int] = field(default_factory=lambda: {8: 1, 9: 1})  # producer -> epoch
    begun: dict[int, int] = field(default_factory=dict)  # producer -> first offset of its open transaction
    sequences: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})
    epoch: int = 1

    def append(self, event: dict[str, Any]) -> None:
        log, rows = self.world.log, event["rows"]
        kind = event["kind"]
        more: dict[str, Any] = {}
        if kind in self.sequences:
            more = {"producer_id": kind, "base_sequence": self.sequences[kind]}
            self.sequences[kind] += len(rows)
        elif kind in self.open:
            more = {"producer_id": kind, "producer_epoch": self.open[kind], "transactional": True}
            more["base_sequence"] = self.sequences.setdefault(kind * 100 + self.open[kind], 0)
            self.sequences[kind * 100 + self.open[kind]] += len(rows)
            self.begun.setdefault(kind, log.log_end)
        elif kind == "keyed":
            more = {"producer_id": 1000 + log.log_end, "base_sequence": 7, "keyed": True}
        expiry = [one[2] for one in rows]
        data = memoryview(
            b"".join(
                records.encode(
                    [one[1] for one in rows],
                    keys=[one[0] for one in rows],
                    timestamps=[10 * (log.log_end + at) for at in range(len(rows))],
                    expiry=expiry if any(expiry) else None,
                    codec=event["codec"],
                    headers=[[("h", b"%d" % (log.log_end + at))] for at in range(len(rows))],
                    **more,
                )
            )
        )
        header = records.verify(data, stamped=False)
        base = log.append(header, data, self.epoch).base_offset
        transaction = (kind, self.open[kind]) if kind in self.open else None
        self.rows += [Row(base + at, one[0], one[1], one[2], transaction) for at, one in enumerate(rows)]

    def end(self, producer: int, *, commit: bool) -> None:
        epoch = self.open[producer]
        data = memoryview(records.encode_marker(producer, epoch, commit, self.begun.pop(producer, -1), 1))
        self.world.log.append(records.verify(data, stamped=False), data, self.epoch)
        if not commit:
            self.aborted.add((producer, epoch))
        self.open[producer] += 1

    def play(self, event: dict[str, Any]) -> None:
        match event["do"]:
            case "append":
                self.append(event)
            case "end":
                self.end(event["producer"], commit=event["commit"])
            case "epoch":
                self.epoch += 1
            case "roll":
                if self.world.log.segments.active.next_offset > self.world.log.segments.active.base_offset:
                    self.world.log.segments.roll()
            case "sync":
                sync(self.world.log)

    def stable_end(self) -> int:
        return min([self.world.log.log_end, *self.begun.values()])

    def visible(self, rows: list[Row], start: int) -> list[Row]:
        return [one for one in rows if one.transaction not in self.aborted and one.offset >= start]

    def compacted(self, plan: CompactionPlan, start: int) -> list[Row]:
        """What a plan leaves."""
        below = [one for one in self.visible(self.rows, start) if one.offset < plan.clean_end]
        last = {one.key: one.offset for one in below}
        kept = [
            one
            for one in below
            if (one.key is None or last[one.key] == one.offset)
            and not 0 < one.expiry <= plan.now_us
            and not (one.value is None and one.key is not None and one.offset < plan.tombstones_end)
        ]
        return kept + [one for one in self.rows if one.offset >= max(plan.clean_end, start)]


VALUES = st.sampled_from([b"", b"1", b"x" * 900, b"y" * 20_000, None, None])
ROWS = st.lists(st.tuples(KEYS, VALUES, st.sampled_from([0, 0, 0, 5, 50])), min_size=1, max_size=6)
APPENDS = st.fixed_dictionaries(
    {
        "do": st.just("append"),
        "rows": ROWS,
        "kind": st.sampled_from([0, 0, 0, 1, 1, 2, 8, 9, "keyed"]),
        "codec": st.sampled_from(list(records.Codec)),
    }
)
EVENTS = st.one_of(
    APPENDS,
    APPENDS,
    APPENDS,
    APPENDS,
    st.fixed_dictionaries({"do": st.just("end"), "producer": st.sampled_from([8, 9]), "commit": st.booleans()}),
    st.fixed_dictionaries({"do": st.sampled_from(["epoch", "roll", "sync", "roll"])}),
)
PLANS = st.tuples(st.sampled_from([1.0, 1.0, 0.7, 0.4]), st.sampled_from([1, 20, 100]), st.floats(0, 1))


def found_in(model: Model) -> list[Row]:
    """The rows of the log as they are stored now, each in its place; its batches cover every offset."""
    log = model.world.log
    rows: list[Row] = []
    by_offset = {one.offset: one for one in model.rows}
    expected = None
    for header, data in stored(log):
        assert expected is None or header.base_offset == expected, "batches cover all offsets"
        expected = header.next_offset
        if header.control:
            continue
        batch = records.decode(data, stamped=True)
        batch.check()
        expiry = batch.expiry or [0] * len(batch)
        for at, offset in enumerate(batch.offsets):
            if offset < log.log_start:
                continue
            was = by_offset[offset]
            assert (batch.keys[at], batch.values[at], expiry[at]) == (was.key, was.value, was.expiry)
            assert batch.timestamps[at] == 10 * offset and batch.headers[at] == [("h", b"%d" % offset)]
            rows.append(was)
    assert expected in (None, log.log_end)
    return rows


def made(events: list[dict[str, Any]], files: MemoryFiles | None = None) -> Model:
    model = Model(World(files or MemoryFiles(Random(1)), CONFIG))
    for event in events:
        model.play(event)
    return model


def planned(model: Model, drawn: tuple[float, int, float]) -> CompactionPlan:
    """A plan for full segments below the stable end."""
    log = model.world.log
    if log.segments.active.next_offset > log.segments.active.base_offset:
        log.segments.roll()
    share, now_us, tombstones = drawn
    ends = [0, *(one.next_offset for one in log.segments.all[:-1] if one.next_offset <= model.stable_end())]
    clean_end = ends[round(share * (len(ends) - 1))]
    return CompactionPlan(clean_end, now_us, round(tombstones * clean_end))


def last_sequences(table: ProducerTable) -> dict[int, tuple[int, int]]:
    return {number: (one.epoch, one.next_sequence) for number, one in table._producers.items()}


LOGS = st.lists(EVENTS, min_size=20, max_size=40)


@given(LOGS, PLANS, st.sampled_from([1 << 20, 800]), st.floats(0, 1))
def test_the_last_record_of_each_key_stays(
    events: list[dict[str, Any]], drawn: tuple[float, int, float], memory_bytes: int, deleted: float
) -> None:
    model = made(events)
    log = model.world.log
    plan = planned(model, drawn)
    sync(log)
    if deleted > 0.7:
        delete_before(log, round((deleted - 0.7) * log.log_end))
    epochs, sequences = epochs_of(log), last_sequences(log.producers)
    requests = log.producers.requests.snapshot()
    append_plan(log, plan, model.epoch)
    expected = model.compacted(plan, log.log_start)
    applied = carry_out(log, memory_bytes=memory_bytes)
    if applied is None:
        assert plan.clean_end <= log.log_start or plan.clean_end == 0
        return
    assert found_in(model) == expected
    assert epochs_of(log)[: len(epochs)] == epochs
    # The same plan again, by a replica that has the result: nothing changes.
    log.state.compaction.applied = None
    again = carry_out(log)
    assert again is not None and again.digest == applied.digest
    assert found_in(model) == expected
    # A replica that has this log alone knows what each producer wrote last.
    sync(log)
    log.close()
    for name in model.world.files.list(FOLDER):
        if name.endswith((".producers", ".index")):
            model.world.files.remove(f"{FOLDER}/{name}")
    log = model.world.open()
    assert found_in(model) == expected
    known = last_sequences(log.producers)
    if log.log_start == 0:  # else segments with their batches may be deleted
        assert {number: known.get(number) for number in sequences} == sequences
        assert [number for number, _ in log.producers.requests.snapshot()] == [number for number, _ in requests]
    assert log.compaction.notes.applied is not None


@settings(max_examples=30)
@given(LOGS, PLANS, st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_a_death_at_any_moment_brings_nothing_back_and_loses_nothing(
    events: list[dict[str, Any]], drawn: tuple[float, int, float], seed: int, power: bool, after: bool
) -> None:
    plan, at, done = None, 0, False
    while not done:
        at += 1
        files = DyingFiles(Random(seed))
        model = made(events, files)
        plan = planned(model, drawn)
        append_plan(model.world.log, plan, model.epoch)
        sync(model.world.log)
        before, start = model.visible(model.rows, 0), files.changes
        files.dies_at, files.after = start + at, after
        try:
            carry_out(model.world.log)
            done = True
        except Died:
            pass
        files.dies_at = -1
        if power:
            files.crash()
        model.world.open()
        assert not model.world.reports and not model.world.log.lost
        check_alive(before, found_in(model), model, plan)
        # It is carried out in the end.
        carry_out(model.world.log)
        if model.world.log.compaction.notes.due is None:
            assert model.visible(found_in(model), 0) == model.visible(model.compacted(plan, 0), 0)


def check_alive(before: list[Row], found: list[Row], model: Model, plan: CompactionPlan) -> None:
    """Nothing that counts is lost, and nothing older than a last record is the last one now."""
    after = model.compacted(plan, 0)
    there = set(found)
    assert set(after) <= there <= set(model.rows)
    below = [one for one in before if one.offset < plan.clean_end and one.key is not None]
    last = {one.key: one for one in below}
    now = {one.key: one for one in model.visible(found, 0) if one.offset < plan.clean_end and one.key is not None}
    for key, row in last.items():
        assert key not in now or now[key] == row, "an older record is the last one"


@given(LOGS, PLANS, PLANS)
def test_two_rounds_leave_what_the_second_alone_leaves(
    events: list[dict[str, Any]], first: tuple[float, int, float], second: tuple[float, int, float]
) -> None:
    once, twice = made(events), made(events)
    earlier, later = planned(twice, first), planned(twice, second)
    planned(once, first)
    later = replace_times(earlier, later)
    sync(twice.world.log)
    sync(once.world.log)
    append_plan(twice.world.log, earlier, twice.epoch)
    carry_out(twice.world.log)
    for model in (once, twice):
        append_plan(model.world.log, later, model.epoch)
        sync(model.world.log)
    results = [carry_out(model.world.log) for model in (once, twice)]
    assert found_in(once) == found_in(twice)
    if results[0] is not None and results[1] is not None:
        assert results[0].digest == results[1].digest


def replace_times(earlier: CompactionPlan, later: CompactionPlan) -> CompactionPlan:
    """Plans never go back."""
    return later._replace(
        clean_end=max(earlier.clean_end, later.clean_end),
        now_us=max(earlier.now_us, later.now_us),
        tombstones_end=max(earlier.tombstones_end, later.tombstones_end),
    )
