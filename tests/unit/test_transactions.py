"""What may happen to a transactional id in each of its states: every case, and what the rows of the table mean."""

from __future__ import annotations

from itertools import product

import pytest

from comet.errors import (
    CometError,
    CoordinatorLoading,
    InvalidArgument,
    ProducerFenced,
    TransactionAborted,
    TransactionNotOpen,
)
from comet_broker import limits
from comet_broker.core import transactions
from comet_broker.core.transactions import (
    ENDING,
    EPOCH_END,
    EPOCH_MAX,
    REFUSALS,
    AddPartition,
    Age,
    End,
    Event,
    EventKind,
    Evicted,
    Marked,
    Open,
    Outcome,
    Step,
    TimedOut,
    TransactionLoaded,
    TransactionRecord,
    TransactionState,
    age_of,
    decided,
    ended,
    step,
)

TOPIC = "a" * 32
TP = (TOPIC, 0)
OTHER = ("b" * 32, 3)
NEW = TransactionRecord(producer_id=7, timeout_ms=60_000, group="g")
AGAIN = Open(producer_id=8, timeout_ms=60_000, group="g")
WITH_EPOCH = [EventKind.ADD_PARTITION, EventKind.COMMIT, EventKind.ABORT, EventKind.TIMED_OUT, EventKind.MARKED]


def run(record: TransactionRecord, *events: Event) -> TransactionRecord:
    """What comes of events that are none of them refused."""
    for event in events:
        after = step(record, event)
        assert after.error is None, after
        record = after.record
    return record


def refused(record: TransactionRecord, event: Event, kind: type[CometError]) -> CometError:
    after = step(record, event)
    assert after.record is record, "a refusal changes nothing"
    assert type(after.error) is kind, after
    return after.error


OPEN = run(NEW, AddPartition(1, TP))
COMMITTING = run(OPEN, End(1, commit=True))
ABORTING = run(OPEN, End(1, commit=False))


def test_every_case_has_a_row_and_every_row_is_a_case() -> None:
    present = set(product(TransactionState, EventKind))
    assert set(transactions.PRESENT) == present
    assert set(transactions.REPLACED) == set(product(ENDING, WITH_EPOCH)), "only what is ending can be replaced"
    others = [age for age in Age if age not in {Age.CURRENT, Age.REPLACED}]
    assert set(transactions.ELSEWHEN) == set(product(others, WITH_EPOCH))


def test_every_row_says_why() -> None:
    for table in (transactions.PRESENT, transactions.REPLACED, transactions.ELSEWHEN):
        assert all(len(found.reason) > 5 for found in table.values())


def test_every_state_meets_every_event_of_every_age() -> None:
    """No case raises, none goes back, and only what is stored as decided has an outcome."""
    history = [NEW, OPEN, COMMITTING, ABORTING, run(NEW, End(1, True), End(2, False), AddPartition(3, TP))]
    history += [TransactionRecord(7, 60_000, epoch=7, last_epoch=6, known_from=5)]
    records = [*history]
    for base in history:
        records += [run(base, AGAIN), run(run(base, AGAIN), AGAIN)]
    records += [run(record, Marked(record.epoch)) for record in records if record.state in ENDING]
    records += [
        run(record, AddPartition(record.epoch, OTHER)) for record in records if record.state is TransactionState.EMPTY
    ]
    met: set[tuple[TransactionState, EventKind, Age]] = set()
    for record, epoch in product(records, [*range(8), EPOCH_END, EPOCH_MAX]):
        events: list[Event] = [AddPartition(epoch, TP), End(epoch, True), End(epoch, False), TimedOut(epoch)]
        events += [Marked(epoch), AGAIN, Evicted(), TransactionLoaded()]
        for event in events:
            after = step(record, event)
            assert (after.error is not None) == (after.outcome in REFUSALS)
            if isinstance(event, AddPartition | End | TimedOut | Marked):
                met.add((record.state, transactions._kind_of(event), age_of(record, epoch)))
            if record.state in ENDING:
                assert after.record.state is record.state or isinstance(event, Marked), "what is decided stays"
                if isinstance(event, Marked) and after.outcome is Outcome.FINISHED:
                    assert (after.record.last_epoch, after.record.last_committed) == (
                        record.epoch,
                        record.state is TransactionState.COMMITTING,
                    )
    assert {age for _, _, age in met} == set(Age)


def test_a_transaction_from_its_first_partition_to_the_next_epoch() -> None:
    record = run(NEW, AddPartition(1, TP), AddPartition(1, OTHER), AddPartition(1, TP), AddPartition(1, (TOPIC, 4)))
    assert record.topics == {TOPIC: (0, 4), OTHER[0]: (3,)}
    decided = step(record, End(1, commit=True))
    assert (decided.outcome, decided.record.state) == (Outcome.DECIDED, TransactionState.COMMITTING)
    assert decided.record.topics == record.topics, "the markers go to all that were added"
    assert step(decided.record, End(1, commit=True)) == Step(decided.record, Outcome.UNDER_WAY)
    after = run(decided.record, Marked(1))
    assert (after.epoch, after.state, after.topics) == (2, TransactionState.EMPTY, {})
    assert step(after, End(1, commit=True)).outcome is Outcome.REPEATED
    assert run(after, AddPartition(2, TP)).state is TransactionState.OPEN


def test_a_partition_that_is_added_again_changes_nothing() -> None:
    assert run(OPEN, AddPartition(1, TP)) is OPEN


def test_a_transaction_without_outputs_uses_up_its_epoch() -> None:
    """Else an End that comes late would end the next one, too."""
    for commit in (True, False):
        after = step(NEW, End(1, commit))
        assert after.outcome is Outcome.DECIDED
        assert (after.record.state, after.record.epoch) == (TransactionState.EMPTY, 2)
        opened = run(after.record, AddPartition(2, TP))
        assert step(opened, End(1, commit)) == Step(opened, Outcome.REPEATED)


def test_what_comes_late_is_told_how_it_ended() -> None:
    committed = run(COMMITTING, Marked(1), AddPartition(2, TP))
    refused(committed, End(1, commit=False), TransactionNotOpen)
    refused(committed, AddPartition(1, OTHER), TransactionNotOpen)
    aborted = run(OPEN, TimedOut(1), Marked(1))
    error = refused(aborted, End(1, commit=True), TransactionAborted)
    assert "60000 ms" in error.message
    assert error.details == {"next_epoch": "2"}
    refused(aborted, AddPartition(1, OTHER), TransactionAborted)
    assert step(aborted, End(1, commit=False)).outcome is Outcome.REPEATED
    later = run(committed, End(2, commit=True), Marked(2))
    assert step(later, End(1, commit=True)).outcome is Outcome.REPEATED, "whatever came after it"


def test_who_has_lost_a_marker_is_told_how_it_ended() -> None:
    for record in (NEW, OPEN, COMMITTING, run(OPEN, TimedOut(1))):
        assert ended(record, 1) is None, "its markers may be on their way"
    committed = run(COMMITTING, Marked(1), AddPartition(2, TP))
    assert (ended(committed, 1), ended(committed, 2)) == (True, None)
    aborted = run(committed, TimedOut(2), Marked(2))
    assert (ended(aborted, 1), ended(aborted, 2), ended(aborted, 3)) == (True, False, None)
    replaced = run(aborted, AGAIN)
    assert (ended(replaced, 1), ended(replaced, 2), ended(replaced, replaced.epoch)) == (True, False, None)


def test_markers_are_for_what_is_decided() -> None:
    for record in (NEW, OPEN):
        assert decided(record, 1) is None
    aborting = run(OPEN, TimedOut(1))
    assert (decided(COMMITTING, 1), decided(aborting, 1)) == (True, False)
    assert decided(COMMITTING, 2) is None and decided(aborting, EPOCH_MAX) is None
    after = run(COMMITTING, Marked(1), AddPartition(2, TP))
    assert (decided(after, 1), decided(after, 2), decided(after, 3)) == (True, None, None)


def test_how_transactions_ended_is_known_until_too_many_were_aborted() -> None:
    record, outcomes = NEW, dict[int, bool]()
    for turn in range(2 * limits.TRANSACTION_ABORTED_EPOCHS_MAX):
        outcomes[record.epoch] = turn % 2 == 0
        record = run(record, AddPartition(record.epoch, TP), End(record.epoch, turn % 2 == 0), Marked(record.epoch))
    assert {epoch: ended(record, epoch) for epoch in outcomes} == outcomes
    assert len(record.aborted) == limits.TRANSACTION_ABORTED_EPOCHS_MAX
    record = run(record, AddPartition(record.epoch, TP), End(record.epoch, False), Marked(record.epoch))
    assert ended(record, 1) is False, "nobody knows any more"
    assert {epoch: ended(record, epoch) for epoch in outcomes if epoch > 2} == {
        epoch: committed for epoch, committed in outcomes.items() if epoch > 2
    }
    assert len(record.encode()) < 3_000
    refused(record, End(1, commit=True), TransactionNotOpen)


def test_no_partition_is_added_once_it_is_decided() -> None:
    refused(COMMITTING, AddPartition(1, OTHER), TransactionNotOpen)
    refused(COMMITTING, AddPartition(1, TP), TransactionNotOpen)
    refused(ABORTING, AddPartition(1, OTHER), TransactionAborted)


def test_whoever_opens_the_id_anew_fences_all_before() -> None:
    empty = run(NEW, AGAIN)
    assert (empty.epoch, empty.first_epoch) == (2, 2)
    opened = run(OPEN, AGAIN)
    assert (opened.state, opened.epoch, opened.first_epoch) == (TransactionState.ABORTING, 1, 3)
    for record, epoch in [(empty, 1), (opened, 1), (run(opened, Marked(1)), 1), (run(opened, Marked(1)), 2)]:
        refused(record, AddPartition(epoch, OTHER), ProducerFenced)
        refused(record, End(epoch, commit=True), ProducerFenced)
        refused(record, End(epoch, commit=False), ProducerFenced)
    assert run(opened, Marked(1)).epoch == 3


def test_a_commit_that_was_decided_is_confirmed_even_to_one_that_is_fenced_by_now() -> None:
    """It must not take for undone what readers will see. The epoch that it is told of is of no use to it."""
    fenced = run(COMMITTING, AGAIN)
    assert step(fenced, End(1, commit=True)).outcome is Outcome.UNDER_WAY
    refused(fenced, AddPartition(1, OTHER), ProducerFenced)
    after = run(fenced, Marked(1))
    assert step(after, End(1, commit=True)).outcome is Outcome.REPEATED
    refused(after, AddPartition(2, TP), ProducerFenced)
    assert after.epoch == 3
    others = run(after, AddPartition(3, TP), End(3, commit=True), Marked(3), AGAIN)
    assert step(others, End(1, commit=True)).outcome is Outcome.REPEATED, "nor when others have committed since"
    refused(others, End(2, commit=True), ProducerFenced)
    refused(run(run(NEW, AGAIN), End(2, commit=True)), End(1, commit=True), ProducerFenced)


def test_each_of_many_who_open_the_id_gets_an_epoch_of_its_own() -> None:
    for base in (NEW, OPEN, COMMITTING, ABORTING):
        record, firsts = base, []
        for _ in range(5):
            record = run(record, AGAIN)
            firsts.append(record.first_epoch)
        assert len(set(firsts)) == 5
        assert firsts == sorted(firsts)


def test_the_next_epoch_waits_for_the_markers_of_the_one_before() -> None:
    """Its producer may have been told of it by a coordinator that did not store that the markers were there."""
    for ending in (COMMITTING, ABORTING):
        refused(ending, AddPartition(2, TP), CoordinatorLoading)
        refused(ending, End(2, commit=True), CoordinatorLoading)
        refused(ending, AddPartition(3, TP), TransactionNotOpen)


def test_what_is_open_ends_with_its_time_or_its_member() -> None:
    assert run(OPEN, TimedOut(1)).state is TransactionState.ABORTING
    assert run(OPEN, Evicted()).state is TransactionState.ABORTING
    for record in (NEW, COMMITTING, ABORTING):
        assert run(record, TimedOut(record.epoch)) is record
        assert run(record, Evicted()) is record
    later = run(COMMITTING, Marked(1), AddPartition(2, TP))
    assert run(later, TimedOut(1)) is later, "the timer of an earlier one"


def test_the_next_coordinator_goes_on_where_this_one_was() -> None:
    assert step(OPEN, TransactionLoaded()) == Step(OPEN, Outcome.NOTHING)
    for ending in (COMMITTING, ABORTING):
        assert step(ending, TransactionLoaded()) == Step(ending, Outcome.RESUMED)


def test_a_transaction_has_no_more_partitions_than_the_limit() -> None:
    record = NEW
    for index in range(limits.TRANSACTION_PARTITIONS_MAX):
        record = run(record, AddPartition(1, (TOPIC, index)))
    refused(record, AddPartition(1, OTHER), InvalidArgument)
    assert run(record, AddPartition(1, TP)) is record
    assert len(record.encode()) < 10_000


def test_epochs_that_are_used_up_make_a_new_producer() -> None:
    last = TransactionRecord(7, 60_000, epoch=EPOCH_END - 1, first_epoch=1, last_epoch=EPOCH_END - 2)
    over = run(last, AddPartition(EPOCH_END - 1, TP), End(EPOCH_END - 1, commit=True), Marked(EPOCH_END - 1))
    assert over.epoch == EPOCH_END
    refused(over, AddPartition(EPOCH_END, TP), TransactionNotOpen)
    refused(over, End(EPOCH_END, commit=True), TransactionNotOpen)
    assert run(over, AGAIN) == TransactionRecord(producer_id=8, timeout_ms=60_000, group="g")
    ending = run(last, AddPartition(EPOCH_END - 1, TP), AGAIN)
    for _ in range(40):
        ending = run(ending, AGAIN)
    assert ending.first_epoch <= EPOCH_MAX
    assert run(ending, Marked(EPOCH_END - 1), AGAIN).producer_id == 8


def test_a_record_survives_the_store() -> None:
    for record in (NEW, OPEN, COMMITTING, run(ABORTING, AGAIN)):
        assert TransactionRecord.decode(record.encode()) == record


@pytest.mark.parametrize("record", [NEW, OPEN, COMMITTING, ABORTING])
def test_a_step_is_a_function_of_record_and_event(record: TransactionRecord) -> None:
    for event in (AddPartition(1, OTHER), End(1, True), AGAIN, Marked(1), Evicted()):
        first, second = step(record, event), step(record, event)
        assert (first.record, first.outcome) == (second.record, second.outcome)
