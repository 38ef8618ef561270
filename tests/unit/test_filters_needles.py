"""The search for the texts of a filter in the column of values, against a search row by row."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from comet.filters.columns import _rows_with

VALUES = st.lists(st.text("abcE", max_size=9).map(str.encode), max_size=60)


@given(st.lists(VALUES, max_size=3), st.text("abcE", min_size=1, max_size=4).map(str.encode))
@example([[b"x" * 5_000, b"E" * 5_000, b"abEc", b"", b"abE" * 9]], b"abE")  # rare in the sample, common behind it
@example([[b"x" * 5_000, b"ab", b"E", b"abE"]], b"abE")  # across two rows
@example([[b"x" * 50_000, b"E" * 3, b"cabEabE"]], b"abE")
@example([[b"x" * 5_000, b"bEEEa"]], b"EEa")  # a miss, and a find one byte behind it
def test_rows_with_a_text_are_found(blocks: list[list[bytes]], needle: bytes) -> None:
    values = [value for block in blocks for value in block]
    ends = [0, *accumulate(map(len, values))]
    found = list(_rows_with(needle, b"".join(values), ends))
    assert found == [row for row, value in enumerate(values) if needle in value]
