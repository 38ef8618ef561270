"""The cases of a share group's partition that are worth a name; the rest is in tests/property/test_shares.py."""

from __future__ import annotations

import pytest

from comet_broker.core.shares import Dead, Granted, Holder, Options, Readable, Shares, WindowSnapshot

NEW = WindowSnapshot(0, b"", {})


def make(kept: WindowSnapshot = NEW, *, window_max: int = 1_000, dead_max: int = 100, **options: object) -> Shares:
    return Shares(kept, Options(**options), window_max=window_max, dead_max=dead_max)  # type: ignore[arg-type]


def plain(end: int, first: int = 0) -> Readable:
    return Readable(first, end, [(first, end)])


def keyed(*keys: int | None) -> Readable:
    return Readable(0, len(keys), [(0, len(keys))], keys)


def test_records_go_to_one_member_each_in_order() -> None:
    shares, anna, bert = make(), Holder(), Holder()
    assert shares.acquire(0.0, anna, 3, plain(10)) == [Granted(0, 3, 1)]
    assert shares.acquire(0.0, bert, 3, plain(10)) == [Granted(3, 6, 1)]
    assert (anna.open, bert.open, shares.in_flight) == (3, 3, 6)
    assert shares.accept(bert, [3], [6]) == []
    assert shares.window.floor == 0, "what lies below is not acknowledged"
    assert shares.accept(anna, [0, 1, 2], [1, 2, 3]) == []
    assert shares.window.floor == 6
    assert shares.window.acknowledged_above == 0


def test_what_is_not_acquired_to_a_member_cannot_be_acknowledged_by_it() -> None:
    shares, anna, bert = make(), Holder(), Holder()
    shares.acquire(0.0, anna, 4, plain(10))
    assert shares.accept(bert, [0], [2]) == [(0, 2)]
    assert shares.accept(anna, [2], [7]) == [(4, 7)]
    assert shares.accept(anna, [2], [3]) == [(2, 3)], "acknowledged already"
    assert shares.accept(anna, [-5], [1]) == [(-5, 0)]
    assert shares.in_flight == anna.open == 1


def test_a_lock_ends_and_the_record_comes_again_before_what_is_new() -> None:
    shares, anna, bert = make(lock_s=5.0), Holder(), Holder()
    shares.acquire(0.0, anna, 2, plain(10))
    assert shares.due() == 5.0
    assert shares.expire(4.9) == 0
    assert shares.expire(5.0) == 2
    assert anna.open == 0
    assert shares.acquire(5.0, bert, 3, plain(10)) == [Granted(0, 2, 2), Granted(2, 3, 1)]
    assert shares.accept(anna, [0], [1]) == [(0, 1)], "too late"
    assert shares.redelivered == 2


def test_what_nobody_has_seen_is_as_if_it_had_not_been_delivered() -> None:
    shares, anna, bert = make(deliveries_max=2), Holder(), Holder()
    shares.acquire(0.0, anna, 3, plain(3))
    assert shares.give_back(anna, [0, 7], [2, 8]) == [(7, 8)]
    assert (shares.delivered, shares.in_flight, anna.open) == (1, 1, 1)
    assert shares.acquire(0.0, bert, 3, plain(3)) == [Granted(0, 2, 1)]
    assert shares.release(0.0, bert, [0], [2]) == []
    assert shares.acquire(0.0, bert, 3, plain(3)) == [Granted(0, 2, 2)]
    assert shares.redelivered == 2
    assert shares.give_back(bert, [0], [1]) == []
    assert shares.redelivered == 1
    assert shares.acquire(0.0, bert, 3, plain(3)) == [Granted(0, 1, 2)], "and it is not dead"
    assert shares.give_back(anna, [0], [1]) == [(0, 1)], "not hers"


def test_by_key_what_is_given_back_keeps_its_place_in_line() -> None:
    shares, anna = make(by_key=True), Holder()
    assert shares.acquire(0.0, anna, 9, keyed(1, 1)) == [Granted(0, 1, 1)]
    assert shares.give_back(anna, [0], [1]) == []
    assert shares.acquire(0.0, anna, 9, keyed(1, 1)) == [Granted(0, 1, 1)]


def test_an_extended_lock_lasts_from_then_on() -> None:
    shares, anna = make(lock_s=5.0), Holder()
    shares.acquire(0.0, anna, 2, plain(2))
    assert shares.extend(4.0, anna, [1], [2]) == []
    assert shares.expire(5.0) == 1
    assert shares.expire(8.9) == 0
    assert shares.expire(9.0) == 1
    assert anna.open == shares.in_flight == 0


def test_locks_outlast_the_time_in_which_nobody_could_acknowledge() -> None:
    shares, anna = make(lock_s=5.0), Holder()
    shares.acquire(0.0, anna, 2, plain(2))
    shares.forgive(60.0)
    assert shares.expire(64.0) == 0
    assert shares.accept(anna, [0], [2]) == []


def test_what_cannot_be_read_is_given_to_nobody() -> None:
    shares, anna = make(by_key=True), Holder()
    readable = keyed(1, 2, 1, 2, 1, 2, 1, 2)
    shares.acquire(0.0, anna, 9, readable)
    shares.release(0.0, anna, [0, 1], [1, 2])
    shares.pass_over(0, 1)
    assert shares.acquire(0.0, anna, 9, readable) == [Granted(1, 2, 2), Granted(2, 3, 1)]
    shares.pass_over(8, 12)
    assert shares.window.wanted(0.0, 20) == 12
    assert shares.window.acknowledged_above == 4, "up to the floor it is forgotten"


def test_a_released_record_waits_as_long_as_was_asked() -> None:
    shares, anna = make(), Holder()
    shares.acquire(0.0, anna, 1, plain(1))
    assert shares.release(1.0, anna, [0], [1], 2.0) == []
    assert shares.window.wanted(2.9, 1) is None
    assert shares.due() == 3.0
    assert shares.window.waiting == 1
    assert shares.window.wanted(3.0, 1) == 0
    assert shares.acquire(3.0, anna, 1, plain(1)) == [Granted(0, 1, 2)]


def test_after_so_many_deliveries_a_record_is_dead_and_holds_nothing_up() -> None:
    shares, anna = make(deliveries_max=2, dead_letters=True), Holder()
    shares.acquire(0.0, anna, 1, plain(2))
    shares.release(0.0, anna, [0], [1])
    shares.acquire(0.0, anna, 1, plain(2))
    shares.drop(anna)
    assert shares.window.dead == {0: Dead(2, "it was delivered 2 times; its member went away")}
    assert shares.window.floor == 1, "set aside"
    again = make(shares.window.snapshot(), deliveries_max=2, dead_letters=True)
    assert again.window.dead == shares.window.dead, "and kept"
    again.window.buried(0)
    assert again.window.dead == {}
    assert again.window.dead_lettered == 1


def test_with_no_place_for_dead_letters_they_are_dropped_and_counted() -> None:
    shares, anna = make(), Holder()
    shares.acquire(0.0, anna, 3, plain(3))
    assert shares.reject(anna, [0], [3], "no such account") == []
    assert (shares.window.dropped, shares.window.floor, shares.window.dead) == (3, 3, {})


def test_one_record_of_a_key_is_out_at_a_time() -> None:
    shares, anna, bert = make(by_key=True), Holder(), Holder()
    readable = keyed(1, 1, 2, None, None, 1)
    assert shares.acquire(0.0, anna, 9, readable) == [Granted(0, 1, 1), Granted(2, 5, 1)]
    assert shares.window.wanted(0.0, 6) is None
    shares.release(0.0, anna, [0], [1], 5.0)
    assert shares.window.wanted(1.0, 6) is None, "its followers wait with it"
    assert shares.acquire(5.0, bert, 9, readable) == [Granted(0, 1, 2)]
    shares.accept(bert, [0], [1])
    assert shares.acquire(5.0, anna, 9, readable) == [Granted(1, 2, 1)]
    shares.reject(anna, [1], [2], "bad")
    assert shares.acquire(5.0, anna, 9, readable) == [Granted(5, 6, 1)]


def test_by_key_order_holds_over_a_restart() -> None:
    shares, anna = make(by_key=True), Holder()
    readable = keyed(1, 2, 1, 2)
    shares.acquire(0.0, anna, 9, readable)
    shares.accept(anna, [1], [2])
    shares = make(shares.window.snapshot(), by_key=True)
    assert shares.acquire(0.0, anna, 9, readable) == [Granted(0, 1, 2), Granted(3, 4, 1)]


def test_what_nobody_is_to_have_is_passed_over() -> None:
    shares, anna = make(), Holder()
    readable = Readable(0, 10, [(2, 4), (6, 7)])
    assert shares.acquire(0.0, anna, 9, readable) == [Granted(2, 4, 1), Granted(6, 7, 1)]
    assert shares.window.floor == 2
    shares.accept(anna, [2, 6], [4, 7])
    assert shares.window.floor == 10


def test_nobody_runs_too_far_ahead_of_what_is_not_acknowledged() -> None:
    shares, anna = make(window_max=10), Holder()
    assert shares.acquire(0.0, anna, 99, plain(50)) == [Granted(0, 10, 1)]
    shares.accept(anna, [1], [10])
    assert shares.window.wanted(0.0, 50) is None
    assert len(shares.window.snapshot().marks) == 10
    shares.accept(anna, [0], [1])
    assert shares.acquire(0.0, anna, 99, plain(50)) == [Granted(10, 20, 1)]


@pytest.mark.parametrize("by_key", [False, True])
def test_nor_over_what_nobody_is_to_have(*, by_key: bool) -> None:
    shares, anna = make(window_max=10, by_key=by_key), Holder()
    readable = Readable(0, 50, [(0, 8), (30, 50)], [None] * 50)
    assert shares.acquire(0.0, anna, 99, readable) == [Granted(0, 8, 1)]
    assert len(shares.window.snapshot().marks) == 10
    shares.accept(anna, [0], [8])
    assert shares.window.floor == 10
    while not (granted := shares.acquire(0.0, anna, 99, readable)):
        assert shares.window.wanted(0.0, 50) is not None
    assert granted == [Granted(30, 40, 1)]


def test_deleted_records_are_nobodys_any_more() -> None:
    shares, anna = make(dead_letters=True), Holder()
    shares.acquire(0.0, anna, 6, plain(10))
    shares.reject(anna, [0], [1], "bad")
    shares.release(0.0, anna, [2], [4], 9.0)
    assert shares.forget_below(3) == 3
    assert shares.window.floor == 3
    assert shares.in_flight == anna.open == 2
    assert shares.window.wanted(9.0, 10) == 3
    assert shares.forget_below(1_000_000) == 999_997
    assert (shares.window.floor, anna.open, shares.window.waiting) == (1_000_000, 0, 0)


def test_old_locks_do_not_pile_up() -> None:
    shares, anna = make(), Holder()
    shares.acquire(0.0, anna, 1, plain(1))
    for turn in range(10_000):
        assert shares.extend(turn / 1000, anna, [0], [1]) == []
    assert len(shares._by_deadline) < 1_000


def test_a_long_run_keeps_only_its_window() -> None:
    shares, anna = make(), Holder()
    for first in range(0, 20_000, 100):
        (granted,) = shares.acquire(0.0, anna, 100, plain(20_000))
        assert granted == (first, first + 100, 1)
        assert shares.accept(anna, [first], [first + 100]) == []
    assert len(shares.window.marks) == len(shares.window.locks) < 5_000
    assert shares.window.acknowledged == shares.window.floor == 20_000


def test_acquiring_twice_is_a_bug_that_is_found() -> None:
    shares, anna = make(), Holder()
    shares.acquire(0.0, anna, 1, plain(1))
    shares.window.again.append((0, 1))
    shares.window.again_count += 1
    with pytest.raises(AssertionError, match="never acquired by two"):
        shares.acquire(0.0, anna, 1, plain(1))
