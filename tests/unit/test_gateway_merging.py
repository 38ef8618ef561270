"""Topics in order of time, against a sort of all there is; and what one request may cost."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comet
from comet.errors import OffsetOutOfRange
from comet.limits import UINT32_MAX
from comet.types import AtOffset, AtTime, Earliest, Latest, Position
from comet_gateway.http.problems import Problem
from comet_gateway.records.cursor import CursorPosition
from comet_gateway.records.merge import Merged, Order, Range, merge
from tests.unit.gateway_world import TOPIC_ID, batch_of


class FakeReader:
    """Answers as comet.Reader does, from lists. A batch is a list of (offset, time, size of the value)."""

    def __init__(
        self, partitions: Mapping[int, Sequence[Sequence[tuple[int, int, int]]]], starts: Mapping[int, int]
    ) -> None:
        self.partitions = partitions
        self.starts = starts
        self.calls = 0
        self.bytes = 0

    def ends(self, partition: int) -> tuple[int, int]:
        batches = self.partitions[partition]
        return self.starts[partition], batches[-1][-1][0] + 1 if batches else self.starts[partition]

    async def fetch(
        self, topic: str, partition: int, start: Position, *, epoch: int | None, records_max: int, bytes_max: int,
        isolation: str, wait_ms: int, topic_id: bytes, expired: bool = False, filter_hint: str = "",
    ) -> comet.Fetched:  # fmt: skip
        assert topic_id == TOPIC_ID
        assert 0 < records_max <= UINT32_MAX
        assert 0 < bytes_max <= UINT32_MAX
        self.calls += 1
        low, high = self.ends(partition)
        rows = [row for batch in self.partitions[partition] for row in batch]
        match start:
            case AtOffset():
                first = start.offset
            case AtTime():
                first = next((offset for offset, time, _ in rows if time >= start.timestamp_us), high)
            case Earliest():
                first = low
            case Latest():
                first = high
        if not low <= first <= high:
            raise OffsetOutOfRange("gone", details={"log_start": str(low), "log_end": str(high)})
        found: list[comet.RecordBatch[bytes]] = []
        next_offset, epoch_before = first, epoch
        for number, batch in enumerate(self.partitions[partition]):
            wanted = [row for row in batch if row[0] >= first]
            taken: list[tuple[int, int, int]] = []
            for row in wanted:
                if (found or taken) and (records_max == 0 or bytes_max < row[2]):
                    break
                taken.append(row)
                records_max, bytes_max = records_max - 1, bytes_max - row[2]
            if taken:
                found.append(_batch(partition, taken, number + 1))
                next_offset, epoch_before = taken[-1][0] + 1, number + 1
            if len(taken) < len(wanted):
                break
        else:
            next_offset = high
        self.bytes += sum(len(value or b"") for one in found for value in one.values)
        return comet.Fetched(found, first, next_offset, epoch_before, low, high)


def _batch(partition: int, rows: Sequence[tuple[int, int, int]], epoch: int) -> comet.RecordBatch[bytes]:
    offsets, times, sizes = zip(*rows, strict=True)
    return batch_of(partition, offsets, [bytes(size) for size in sizes], epoch=epoch, timestamps=times)


@st.composite
def logs(draw: st.DrawFn) -> FakeReader:
    partitions: dict[int, list[list[tuple[int, int, int]]]] = {}
    starts: dict[int, int] = {}
    for partition in range(draw(st.integers(1, 4))):
        offset = starts[partition] = draw(st.integers(0, 5))
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            batch = []
            for _ in range(draw(st.integers(1, 6))):
                offset += draw(st.sampled_from([0, 0, 0, 1, 3]))  # what was aborted, and compaction, leave gaps
                batch.append((offset, draw(st.integers(0, 20)), draw(st.sampled_from([0, 1, 5, 60]))))
                offset += 1
            batches.append(batch)
        partitions[partition] = batches
    return FakeReader(partitions, starts)


def oldest(log: FakeReader) -> list[tuple[int, int]]:
    """Partition and offset of each record, in the order of their times, which never go back in a partition."""
    runs = []
    for partition, batches in log.partitions.items():
        rows, time = [], 0
        for offset, at, _ in (row for batch in batches for row in batch):
            time = max(time, at)
            rows.append((time, partition, offset))
        runs.append(rows)
    return [(partition, offset) for _, partition, offset in heapq.merge(*runs)]


def newest(log: FakeReader) -> list[tuple[int, int]]:
    runs = []
    for partition, batches in log.partitions.items():
        rows, time = [], 1 << 60
        for offset, at, _ in reversed([row for batch in batches for row in batch]):
            time = min(time, at)
            rows.append((-time, -partition, -offset))
        runs.append(rows)
    return [(-partition, -offset) for _, partition, offset in heapq.merge(*runs)]


def positions_of(merged: Merged) -> list[tuple[int, int]]:
    return [(row.batch.partition, row.offset) for row in merged.records]


async def read(
    log: FakeReader, order: Order, positions: Mapping[int, Any], bounds: Mapping[int, int] | None = None, **limits: int
) -> Merged:
    asked = {"records_max": 10, "bytes_max": 1000} | limits
    return await merge(log, order, Range("quotes", TOPIC_ID, positions, bounds or {}, **asked))  # type: ignore[arg-type]  # a fake


def ends_of(log: FakeReader, order: Order) -> dict[int, Position | CursorPosition]:
    return dict.fromkeys(log.partitions, Earliest() if order is Order.OLDEST else Latest())


@settings(max_examples=300, deadline=None)
@given(logs(), st.sampled_from(Order))
async def test_one_read_is_the_sort_of_all(log: FakeReader, order: Order) -> None:
    merged = await read(log, order, ends_of(log, order), records_max=1000, bytes_max=1 << 20)
    assert positions_of(merged) == (oldest if order is Order.OLDEST else newest)(log)
    assert not merged.more


@settings(max_examples=300, deadline=None)
@given(logs(), st.sampled_from(Order), st.integers(1, 7), st.sampled_from([1, 50, 1000]))
async def test_pages_give_each_record_once_and_keep_each_partition_in_order(
    log: FakeReader, order: Order, records_max: int, bytes_max: int
) -> None:
    positions = ends_of(log, order)
    found: list[tuple[int, int]] = []
    while True:
        merged = await read(log, order, positions, records_max=records_max, bytes_max=bytes_max)
        assert len(merged.records) <= records_max
        assert len(merged.records) == 1 or sum(row.size for row in merged.records) <= bytes_max
        found += positions_of(merged)
        positions = dict(merged.positions)
        if not merged.more:
            break
        assert merged.records, "every request gets further"
    expected = oldest(log) if order is Order.OLDEST else newest(log)
    assert sorted(found) == sorted(expected)
    for partition in log.partitions:
        assert [one for one in found if one[0] == partition] == [one for one in expected if one[0] == partition]


@settings(max_examples=200, deadline=None)
@given(logs(), st.sampled_from(Order), st.data())
async def test_a_range_ends_at_its_bounds(log: FakeReader, order: Order, data: st.DataObject) -> None:
    bounds = {
        partition: data.draw(st.integers(log.ends(partition)[0], log.ends(partition)[1]))
        for partition in log.partitions
    }
    merged = await read(log, order, ends_of(log, order), bounds, records_max=1000, bytes_max=1 << 20)
    inside = {
        (partition, offset)
        for partition, offset in oldest(log)
        if (offset < bounds[partition] if order is Order.OLDEST else offset >= bounds[partition])
    }
    assert set(positions_of(merged)) == inside
    assert len(merged.records) == len(inside)
    assert not merged.more


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(1, 5))
async def test_what_was_read_backwards_is_what_lies_behind_its_cursor(log: FakeReader, count: int) -> None:
    merged = await read(log, Order.NEWEST, ends_of(log, Order.NEWEST), records_max=count)
    again = await read(log, Order.OLDEST, merged.positions, records_max=1000, bytes_max=1 << 20)
    assert sorted(positions_of(again)) == sorted(positions_of(merged))


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(1, 9))
async def test_a_cursor_has_the_epoch_of_the_record_before_it(log: FakeReader, count: int) -> None:
    merged = await read(log, Order.OLDEST, ends_of(log, Order.OLDEST), records_max=count)
    for source in merged.sources:
        before = [
            number
            for number, batch in enumerate(log.partitions[source.partition], 1)
            for row in batch
            if row[0] < source.position.offset
        ]
        if source.position.epoch is not None:
            assert source.position.epoch == before[-1]
        else:
            assert not before


async def test_records_that_are_larger_than_was_thought_cost_few_bytes() -> None:
    rows = [(offset, offset, 1000) for offset in range(5000)]
    log = FakeReader({0: [rows[at : at + 100] for at in range(0, 5000, 100)]}, {0: 0})
    merged = await read(log, Order.NEWEST, {0: Latest()}, records_max=5000, bytes_max=20_000)
    assert [row.offset for row in merged.records] == list(range(4999, 4979, -1))
    assert log.bytes < 1_000_000
    assert log.calls < 20


async def test_a_partition_that_is_read_on_many_times_is_never_asked_for_more_records_than_there_are_numbers() -> None:
    """Its share of the bytes is one record, and it is the oldest of many."""
    others = {partition: [[(0, 100, 1)]] for partition in range(1, 64)}
    log = FakeReader({0: [[(offset, offset, 100_000) for offset in range(40)]], **others}, dict.fromkeys(range(64), 0))
    merged = await read(log, Order.OLDEST, ends_of(log, Order.OLDEST), records_max=100, bytes_max=1 << 22)
    assert [row.offset for row in merged.records[:40]] == list(range(40))


async def test_a_request_makes_so_many_calls_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet_gateway.records.merge.FURTHER_CALLS", 2)
    rows = [(offset, offset, 70_000) for offset in range(100)]
    log = FakeReader({0: [rows]}, {0: 0})
    merged = await read(log, Order.OLDEST, {0: Earliest()}, records_max=100, bytes_max=1 << 16)
    assert merged.more
    assert log.calls <= 4
    assert merged.positions[0].offset == len(merged.records) > 0


async def test_what_is_gone_is_said_with_its_partition() -> None:
    log = FakeReader({0: [], 1: [[(5, 0, 0)]]}, {0: 0, 1: 5})
    with pytest.raises(Problem) as caught:
        await read(log, Order.OLDEST, {0: CursorPosition(0), 1: CursorPosition(3)})
    assert (caught.value.code, caught.value.more["partition"], caught.value.more["log_start"]) == (
        "OFFSET_OUT_OF_RANGE",
        1,
        "5",
    )


async def test_retention_may_pass_by_while_reading_backwards() -> None:
    log = FakeReader({0: [[(offset, offset, 0) for offset in range(5, 20)]]}, {0: 0})
    moving = log.fetch

    async def fetch(topic: str, partition: int, start: Position, **more: Any) -> comet.Fetched:
        if isinstance(start, AtOffset):
            log.starts = {0: 5}
        return await moving(topic, partition, start, **more)

    log.fetch = fetch  # type: ignore[method-assign]
    merged = await read(log, Order.NEWEST, {0: Latest()}, records_max=100)
    assert [row.offset for row in merged.records] == list(range(19, 4, -1))
