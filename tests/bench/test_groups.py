"""The benchmark of groups as a tiny load: every name, the right fields, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_bench.groups.clients import chunks
from comet_bench.groups.groups_bench import ABOUT, COMPARED, GroupSizes, run_groups
from comet_bench.machine import describe
from comet_bench.report import Result, combine, document, table_row

TINY = GroupSizes(
    records=20_000,
    chunked_records=4_000,
    shared_records=2_000,
    sharers=2,
    leaves=1,
    kills=1,
    session_ms=1_000,
    crowd=6,
    crowd_partitions=12,
    cycles=1,
    runs=1,
    pairs=2,
)
SPEED = {"records_per_s", "bytes_per_s", "broker_rss_bytes", "broker_cpu_s", "runs"}
LEAVE = {"leave_ms", "leave_max_ms", "runs"}
EXPECTED = {
    "explicit": SPEED,
    "group": SPEED | {"share"},
    "at_least_once": SPEED,
    "exactly_once": SPEED | {"share"},
    "shared_ack": SPEED,
    "takeover": LEAVE | {"kill_beyond_ms", "kill_beyond_max_ms"},
    "rebalance_100x1000": LEAVE | {"join_ms", "join_max_ms", "gap_ms", "calm_gap_ms"},
}


def nothing(name: str, run: int, result: Result | None) -> None:
    """Progress is for people."""


def test_what_was_promised_is_there_in_that_order() -> None:
    assert list(ABOUT) == list(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["explicit", "at_least_once", "shared_ack", "takeover", "rebalance_100x1000"])
def test_groups_give_every_figure(name: str, tmp_path: Path) -> None:
    results = run_groups([name], TINY, address=None, folder=tmp_path, progress=nothing)
    assert name in results
    for found, result in results.items():
        assert result.keys() == EXPECTED[found]
        assert result["runs"] == (TINY.pairs if found in COMPARED else TINY.runs)
        assert all(value > 0 for field, value in result.items() if field in ("records_per_s", "join_ms", "leave_ms"))
        assert len(table_row(found, result)) == len(table_row("nothing", {}))
    assert list(tmp_path.iterdir()) == []
    json.dumps(document(describe(), results))


def test_every_field_can_be_combined_and_is_shown() -> None:
    for name, fields in EXPECTED.items():
        result = combine([dict.fromkeys(fields - {"runs"}, 0.875), dict.fromkeys(fields - {"runs"}, 0.875)])
        assert result.keys() == fields
        also = table_row(name, result)[-1]
        assert ("88% of the row above" in also) == ("share" in fields)
        assert ("leave 1 ms" in also) == ("leave_ms" in fields)
        assert ("kill session +1 ms" in also) == ("kill_beyond_ms" in fields)
        assert ("longest wait of an event 1 ms" in also) == ("gap_ms" in fields)


class Batch:
    """As much of a RecordBatch as chunks need; every second offset is a hole."""

    def __init__(self, partition: int, first: int, values: list[bytes | None]) -> None:
        self.topic, self.partition, self.values = "t", partition, values
        self.offsets = [first + 2 * at for at in range(len(values))]
        self.next_offset = self.offsets[-1] + 2

    def __len__(self) -> int:
        return len(self.values)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12), st.integers(1, 7))
async def test_chunks_are_whole_and_positions_lie_behind_them(shapes: list[tuple[int, int]], size: int) -> None:
    batches: list[Batch] = []
    ends: dict[int, int] = {}
    for partition, count in shapes:
        first = ends.get(partition, 0)
        values: list[bytes | None] = [b"%d/%d" % (partition, first + 2 * at) for at in range(count)]
        batches.append(Batch(partition, first, values))
        ends[partition] = batches[-1].next_offset

    async def given_batches() -> AsyncIterator[Batch]:
        for batch in batches:
            yield batch

    behind: dict[int, int] = {}
    taken: list[bytes | None] = []
    async for values, positions in chunks(given_batches(), size):
        assert len(values) == size
        taken.extend(values)
        behind |= {partition: offset for (_, partition), offset in positions.items()}
        for partition, offset in behind.items():
            of_it = [int(value.split(b"/")[1]) for value in taken if value and value.startswith(b"%d/" % partition)]
            assert offset == max(of_it) + 2
    everything = [value for batch in batches for value in batch.values]
    assert taken == everything[: len(everything) // size * size]
