"""What may be lost in a cluster and what not, in histories made by hand: each excuse just inside, and just outside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comet.settings.topic import Consistency
from tests.sim.checker import Finding
from tests.sim.cluster_checks import ClusterEvidence, ends_are_reached, no_acked_loss, no_silent_reset, unique_slot
from tests.sim.history import Ends, FinalLog, History, Outcome, Produce, Read, Session
from tests.sim.staged import LEASE_S, LOG, TP, WHERE, StagedCluster, right, value_of

ALL = (1, 2, 3)


# ---- what may be lost: two records that are on no disk yet, when the machines of some, or the processes, go down


def elect(cluster: StagedCluster, broker: int, epoch: int = 2) -> None:
    cluster.state(broker, epoch, {broker: cluster.as_(broker)})


def lost(cluster: StagedCluster) -> list[tuple[int, int]]:
    return [(loss.start, loss.end) for loss in cluster.monitor.agreed[WHERE].losses]


def all_machines_go_down(cluster: StagedCluster) -> None:
    for broker in ALL:
        cluster.restart(broker, power=True)


def all_machines_go_down_and_one_does_not_come_back(cluster: StagedCluster) -> None:
    for broker in (1, 2):
        cluster.restart(broker, power=True)
    cluster.kill(3, power=True)
    cluster.gone(3)


def one_was_not_in_sync(cluster: StagedCluster) -> None:
    cluster.state(1, 1, (1, 2))
    for broker in (1, 2):
        cluster.restart(broker, power=True)


def one_is_waited_for_as_long_as_a_lease(cluster: StagedCluster) -> None:
    cluster.kill(3)
    cluster.gone(3)
    for broker in (1, 2):
        cluster.restart(broker, power=True)
    cluster.now += LEASE_S


def the_disk_of_the_last_one_fails(cluster: StagedCluster) -> None:
    cluster.fail_sync(3)
    for broker in (1, 2):
        cluster.restart(broker, power=True)


def the_last_one_must_not_lead(cluster: StagedCluster) -> None:
    cluster.unfit(3)
    for broker in (1, 2):
        cluster.restart(broker, power=True)


def the_last_one_was_too_late_by_a_moment(cluster: StagedCluster) -> None:
    one_is_waited_for_as_long_as_a_lease(cluster)
    cluster.start(3)


@pytest.mark.parametrize(
    "happens",
    [
        all_machines_go_down,
        all_machines_go_down_and_one_does_not_come_back,
        one_was_not_in_sync,
        one_is_waited_for_as_long_as_a_lease,
        the_disk_of_the_last_one_fails,
        the_last_one_must_not_lead,
        the_last_one_was_too_late_by_a_moment,
    ],
)
def test_the_last_resort_may_lose(happens: Callable[[StagedCluster], None]) -> None:
    cluster = right()
    happens(cluster)
    elect(cluster, 1)
    assert cluster.found == set()
    assert lost(cluster) == [(2, 4)]


def two_machines_go_down(cluster: StagedCluster) -> None:
    for broker in (1, 2):
        cluster.restart(broker, power=True)


def one_was_only_killed(cluster: StagedCluster) -> None:
    cluster.restart(3)
    two_machines_go_down(cluster)


def one_is_not_waited_for(cluster: StagedCluster) -> None:
    cluster.kill(3)
    cluster.gone(3)
    cluster.now += LEASE_S / 2
    two_machines_go_down(cluster)
    cluster.now += LEASE_S / 2 - 0.01


def one_was_forgotten_that_had_everything(cluster: StagedCluster) -> None:
    cluster.state(1, 1, (1, 2))
    cluster.state(1, 1, (1,))  # whatever it says of who is eligible
    cluster.restart(2)
    cluster.restart(1, power=True)


def it_came_back_and_was_written_down_since(cluster: StagedCluster) -> None:
    the_last_one_was_too_late_by_a_moment(cluster)
    cluster.state(0, 2, {1: 0, 2: 0, 3: cluster.as_(3)})


def one_is_marked_without_a_reason(cluster: StagedCluster) -> None:
    """Its machine did go down once, but before it was taken in."""
    cluster.restart(3, power=True)
    cluster.write(2, 3)
    cluster.state(1, 1, ALL)
    two_machines_go_down(cluster)
    cluster.state(0, 2, {1: 0, 2: 0, 3: 0})


def nothing_happens_at_all(cluster: StagedCluster) -> None:
    cluster.cut(2, 1)


@pytest.mark.parametrize(
    "happens",
    [
        two_machines_go_down,
        one_was_only_killed,
        one_is_not_waited_for,
        one_was_forgotten_that_had_everything,
        it_came_back_and_was_written_down_since,
        one_is_marked_without_a_reason,
        nothing_happens_at_all,
    ],
)
def test_who_lost_something_does_not_lead_while_another_is_sure(happens: Callable[[StagedCluster], None]) -> None:
    cluster = right()
    happens(cluster)
    elect(cluster, 1, epoch=3)
    assert cluster.found == {"C31"}
    assert lost(cluster) == []


def test_who_is_sure_must_have_everything_whatever_is_allowed() -> None:
    cluster = right()
    the_last_one_was_too_late_by_a_moment(cluster)
    cluster.cut(2, 3)
    elect(cluster, 3)
    assert cluster.found == {"C31"}


def test_a_last_resort_that_has_everything_loses_nothing() -> None:
    cluster = right()
    cluster.sync(2)
    all_machines_go_down(cluster)
    elect(cluster, 2)
    assert cluster.found == set()
    assert lost(cluster) == []


def test_alone_in_sync_it_may_lose_what_others_still_have() -> None:
    cluster = right(min_insync=1)
    cluster.state(1, 1, (1,))
    cluster.restart(1, power=True)
    elect(cluster, 1)
    assert cluster.found == set()
    assert lost(cluster) == [(2, 4)]


def test_an_available_topic_may_lose_anything() -> None:
    cluster = right(consistency=Consistency.AVAILABLE)
    cluster.cut(2, 1)
    elect(cluster, 1)
    assert cluster.found == set()


# ---- after a loss


def after_a_loss() -> StagedCluster:
    """Of four records the last two are lost, others are at their offsets, and broker 3 has not heard of it."""
    cluster = right()
    cluster.state(1, 1, (1, 2))
    for broker in (1, 2):
        cluster.restart(broker, power=True)
    elect(cluster, 1)
    cluster.hear(2, 2)
    cluster.state(1, 2, (1, 2))
    cluster.write(2, 1, 2, epoch=2)
    cluster.watermark(4, 1, 2)
    assert cluster.found == set()
    return cluster


def test_who_has_not_heard_of_it_may_tell_of_what_is_lost() -> None:
    cluster = after_a_loss()
    cluster.write(1, 3)
    cluster.watermark(5, 3)
    cluster.monitor.read(TP, 3)
    assert cluster.found == set()
    assert cluster.monitor.agreed[WHERE].end == 4


def test_who_has_heard_of_it_may_not() -> None:
    cluster = after_a_loss()
    cluster.hear(3, 2)
    cluster.cut(2, 3)
    cluster.watermark(2, 3)
    assert cluster.found == {"C8"}, "no operator has accepted that it goes back"
    cluster.write(2, 3)
    cluster.watermark(4, 3)
    assert "C5" in cluster.found


@pytest.mark.parametrize("broker", [2, 3])
def test_what_is_noted_on_a_disk_does_not_go_back(broker: int) -> None:
    """Broker 2 has noted it in the new epoch, broker 3 in the one before."""
    cluster = after_a_loss()
    cluster.kill(broker)
    cluster.start(broker, noted=4, epoch=2)
    cluster.cut(2, broker)
    cluster.watermark(2, broker)
    assert cluster.found == {"C8"}


def test_it_goes_back_no_further_than_the_loss() -> None:
    cluster = after_a_loss()
    cluster.hear(3, 2)
    cluster.cut(1, 3)
    cluster.watermark(1, 3)
    assert cluster.found == {"C8"}


def evidence(cluster: StagedCluster, history: History) -> ClusterEvidence:
    values = [value_of(1, 0), value_of(1, 1), value_of(2, 2), value_of(2, 3)]
    history.final[TP] = FinalLog(0, 4, list(enumerate(values)), complete=True)
    return ClusterEvidence(history, cluster.monitor)


def produced(value: bytes, offset: int) -> Produce:
    return Produce("p", TP, 2, True, value, 0, 0.0, 0.1, Outcome.OK, "", offset)


def violations(check: Callable[[ClusterEvidence, Finding], None], cluster: StagedCluster, history: History) -> int:
    finding = Finding()
    check(evidence(cluster, history), finding)
    assert finding.checked
    return len(finding.violations)


@pytest.mark.parametrize(
    ("value", "offset", "wrong"),
    [
        (value_of(1, 1), 1, 0),
        (value_of(1, 2), 2, 0),  # it was committed there, and is lost
        (value_of(1, 3), 3, 0),
        (value_of(1, 2), 3, 1),  # not there
        (value_of(7, 3), 3, 1),  # another, that never was committed
        (value_of(7, 1), 1, 1),
    ],
)
def test_only_the_records_that_were_lost_are_excused(value: bytes, offset: int, wrong: int) -> None:
    assert violations(no_acked_loss, after_a_loss(), History(produces=[produced(value, offset)])) == wrong


@pytest.mark.parametrize(("committed", "epochs", "wrong"), [(4, 2, 0), (5, 2, 1), (4, 1, 1)])
def test_with_acks_1_the_tail_is_excused_when_another_epoch_begins(committed: int, epochs: int, wrong: int) -> None:
    """The fifth record, of which broker 1 was the only one to have it."""
    cluster = right(end=4, min_insync=1)
    cluster.now = 1.0
    operation = Produce("p", TP, 1, True, value_of(1, 4), 0, 1.0, 1.1, Outcome.OK, "", 4)
    cluster.state(1, 1, (1,))
    cluster.write(1, 1)
    cluster.watermark(committed, 1)
    if epochs > 1:
        cluster.state(1, 2, (1,))
    finding = Finding()
    history = History(produces=[operation], final={TP: FinalLog(0, 4, [], complete=True)})
    no_acked_loss(ClusterEvidence(history, cluster.monitor), finding)
    assert len(finding.violations) == wrong


@pytest.mark.parametrize(("offset", "others", "wrong"), [(3, 1, 0), (3, 2, 1), (1, 1, 1), (4, 1, 0), (4, 2, 1)])
def test_an_offset_is_given_again_once_for_each_loss(offset: int, others: int, wrong: int) -> None:
    reads = [Read("c", 1, TP, offset, value_of(10 + other, offset), 9, 1.0) for other in range(others)]
    assert violations(unique_slot, after_a_loss(), History(reads=reads)) == wrong


@pytest.mark.parametrize(("end", "wrong"), [(4, 0), (5, 1)])
def test_an_end_that_was_told_is_reached(end: int, wrong: int) -> None:
    assert violations(ends_are_reached, after_a_loss(), History(ends=[Ends("a", TP, 0.0, 0.1, 0, end)])) == wrong


@pytest.mark.parametrize("why", ["TRUNCATED", "OFFSET_OUT_OF_RANGE"])
def test_a_reader_is_told_of_a_loss_if_there_was_one(why: str) -> None:
    history = History(sessions=[Session("c", 1, TP, "offset", why, 2)])
    assert violations(no_silent_reset, after_a_loss(), history) == 0
    assert violations(no_silent_reset, right(), history) == 1


def test_damage_is_a_loss_where_no_other_copy_counts() -> None:
    history = History(sessions=[Session("c", 1, TP, "offset", "DATA_LOSS", 2)])
    cluster = right(min_insync=1)
    cluster.state(1, 1, (1, 2))
    cluster.hosts[1].watch.damaged(LOG, 1)
    assert violations(no_silent_reset, cluster, history) == 1
    cluster.state(1, 1, (1,))
    assert violations(no_silent_reset, cluster, history) == 0
