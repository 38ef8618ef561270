"""Who leads when a broker comes back with another data folder: what it had is not there."""

from __future__ import annotations

import pytest

from comet_broker.core.cluster import (
    NO_BROKER,
    PartitionState,
    partition_key,
)
from comet_broker.core.controller import decide
from tests.unit.controller_world import ALL, REPLICAS, TP, Picture, members


def test_a_folder_that_began_anew_does_not_lead_while_another_copy_is_there() -> None:
    """What was acknowledged by the leader alone went with its disk; what the other has is all that is left."""
    picture = Picture()
    picture.topic(replicas=2)
    picture.partition(PartitionState(NO_BROKER, 8, (1, 2), members(1)))
    picture.brokers(1, life=2, folder="new", lossy=(1,))
    assert not decide(picture.state), "the other may come back"
    picture.brokers(2)
    assert picture.decided() == PartitionState(2, 9, (1, 2), members(2))
    assert picture.folders == {1: "f1", 2: "f2"}


def test_the_leader_that_began_anew_is_followed_by_the_copy_that_is_left() -> None:
    picture = Picture()
    picture.topic(replicas=2)
    picture.partition(PartitionState(1, 7, (1, 2), members(1)))
    picture.brokers(1, life=2, folder="new", lossy=(1,))
    picture.brokers(2)
    assert picture.decided() == PartitionState(2, 8, (1, 2), members(2))


def test_who_has_what_was_in_sync_is_waited_for_whoever_began_anew() -> None:
    picture = Picture()
    picture.topic()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1, 3)))
    picture.brokers(1, life=2, folder="new", lossy=(1,))
    picture.brokers(2)
    assert not decide(picture.state), "broker 3 was in sync, and is only away"
    picture.brokers(3, life=2, lossy=(3,))
    assert picture.decided() == PartitionState(3, 9, REPLICAS, members(3, life=2))


def test_an_old_folder_that_comes_back_is_what_it_was() -> None:
    """The new one was made where a disk was not mounted."""
    picture = Picture()
    picture.topic(replicas=2)
    picture.partition(PartitionState(NO_BROKER, 8, (1, 2), members(1)))
    picture.brokers(1, life=2, folder="new", lossy=(1,))
    assert not decide(picture.state)
    picture.brokers(1, life=3)
    assert picture.decided(last_resort=False) == PartitionState(1, 9, (1, 2), members(1, life=3))


@pytest.mark.parametrize("available", [False, True])
def test_who_began_anew_leads_when_all_have(*, available: bool) -> None:
    picture = Picture()
    picture.topic(available=available)
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(2)))
    picture.brokers(1, 2, life=2, folder="new", lossy=(1, 2))
    assert not decide(picture.state)
    picture.brokers(3, life=2, folder="new", lossy=(3,))
    assert picture.decided() == PartitionState(1, 9, REPLICAS, members(1, life=2))
    assert picture.folders == {1: "new1", 2: "f2", 3: "f3"}


def test_the_only_copy_leads_on_a_new_folder_too() -> None:
    picture = Picture()
    picture.topic(replicas=1)
    picture.partition(PartitionState(1, 7, (1,), members(1)))
    picture.brokers(1, life=2, folder="new", lossy=(1,))
    assert picture.decided(last_resort=False) == PartitionState(1, 8, (1,), members(1, life=2))
    assert picture.folders == {1: "new1"}


def test_data_that_only_got_a_new_name_may_lead() -> None:
    """The file that says whose folder it is was damaged, and deleted as the message says."""
    picture = Picture()
    picture.topic(replicas=2)
    picture.partition(PartitionState(NO_BROKER, 8, (1, 2), members(1)))
    picture.brokers(1, life=2, folder="named again ", lossy=(1,), adopted=True)
    picture.brokers(2)
    assert picture.decided() == PartitionState(1, 9, (1, 2), members(1, life=2))
    assert picture.folders == {1: "named again 1", 2: "f2"}


def test_the_folders_of_those_in_sync_are_written_down() -> None:
    """As in the records of a version that did not."""
    picture = Picture()
    picture.topic()
    picture.put(partition_key(TP), ALL)
    picture.brokers(1, 2, 3)
    assert picture.decided() == ALL
    assert picture.folders == {1: "f1", 2: "f2", 3: "f3"}
