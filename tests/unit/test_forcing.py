"""An operator's way out, when nobody comes back that has everything."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from comet.errors import InvalidArgument
from comet_broker.core.cluster import (
    NO_BROKER,
    Conflict,
    PartitionState,
    broker_key,
    conflict_key,
    defective_key,
    partition_key,
)
from comet_broker.core.controller import decide
from comet_broker.core.forcing import forced
from comet_broker.metadata.store import Compare
from tests.unit.controller_world import ALL, REPLICAS, TP, Picture, broker_epoch, members


def stuck() -> Picture:
    """Broker 1, the only one in sync, is gone; the others are alive, and have less."""
    picture = Picture()
    picture.topic()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1), handover=NO_BROKER))
    picture.brokers(2, 3)
    assert not decide(picture.state), "the controller leaves it at that"
    return picture


def test_the_chosen_one_leads_in_a_new_epoch_and_what_the_others_have_is_given_up() -> None:
    picture = stuck()
    picture.apply([forced(picture.state, TP, 3)])
    assert picture.decided() == PartitionState(3, 9, REPLICAS, members(3), loss_accepted=9)
    # Who had everything comes back, and is not the one to lead any more.
    picture.brokers(1, life=2)
    assert picture.decided() == PartitionState(3, 9, REPLICAS, members(3), loss_accepted=9)


def test_it_is_made_only_if_all_that_matters_is_as_it_was() -> None:
    picture = stuck()
    change = forced(picture.state, TP, 3)
    assert set(change.compares) == {
        Compare(partition_key(TP), picture.state.partitions[TP].mod_revision),
        Compare(broker_key(1), 0),  # it may come back this very moment
        Compare(broker_key(2), picture.state.brokers[2].mod_revision),
        Compare(broker_key(3), picture.state.brokers[3].mod_revision),
    }


def test_one_that_is_damaged_can_be_chosen_when_all_are() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic()
    picture.partition(ALL)
    for broker in REPLICAS:
        picture.put(defective_key(broker, TP), b"it has damaged ranges")
    assert picture.decided().leader == NO_BROKER
    picture.apply([forced(picture.state, TP, 2)])
    assert picture.decided() == PartitionState(2, 9, REPLICAS, members(2), loss_accepted=9)
    assert picture.state.defective.keys() == {(1, *TP), (3, *TP)}


def test_a_folder_that_began_anew_can_be_chosen_when_no_other_comes_back() -> None:
    picture = Picture()
    picture.topic(replicas=2)
    picture.partition(PartitionState(NO_BROKER, 8, (1, 2), members(1)))
    picture.brokers(1, life=2, folder="new", lossy=(1,))
    picture.apply([forced(picture.state, TP, 1)])
    assert picture.decided() == PartitionState(1, 9, (1, 2), {1: broker_epoch(1, 2)}, loss_accepted=9)
    assert picture.folders[1] == "new1"


@pytest.mark.parametrize("lossy", [False, True])
def test_it_is_refused_while_somebody_is_about_to_lead(*, lossy: bool) -> None:
    picture = stuck()
    picture.brokers(1, life=2, lossy=(1,) if lossy else ())
    with pytest.raises(InvalidArgument, match="broker 1 will lead in a moment"):
        forced(picture.state, TP, 3)


def test_it_is_refused_while_somebody_leads() -> None:
    picture = Picture()
    picture.brokers(1, 2, 3)
    picture.topic()
    picture.partition(ALL)
    with pytest.raises(InvalidArgument, match="broker 1 leads"):
        forced(picture.state, TP, 3)


@pytest.mark.parametrize("broker", [1, 4])
def test_only_a_replica_that_is_alive_can_be_chosen(broker: int) -> None:
    picture = stuck()
    picture.brokers(4)
    with pytest.raises(InvalidArgument, match=r"choose one of \[2, 3\]"):
        forced(picture.state, TP, broker)


def contested() -> Picture:
    """Broker 1 leads, 2 follows, and 3 does not, as it would lose committed records."""
    picture = Picture()
    picture.topic()
    picture.partition(PartitionState(1, 8, REPLICAS, members(1, 2)))
    picture.brokers(1, 2, 3)
    picture.put(conflict_key(3, TP), Conflict(leader=1, epoch=8, offset=50, log_end=90, high_watermark=90))
    return picture


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_where_a_replica_is_in_conflict_any_can_be_chosen(broker: int) -> None:
    picture = contested()
    change = forced(picture.state, TP, broker)
    mark = Compare(conflict_key(3, TP), picture.state.conflicts[3, *TP].mod_revision)
    assert mark in change.compares, "not if it follows again by then"
    picture.apply([change])
    assert picture.decided() == PartitionState(broker, 9, REPLICAS, members(broker), loss_accepted=9)


def test_a_replica_in_conflict_may_lead_without_force_where_it_is_known_to_be_whole() -> None:
    """The mark keeps it out of nothing but following."""
    picture = contested()
    picture.partition(PartitionState(1, 8, REPLICAS, members(1), eligible=members(3)))
    picture.state.apply(broker_key(1), None)
    picture.topic(min_insync=2)
    assert picture.decided(last_resort=False).leader == 3


def test_a_mark_of_a_conflict_goes_with_the_replica() -> None:
    picture = contested()
    picture.partition(PartitionState(1, 8, (1, 2), members(1, 2)))
    picture.decided()
    assert not picture.state.conflicts


def test_an_accepted_loss_is_over_for_a_replica_once_it_is_in_sync() -> None:
    chosen = PartitionState(3, 9, REPLICAS, members(3), loss_accepted=9)
    assert [chosen.loss_accepted_of(broker) for broker in REPLICAS] == [9, 9, 0]
    followed = replace(chosen, in_sync=members(1, 3))
    left = replace(followed, epoch=12, in_sync=members(3))
    assert [left.loss_accepted_of(broker) for broker in REPLICAS] == [0, 9, 0]
    assert PartitionState.decode(left.encode()) == left
    again = replace(left, epoch=13, loss_accepted=13, loss_settled=())
    assert [again.loss_accepted_of(broker) for broker in REPLICAS] == [13, 13, 0]
    assert replace(left, replicas=(2, 3)).loss_settled == (3,)


def test_a_loss_that_is_accepted_again_concerns_all_others_again() -> None:
    picture = Picture()
    picture.topic()
    picture.partition(PartitionState(NO_BROKER, 8, REPLICAS, members(1), loss_accepted=5, loss_settled=REPLICAS))
    picture.brokers(2, 3)
    picture.apply([forced(picture.state, TP, 3)])
    assert picture.decided().loss_settled == (3,)
