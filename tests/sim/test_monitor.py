"""The monitor of a cluster against histories made by hand: each invariant lets one pass that is just right, and finds
one that is just wrong. `test_losses` does the same for what excuses a loss."""

from __future__ import annotations

import pytest

from comet.settings.topic import Flush
from tests.sim.copies import Batch, Copy
from tests.sim.staged import TP, right

ALL = (1, 2, 3)


def test_a_right_history_passes_and_exercises_everything() -> None:
    cluster = right()
    monitor = cluster.monitor
    monitor.acknowledged(TP, 3)
    monitor.read(TP, 3)
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
    cluster.monitor.acknowledged(TP, offset)
    assert cluster.found == found


@pytest.mark.parametrize(("offset", "found"), [(3, set()), (4, {"C7"})])
def test_c7_what_is_read_is_committed(offset: int, found: set[str]) -> None:
    cluster = right()
    cluster.write(1, 1)
    cluster.monitor.read(TP, offset)
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
    cluster.monitor.told(TP, 1, end, cluster.monitor.standing(TP))
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


def test_what_lies_behind_a_flipped_bit_was_there_until_the_next_process_found_it() -> None:
    copy = Copy()
    batches = [Batch(base, base + 1, 1, (base, 0), "f", 100 * base, 100 * base + 100, 2) for base in range(4)]
    copy.files["f"], copy.batches = list(batches), {batch.base: batch for batch in batches}
    copy.damaged = {1}
    assert copy.drop("f", 100, process=3)
    assert [copy.had(2, base, (base, 0)) for base in range(5)] == [True, True, True, True, False]
    assert [copy.had(3, base, (base, 0)) for base in range(1, 4)] == [False] * 3
