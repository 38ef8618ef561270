"""The controller's decisions, one by one. Random histories of them are in tests/property."""

from __future__ import annotations

import pytest

from comet_broker.core.cluster import (
    DELETED,
    DRAINS,
    NO_BROKER,
    PartitionState,
    Tombstone,
    defective_key,
    partition_key,
    topic_key,
)
from comet_broker.core.controller import CHANGE_OPERATIONS_MAX, LOSSY, decide, handovers, orphans
from comet_broker.metadata.store import Compare, Delete
from tests.unit.controller_world import ALL, REPLICAS, TOPIC, TP, Picture, members


def test_nothing_is_changed_when_all_is_well() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic()
    picture.partition(ALL)
    assert not decide(picture.state, rebalance=True)


@pytest.mark.parametrize(
    ("alive", "min_insync", "before", "after"),
    [
        # A follower is gone: it leaves, the epoch stays.
        ((1, 2), 1, ALL, PartitionState(1, 7, REPLICAS, members(1, 2))),
        # The leader is gone: the next in order leads, in a new epoch.
        ((2, 3), 1, ALL, PartitionState(2, 8, REPLICAS, members(2, 3))),
        # Too few stay for the high watermark to move: who leaves may come back to lead.
        ((1,), 2, ALL, PartitionState(1, 7, REPLICAS, members(1), members(2, 3))),
        ((3,), 2, ALL, PartitionState(3, 8, REPLICAS, members(3), members(1, 2))),
        # One is enough: who leaves is out.
        ((3,), 1, ALL, PartitionState(3, 8, REPLICAS, members(3))),
        # Nobody is there: nobody leads, and who was in sync stays written down.
        ((), 1, ALL, PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2, 3))),
        # Only one that fell behind is there: it must not lead.
        (
            (3,),
            1,
            PartitionState(1, 7, REPLICAS, members(1, 2)),
            PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2)),
        ),
        # One that fell behind while the high watermark stood still has all that was committed.
        (
            (3,),
            2,
            PartitionState(1, 7, REPLICAS, members(1), members(3)),
            PartitionState(3, 8, REPLICAS, members(3), members(1)),
        ),
        # No leader before, an in-sync one comes back as it was: it was not seen to be away.
        ((2,), 1, PartitionState(NO_BROKER, 8, REPLICAS, members(2)), PartitionState(2, 9, REPLICAS, members(2))),
    ],
)
def test_who_leads_when_brokers_are_gone(
    alive: tuple[int, ...], min_insync: int, before: PartitionState, after: PartitionState
) -> None:
    picture = Picture()
    picture.brokers(*alive)
    picture.topic(min_insync=min_insync)
    picture.partition(before)
    assert picture.decided() == after


def test_a_broker_that_was_started_again_is_not_in_sync_any_more() -> None:
    picture = Picture()
    picture.brokers(1, 3)
    picture.brokers(2, life=2)
    picture.topic(min_insync=3)
    picture.partition(ALL)
    assert picture.decided() == PartitionState(1, 7, REPLICAS, members(1, 3), members(2))


def test_a_leader_that_was_started_again_leads_in_a_new_epoch_if_it_is_alone() -> None:
    picture = Picture()
    picture.brokers(1, life=2)
    picture.topic(replicas=1)
    picture.partition(PartitionState(1, 7, (1,), members(1)))
    assert picture.decided() == PartitionState(1, 8, (1,), members(1, life=2))


def test_a_leader_that_was_started_again_makes_way_for_one_that_never_left() -> None:
    picture = Picture()
    picture.brokers(1, life=2)
    picture.brokers(2, 3)
    picture.topic()
    picture.partition(ALL)
    assert picture.decided() == PartitionState(2, 8, REPLICAS, members(2, 3))


def test_the_first_of_those_in_sync_that_is_back_whole_leads() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3, lossy=(1,), life=2)
    picture.topic(min_insync=2)
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2), members(3)))
    assert picture.decided() == PartitionState(2, 9, REPLICAS, members(2, life=2), {1: LOSSY, 3: 301})


def test_in_sync_comes_before_eligible() -> None:
    """It may have what was acknowledged by the leader alone."""
    picture = Picture()
    picture.brokers(1)
    picture.brokers(3, life=2)
    picture.topic(min_insync=2)
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(3), members(1)))
    assert picture.decided() == PartitionState(3, 9, REPLICAS, members(3, life=2), members(1))


def test_one_that_may_have_lost_something_is_the_last_resort() -> None:
    picture = Picture()
    picture.brokers(2, lossy=(2,), life=2)
    picture.topic()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2)))
    waiting = picture.decided(last_resort=False)
    assert waiting == PartitionState(NO_BROKER, 8, REPLICAS, {1: 101, 2: LOSSY})
    assert picture.decided() == PartitionState(2, 9, REPLICAS, members(2, life=2))


def test_there_is_nobody_to_wait_for_when_all_are_back() -> None:
    picture = Picture()
    picture.brokers(1, 2, lossy=(1, 2), life=2)
    picture.topic()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2)))
    picture.ends({1: (7, 20), 2: (7, 20)}, life=2)
    assert picture.decided(last_resort=False).leader == 1


def test_what_was_lost_stays_lost_however_often_a_broker_starts() -> None:
    """Its machine went down; then it was started, stopped in order, and started again, which by itself is clean."""
    picture = Picture()
    picture.brokers(2, lossy=(2,), life=2)
    picture.topic()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2)))
    picture.decided(last_resort=False)
    picture.brokers(2, life=3)
    assert picture.decided(last_resort=False).leader == NO_BROKER
    picture.brokers(1, life=2)
    picture.ends({1: (7, 20)}, life=2)
    picture.ends({2: (7, 10)}, life=3)
    assert picture.decided(last_resort=False).leader == 1


def test_a_replica_that_must_not_lead_does_not() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic(min_insync=3)
    picture.partition(ALL)
    picture.put(defective_key(1, TP))
    assert picture.decided() == PartitionState(2, 8, REPLICAS, members(2, 3))
    picture.put(defective_key(2, TP))
    picture.put(defective_key(3, TP))
    assert picture.decided() == PartitionState(NO_BROKER, 9, REPLICAS, members(2, 3))


def test_the_only_copy_leads_whatever_is_wrong_with_it() -> None:
    picture = Picture()
    picture.brokers(1)
    picture.topic(replicas=1)
    picture.partition(PartitionState(1, 7, (1,), members(1)))
    picture.put(defective_key(1, TP))
    assert not decide(picture.state)


def test_an_available_topic_takes_any_leader_there_is() -> None:
    picture = Picture()
    picture.brokers(3, lossy=(3,), life=2)
    picture.topic(available=True)
    picture.partition(PartitionState(1, 7, REPLICAS, members(1, 2)))
    assert picture.decided(last_resort=False) == PartitionState(3, 8, REPLICAS, members(3, life=2))


@pytest.mark.parametrize("by", ["itself", "an operator"])
def test_a_broker_that_drains_is_asked_to_hand_over(by: str) -> None:
    picture = Picture()
    picture.brokers(1, 2, 3, draining=(1,) if by == "itself" else ())
    if by == "an operator":
        picture.put(f"{DRAINS}1")
    picture.topic()
    picture.partition(ALL)
    assert picture.decided().handover == 2
    picture.put(f"{DRAINS}2")
    assert picture.decided().handover == 3
    picture.put(f"{DRAINS}3")
    # One that stops would rather pass on to one that is drained, and stays, than leave nobody.
    assert picture.decided().handover == (3 if by == "itself" else NO_BROKER)


def test_a_leader_that_dies_while_it_hands_over_is_replaced_as_ever() -> None:
    picture = Picture()
    picture.brokers(2, 3)
    picture.topic()
    picture.partition(PartitionState(1, 7, REPLICAS, members(1, 2, 3), handover=3))
    assert picture.decided() == PartitionState(2, 8, REPLICAS, members(2, 3))


def test_leadership_goes_back_when_it_may() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic()
    picture.partition(PartitionState(3, 9, REPLICAS, members(1, 2, 3)))
    assert not decide(picture.state)
    assert picture.decided(rebalance=True).handover == 1
    assert picture.decided().handover == 1, "once asked for, it stays asked for"
    picture.put(f"{DRAINS}1")
    assert picture.decided(rebalance=True).handover == NO_BROKER


def test_a_move_is_done_when_the_new_replicas_are_in_sync_and_lead() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3, 4, 5)
    picture.topic(replicas=2)
    picture.partition(PartitionState(1, 7, (1, 2), members(1, 2, 4), target=(4, 5)))
    assert not decide(picture.state)
    picture.partition(PartitionState(1, 7, (1, 2), members(1, 2, 4, 5), target=(4, 5)))
    assert picture.decided().handover == 4
    picture.partition(PartitionState(4, 8, (1, 2), members(1, 2, 4, 5), target=(4, 5)))
    assert picture.decided() == PartitionState(4, 8, (4, 5), members(4, 5))


def test_a_move_does_not_leave_fewer_in_sync_than_acknowledgements_need() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic(replicas=2, min_insync=2)
    picture.partition(PartitionState(1, 7, (1, 2), members(1, 2), target=(1,)))
    assert not decide(picture.state)


def test_a_replica_that_moved_away_is_forgotten_with_its_mark() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic(replicas=2)
    picture.put(defective_key(3, TP))
    picture.put(defective_key(2, TP))
    picture.partition(PartitionState(1, 7, (1, 2), members(1)))
    picture.decided()
    assert picture.state.defective.keys() == {(2, *TP)}


def test_new_partitions_are_placed_once_there_are_brokers_enough() -> None:
    picture = Picture()
    picture.topic(partitions=6)
    picture.brokers(1, 2)
    assert not decide(picture.state)
    picture.brokers(3, 4, draining=(4,))
    changes = decide(picture.state)
    topic = picture.state.topics["a"]
    assert Compare(topic_key("a"), topic.mod_revision) in changes[0].compares
    assert Compare(partition_key((TOPIC, 5)), 0) in changes[0].compares
    picture.apply(changes)
    states = [picture.state.partitions[TOPIC, index].value for index in range(6)]
    assert all(state.in_sync == members(1, 2, 3) and state.epoch == 1 for state in states)
    assert sorted(state.leader for state in states) == [1, 1, 2, 2, 3, 3]
    assert all(state.leader == state.replicas[0] for state in states)


def test_what_is_deleted_is_buried_in_pieces() -> None:
    picture = Picture()
    picture.brokers(1)
    picture.put(DELETED + TOPIC, Tombstone("t", (1,)))
    for index in range(250):
        picture.partition(PartitionState(1, 7, (1,), members(1)), (TOPIC, index))
    picture.put(defective_key(1, TP))
    changes = decide(picture.state)
    assert [len(change.operations) for change in changes] == [100, 100, 51]
    assert all(len(change.operations) <= CHANGE_OPERATIONS_MAX for change in changes)
    picture.apply(changes)
    assert not picture.state.partitions
    assert not picture.state.defective
    assert not decide(picture.state), "the brokers have their files yet"
    picture.put(DELETED + TOPIC, Tombstone("t", ()))
    picture.apply(decide(picture.state))
    assert not picture.state.deleted


def test_orphans_are_left_alone() -> None:
    picture = Picture()
    picture.brokers(2)
    picture.partition(ALL)
    picture.put(defective_key(1, TP))
    assert not decide(picture.state)
    assert orphans(picture.state) == [TP]


def test_many_changes_share_a_transaction_and_can_be_made_alone() -> None:
    picture = Picture()
    picture.brokers(2, 3)
    picture.topic(partitions=150)
    for index in range(150):
        picture.partition(ALL, (TOPIC, index))
    changes = decide(picture.state)
    assert [len(change.operations) for change in changes] == [100, 50]
    for change in changes:
        assert all(len(part.operations) == len(part.compares) == 1 for part in change.parts)
        assert [operation for part in change.parts for operation in part.operations] == list(change.operations)
    assert [len(change.operations) for change in decide(picture.state, only=[(TOPIC, 3), (TOPIC, 4)])] == [2]


def test_no_change_deletes_but_those_that_bury() -> None:
    picture = Picture()
    picture.topic(partitions=3)
    for index in range(3):
        picture.partition(ALL, (TOPIC, index))
    operations = [operation for change in decide(picture.state) for operation in change.operations]
    assert operations
    assert not [operation for operation in operations if isinstance(operation, Delete)]


def test_what_is_calm_at_a_glance_is_calm_at_a_closer_look() -> None:
    """Each thing that can be the matter is seen among partitions with which nothing is."""
    for where, broken in enumerate(
        (
            PartitionState(1, 7, REPLICAS, members(1, 2, 4)),  # in sync, and no replica
            PartitionState(1, 7, REPLICAS, members(1, 2), members(3)),  # eligible, and enough are in sync
            PartitionState(1, 7, REPLICAS, members(1, 2, 3), handover=4),
            PartitionState(1, 7, REPLICAS, members(1, 2, 3), target=(1, 2)),
            PartitionState(2, 7, REPLICAS, {1: 101, 2: 201, 3: 302}),
            PartitionState(4, 7, REPLICAS, members(1, 2, 3)),
            PartitionState(NO_BROKER, 7, REPLICAS, members(1, 2, 3)),
            PartitionState(2, 7, REPLICAS, members(1, 2, 3)),  # not the preferred leader
        )
    ):
        picture = Picture()
        picture.brokers(1, 2, 3, 4)
        picture.topic(partitions=9)
        for index in range(9):
            picture.partition(broken if index == where else ALL, (TOPIC, index))
        changed = {operation.key for change in decide(picture.state, rebalance=True) for operation in change.operations}
        assert changed == {partition_key((TOPIC, where))}


@pytest.mark.parametrize(
    ("in_sync", "draining", "to"),
    [
        ((1, 2, 3), (), 2),
        ((1, 3), (), 3),
        ((1, 2, 3), (2,), 3),
        ((1, 2, 3), (2, 3), NO_BROKER),
        ((1,), (), NO_BROKER),
    ],
)
def test_who_takes_over_is_known_before_a_broker_drains(
    in_sync: tuple[int, ...], draining: tuple[int, ...], to: int
) -> None:
    picture = Picture()
    picture.brokers(1, 2, 3, draining=draining)
    picture.topic(partitions=2)
    picture.partition(PartitionState(1, 7, REPLICAS, members(*in_sync)))
    picture.partition(PartitionState(2, 7, (2, 1, 3), members(2, 1)), (TOPIC, 1))
    before = dict(picture.state.drains)
    assert handovers(picture.state, 1) == {TP: to}
    assert picture.state.drains == before, "it only plans"
    picture.put(f"{DRAINS}1")
    picture.apply(decide(picture.state, only=[TP]))
    assert picture.state.partitions[TP].value.handover == to
