"""Figures over time against a dictionary of what was told of each step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

import comet
from comet_gateway.dashboard.cluster_history import LATE_STEPS, Book, FigureSeries, Timeline
from comet_gateway.dashboard.metric_history import rule

LENGTH = 6
IN = FigureSeries("", "", "records_in")
values = some.one_of(some.none(), some.integers(0, 9).map(float))


def told(end: int, said: Sequence[float | None], figure: str = "records_in", **of: str) -> comet.HistoryTrack:
    return comet.HistoryTrack(
        topic=of.get("topic", ""), group=of.get("group", ""), figure=figure, step_s=1, end_us=end * 1_000_000,
        values=tuple(said),
    )  # fmt: skip


@given(some.lists(some.tuples(some.integers(0, 5), some.lists(values, min_size=1, max_size=LENGTH)), max_size=8))
def test_a_timeline_is_what_was_told_last_of_each_step(stretches: list[tuple[int, list[float | None]]]) -> None:
    line, oracle, end = Timeline(LENGTH), dict[int, float | None](), 100
    for ahead, said in stretches:
        end += ahead
        line.take(end, said)
        for at, value in enumerate(said, end - len(said) + 1):
            # What is new but not known takes nothing away; what is older than what is kept is too late.
            oracle[at] = oracle.get(at) if value is None else value
    assert len(line.values) <= LENGTH
    assert line.end == (end if stretches else 0)
    first = line.end - len(line.values) + 1
    for at, value in enumerate(line.values, first):
        assert value == oracle.get(at), at


def test_a_clock_that_is_set_back_takes_the_future_with_it() -> None:
    line = Timeline(LENGTH)
    line.take(105, [1, 2, 3, 4, 5])
    line.take(103, [9])
    assert (line.end, line.values) == (103, [1, 2, 9])
    line.take(10, [7])
    assert (line.end, line.values) == (10, [7])


@pytest.mark.parametrize(("first", "count"), [(90, 5), (97, 8), (99, 2), (104, 3), (110, 2)])
def test_a_span_knows_nothing_beyond_its_ends(first: int, count: int) -> None:
    line = Timeline(LENGTH)
    line.take(103, [98.0, 99.0, 100.0, 101.0, 102.0, 103.0])
    assert line.span(first, count) == [float(at) if 98 <= at <= 103 else None for at in range(first, first + count)]


def test_brokers_add_up_step_by_step_and_only_what_nobody_knows_is_unknown() -> None:
    book = Book(1, LENGTH)
    book.take(1, [told(10, [1, 2, None, 4])])
    book.take(2, [told(10, [10, None, None, 40])])
    assert book.track(IN, 10, 5).values == [None, 11, 2, None, 44]
    assert book.track(IN, 10, 2, broker=2).values == [None, 40]
    assert book.track(FigureSeries("", "", "cpu"), 10, 2).values == [None, None]


def test_of_what_does_not_add_up_the_worst_counts() -> None:
    book = Book(1, LENGTH)
    for broker in (1, 2):
        book.take(broker, [told(10, [broker * 5.0], "ack_p99_ms"), told(10, [broker * 5.0], "cpu")])
    assert book.track(FigureSeries("", "", "ack_p99_ms"), 10, 1, rule("ack_p99_ms")).values == [10]
    assert book.track(FigureSeries("", "", "cpu"), 10, 1, rule("cpu")).values == [15]


def test_the_end_is_a_step_that_all_have_told_of_who_are_not_far_behind() -> None:
    book = Book(1, LENGTH)
    book.take(1, [told(10, [1])])
    book.take(2, [told(9, [1])])
    book.take(3, [told(10 - LATE_STEPS - 1, [1])])
    assert book.end([1, 2, 3]) == 9
    assert book.end([1]) == 10
    assert book.end([]) == 10  # nobody is left: what was known ends where it ended
    assert Book(1, LENGTH).end([1]) == 0


def test_what_is_new_is_asked_for_with_the_last_steps_again() -> None:
    book = Book(1, LENGTH)
    assert book.since_us(1) == 0
    book.take(1, [told(10, [1])])
    assert book.since_us(1) == 8_000_000
    book.take(1, [])  # nothing, not even those: its clock was set back
    assert book.since_us(1) == 0
    book.take(1, [told(5, [1])])
    assert book.since_us(1) == 3_000_000
    book.forget(1)
    assert book.since_us(1) == 0
    assert book.track(IN, 10, 1).values == [None]


def test_a_book_keeps_what_is_wanted() -> None:
    book = Book(1, LENGTH)
    book.take(1, [told(10, [1], topic="a"), told(10, [2], topic="b"), told(10, [3])], lambda series: bool(series.topic))
    assert sorted(book.measured("records_in")) == ["a", "b"]
    book.keep(lambda series: series.topic == "b")
    assert book.measured("records_in") == ["b"]
    assert book.figures() == set()
