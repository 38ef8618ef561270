"""A part of a batch that a filter has made: its columns, its ends, and parts of it."""

from __future__ import annotations

import pytest

from comet.records import decode, encode
from comet.values.record import RecordBatch


@pytest.fixture
def batch() -> RecordBatch[bytes]:
    values = [b"%d" % number for number in range(10)]
    keys = [b"k" * number for number in range(10)]
    headers = [[("n", b"%d" % number)] for number in range(10)]
    made = decode(b"".join(encode(values, keys=keys, headers=headers, timestamps=range(10))))
    return RecordBatch("t", 0, made)


def test_its_columns_are_those_of_the_picked_records(batch: RecordBatch[bytes]) -> None:
    picked = batch.pick([1, 4, 7])
    assert picked is not None
    assert (len(picked), list(picked.offsets), picked.values) == (3, [1, 4, 7], [b"1", b"4", b"7"])
    assert (picked.keys, picked.timestamps) == ([b"k", b"kkkk", b"k" * 7], [1, 4, 7])
    assert [headers[0][1] for headers in picked.headers] == [b"1", b"4", b"7"]
    assert (picked.size, picked.size_of(1)) == (15, 5)
    assert picked.record(2) == list(picked.records())[2] == batch.record(7)
    assert picked.to_arrow(["offset", "value"]).to_pydict() == {"offset": [1, 4, 7], "value": [b"1", b"4", b"7"]}
    assert picked.stored[1] is None
    again = picked.pick([0, 2])
    assert again is not None and list(again.offsets) == [1, 7]


def test_the_records_that_were_not_picked_count_as_read(batch: RecordBatch[bytes]) -> None:
    picked = batch.pick([1, 4, 7])
    assert picked is not None
    assert (picked.first_offset, picked.next_offset) == (1, 10)
    before, after = picked.before(7), picked.after(2)
    assert before is not None and after is not None
    assert (list(before.offsets), before.next_offset) == ([1, 4], 5)
    assert (list(after.offsets), after.next_offset) == ([4, 7], 10)
    assert picked.after(8) is None
    part = batch.before(6)
    assert part is not None
    of_part = part.pick([0, 2])
    assert of_part is not None and of_part.next_offset == 6
    last = batch.after(5)
    assert last is not None
    of_last = last.pick([0, 3])
    assert of_last is not None and (list(of_last.offsets), of_last.next_offset) == ([5, 8], 10)


def test_all_of_them_are_the_batch_itself_and_none_is_none(batch: RecordBatch[bytes]) -> None:
    assert batch.pick(range(10)) is batch
    assert batch.pick([]) is None
