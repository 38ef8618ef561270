"""What a Spark query reads, against a plain idea of it: every offset of a range once, never more than was allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import InvalidArgument
from comet.spark.planning import (
    FilterBounds,
    OffsetAndEpoch,
    Range,
    between,
    capped,
    document,
    marks,
    packed,
    readable,
    split,
    there,
)
from comet.types import TopicPartition

tps = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-e"]), st.integers(0, 5))
offsets = st.integers(0, 50)
ids = st.sampled_from(["", "old", "new"])
topics = st.fixed_dictionaries({"a": ids, "b.c": ids, "d-e": ids})
documents = st.builds(
    lambda found, names: {tp: mark._replace(topic_id=names[tp.topic]) for tp, mark in found.items()},
    st.dictionaries(tps, st.builds(OffsetAndEpoch, offsets, st.integers(-1, 3), st.just("")), max_size=8),
    topics,
)
ranges = st.lists(
    st.builds(lambda tp, start, size: Range(tp.topic, tp.partition, start, start + size), tps, offsets, offsets),
    max_size=6,
)


def _offsets(found: list[Range]) -> list[tuple[str, int, int]]:
    return [(one.topic, one.partition, offset) for one in found for offset in range(one.start, one.end)]


@given(documents)
def test_an_offset_comes_back_from_its_document(found: dict[TopicPartition, OffsetAndEpoch]) -> None:
    written = document(found)
    assert marks(written) == found
    assert [key for key in written if "/" in key] == [f"{tp.topic}/{tp.partition}" for tp in sorted(found)]
    assert json.dumps(document(dict(sorted(found.items(), reverse=True)))) == json.dumps(written), "compared as text"
    assert json.dumps(document(marks(json.loads(json.dumps(written))))) == json.dumps(written)


def test_a_document_names_a_topic_once_and_may_be_of_before_it_did() -> None:
    found = {
        TopicPartition("quotes", 1): OffsetAndEpoch(988, 3, "3f2a"),
        TopicPartition("quotes", 0): OffsetAndEpoch(1042, 3, "3f2a"),
    }
    assert json.dumps(document(found)) == '{"quotes": "3f2a", "quotes/0": [1042, 3], "quotes/1": [988, 3]}'
    assert marks({"quotes/0": [1042, 3]}) == {TopicPartition("quotes", 0): OffsetAndEpoch(1042, 3)}


@pytest.mark.parametrize("wrong", [{"a": [1, 2]}, {"a/x": [1, 2]}, {"a/1": 7}, {"a/1": [1]}, {"a/1": [1, 2, 3]}])
def test_what_is_no_offset_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="not an offset of a Comet source"):
        marks(wrong)


@given(ranges, st.integers(0, 20))
def test_parts_are_the_whole_and_overlap_nowhere(whole: list[Range], partitions_min: int) -> None:
    parts = split(whole, partitions_min)
    assert _offsets(parts) == _offsets(whole)
    assert all((one.last, one.topic_id) == (whole[0].last, whole[0].topic_id) for one in parts)
    assert split(whole, partitions_min) == parts
    total = sum(one.size for one in whole)
    assert len(parts) >= min(partitions_min, total)


@given(ranges, st.integers(0, 20))
def test_tasks_are_no_more_than_allowed_and_read_all_once(whole: list[Range], partitions_max: int) -> None:
    tasks = packed(whole, partitions_max)
    assert sorted(_offsets([one for task in tasks for one in task])) == sorted(_offsets(whole))
    assert len(tasks) == min(len(whole), partitions_max or len(whole))
    assert all(tasks), "none without work"
    assert packed(whole, partitions_max) == tasks
    loads = [sum(one.size for one in task) for task in tasks]
    if tasks:
        assert max(loads) - min(loads) <= max(one.size for one in whole), "as even as ranges allow"


@given(documents, documents, st.integers(1, 60))
def test_a_limit_is_kept_and_nobody_goes_back(
    start: dict[TopicPartition, OffsetAndEpoch], newest: dict[TopicPartition, OffsetAndEpoch], most: int
) -> None:
    end = readable(start, newest)[0]
    allowed = capped(start, end, most)
    assert allowed.keys() == end.keys()
    read = _offsets(between(start, allowed))
    waiting = _offsets(between(start, end))
    assert len(read) == min(most, len(waiting))
    assert set(read) <= set(waiting)


@given(documents, st.integers(1, 10))
def test_all_is_read_in_the_end(end: dict[TopicPartition, OffsetAndEpoch], most: int) -> None:
    at: dict[TopicPartition, OffsetAndEpoch] = {}
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
    bounds = FilterBounds()
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


def test_epochs_between_two_that_are_the_same_are_known() -> None:
    tp = TopicPartition("a", 0)
    start, end = {tp: OffsetAndEpoch(10, 3, "x")}, {tp: OffsetAndEpoch(40, 3, "x")}
    assert capped(start, end, 10) == {tp: OffsetAndEpoch(20, 3, "x")}
    assert capped(start, {tp: OffsetAndEpoch(40, 4, "x")}, 10) == {tp: OffsetAndEpoch(20, -1, "x")}
    whole = between(start, end)
    assert whole == [Range("a", 0, 10, 40, 3, 3, "x")]
    assert [(part.epoch, part.last) for part in split(whole, 3)] == [(3, 3)] * 3
    assert [part.epoch for part in split(between(start, {tp: OffsetAndEpoch(40, 4, "x")}), 3)] == [3, -1, -1]
    assert whole[0].after(20).epoch == 3


@given(documents, documents)
def test_a_stream_goes_on_with_what_there_is(
    start: dict[TopicPartition, OffsetAndEpoch], newest: dict[TopicPartition, OffsetAndEpoch]
) -> None:
    found, losses = readable(start, newest)
    lost = {loss.tp for loss in losses}
    for tp, mark in newest.items():
        before = start.get(tp)
        if before is None:
            assert found[tp] == mark and tp not in lost
        elif before.topic_id and mark.topic_id and before.topic_id != mark.topic_id:
            assert found[tp] == mark and tp in lost, "another topic, from its beginning on"
        else:
            assert found[tp].offset == max(mark.offset, before.offset)
            assert (tp in lost) == (mark.offset < before.offset)
    assert lost >= start.keys() - newest.keys()
    for tp in found.keys() - newest.keys():
        assert found[tp] == start[tp]
    assert marks(document(found)).keys() == found.keys()
    again, _ = readable(marks(document(found)), newest)
    assert document(again) == document(found), "what is lost is not lost again, and asks for no batch"


def test_a_topic_that_was_made_again_is_begun_with_however_long_it_is() -> None:
    """Epochs begin at 1 again, so that they say nothing."""
    tps = [TopicPartition("a", number) for number in range(3)]
    start = dict.fromkeys(tps, OffsetAndEpoch(100, 1, "old"))
    newest = {tps[0]: OffsetAndEpoch(250, 1, "new"), tps[1]: OffsetAndEpoch(7, 1, "new")}
    found, losses = readable(start, newest)
    assert found == newest, "the third is not there any more, and would be another one if it came again"
    assert {loss.tp for loss in losses} == set(tps)
    assert [(one.start, one.end) for one in between(start, found)] == [(0, 250), (0, 7)]
    assert capped(start, found, 100)[tps[0]].offset < 100
    planned = between(start, {tps[0]: OffsetAndEpoch(120, 1, "old")})
    assert there(planned, {tps[0]: "new"})[0] == [] and there(planned, {tps[0]: "new"})[1]
    assert there(planned, {tps[0]: "old"}) == (planned, []) == there(planned, {})
