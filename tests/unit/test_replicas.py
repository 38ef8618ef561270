"""The rule by which a leader decides what is committed and who is in sync."""

from __future__ import annotations

import msgspec
import pytest

from comet_broker.core.cluster import GivenUp, PartitionState
from comet_broker.core.replicas import Replicas, in_folders, passed, with_members, without

STATE = PartitionState(leader=1, epoch=4, replicas=(1, 2, 3), in_sync={1: 10, 2: 20, 3: 30})


def replicas(state: PartitionState = STATE, *, min_insync: int = 2, log_end: int = 100, now: float = 0.0) -> Replicas:
    return Replicas(1, state, min_insync, log_end, now)


def report(one: Replicas, broker: int, log_end: int, *, leader_end: int = 100, now: float = 0.0, inc: int = 0) -> bool:
    broker_epoch = inc or broker * 10
    if broker not in one.followers or one.followers[broker].broker_epoch != broker_epoch:
        one.follow(broker, broker_epoch, now)
    return one.progress(broker, broker_epoch, log_end, log_end, leader_end, now)


def test_nothing_is_committed_before_every_in_sync_replica_has_spoken_in_this_epoch() -> None:
    one = replicas()
    assert one.committed(100, 100, flushed=False) == -1
    report(one, 2, 90)
    assert one.committed(100, 100, flushed=False) == -1
    report(one, 3, 80)
    assert one.committed(100, 100, flushed=False) == 80


def test_committed_is_the_least_of_all_in_sync_and_on_disk_where_that_is_asked_for() -> None:
    one = replicas()
    report(one, 2, 100)
    one.follow(3, 30, 0)
    one.progress(3, 30, 100, 70, 100, 0)
    assert one.committed(100, 95, flushed=False) == 100
    assert one.committed(100, 95, flushed=True) == 70


def test_a_later_life_of_a_broker_does_not_count_for_the_one_that_was_in_sync() -> None:
    one = replicas()
    report(one, 2, 100)
    report(one, 3, 100, inc=31)
    assert one.committed(100, 100, flushed=False) == -1


def test_the_watermark_stands_still_while_too_few_are_in_sync() -> None:
    alone = msgspec.structs.replace(STATE, in_sync={1: 10})
    assert replicas(alone).committed(100, 100, flushed=False) == -1
    assert replicas(alone, min_insync=1).committed(100, 100, flushed=False) == 100


def test_one_that_is_being_taken_in_counts_until_the_store_has_answered() -> None:
    one = replicas(msgspec.structs.replace(STATE, in_sync={1: 10, 2: 20}))
    report(one, 2, 150, leader_end=150)
    report(one, 3, 120, leader_end=150)
    assert one.committed(150, 150, flushed=False) == 150
    grown = one.grown(100, {1: 10, 2: 20, 3: 30})
    assert grown is not None and grown.in_sync == STATE.in_sync
    one.propose(grown)
    assert one.committed(150, 150, flushed=False) == 120
    one.adopt(msgspec.structs.replace(STATE, in_sync={1: 10, 2: 20}))
    assert one.committed(150, 150, flushed=False) == 150


def test_one_that_is_being_taken_out_counts_until_the_store_has_it_out() -> None:
    one = replicas()
    report(one, 2, 150, leader_end=150)
    report(one, 3, 110, leader_end=150)
    shrunk = one.shrunk(150, now=10.0, lag_s=3.0)
    assert shrunk is not None and shrunk.in_sync == {1: 10, 2: 20}
    one.propose(shrunk)
    assert one.committed(150, 150, flushed=False) == 110
    one.adopt(shrunk)
    assert one.committed(150, 150, flushed=False) == 150


@pytest.mark.parametrize(
    ("log_end", "registered", "taken"),
    [(120, 30, True), (119, 30, False), (120, 31, False), (120, 0, False)],
)
def test_a_follower_is_taken_in_when_it_has_all_that_is_committed_and_is_still_registered(
    log_end: int, registered: int, taken: bool
) -> None:
    one = replicas(msgspec.structs.replace(STATE, in_sync={1: 10, 2: 20}))
    report(one, 3, log_end, leader_end=200)
    grown = one.grown(120, {1: 10, 2: 20, 3: registered})
    assert (grown is not None) == taken


def test_a_follower_below_the_start_of_the_epoch_is_not_taken_in() -> None:
    one = replicas(msgspec.structs.replace(STATE, in_sync={1: 10}), min_insync=1, log_end=100)
    report(one, 2, 99)
    assert one.grown(0, {2: 20}) is None


def test_who_is_no_replica_is_never_taken_in() -> None:
    one = replicas(msgspec.structs.replace(STATE, replicas=(1, 2), in_sync={1: 10}), min_insync=1)
    report(one, 3, 100)
    assert one.grown(0, {3: 30}) is None


def test_a_quiet_follower_that_has_everything_is_not_behind() -> None:
    one = replicas()
    report(one, 2, 100)
    report(one, 3, 100)
    assert one.shrunk(100, now=1000.0, lag_s=3.0) is None
    # Something is written now: from here on it may be behind.
    assert one.shrunk(101, now=1002.0, lag_s=3.0) is None
    shrunk = one.shrunk(101, now=1003.1, lag_s=3.0)
    assert shrunk is not None and shrunk.in_sync == {1: 10}


def test_a_follower_that_keeps_up_with_a_moving_end_is_in_sync() -> None:
    one = replicas()
    report(one, 3, 100)
    for second in range(1, 20):
        end = 100 + 1000 * second
        # It always lacks the newest, and has all that was there when it reported last.
        report(one, 2, end - 1000, leader_end=end, now=float(second))
        one.progress(3, 30, end, end, end, float(second))
        assert one.shrunk(end, now=float(second), lag_s=3.0) is None


def test_a_follower_that_says_more_often_what_it_has_than_it_takes_to_get_there_is_in_sync() -> None:
    """Every 10 ms a record and a report, which tells of what was there 200 ms before."""
    one = replicas()
    report(one, 2, 100)
    report(one, 3, 100)
    for number in range(1, 1000):
        end, now = 100 + number, number / 100
        for follower in (2, 3):
            report(one, follower, max(end - 20, 100), leader_end=end, now=now)
        assert one.shrunk(end, now=now, lag_s=0.5) is None
        assert one.keeps_up(2, 20, now, 0.5)


def test_a_follower_that_falls_ever_further_behind_is_taken_out() -> None:
    one = replicas()
    report(one, 3, 100)
    for second in range(1, 20):
        end = 100 + 1000 * second
        report(one, 2, 100 + 100 * second, leader_end=end, now=float(second))
        one.progress(3, 30, end, end, end, float(second))
        shrunk = one.shrunk(end, now=float(second), lag_s=3.0)
        if shrunk is not None:
            assert shrunk.in_sync == {1: 10, 3: 30}
            return
    raise AssertionError("it was never taken out")


def test_a_follower_that_never_spoke_is_given_the_time_it_may_lag() -> None:
    one = replicas(now=50.0)
    assert one.shrunk(100, now=52.0, lag_s=3.0) is None
    shrunk = one.shrunk(100, now=53.5, lag_s=3.0)
    assert shrunk is not None and shrunk.in_sync == {1: 10}


def test_those_that_leave_while_too_few_stay_are_remembered_as_having_everything() -> None:
    two = without(STATE, [3], min_insync=2)
    assert two.in_sync == {1: 10, 2: 20} and two.eligible == {}
    one = without(two, [2], min_insync=2)
    assert one.in_sync == {1: 10} and one.eligible == {2: 20}
    again = with_members(one, {3: 33}, min_insync=2)
    assert again.in_sync == {1: 10, 3: 33} and again.eligible == {}


def test_who_is_in_sync_has_nothing_left_that_was_given_up() -> None:
    """It would cut off what it is counted for, should it leave and come back."""
    before = msgspec.structs.replace(STATE, in_sync={1: 10}, given_up={2: GivenUp(5, 7), 3: GivenUp(6, 8)})
    assert with_members(before, {3: 33}, min_insync=2).given_up == {2: GivenUp(5, 7)}


def test_leadership_passes_to_one_that_has_all_and_with_a_new_epoch() -> None:
    one = replicas(msgspec.structs.replace(STATE, handover=2))
    report(one, 2, 99)
    assert not one.has_all(2, 100)
    report(one, 2, 100)
    assert one.has_all(2, 100)
    state = one.handed_over()
    assert (state.leader, state.epoch, state.handover) == (2, 5, 0)
    assert passed(STATE, 3).leader == 3


def test_reports_of_a_follower_that_did_not_say_where_it_begins_are_dropped() -> None:
    one = replicas()
    assert not one.progress(2, 20, 100, 100, 100, 0.0)
    one.follow(2, 20, 0.0)
    assert not one.progress(2, 21, 100, 100, 100, 0.0)


def test_the_folder_is_written_down_of_who_comes_in_and_of_nobody_else() -> None:
    """A broker that is in sync as it was may be registered with another folder by now."""
    before = msgspec.structs.replace(STATE, in_sync={1: 10, 2: 20}, folders={1: "a", 2: "b", 3: "c"})
    after = with_members(before, {3: 33}, min_insync=2)
    assert in_folders(before, after, {2: "other", 3: "new"}).folders == {1: "a", 2: "b", 3: "new"}
