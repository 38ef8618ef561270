"""Histories of epochs against lists that say the epoch of every single record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.epochs import EpochHistory, diverged

Epochs = list[int]  # of each record, the first one at offset 0

LOGS = st.lists(st.integers(0, 4), max_size=12).map(lambda steps: [1 + sum(steps[: n + 1]) for n in range(len(steps))])


def history(epochs: Epochs, start: int = 0) -> EpochHistory:
    found = EpochHistory()
    for offset, epoch in enumerate(epochs):
        if offset >= start:
            found.begin(epoch, offset)
    return found


def test_an_epoch_without_records_has_no_entry() -> None:
    found = EpochHistory([(1, 0), (2, 5), (4, 5), (4, 9), (6, 12)])
    assert found.entries == ((1, 0), (4, 5), (6, 12))
    assert found.last_epoch == 6
    assert EpochHistory().last_epoch == 0
    assert EpochHistory([(1, 0), (2, 5), (1, 5)]).entries == ((1, 0),)


@given(LOGS, st.integers(0, 13), st.integers(0, 13))
def test_a_history_says_what_the_list_says(epochs: Epochs, first: int, end: int) -> None:
    found = history(epochs)
    assert [found.epoch_at(offset) for offset in range(len(epochs))] == epochs
    assert [epoch for epoch, _ in found.entries] == sorted(set(epochs))
    clipped = EpochHistory(found.within(first, end))
    for offset in range(first, min(end, len(epochs))):
        assert clipped.epoch_at(offset) == epochs[offset]
    assert first < end or not clipped.entries
    for epoch in range(7):
        later = [offset for offset, one in enumerate(epochs) if one > epoch]
        assert found.end_of(epoch, len(epochs)) == (later[0] if later else len(epochs))


@given(LOGS, st.integers(0, 13))
def test_truncating_and_forgetting(epochs: Epochs, at: int) -> None:
    cut, kept = history(epochs), history(epochs)
    cut.truncate(at)
    assert cut.entries == history(epochs[:at]).entries
    assert cut.last_epoch == (epochs[:at] or [0])[-1]
    kept.forget_before(at)
    assert [kept.epoch_at(offset) for offset in range(at, len(epochs))] == epochs[at:]
    assert sum(start < at for _, start in kept.entries) <= 1
    assert kept.last_epoch == (epochs or [0])[-1]


@given(LOGS, LOGS, st.integers(0, 13), st.integers(0, 13))
def test_two_logs_agree_up_to_the_first_record_of_another_epoch(
    mine: Epochs, theirs: Epochs, my_start: int, their_start: int
) -> None:
    my_start, their_start = min(my_start, len(mine)), min(their_start, len(theirs))
    both = range(max(my_start, their_start), min(len(mine), len(theirs)))
    differing = [offset for offset in both if mine[offset] != theirs[offset]]
    expected = differing[0] if differing else min(len(mine), len(theirs))
    follower = history(theirs, their_start).entries
    found = history(mine, my_start).divergence(my_start, len(mine), follower, their_start, len(theirs))
    assert found == expected


def test_logs_that_have_nothing_in_common() -> None:
    leader = EpochHistory([(4, 100)])
    assert leader.divergence(100, 120, [(1, 0)], 0, 50) == 50
    assert leader.divergence(100, 120, [], 0, 0) == 0
    assert leader.divergence(100, 120, [], 100, 100) == 100
    assert leader.divergence(100, 120, [(4, 90)], 90, 130) == 120
    assert leader.divergence(0, 0, [(1, 5)], 5, 20) == 0


@given(LOGS, LOGS, st.integers(0, 12))
def test_a_reader_is_told_where_what_it_read_ends(before: Epochs, after: Epochs, offset: int) -> None:
    """`before` was read up to the offset; the log is `after` now, the same up to the first difference."""
    same = next((n for n, (one, two) in enumerate(zip(before, after, strict=False)) if one != two), None)
    common = min(len(before), len(after)) if same is None else same
    offset = min(offset, len(before))
    # One leader writes an epoch: an epoch that goes on in both logs is the same records in both.
    if offset == 0:
        assert diverged(history(after), len(after), 7, 0) is None
        return
    found = diverged(history(after), len(after), before[offset - 1], offset)
    if offset <= common:
        assert found is None
    elif found is None:
        assert after[offset - 1] == before[offset - 1], "only what no two logs of a cluster do"
    else:
        assert found < offset
        assert found <= len(after)


def test_where_a_reader_goes_on() -> None:
    log = EpochHistory([(1, 0), (3, 10), (6, 15)])
    assert diverged(log, 20, epoch=3, offset=15) is None
    assert diverged(log, 20, epoch=3, offset=16) == 15, "epoch 3 ends before what was read"
    assert diverged(log, 20, epoch=3, offset=30) == 15
    assert diverged(log, 20, epoch=6, offset=30) == 20, "the log was cut below it"
    assert diverged(log, 20, epoch=2, offset=14) == 10, "epoch 2 wrote nothing that is still there"
    assert diverged(log, 20, epoch=5, offset=12) == 11, "somewhere before it, nobody knows where"
    assert diverged(EpochHistory([(6, 15)]), 20, epoch=3, offset=12) is None, "it is deleted"
