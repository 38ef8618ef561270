"""Ranges of partitions and their merge by time, held to a plain list: whatever happens to the log meanwhile, each
record of the range comes once, in order, or lies in a gap; and no record comes that was not part of the range."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.consumer.ranges import Fetched, Part, RangeReader, RangeSpec, locate
from comet.consumer.time_merge import Item, MergedReader
from comet.errors import OffsetOutOfRange, TopicNotFound
from comet.filters import parse
from comet.types import AtOffset, AtTime, Earliest, Gap, Latest, Position
from tests.property.range_log import ListedPartition, ListedTopic, Row, partitions

BOUNDS = st.one_of(
    st.just(Earliest()),
    st.just(Latest()),
    st.builds(AtOffset, st.integers(0, 40)),
    st.builds(AtTime, st.integers(0, 21)),
)
BOTH = Earliest(), Latest()
STEPS = st.sampled_from([(1, 1 << 20), (2, 1 << 20), (5, 12), (64, 1 << 20), (64, 30)])
LATE = "@timestamp >= 1970-01-01T00:00:00.000010Z"  # 10 µs
FILTERS = st.sampled_from(["", LATE, "@offset in (3, 7)"])


async def opened(
    topic: ListedTopic, start: Position, end: Position, step: tuple[int, int], partition: int = 0, **more: Any
) -> RangeReader:
    """A reader of a range that is fixed now, as `comet.Reader.read` makes it."""
    text = more.get("filter_hint", "")
    found = await locate(topic, "t", partition, start, end, isolation="committed", topic_id=topic.id)
    spec = RangeSpec(
        "t", partition, found.start, found.end, topic_id=topic.id, epoch=found.epoch, end_epoch=found.end_epoch,
        step_records_first=step[0], step_records=4 * step[0], step_bytes=step[1], **more,
    )  # fmt: skip
    return RangeReader(topic, spec, chosen=parse(text, now_us=0) if text else None)


def matching(rows: Sequence[Row], text: str) -> list[Row]:
    """The rows for which FILTERS are true."""
    return [row for row in rows if not text or (row[1] >= 10 if text == LATE else row[0] in (3, 7))]


def rows_of(parts: Sequence[Part], *, backward: bool = False) -> list[Row]:
    found: list[Row] = []
    for part in parts:
        if not isinstance(part, Gap):
            rows = list(zip(part.offsets, part.timestamps, part.values, strict=True))
            found += reversed(rows) if backward else rows  # type: ignore[arg-type]
    return found


def check(parts: Sequence[Part], kept: Sequence[Row], reader: RangeReader, *, backward: bool) -> None:
    """What holds for every read of a range, `kept` being the range's records as it began."""
    got = rows_of(parts, backward=backward)
    offsets = [offset for offset, _, _ in got]
    assert offsets == sorted(set(offsets), reverse=backward), "in order, each once"
    assert set(got) <= set(kept), "records of this log, and of the range"
    edges = [(one.first, one.end) if isinstance(one, Gap) else (one.first_offset, one.next_offset) for one in parts]
    if not backward and isinstance(parts[-1] if parts else None, Gap) and parts[-1].reason == "truncated":  # type: ignore[union-attr]
        edges.pop()  # also of records that were read before
    for one, other in pairwise(edges):
        assert one[0] >= other[1] if backward else one[1] <= other[0], "gaps and batches in order, none in another"
    missing = {row[0] for row in kept} - set(offsets)
    gaps = [part for part in parts if isinstance(part, Gap)]
    if reader.done:
        assert all(any(gap.first <= offset < gap.end for gap in gaps) for offset in missing), "or it lies in a gap"


@settings(max_examples=400, deadline=None)
@given(partitions(), BOUNDS, BOUNDS, STEPS, st.booleans(), FILTERS)
async def test_a_range_is_that_of_a_list(
    logs: list[ListedPartition], start: Position, end: Position, step: tuple[int, int], backward: bool, text: str
) -> None:
    topic, log = ListedTopic(logs), logs[0]
    try:
        reader = await opened(topic, start, end, step, backward=backward, filter_hint=text)
    except OffsetOutOfRange:
        assert isinstance(start, AtOffset)
        assert start.offset > log.log_end
        return
    assert reader.start is not None
    assert reader.end is not None
    kept = matching([row for row in log.rows if reader.start <= row[0] < reader.end], text)
    topic.asked.clear()
    parts = [part async for part in reader]
    check(parts, kept, reader, backward=backward)
    assert rows_of(parts, backward=backward) == (kept[::-1] if backward else kept)
    assert reader.done
    for gap in (part for part in parts if isinstance(part, Gap)):
        assert gap.reason == ("deleted" if gap.first < log.log_start else "damaged")
        assert gap.first < log.log_start or all(log.unreadable(offset) for offset in range(gap.first, gap.end))
    assert all(records <= 4 * step[0] and size == step[1] for records, size in topic.asked)
    if isinstance(start, AtTime):
        assert all(time < start.timestamp_us for offset, time, _ in log.rows if offset < reader.start)


@settings(max_examples=400, deadline=None)
@given(partitions(), STEPS, st.booleans(), FILTERS, st.data())
async def test_whatever_happens_meanwhile_no_record_of_another_log_comes(
    logs: list[ListedPartition], step: tuple[int, int], backward: bool, text: str, data: st.DataObject
) -> None:
    topic, log = ListedTopic(logs), logs[0]
    reader = await opened(topic, Earliest(), Latest(), step, backward=backward, filter_hint=text)
    kept = matching(log.rows, text)
    recreated, epoch = False, log.epoch_before(log.log_end)  # of the leader, which no later one has again

    def retention() -> None:
        log.log_start = data.draw(st.integers(log.log_start, max(log.readable_end, log.log_start)))

    def unclean() -> None:
        nonlocal epoch
        epoch += 1
        log.truncate(data.draw(st.integers(log.log_start, log.log_end)))
        log.open_from = None
        for _ in range(data.draw(st.integers(0, 4))):
            log.append("data", epoch, data.draw(st.lists(st.tuples(st.just(0), st.integers(0, 20)), min_size=1)))

    def growth() -> None:
        nonlocal epoch
        epoch = epoch + data.draw(st.integers(0, 1)) or 1
        log.append("data", epoch, [(0, 3), (0, 30)])

    def recreation() -> None:
        nonlocal recreated
        recreated = True
        topic.id = b"another topic..."
        log.batches.clear()
        log.log_start, log.open_from = 0, None
        log.append("data", 1, [(0, 1)] * 40, "other ")

    for _ in range(data.draw(st.integers(1, 3))):
        call = topic.calls + data.draw(st.integers(1, 6))
        topic.events[call] = data.draw(st.sampled_from([retention, unclean, growth, recreation]))
    parts: list[Part] = []
    try:
        while not reader.stopped:
            parts += await reader.step()
    except TopicNotFound:
        assert recreated
    else:
        assert reader.done
    check(parts, kept, reader, backward=backward)


@settings(max_examples=300, deadline=None)
@given(
    partitions(), STEPS, st.booleans(), st.integers(1, 9), st.sampled_from([None, 1, 40]), st.integers(1, 5), FILTERS
)
async def test_a_budget_ends_a_read_and_the_next_one_goes_on_there(
    logs: list[ListedPartition],
    step: tuple[int, int],
    backward: bool,
    most: int,
    size: int | None,
    taken: int,
    text: str,
) -> None:
    """Also where the caller leaves it in the middle, after `taken` parts."""
    topic, log = ListedTopic(logs), logs[0]
    whole = await opened(topic, Earliest(), Latest(), step)
    start, end, epoch, end_epoch = whole.start, whole.end, whole.epoch, whole._state.spec.end_epoch
    assert start is not None
    got: list[Row] = []
    missing: set[int] = set()
    for _ in range(400):
        spec = RangeSpec(
            "t", 0, start, end, backward, topic.id, epoch, end_epoch, step_records_first=step[0], step_bytes=step[1],
            records_max=most, bytes_max=size, filter_hint=text,
        )  # fmt: skip
        reader = RangeReader(topic, spec, chosen=parse(text, now_us=0) if text else None)
        parts: list[Part] = []
        async for part in reader:
            parts.append(part)
            if len(parts) == taken:
                break
        read = rows_of(parts, backward=backward)
        assert len(read) <= most
        missing.update(*(range(part.first, part.end) for part in parts if isinstance(part, Gap)))
        got += read
        if backward:
            end = reader.position
        else:
            assert reader.position is not None
            start, epoch = reader.position, reader.epoch
        if reader.done:
            kept = matching(log.rows, text)
            assert got == (kept[::-1] if backward else kept)
            assert missing == {at for at in range(log.log_start, log.readable_end) if log.unreadable(at)}
            return
    raise AssertionError("it never ends")


async def test_a_read_ends_when_its_time_is_over() -> None:
    log = ListedPartition(0)
    log.append("data", 1, [(0, 1)] * 10)
    topic = ListedTopic([log])
    reader = RangeReader(topic, RangeSpec("t", 0, 0, 10, topic_id=topic.id, step_records_first=1), time_ms=0)
    assert [part async for part in reader] == []
    assert (reader.done, reader.stopped, reader.position, topic.calls) == (False, True, 0, 0)


class ShortLeader(ListedTopic):
    """Its leader does not know the last `unknown` records yet, and fails the request that waits for them."""

    unknown = 2

    async def fetch(self, topic: str, partition: int, start: Any, **more: Any) -> Fetched:
        log = self.partitions[partition]
        known = log.log_end - self.unknown
        if more["wait_ms"] and start == AtOffset(known):
            self.unknown = 0
            raise OffsetOutOfRange("truncated", details={"log_start": "0", "log_end": str(known - 1)})
        log.open_from = known
        return await super().fetch(topic, partition, start, **more)


async def test_a_backward_read_goes_on_when_the_log_is_truncated_while_it_waits() -> None:
    log = ListedPartition(0)
    for _ in range(4):
        log.append("data", 1, [(0, 1)])
    topic = ShortLeader([log])
    spec = RangeSpec("t", 0, 0, 4, True, topic.id, step_records_first=8, wait_ms=60_000)
    assert [row[0] for row in rows_of([part async for part in RangeReader(topic, spec)], backward=True)] == [3, 2, 1, 0]


class Overdue(ListedTopic):
    """Fails with a timeout of its own."""

    async def fetch(self, *_: Any, **more: Any) -> Fetched:
        raise TimeoutError("a name server is silent")


@pytest.mark.parametrize("time_ms", [None, 60_000])
async def test_a_timeout_within_the_budget_is_raised(time_ms: int | None) -> None:
    topic = Overdue([ListedPartition(0)])
    reader = RangeReader(topic, RangeSpec("t", 0, 0, 10, topic_id=topic.id), time_ms=time_ms)
    with pytest.raises(TimeoutError, match="silent"):
        await anext(reader)


# ---- the merge


def ordered(logs: Sequence[ListedPartition], *, backward: bool) -> list[tuple[int, int]]:
    """Partition and offset of all records, by time, which does not go back in a partition."""
    sign, runs = -1 if backward else 1, []
    for log in logs:
        rows, reached = [], None
        for offset, time, _ in log.rows[::sign]:
            reached = sign * time if reached is None else max(reached, sign * time)
            rows.append((reached, sign * log.index, sign * offset))
        runs.append(rows)
    return [(sign * partition, sign * offset) for _, partition, offset in heapq.merge(*runs)]


async def merged(topic: ListedTopic, step: tuple[int, int], *, backward: bool, **more: Any) -> MergedReader:
    ranges = [await opened(topic, Earliest(), Latest(), step, log.index, backward=backward) for log in topic.partitions]
    return MergedReader(ranges, **more)


@settings(max_examples=300, deadline=None)
@given(partitions(4), STEPS, st.booleans(), st.integers(1, 5), st.sampled_from([None, 1, 3, 20]))
async def test_a_merge_is_the_sort_of_all(
    logs: list[ListedPartition], step: tuple[int, int], backward: bool, at_once: int, most: int | None
) -> None:
    """Whether items are handed out one by one, a few at a time, or all that are in order."""
    reader = await merged(ListedTopic(logs), step, backward=backward, at_once=at_once)
    items: list[Item] = []
    while (ready := reader.ready(most)) or await reader.fill():
        assert most is None or len(ready) <= most
        items += ready
    rows = [(one.batch.partition, one.offset) for one in items if not isinstance(one, Gap)]
    assert rows == ordered(logs, backward=backward)
    assert reader.done
    for log in logs:
        of_log = [one for one in items if (one if isinstance(one, Gap) else one.batch).partition == log.index]
        positions = [item.first if isinstance(item, Gap) else item.offset for item in of_log]
        assert positions == sorted(positions, reverse=backward), "gaps in their place"


@settings(max_examples=300, deadline=None)
@given(partitions(3), STEPS, st.booleans(), st.integers(1, 7), st.sampled_from([None, 1, 30]), st.booleans())
async def test_pages_of_a_merge_give_each_record_once(
    logs: list[ListedPartition], step: tuple[int, int], backward: bool, most: int, size: int | None, even: bool
) -> None:
    """Each from the positions of the one before, with or without a selection of records."""
    topic = ListedTopic(logs)
    positions: dict[int, tuple[int, int | None] | None] = dict.fromkeys(range(len(logs)))
    whole = [await opened(topic, Earliest(), Latest(), step, log.index) for log in logs]
    select = (
        (lambda batch, begin, end: [at for at in range(begin, end) if batch.offsets[at] % 2 == 0]) if even else None
    )
    got: list[tuple[int, int]] = []
    for _ in range(400):
        ranges = []
        for partition, at in positions.items():
            start, end, epoch = whole[partition].start, whole[partition].end, None
            if at is not None and backward:
                end = at[0]
            elif at is not None:
                start, epoch = at
            spec = RangeSpec(
                "t", partition, start, end, backward, topic.id, epoch, step_records_first=step[0], step_bytes=step[1]
            )
            ranges.append(RangeReader(topic, spec))
        reader = MergedReader(ranges, select=select)
        page: list[Any] = []
        while not page and await reader.fill():
            page = reader.ready(most, size)
        assert len(page) <= most
        rows = [item for item in page if not isinstance(item, Gap)]
        assert size is None or len(rows) <= 1 or sum(one.size for one in rows) <= size
        got += [(one.batch.partition, one.offset) for one in rows]
        positions = dict(reader.positions)
        for partition, at in positions.items():
            if not backward and at is not None and at[1] is not None:
                assert at[1] == logs[partition].epoch_before(at[0]), "of the record before it"
        if reader.done:
            expected = [one for one in ordered(logs, backward=backward) if not even or one[1] % 2 == 0]
            assert sorted(got) == sorted(expected)
            for log in logs:
                assert [one for one in got if one[0] == log.index] == [one for one in expected if one[0] == log.index]
            return
    raise AssertionError("it never ends")


async def test_a_merge_names_the_partition_of_an_error() -> None:
    logs = [ListedPartition(0), ListedPartition(1)]
    for log in logs:
        log.append("data", 1, [(0, 1)])
    topic = ListedTopic(logs)
    reader = await merged(topic, (1, 1), backward=False, at_once=1)
    topic.id = b"another"
    with pytest.raises(TopicNotFound) as caught:
        await reader.fill()
    assert caught.value.details["partition"] == "0"


@pytest.mark.parametrize("backward", [False, True])
async def test_a_merge_does_not_wait_for_a_partition_whose_records_the_broker_leaves_out(backward: bool) -> None:
    """It tells up to which time it has looked."""
    logs = [ListedPartition(0), ListedPartition(1)]
    for time in range(100):
        logs[0].append("data", 1, [(0, time)])
        logs[1].append("data", 1, [(0, time)])
    topic, text = ListedTopic(logs), "@partition = 1"
    topic.calls = 1_000
    chosen = parse(text, now_us=0)
    step = (4, 1 << 20)
    ranges = [
        RangeReader(topic, (await opened(topic, *BOTH, step, one, backward=backward, filter_hint=text))._state.spec)
        for one in (0, 1)
    ]
    merged = MergedReader(ranges, select=lambda batch, begin, end: chosen.rows(batch, range(begin, end)))
    topic.asked.clear()
    found: list[int] = []
    while len(found) < 10:
        found += [one.offset for one in merged.ready(10) if not isinstance(one, Gap)]
        assert await merged.fill()
    assert found[:10] == ([*range(99, 89, -1)] if backward else [*range(10)])
    assert len(topic.asked) <= 8
    while await merged.fill():
        merged.ready()
    assert merged.records == 200


@pytest.mark.parametrize("backward", [False, True])
async def test_a_record_that_was_replaced_is_a_gap_also_if_the_other_one_is_left_out(backward: bool) -> None:
    log = ListedPartition(0)
    for time in (10, 11, 12):
        log.append("data", 1, [(0, time)])
    topic = ListedTopic([log])
    reader = await opened(topic, *BOTH, (64, 1 << 20), backward=backward, filter_hint=LATE)
    topic.calls = 6  # none of the next two is without time
    log.truncate(1)
    log.append("data", 2, [(0, 1), (0, 2), (0, 3)])
    parts = [part async for part in reader]
    assert [row[0] for row in rows_of(parts)] == [0]
    assert [(part.first, part.end, part.reason) for part in parts if isinstance(part, Gap)] == [(1, 3, "truncated")]
