"""What a live tail counts and shows of what comes, without a hub or a socket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet.filters.search_filters import Filters
from comet_gateway.dashboard.tail import FILTER_S, ROWS, Tail
from comet_gateway.push.chunk import Slice, Source
from comet_gateway.push.events import Lost, Missing
from comet_gateway.records.record_json import Values
from comet_gateway.search.filters import filters_of
from tests.unit.gateway_world import batch_of


class Clock:
    """Goes on by itself, a little with each look: as if looking at records took time."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 100.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def part(first: int, values: list[bytes]) -> Slice:
    source = Source(batch_of(0, range(first, first + len(values)), values))
    return Slice(source, 0, len(source), Values.AUTO, "")


def lost(count: int) -> Lost:
    return Lost("quotes", count, (Missing(0, 0, count, "dropped"),), "")


def offsets(tail: Tail) -> list[int]:
    return [batch.offsets[number] for batch, number in tail.sample()[0]]


def test_the_newest_are_shown_first() -> None:
    tail = Tail(Filters(), Clock())
    tail.add(part(0, [b"a", b"b"]))
    tail.add(part(2, [b"c"]))
    rows, told = tail.sample()
    assert [batch.offsets[number] for batch, number in rows] == [2, 1, 0]
    assert (told["seen"], told["matched"], told["shown"], told["shown_in"]) == (3, 3, 3, 1.0)
    assert tail.sample()[0] == []


@given(st.lists(st.one_of(st.integers(1, 50), st.just("tick"), st.just("lost")), max_size=40))
def test_nothing_is_dropped_in_silence(steps: list[int | str]) -> None:
    """Whatever comes, the sums hold, and what is shown is the newest there is."""
    tail, expected, shown, at, waiting = Tail(Filters(), Clock()), 0, 0, 0, 0
    for step in [*steps, "tick"]:
        if step == "tick":
            rows, told = tail.sample()
            assert [batch.offsets[number] for batch, number in rows] == list(range(at - 1, at - 1 - len(rows), -1))
            assert len(rows) == min(waiting, ROWS)
            shown += len(rows)
            waiting = 0
            assert (told["seen"], told["shown"]) == (expected, shown)
            assert told["matched"] + told["lost"] + told["unread"] == told["seen"]
        elif step == "lost":
            tail.add(lost(7))
            expected += 7
        else:
            assert isinstance(step, int)
            tail.add(part(at, [b"x"] * step))
            at, expected, waiting = at + step, expected + step, waiting + step


def test_what_is_kept_for_the_next_event_is_bounded() -> None:
    tail = Tail(Filters(), Clock())
    for number in range(200):
        tail.add(part(number * 10, [b"x"] * 10))
    assert len(tail._new) <= 5
    assert len(offsets(tail)) == ROWS


def test_filters_choose_and_say_how_many() -> None:
    tail = Tail(filters_of("", "", "", ["n>=30"]), Clock())
    tail.add(part(0, [b'{"n":%d}' % number for number in range(100)]))
    rows, told = tail.sample()
    assert [batch.offsets[number] for batch, number in rows] == list(range(99, 99 - ROWS, -1))
    assert (told["seen"], told["matched"], told["shown"], told["unread"]) == (100, 70, ROWS, 0)
    assert told["shown_in"] == round(70 / ROWS, 1)


def test_without_time_for_all_of_them_some_are_asked_and_that_is_said() -> None:
    clock = Clock(step=FILTER_S / 4)
    tail = Tail(Filters(value="x"), clock)
    for number in range(40):
        tail.add(part(number, [b"x"]))
    rows, told = tail.sample()
    assert 0 < told["matched"] < 40
    assert told["matched"] + told["unread"] == told["seen"] == 40
    assert told["one_in"] == round(40 / told["matched"], 1)
    assert rows[0][0].offsets[0] == 39, "the newest are asked first"


def test_a_rate_is_over_the_window_and_falls_to_nothing() -> None:
    clock = Clock()
    tail = Tail(Filters(), clock)
    for number in range(20):
        clock.now += 1
        tail.add(part(number * 5, [b"x"] * 5))
        told = tail.sample()[1]
    assert told["rate"] == 5.0
    for _ in range(12):
        clock.now += 1
        told = tail.sample()[1]
    assert (told["rate"], told["seen"]) == (0.0, 100)


def test_who_shows_nothing_is_given_numbers_alone() -> None:
    tail = Tail(Filters(), Clock())
    tail.rows_wanted = False
    tail.add(part(0, [b"x"]))
    rows, told = tail.sample()
    assert (rows, told["matched"], told["shown"], told["shown_in"]) == ([], 1, 0, 1.0)
    tail.rows_wanted = True
    tail.add(part(1, [b"x"] * 100))
    assert tail.sample()[1]["shown_in"] == round(100 / ROWS, 1)
