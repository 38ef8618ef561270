"""Which records run, and where a restart would begin: rule by rule. tests/property/test_dispatch.py has the rest."""

from __future__ import annotations

from comet.handlers.dispatch import Dispatch, Task
from comet.types import TopicPartition

P = TopicPartition("in", 0)
Q = TopicPartition("in", 1)


def taken(dispatch: Dispatch[str]) -> list[Task[str]]:
    found: list[Task[str]] = []
    while (task := dispatch.take()) is not None:
        found.append(task)
    return found


def filled(*keys: bytes | None, concurrency: int = 10) -> Dispatch[str]:
    dispatch: Dispatch[str] = Dispatch(concurrency, 20)
    for offset, key in enumerate(keys):
        dispatch.add(P, offset, key, f"{offset}")
    return dispatch


def test_one_of_a_key_runs_at_a_time_in_order_and_others_beside_it() -> None:
    dispatch = filled(b"a", b"a", b"b", None, None)
    first, other, *without = taken(dispatch)
    assert [task.item for task in (first, other, *without)] == ["0", "2", "3", "4"]
    dispatch.done(first)
    assert [task.item for task in taken(dispatch)] == ["1"]


def test_no_more_than_asked_for_run_and_the_oldest_come_first() -> None:
    dispatch = filled(None, None, None, concurrency=2)
    running = taken(dispatch)
    assert [task.item for task in running] == ["0", "1"]
    dispatch.done(running[1])
    assert [task.item for task in taken(dispatch)] == ["2"]


def test_the_position_is_that_of_the_lowest_that_is_not_done() -> None:
    dispatch = filled(None, None, None)
    first, second, third = taken(dispatch)
    dispatch.done(third)
    dispatch.done(second)
    assert dispatch.moved() == {}
    dispatch.done(first)
    assert dispatch.moved() == {P: 3}
    assert dispatch.moved() == {}, "said once"


def test_what_is_to_be_done_again_holds_the_position() -> None:
    dispatch = filled(None, None)
    first, second = taken(dispatch)
    dispatch.dropped(first)
    dispatch.done(second)
    assert dispatch.position(P) == 0


def test_of_a_partition_that_is_given_up_what_runs_still_counts_until_it_is_forgotten() -> None:
    dispatch = filled(b"a", b"a", b"b")
    dispatch.add(Q, 7, b"a", "other")
    running = {task.item: task for task in taken(dispatch)}
    dispatch.close([P])
    assert dispatch.held == 3, "what waited is gone"
    dispatch.done(running["0"])
    assert dispatch.position(P) == 1
    dispatch.forget([P])
    dispatch.done(running["2"])
    assert dispatch.position(P) is None
    assert dispatch.position(Q) == 7


def test_a_key_whose_record_still_runs_waits_also_when_its_partition_comes_back() -> None:
    dispatch = filled(b"a")
    (old,) = taken(dispatch)
    dispatch.forget([P])
    dispatch.add(P, 0, b"a", "again")
    assert not taken(dispatch)
    dispatch.done(old)
    assert [task.item for task in taken(dispatch)] == ["again"]


def test_there_is_room_for_a_window() -> None:
    dispatch: Dispatch[str] = Dispatch(1, 2)
    dispatch.add(P, 0, None, "0")
    dispatch.add(P, 5, None, "5", end=9)
    assert dispatch.room == 0
    (first,) = taken(dispatch)
    dispatch.done(first)
    assert dispatch.room == 1
    assert dispatch.position(P) == 5
    dispatch.done(taken(dispatch)[0])
    assert dispatch.position(P) == 9
