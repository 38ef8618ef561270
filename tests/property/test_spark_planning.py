"""What a Spark query reads, against a plain idea of it: every offset of a range once, never more than was allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import InvalidArgument
from comet.spark.planning import Bounds, Mark, Range, between, capped, document, marks, split
from comet.types import TopicPartition

places = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-e"]), st.integers(0, 5))
offsets = st.integers(0, 50)
documents = st.dictionaries(places, st.builds(Mark, offsets, st.integers(-1, 3)), max_size=8)
ranges = st.lists(
    st.builds(
        lambda place, start, size: Range(place.topic, place.partition, start, start + size), places, offsets, offsets
    ),
    max_size=6,
)


def _offsets(found: list[Range]) -> list[tuple[str, int, int]]:
    return [(one.topic, one.partition, offset) for one in found for offset in range(one.start, one.end)]


@given(documents)
def test_an_offset_comes_back_from_its_document(found: dict[TopicPartition, Mark]) -> None:
    written = document(found)
    assert marks(written) == found
    assert list(written) == [f"{place.topic}/{place.partition}" for place in sorted(found)]


@pytest.mark.parametrize("wrong", [{"a": [1, 2]}, {"a/x": [1, 2]}, {"a/1": 7}, {"a/1": [1]}, {"a/1": [1, 2, 3]}])
def test_what_is_no_offset_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="no offset of a Comet source"):
        marks(wrong)


@given(ranges, st.integers(0, 20))
def test_parts_are_the_whole_and_overlap_nowhere(whole: list[Range], partitions_min: int) -> None:
    parts = split(whole, partitions_min)
    assert _offsets(parts) == _offsets(whole)
    assert split(whole, partitions_min) == parts
    total = sum(one.size for one in whole)
    if total >= 4 * partitions_min:
        assert len(parts) >= partitions_min // 2  # each range rounds its share


@given(documents, documents, st.integers(1, 60))
def test_a_limit_is_kept_and_nobody_goes_back(
    start: dict[TopicPartition, Mark], newest: dict[TopicPartition, Mark], most: int
) -> None:
    end = {place: max(mark, start.get(place, mark), key=lambda one: one.offset) for place, mark in newest.items()}
    allowed = capped(start, end, most)
    assert allowed.keys() == end.keys()
    read = _offsets(between(start, allowed))
    waiting = _offsets(between(start, end))
    assert len(read) == min(most, len(waiting))
    assert set(read) <= set(waiting)


@given(documents, st.integers(1, 10))
def test_all_is_read_in_the_end(end: dict[TopicPartition, Mark], most: int) -> None:
    at: dict[TopicPartition, Mark] = {}
    read: list[tuple[str, int, int]] = []
    for _ in range(500):
        now = capped(at, end, most)
        step = _offsets(between(at, now))
        if not step:
            break
        read += step
        at = now
    assert sorted(read) == sorted(_offsets(between({}, end)))
    assert len(read) == len(set(read))


filters = st.one_of(
    st.tuples(st.sampled_from(["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]),
              st.just("offset"), offsets),
    st.tuples(st.just("In"), st.just("partition"), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    st.tuples(st.just("EqualTo"), st.just("topic"), st.sampled_from(["a", "b.c"])),
    st.tuples(st.just("EqualTo"), st.just("key"), st.just(b"x")),
)  # fmt: skip


@given(ranges, st.lists(filters, max_size=4))
def test_filters_leave_out_nothing_that_they_let_through(
    whole: list[Range], given_filters: list[tuple[str, str, Any]]
) -> None:
    bounds = Bounds()
    for kind, column, value in given_filters:
        bounds.add(kind, (column,), value)
    wanted = [one for one in _offsets(whole) if all(_lets(one, *each) for each in given_filters)]
    assert _offsets(bounds.cut(whole)) == wanted


def _lets(one: tuple[str, int, int], kind: str, column: str, value: Any) -> bool:
    if column == "key":
        return True  # nothing is known of it: Spark looks
    found: Any = dict(zip(("topic", "partition", "offset"), one, strict=True))[column]
    lets: dict[str, bool] = {
        "EqualTo": found == value,
        "In": kind == "In" and found in value,
        "GreaterThan": kind == "GreaterThan" and found > value,
        "GreaterThanOrEqual": kind == "GreaterThanOrEqual" and found >= value,
        "LessThan": kind == "LessThan" and found < value,
        "LessThanOrEqual": kind == "LessThanOrEqual" and found <= value,
    }
    return lets[kind]
