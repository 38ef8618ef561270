"""The monitor of a cluster against histories made by hand: each invariant lets one pass that is just right, and finds
one that is just wrong. So do the excuses of a loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comet.types import Consistency, Flush
from tests.sim.checker import Finding
from tests.sim.cluster_checks import ClusterEvidence, ends_are_reached, no_acked_loss, no_silent_reset, unique_slot
from tests.sim.history import Ends, FinalLog, History, Outcome, Produce, Read, Session
from tests.sim.staged import LEASE_S, LOG, PLACE, WHERE, StagedCluster, value_of

ALL = (1, 2, 3)


def right(end: int = 4, **more: object) -> StagedCluster:
    """Broker 1 leads; all three have so many records, of which two are on every disk, and know that they do."""
    cluster = StagedCluster(**more)  # type: ignore[arg-type]
    cluster.write(2, *ALL)
    cluster.sync(*ALL)
    cluster.write(end - 2, *ALL)
    for broker in (2, 3):
        cluster.hear(broker, 1)
    cluster.watermark(end, *ALL)
    return cluster


def test_a_right_history_passes_and_exercises_everything() -> None:
    cluster = right()
    monitor = cluster.monitor
    monitor.acknowledged(PLACE, 3)
    monitor.read(PLACE, 3)
    cluster.restart(3)
    cluster.hear(3, 1)
    cluster.state(1, 1, ALL)
    cluster.write(1, *ALL)
    cluster.watermark(5, *ALL)
    cluster.state(2, 2, ALL)
    cluster.write(1, 2, 1, 3, epoch=2)
    for broker in (1, 3):
        cluster.hear(broker, 2)
    cluster.watermark(6, 2, 1, 3)
    assert cluster.found == set()
    assert {name for name in ("C1", "C5", "C6", "C7", "C8", "C31", "C32", "C33") if not monitor.checked[name]} == set()


# ---- each invariant, just right and just wrong


@pytest.mark.parametrize(("offset", "found"), [(3, set()), (4, {"C1"})])
def test_c1_what_is_acknowledged_to_all_is_committed(offset: int, found: set[str]) -> None:
    cluster = right()
    cluster.write(1, 1)
    cluster.monitor.acknowledged(PLACE, offset)
    assert cluster.found == found


@pytest.mark.parametrize(("offset", "found"), [(3, set()), (4, {"C7"})])
def test_c7_what_is_read_is_committed(offset: int, found: set[str]) -> None:
    cluster = right()
    cluster.write(1, 1)
    cluster.monitor.read(PLACE, offset)
    assert cluster.found == found


@pytest.mark.parametrize(("epoch", "found"), [(1, set()), (2, {"C5"})])
def test_c5_what_is_committed_is_the_same_everywhere(epoch: int, found: set[str]) -> None:
    cluster = right(end=3)
    cluster.write(1, 1, 2)
    cluster.state(1, 1, (1, 2))
    cluster.watermark(4, 1)
    cluster.write(1, 3, epoch=epoch)
    cluster.watermark(4, 3)
    assert cluster.found == found


@pytest.mark.parametrize(("end", "found"), [(4, set()), (5, {"C5"})])
def test_c5_a_watermark_lies_within_the_log(end: int, found: set[str]) -> None:
    cluster = right()
    cluster.watermark(end, 2)
    assert cluster.found == found


@pytest.mark.parametrize(
    ("leader", "epoch", "found"), [(2, 2, set()), (1, 1, set()), (2, 1, {"C6"}), (1, 0, {"C6", "C8"})]
)
def test_c6_an_epoch_has_one_leader_and_epochs_rise(leader: int, epoch: int, found: set[str]) -> None:
    cluster = right()
    cluster.state(leader, epoch, ALL)
    assert cluster.found == found


@pytest.mark.parametrize(("salt", "found"), [(0, set()), (1, {"C6"})])
def test_c6_an_epoch_has_one_batch_at_an_offset(salt: int, found: set[str]) -> None:
    cluster = right()
    cluster.write(1, 1)
    cluster.write(1, 2, salt=salt)
    assert cluster.found == found


@pytest.mark.parametrize(("epoch", "found"), [(2, set()), (1, {"C6"})])
def test_c6_epochs_and_offsets_rise_together(epoch: int, found: set[str]) -> None:
    cluster = right()
    cluster.state(2, 2, ALL)
    cluster.write(1, 2, 3, epoch=2)
    cluster.write(1, 3, epoch=epoch)
    assert cluster.found == found


@pytest.mark.parametrize(("end", "found"), [(4, set()), (3, {"C8"})])
def test_c8_a_leader_says_no_lower_end_than_is_committed(end: int, found: set[str]) -> None:
    cluster = right()
    cluster.monitor.told(PLACE, 1, end, cluster.monitor.standing(PLACE))
    assert cluster.found == found


@pytest.mark.parametrize(("end", "found"), [(4, set()), (3, {"C8"})])
def test_c8_a_watermark_does_not_go_back(end: int, found: set[str]) -> None:
    cluster = right()
    cluster.watermark(end, 2)
    assert cluster.found == found


def test_c8_a_watermark_goes_back_with_the_log_that_its_own_disk_has_lost() -> None:
    cluster = right()
    cluster.fail_sync(3)
    cluster.hosts[3].watch.opened(cluster.hosts[3].partition)  # type: ignore[arg-type]
    cluster.watermark(2, 3)
    assert cluster.found == set()


@pytest.mark.parametrize(("missing", "found"), [(0, set()), (1, {"C31"})])
def test_c31_who_is_taken_in_has_everything(missing: int, found: set[str]) -> None:
    cluster = right()
    cluster.state(1, 1, (1, 2))
    cluster.cut(4 - missing, 3)
    cluster.state(1, 1, ALL)
    assert cluster.found == found


@pytest.mark.parametrize(("missing", "found"), [(0, set()), (1, {"C31"})])
def test_c31_who_is_elected_has_everything(missing: int, found: set[str]) -> None:
    cluster = right()
    cluster.state(1, 1, (1, 2))
    cluster.cut(4 - missing, 3)
    cluster.state(3, 2, (1, 2))
    cluster.state(3, 2, {3: cluster.as_(3)})
    assert cluster.found <= found
    cluster = right()
    cluster.state(1, 1, (1, 2))
    cluster.cut(4 - missing, 3)
    cluster.state(3, 2, {3: cluster.as_(3)})
    assert cluster.found == found


@pytest.mark.parametrize(("holders", "found"), [(ALL, set()), ((1, 2), {"C32"}), ((1,), {"C32"})])
def test_c32_all_in_sync_have_what_is_committed(holders: tuple[int, ...], found: set[str]) -> None:
    cluster = right()
    cluster.write(1, *holders)
    cluster.watermark(5, 1)
    assert found <= cluster.found <= {*found, "C31"}


@pytest.mark.parametrize(("in_sync", "found"), [((1, 2), set()), ((1,), {"C32"})])
def test_c32_as_many_are_in_sync_as_min_insync_asks_for(in_sync: tuple[int, ...], found: set[str]) -> None:
    cluster = right()
    cluster.state(1, 2, in_sync)
    cluster.write(1, *in_sync, epoch=2)
    cluster.watermark(5, 1)
    assert cluster.found == found


def test_c32_what_power_took_from_who_had_it_may_be_committed_all_the_same() -> None:
    """The report was under way."""
    cluster = right(end=4)
    cluster.write(1, *ALL)
    cluster.kill(3, power=True)
    cluster.watermark(5, 1)
    assert cluster.found == set()


def test_c32_what_only_a_later_life_has_had_is_not_committed() -> None:
    cluster = right(end=4)
    counted = {broker: cluster.as_(broker) for broker in ALL}
    cluster.restart(3, power=True)
    cluster.state(1, 1, counted)
    cluster.write(2, 3)
    cluster.write(1, *ALL)
    cluster.watermark(5, 1)
    assert cluster.found == {"C32"}


@pytest.mark.parametrize(("synced", "found"), [(True, set()), (False, {"C32"})])
def test_c32_with_flush_always_what_is_committed_is_on_the_disks(*, synced: bool, found: set[str]) -> None:
    cluster = right(flush=Flush.ALWAYS)
    if synced:
        cluster.sync(3)
    cluster.kill(3, power=True)
    assert cluster.found == found


@pytest.mark.parametrize(("registered", "found"), [(True, set()), (False, {"C33"})])
def test_c33_a_leader_that_is_not_registered_appends_nothing(*, registered: bool, found: set[str]) -> None:
    cluster = right()
    if not registered:
        cluster.gone(1)
    cluster.write(1, 1)
    assert cluster.found == found


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
    cluster.monitor.read(PLACE, 3)
    assert cluster.found == set()
    assert cluster.monitor.agreed[WHERE].end == 4


def test_who_has_heard_of_it_may_not() -> None:
    cluster = after_a_loss()
    cluster.hear(3, 2)
    cluster.cut(2, 3)
    cluster.watermark(2, 3)
    assert cluster.found == set(), "it goes back to where the loss begins"
    cluster.write(2, 3)
    cluster.watermark(4, 3)
    assert "C5" in cluster.found


@pytest.mark.parametrize(("broker", "found"), [(3, set()), (2, {"C8"})])
def test_what_is_noted_on_a_disk_may_be_lost_too(broker: int, found: set[str]) -> None:
    """Broker 2 has noted it in the new epoch, broker 3 in the one before."""
    cluster = after_a_loss()
    cluster.kill(broker)
    cluster.start(broker, noted=4, epoch=2)
    cluster.cut(2, broker)
    cluster.watermark(2, broker)
    assert cluster.found == found


def test_it_goes_back_no_further_than_the_loss() -> None:
    cluster = after_a_loss()
    cluster.hear(3, 2)
    cluster.cut(1, 3)
    cluster.watermark(1, 3)
    assert cluster.found == {"C8"}


def evidence(cluster: StagedCluster, history: History) -> ClusterEvidence:
    values = [value_of(1, 0), value_of(1, 1), value_of(2, 2), value_of(2, 3)]
    history.final[PLACE] = FinalLog(0, 4, list(enumerate(values)), complete=True)
    return ClusterEvidence(history, cluster.monitor)


def produced(value: bytes, offset: int) -> Produce:
    return Produce("p", PLACE, 2, True, value, 0, 0.0, 0.1, Outcome.OK, "", offset)


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
    operation = Produce("p", PLACE, 1, True, value_of(1, 4), 0, 1.0, 1.1, Outcome.OK, "", 4)
    cluster.state(1, 1, (1,))
    cluster.write(1, 1)
    cluster.watermark(committed, 1)
    if epochs > 1:
        cluster.state(1, 2, (1,))
    finding = Finding()
    history = History(produces=[operation], final={PLACE: FinalLog(0, 4, [], complete=True)})
    no_acked_loss(ClusterEvidence(history, cluster.monitor), finding)
    assert len(finding.violations) == wrong


@pytest.mark.parametrize(("offset", "others", "wrong"), [(3, 1, 0), (3, 2, 1), (1, 1, 1), (4, 1, 0), (4, 2, 1)])
def test_an_offset_is_given_again_once_for_each_loss(offset: int, others: int, wrong: int) -> None:
    reads = [Read("c", 1, PLACE, offset, value_of(10 + other, offset), 9, 1.0) for other in range(others)]
    assert violations(unique_slot, after_a_loss(), History(reads=reads)) == wrong


@pytest.mark.parametrize(("end", "wrong"), [(4, 0), (5, 1)])
def test_an_end_that_was_told_is_reached(end: int, wrong: int) -> None:
    assert violations(ends_are_reached, after_a_loss(), History(ends=[Ends("a", PLACE, 0.0, 0.1, 0, end)])) == wrong


@pytest.mark.parametrize("why", ["TRUNCATED", "OFFSET_OUT_OF_RANGE"])
def test_a_reader_is_told_of_a_loss_if_there_was_one(why: str) -> None:
    history = History(sessions=[Session("c", 1, PLACE, "offset", why, 2)])
    assert violations(no_silent_reset, after_a_loss(), history) == 0
    assert violations(no_silent_reset, right(), history) == 1


def test_damage_is_a_loss_where_no_other_copy_counts() -> None:
    history = History(sessions=[Session("c", 1, PLACE, "offset", "DATA_LOSS", 2)])
    cluster = right(min_insync=1)
    cluster.state(1, 1, (1, 2))
    cluster.hosts[1].watch.damaged(LOG, 1)
    assert violations(no_silent_reset, cluster, history) == 1
    cluster.state(1, 1, (1,))
    assert violations(no_silent_reset, cluster, history) == 0
