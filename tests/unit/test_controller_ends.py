"""Where nobody is known to be whole, the logs decide who leads."""

from __future__ import annotations

import pytest

from comet_broker.core.cluster import NO_BROKER, PartitionState, broker_key, defective_key, end_key, partition_key
from comet_broker.core.controller import CHANGE_OPERATIONS_MAX, LOSSY, decide
from tests.unit.controller_world import REPLICAS, TOPIC, TP, Picture, members


def all_lost_power(*, available: bool = False) -> Picture:
    picture = Picture()
    picture.brokers(1, 2, 3, lossy=(1, 2, 3), life=2)
    picture.topic(min_insync=2, available=available)
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2, 3)))
    return picture


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({1: (7, 20), 2: (7, 30), 3: (7, 25)}, 2),
        ({1: (7, 20), 2: (6, 90), 3: (7, 25)}, 3),  # what is longer and of an earlier epoch was never committed
        ({1: (7, 20), 2: (7, 20), 3: (7, 20)}, 1),  # the preferred one
        ({1: (0, 0), 2: (0, 0), 3: (0, 0)}, 1),
    ],
)
def test_the_log_with_the_greatest_last_epoch_and_end_leads(ends: dict[int, tuple[int, int]], leader: int) -> None:
    picture = all_lost_power()
    picture.ends(ends, life=2)
    state = picture.decided(last_resort=False, waited=())
    assert (state.leader, state.epoch, state.in_sync) == (leader, 9, members(leader, life=2))


def test_who_has_not_said_is_waited_for_and_not_for_ever() -> None:
    picture = all_lost_power()
    picture.ends({1: (7, 20), 2: (7, 30)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == NO_BROKER
    assert picture.decided(last_resort=True, waited=()).leader == NO_BROKER, "nobody leads for a moment only"
    assert picture.decided(last_resort=True, waited=[TP]).leader == 2


def test_who_is_away_is_waited_for_as_ever() -> None:
    picture = all_lost_power()
    picture.state.apply(broker_key(3), None)
    picture.ends({1: (7, 20), 2: (7, 30)}, life=2)
    assert picture.decided(last_resort=False, waited=[TP]).leader == NO_BROKER
    assert picture.decided(last_resort=True, waited=[TP]).leader == 2


def test_a_leader_that_fails_gives_members_that_are_away_a_lease() -> None:
    """Its broker runs, so no registration has changed since broker 1 was killed, long ago, with every record."""
    picture = Picture()
    picture.topic(min_insync=2)
    picture.brokers(3)
    picture.brokers(2, lossy=(2,), life=2)
    picture.partition(PartitionState(3, 8, REPLICAS, members(3), {1: 101, 2: LOSSY}))
    picture.put(defective_key(3, TP), b"it failed")
    state = picture.decided(last_resort=True, waited=())
    assert (state.leader, state.epoch, state.eligible) == (NO_BROKER, 9, {1: 101, 2: LOSSY})
    picture.ends({2: (0, 0)}, life=2, epoch=9)
    assert picture.decided(last_resort=True, waited=()).leader == NO_BROKER, "it has said that it has nothing"
    picture.brokers(1, life=2)
    picture.ends({1: (7, 20)}, life=2, epoch=9)
    assert picture.decided(last_resort=True, waited=()).leader == 1, "it is back within the lease"


def test_a_leader_that_fails_is_followed_by_one_with_less_if_no_other_is_back_within_a_lease() -> None:
    picture = Picture()
    picture.topic(min_insync=2)
    picture.brokers(3)
    picture.brokers(2, lossy=(2,), life=2)
    picture.partition(PartitionState(3, 8, REPLICAS, members(3), {1: 101, 2: LOSSY}))
    picture.put(defective_key(3, TP), b"it failed")
    assert picture.decided(last_resort=True, waited=()).leader == NO_BROKER
    assert picture.decided(last_resort=True, waited=[TP]).leader == 2


def test_what_was_said_in_another_epoch_or_life_counts_for_nothing() -> None:
    picture = all_lost_power()
    picture.ends({1: (7, 20), 3: (7, 25)}, life=2)
    picture.ends({2: (7, 90)}, life=1)
    assert picture.decided(last_resort=False).leader == NO_BROKER
    picture.ends({2: (7, 90)}, life=2, epoch=7)
    assert picture.decided(last_resort=False).leader == NO_BROKER
    picture.ends({2: (7, 10)}, life=2)
    assert picture.decided(last_resort=False).leader == 3


def test_a_leader_that_is_gone_is_followed_by_nobody_until_the_others_have_said() -> None:
    picture = all_lost_power()
    picture.partition(PartitionState(1, 8, REPLICAS, {1: 101, 2: LOSSY, 3: LOSSY}))
    picture.ends({1: (7, 20), 2: (7, 30), 3: (7, 25)}, life=2)
    state = picture.decided(last_resort=True, waited=())
    assert (state.leader, state.epoch) == (NO_BROKER, 9)
    picture.ends({1: (7, 20), 2: (7, 30), 3: (7, 25)}, life=2, epoch=9)
    assert picture.decided(last_resort=False, waited=()).leader == 2


def test_a_copy_that_was_not_in_sync_leads_if_it_has_more_than_what_is_left() -> None:
    """Broker 1 alone was in sync, and its power went: what broker 2 has of it is more."""
    picture = all_lost_power()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1)))
    picture.ends({1: (7, 20), 2: (7, 30), 3: (6, 30)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == 2


def test_whole_by_its_own_account_is_compared_as_well() -> None:
    """A folder that was put back from a copy says the same."""
    picture = all_lost_power()
    picture.brokers(3, life=2)
    picture.ends({1: (7, 20), 2: (7, 30), 3: (7, 10)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == 2


def test_after_all_were_killed_the_first_one_back_does_not_lead_before_the_others_are_waited_for() -> None:
    picture = Picture()
    picture.topic(min_insync=2)
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2, 3)))
    picture.brokers(1, life=2)
    picture.ends({1: (7, 10)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == NO_BROKER
    picture.brokers(2, 3, life=2)
    picture.ends({2: (7, 30), 3: (7, 30)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == 2


def test_of_those_in_sync_one_that_was_only_killed_is_not_compared_with_those_that_were_not() -> None:
    picture = Picture()
    picture.topic(min_insync=2)
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1)))
    picture.brokers(1, life=2)
    picture.brokers(2, 3)
    assert picture.decided(last_resort=False, waited=()).leader == 1, "at once: nobody else is asked"


def test_one_that_was_running_all_the_time_leads_at_once() -> None:
    picture = Picture()
    picture.topic(min_insync=2)
    picture.partition(PartitionState(1, 8, REPLICAS, members(1, 2, 3)))
    picture.brokers(3)
    picture.brokers(2, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == 3


def test_a_damaged_one_is_not_compared() -> None:
    picture = all_lost_power()
    picture.put(defective_key(2, TP), b"it has damaged ranges")
    picture.ends({1: (7, 20), 2: (7, 30), 3: (7, 25)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == 3


def test_one_that_began_anew_is_not_compared_while_another_copy_is_there() -> None:
    picture = all_lost_power()
    picture.brokers(2, life=2, folder="new", lossy=(2,))
    picture.ends({1: (7, 20), 2: (8, 30), 3: (7, 25)}, life=2)
    assert picture.decided(last_resort=False, waited=()).leader == 3


def test_an_available_topic_waits_for_nobody() -> None:
    picture = all_lost_power(available=True)
    assert picture.decided(last_resort=False, waited=()).leader == 1


@pytest.mark.parametrize("accepted", [8, 7])  # it leads next, or has led since and its power went
def test_a_copy_that_an_operator_gave_up_comes_behind_the_one_that_was_chosen(accepted: int) -> None:
    """Broker 2 wrote in epochs that were given twice, so its log ends later in the same one, or in a higher one."""
    picture = all_lost_power()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, {1: LOSSY}, loss_accepted=accepted))
    picture.ends({1: (3, 20), 2: (3, 90), 3: (4, 5)}, life=2)
    assert picture.decided(last_resort=True, waited=[TP]).leader == 1


def test_a_last_resort_is_made_only_if_the_view_has_the_latest_of_all_members() -> None:
    """A view that lags shows a broker as away that is back, and perhaps has more."""
    picture = all_lost_power()
    picture.state.apply(broker_key(3), None)
    picture.ends({1: (7, 20), 2: (7, 30)}, life=2)
    (change,) = decide(picture.state)
    state = picture.state
    seen = {broker_key(broker): found.mod_revision for broker, found in state.brokers.items()}
    seen |= {end_key(broker, TP): state.ends[broker, *TP].mod_revision for broker in (1, 2)}
    expected = {partition_key(TP): state.partitions[TP].mod_revision, **seen, broker_key(3): 0, end_key(3, TP): 0}
    assert {compare.key: compare.mod_revision for compare in change.compares} == expected


def test_a_member_that_has_everything_leads_whatever_the_others_do() -> None:
    picture = all_lost_power()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, life=2)))
    (change,) = decide(picture.state)
    assert [compare.key for compare in change.compares] == [partition_key(TP)]


def test_many_last_resorts_are_made_in_transactions_that_the_store_takes() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3, lossy=(1, 2, 3), life=2)
    picture.topic(partitions=99, min_insync=2)
    for index in range(99):
        picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 2, 3)), (TOPIC, index))
    changes = decide(picture.state)
    assert all(len(change.compares) <= CHANGE_OPERATIONS_MAX for change in changes)
    assert sum(len(change.operations) for change in changes) == 99
    assert 4 <= len(changes) < 10
