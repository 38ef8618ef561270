"""Small batches of the log as one: the same rows, of the same types, as each by itself would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as some

from comet import RecordBatch, records
from comet.spark import ranges
from comet.spark.coalesce import SMALL, SMALL_BYTES, TOGETHER, TOGETHER_BYTES, JoinedBatches, append_times, joined
from comet.spark.ranges import MERGED_BYTES
from tests.property.records_strategies import build, stamp

RECORDS = some.tuples(
    some.none() | some.binary(max_size=5),  # value
    some.none() | some.binary(max_size=3),  # key
    some.integers(0, 1 << 40),  # timestamp
    some.lists(some.tuples(some.text(max_size=3), some.binary(max_size=3)), max_size=2),  # headers
)


def log(batches: Sequence[Sequence[Any]], gap: int = 3) -> list[RecordBatch[bytes]]:
    """One batch after the other, each at a time of its own, with offsets missing in between."""
    found: list[RecordBatch[bytes]] = []
    at = 100
    for rows in batches:
        values, keys, times, headers = map(list, zip(*rows, strict=True))
        data = stamp(build({"values": values, "keys": keys, "timestamps": times, "headers": headers}), at, at * 1_000)
        found.append(RecordBatch("quotes", 2, records.decode(data, stamped=True)))
        at += len(rows) + gap
    return found


def plain(count: int) -> list[Any]:
    return [(b"%d" % number, b"k", number, []) for number in range(count)]


def table(batches: Sequence[Any]) -> pa.Table:
    return pa.Table.from_batches([batch.to_arrow() for batch in batches])


@given(some.lists(some.lists(RECORDS, min_size=1, max_size=4), min_size=1, max_size=6))
def test_nothing_is_lost_changed_or_moved(batches: list[list[Any]]) -> None:
    each = log(batches)
    together = list(joined(each))
    assert len(together) == 1
    assert table(together).combine_chunks().equals(table(each).combine_chunks())
    assert together[0].to_arrow(["value", "offset"]).equals(together[0].to_arrow().select(["value", "offset"]))
    assert list(together[0].offsets) == [offset for batch in each for offset in batch.offsets]
    assert list(together[0].values) == [value for batch in each for value in batch.values]
    assert (together[0].topic, together[0].partition) == ("quotes", 2)
    assert append_times(together[0]).to_pylist() == [one.append_time_us for one in each for _ in range(len(one))]


def test_large_batches_stay_as_they_are_and_where_they_are() -> None:
    each = log([plain(1), plain(2), plain(SMALL + 1), plain(3), plain(SMALL), plain(SMALL + 2), plain(1)])
    together = list(joined(each))
    assert [type(one) is JoinedBatches for one in together] == [True, False, True, False, False]
    assert [len(one.offsets) for one in together] == [3, SMALL + 1, 3 + SMALL, SMALL + 2, 1]
    assert together[1] is each[2] and together[4] is each[6]


def test_no_more_are_put_together_than_are_handed_over_at_once() -> None:
    each = log([plain(SMALL)] * (TOGETHER // SMALL + 2))
    lengths = [len(one.offsets) for one in joined(each)]
    assert sum(lengths) == SMALL * len(each)
    assert max(lengths) <= TOGETHER and len(lengths) == 2


def test_of_nothing_comes_nothing() -> None:
    assert not list(joined([]))


def test_batches_with_large_records_are_not_small() -> None:
    each = log([plain(1), [(bytes(SMALL_BYTES), None, 0, [])], plain(1), plain(1)])
    together = list(joined(each))
    assert [type(one) is JoinedBatches for one in together] == [False, False, True]
    assert together[1] is each[1]


def test_no_more_bytes_are_put_together_than_are_handed_over_at_once() -> None:
    size = SMALL_BYTES - 1000
    each = log([[(bytes(size), None, 0, [])]] * (3 * TOGETHER_BYTES // size))
    together = list(joined(each))
    assert [offset for one in together for offset in one.offsets] == [offset for one in each for offset in one.offsets]
    assert 3 <= len(together) <= 4
    assert max(one.to_arrow().nbytes for one in together) <= TOGETHER_BYTES


def test_frames_of_large_records_are_handed_over_in_pieces() -> None:
    """Columns of more than 2 GiB do not fit in one batch of Arrow, and each takes its room several times."""
    wide = pa.RecordBatch.from_pydict({"value": [bytes(MERGED_BYTES // 8)] * 3})
    merged = list(ranges.merged(iter([wide] * 9)))
    assert sum(map(len, merged)) == 27
    assert max(one.nbytes for one in merged) <= MERGED_BYTES
    assert len(merged) == 5
    huge = pa.RecordBatch.from_pydict({"value": [bytes(MERGED_BYTES + 1)]})
    assert list(map(len, ranges.merged(iter([wide, huge, wide, wide])))) == [3, 1, 6]


def test_rows_that_arrow_leaves_in_several_batches_are_all_there() -> None:
    rows = pa.RecordBatch.from_pydict({"offset": list(range(10))})
    several = [rows.slice(0, 3), rows.slice(3, 3), rows.slice(6)]
    assert [at for one in ranges.merged(iter(several)) for at in one.column("offset").to_pylist()] == list(range(10))
