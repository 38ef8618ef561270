"""A walk through the log, beside a sorted list; over a reader that gives what it likes, in parts of any size."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

import comet
from comet.errors import OffsetOutOfRange
from comet.types import AtOffset
from comet_gateway.records.merge import Order
from comet_gateway.search import scan as scanning
from comet_gateway.search.filters import filters_of
from comet_gateway.search.scan import Budget, Scan, Wanted
from tests.unit.gateway_world import batch_of

Log = list[tuple[int, int, bytes]]  # offset, time, value


class Reader:
    """Of logs that are given; a fetch returns batches of `sizes` records."""

    def __init__(self, logs: Sequence[Log], size: int, log_starts: Sequence[int]) -> None:
        self.logs = logs
        self.size = size
        self.log_starts = log_starts
        self.fetches = 0

    async def fetch(self, topic: str, partition: int, start: AtOffset, **asked: Any) -> comet.Fetched:
        self.fetches += 1
        await asyncio.sleep(0)
        log, first = self.logs[partition], self.log_starts[partition]
        end = log[-1][0] + 1 if log else first
        if start.offset < first:
            raise OffsetOutOfRange("gone", details={"log_start": str(first), "log_end": str(end)})
        at = bisect_left([offset for offset, _, _ in log], start.offset)
        chosen = log[at : at + asked["records_max"]]
        batches = [_batch(partition, chosen[begin : begin + self.size]) for begin in range(0, len(chosen), self.size)]
        following = chosen[-1][0] + 1 if chosen else end
        if chosen and chosen[-1] is log[-1]:
            following = end
        return comet.Fetched(batches, start.offset, following, 1, first, end)


def _batch(partition: int, records: Log) -> comet.RecordBatch[bytes]:
    offsets, times, values = zip(*records, strict=True)
    return batch_of(partition, offsets, values, timestamps=times)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Log], list[int]]:
    """Of up to three partitions; offsets have gaps, and times of a partition never go back."""
    found: list[Log] = []
    starts: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        offset, time, log = draw(st.integers(0, 3)), 0, Log()
        starts.append(offset)
        for _ in range(draw(st.integers(0, 16))):
            time += draw(st.integers(0, 2))
            log.append((offset, time, draw(st.sampled_from([b'{"a":1}', b'{"a":2}', b"none"]))))
            offset += draw(st.sampled_from([1, 1, 1, 2]))
        found.append(log)
    return found, starts


# A partition that was read without a match holds the others back: its next match may come before what they have.
@example(
    ([[(0, 2, b'{"a":1}'), (1, 4, b'{"a":1}'), (2, 5, b"none")],
      [(0, 1, b"none"), (1, 3, b"none"), (2, 3, b'{"a":1}')]], [0, 0]),
    Order.OLDEST, "a=1", 4, 2, 2, 27,
)  # fmt: skip
@example(
    ([[(0, 0, b'{"a":1}'), (1, 0, b'{"a":1}'), (2, 0, b'{"a":1}'), (3, 1, b'{"a":1}'), (4, 1, b'{"a":1}'),
       (5, 1, b'{"a":1}')],
      [(0, 0, b'{"a":1}'), (1, 0, b'{"a":2}'), (2, 0, b'{"a":2}'), (3, 0, b'{"a":2}'), (4, 0, b'{"a":2}')]], [0, 0]),
    Order.NEWEST, "a=1", 2, 1, 2, 4,
)  # fmt: skip
@given(
    logs(), st.sampled_from([Order.OLDEST, Order.NEWEST]), st.sampled_from(["", "a=1"]), st.integers(2, 12),
    st.integers(1, 7), st.integers(1, 9), st.integers(4, 40),
)  # fmt: skip
def test_it_finds_what_a_sorted_list_holds_however_it_is_cut(
    made: tuple[list[Log], list[int]], order: Order, where: str, limit: int, size: int, chunk: int, budget: int
) -> None:
    kept, starts = made
    sign = 1 if order is Order.OLDEST else -1
    every = [
        (sign * time, sign * partition, sign * offset)
        for partition, log in enumerate(kept)
        for offset, time, value in log
        if not where or value == b'{"a":1}'
    ]
    expected = [(sign * partition, sign * offset) for _, partition, offset in sorted(every)]
    found = asyncio.run(_walk(Reader(kept, size, starts), kept, order, where, limit, chunk, budget))
    assert found == expected


async def _walk(
    reader: Reader, kept: list[Log], order: Order, where: str, limit: int, chunk: int, budget: int
) -> list[tuple[int, int]]:
    """In as many walks as it takes, each from the cursor of the one before."""
    parts = {partition: (0, log[-1][0] + 1 if log else 0) for partition, log in enumerate(kept)}
    filters = filters_of("", "", "", [where] if where else [])
    found: list[tuple[int, int]] = []
    for _ in range(200):
        wanted = Wanted("quotes", order, parts, filters=filters)
        scan = Scan(reader, wanted, Budget(limit, budget, 1 << 40, 60.0))  # type: ignore[arg-type] # as good as one
        for source in scan._merged.sources.values():
            source.range._state._step = chunk  # smaller than it would be, so that much happens
        hits = [hit async for some in scan.run() for hit in some]
        assert len(hits) <= limit
        found += [(hit.batch.partition, hit.offset) for hit in hits]
        if scan.reason == "end":
            return found
        positions = scan.cursor()
        parts = {
            partition: (low, positions[partition].offset)
            if order is Order.NEWEST
            else (positions[partition].offset, high)
            for partition, (low, high) in parts.items()
        }
    raise AssertionError("it comes to no end")


def test_nothing_is_read_once_there_is_enough() -> None:
    kept = [[(offset, offset, b"x") for offset in range(10_000)]]
    reader = Reader(kept, 100, [0])

    async def run() -> Scan:
        wanted = Wanted("quotes", Order.NEWEST, {0: (0, 10_000)})
        scan = Scan(reader, wanted, Budget(50, 10**9, 1 << 40, 60.0))  # type: ignore[arg-type]
        async for _ in scan.run():
            pass
        return scan

    scan = asyncio.run(run())
    assert (scan.matched, scan.reason, reader.fetches) == (50, "limit", 1)
    assert scan.scanned <= scanning.CHUNK_LEAST
    assert scan.through_us == 10_000 - scan.scanned
