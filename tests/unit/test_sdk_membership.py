"""The membership of a group consumer, as a state machine."""

from __future__ import annotations

from comet.groups.membership import AssignedPartition, Membership
from comet.types import TopicPartition

TP = TopicPartition("t", 0)


def released(tp: TopicPartition = TP) -> Membership:
    """A member that released a partition while its stream was down; the Release is retried on the next one."""
    state = Membership()
    state.joined("m", 1)
    state.assigned("m", 1, [AssignedPartition(tp, b"id", since=1, offset=0, epoch=1)], [])
    state.disconnected()
    assert state.released(tp, 1)
    return state


def test_a_released_partition_is_not_gained_from_an_assignment_sent_before_the_release() -> None:
    state = released()
    state.joined("m", 2)
    assert not state.assigned("m", 2, [AssignedPartition(TP, b"id", since=1, offset=0, epoch=1)], [TP]).gained
    assert not state.assigned("m", 3, [], []).gained
    again = state.assigned("m", 4, [AssignedPartition(TP, b"id", since=4, offset=0, epoch=1)], [])
    assert [one.since for one in again.gained] == [4]


def test_a_partition_whose_release_failed_is_gained_again() -> None:
    state = released()
    state.joined("m", 2)
    state.release_failed([TP])
    assert state.assigned("m", 2, [AssignedPartition(TP, b"id", since=1, offset=0, epoch=1)], []).gained


def test_a_new_member_id_forgets_what_the_old_one_released() -> None:
    state = released()
    state.joined("other", 2)
    assert state.assigned("other", 2, [AssignedPartition(TP, b"id", since=1, offset=0, epoch=1)], []).gained
