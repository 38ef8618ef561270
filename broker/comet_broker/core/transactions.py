"""One transactional id: its producer's current epoch, the partitions written in it, and the end of each epoch.

    empty ──add_partition──► open ──commit──► committing ──markers written──► empty, in the next epoch
                        └──abort, timeout, eviction, reopened──► aborting ──┘

Every transaction has an epoch of its own, so that a late request cannot affect the next one. A producer that reopens
the id gets an epoch beyond all that were ever given out; lower epochs are fenced.

    record      the value in the metadata store; each step gives the next one, which is stored before any answer
    last        the epoch that ended last and its end, so that an End whose answer was lost can be repeated

`empty` after `committing` or `aborting` need not be stored: a coordinator that finds the older record writes the
markers again, which changes nothing, and gets the same epoch.

Pure: the same record and event give the same step. The time is not an input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from msgspec import field
from msgspec.structs import replace

from comet.errors import (
    CometError,
    CoordinatorLoading,
    InvalidArgument,
    ProducerFenced,
    TransactionAborted,
    TransactionNotOpen,
)
from comet_broker import limits
from comet_broker.core.cluster import PartitionId, Stored

EPOCH_MAX: Final = (1 << 32) - 1
EPOCH_END: Final = EPOCH_MAX - 15  # no transaction in it or beyond: reopening gives a new producer id
GENERATED_PREFIX: Final = "-"  # the first character of generated ids; chosen names cannot begin with it
_RETRY_MS: Final = 20


class TransactionState(Enum):
    EMPTY = "empty"  # nothing was written in this epoch
    OPEN = "open"
    COMMITTING = "committing"  # decided; the markers may be missing
    ABORTING = "aborting"


ENDING: Final = frozenset({TransactionState.COMMITTING, TransactionState.ABORTING})


class TransactionRecord(Stored, frozen=True):
    producer_id: int
    timeout_ms: int
    epoch: int = 1  # of the transaction that may be begun, is open, or is ending
    first_epoch: int = 1  # of the producer that opened the id last: everything below is fenced
    state: TransactionState = TransactionState.EMPTY
    topics: dict[str, tuple[int, ...]] = field(default_factory=dict)  # topic id -> partitions
    group: str = ""
    member: str = ""
    last_epoch: int = 0  # that has ended; 0: none
    last_committed: bool = False
    reason: str = ""  # of the present or last abort
    aborted: tuple[int, ...] = ()  # epochs from `known_from` on, aborted or never used; all others are committed
    known_from: int = 1
    note: bytes = b""  # of the last epoch that was decided to be committed with one, under any producer

    @property
    def partitions(self) -> int:
        return sum(map(len, self.topics.values()))


def ended(record: TransactionRecord, epoch: int) -> bool | None:
    """Whether a past epoch was committed, False if unknown; None if it is not over or lacks markers."""
    if epoch >= record.epoch:
        return None
    return epoch >= record.known_from and epoch not in record.aborted


def decided(record: TransactionRecord, epoch: int) -> bool | None:
    """Whether an epoch's markers commit it, False if unknown; None before the decision. It never changes."""
    if epoch == record.epoch and record.state in ENDING:
        return record.state is TransactionState.COMMITTING
    return ended(record, epoch)


# ---- events


@dataclass(frozen=True, slots=True)
class Open:
    """A producer opens the id for transactions. `producer_id` is an unused one."""

    producer_id: int
    timeout_ms: int
    group: str = ""
    member: str = ""


@dataclass(frozen=True, slots=True)
class AddPartition:
    epoch: int
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class End:
    epoch: int
    commit: bool
    reason: str = "its producer has aborted it"
    note: bytes = b""  # with commit; empty: the earlier note stays


@dataclass(frozen=True, slots=True)
class TimedOut:
    epoch: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """The producer's member was removed from its group."""


@dataclass(frozen=True, slots=True)
class Marked:
    """All partitions of the epoch have their marker, or are deleted."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionLoaded:
    """Another coordinator takes over."""


Event = Open | AddPartition | End | TimedOut | Evicted | Marked | TransactionLoaded


class EventKind(Enum):
    OPEN = "open"
    ADD_PARTITION = "add_partition"
    COMMIT = "commit"
    ABORT = "abort"
    TIMED_OUT = "timed out"
    EVICTED = "evicted"
    MARKED = "named"
    LOADED = "loaded"


class Age(Enum):
    """The epoch of an event, relative to the record's."""

    CURRENT = "current"
    REPLACED = "replaced"  # current, but the id was reopened since
    COMMITTED = "committed"  # over, under this or an earlier producer
    ABORTED = "aborted"  # over
    FENCED = "fenced"  # over and not committed, and the id was reopened since
    OVER = "over"  # so long ago that its end is no longer known
    COMING = "coming"  # the one after the one that is ending
    UNKNOWN = "unknown"  # never given out


# ---- outcomes


class Outcome(Enum):
    OPENED = "opened"  # the answer is first_epoch, once no older epoch is ending
    ADDED = "added"  # the answer is a success
    DECIDED = "decided"  # the answer is the next epoch, once all markers are written
    UNDER_WAY = "under way"  # the same, decided before
    REPEATED = "repeated"  # the answer is the next epoch
    FINISHED = "finished"  # no request waits for this to be stored
    RESUMED = "resumed"  # decided by another coordinator: the markers are to be written
    NOTHING = "nothing"

    FENCED = "fenced"  # refused, as are all below
    ABORTED = "was aborted"
    NOT_OPEN = "not open"
    LATER = "later"
    TOO_MANY = "too many partitions"


REFUSALS: Final = frozenset({Outcome.FENCED, Outcome.ABORTED, Outcome.NOT_OPEN, Outcome.LATER, Outcome.TOO_MANY})


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an event. `record` is stored before the answer; it is the same one if nothing has changed."""

    record: TransactionRecord
    outcome: Outcome
    error: CometError | None = None


@dataclass(frozen=True, slots=True)
class Row:
    outcome: Outcome
    reason: str


# The record's own epoch, or none.
PRESENT: Final[Mapping[tuple[TransactionState, EventKind], Row]] = {
    (TransactionState.EMPTY, EventKind.OPEN): Row(Outcome.OPENED, "the epoch of the earlier producer is fenced"),
    (TransactionState.EMPTY, EventKind.ADD_PARTITION): Row(Outcome.ADDED, "its first partition begins a transaction"),
    (TransactionState.EMPTY, EventKind.COMMIT): Row(
        Outcome.DECIDED, "without partitions it ends as soon as it is decided"
    ),
    (TransactionState.EMPTY, EventKind.ABORT): Row(
        Outcome.DECIDED, "the epoch is used up, so that this End cannot end another one"
    ),
    (TransactionState.EMPTY, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "nothing has begun"),
    (TransactionState.EMPTY, EventKind.EVICTED): Row(Outcome.NOTHING, "no reader waits for it"),
    (TransactionState.EMPTY, EventKind.MARKED): Row(Outcome.NOTHING, "there are no partitions to mark"),
    (TransactionState.EMPTY, EventKind.LOADED): Row(Outcome.NOTHING, "nothing is under way"),
    (TransactionState.OPEN, EventKind.OPEN): Row(Outcome.OPENED, "the earlier producer's open transaction is aborted"),
    (TransactionState.OPEN, EventKind.ADD_PARTITION): Row(
        Outcome.ADDED, "one more partition, or one that was added before"
    ),
    (TransactionState.OPEN, EventKind.COMMIT): Row(
        Outcome.DECIDED, "all added partitions, acknowledged or not, will be committed"
    ),
    (TransactionState.OPEN, EventKind.ABORT): Row(Outcome.DECIDED, "its producer aborts it"),
    (TransactionState.OPEN, EventKind.TIMED_OUT): Row(Outcome.DECIDED, "readers wait for it"),
    (TransactionState.OPEN, EventKind.EVICTED): Row(
        Outcome.DECIDED, "its commit would be refused, and readers wait for it"
    ),
    (TransactionState.OPEN, EventKind.MARKED): Row(
        Outcome.NOTHING, "it is not decided, so another coordinator wrote the markers"
    ),
    (TransactionState.OPEN, EventKind.LOADED): Row(Outcome.NOTHING, "it goes on; its timeout restarts"),
    (TransactionState.COMMITTING, EventKind.OPEN): Row(
        Outcome.OPENED, "the decision stays; the epoch after it is fenced"
    ),
    (TransactionState.COMMITTING, EventKind.ADD_PARTITION): Row(
        Outcome.NOT_OPEN, "it was decided before the partition was added"
    ),
    (TransactionState.COMMITTING, EventKind.COMMIT): Row(Outcome.UNDER_WAY, "a repeated request"),
    (TransactionState.COMMITTING, EventKind.ABORT): Row(Outcome.NOT_OPEN, "it is decided"),
    (TransactionState.COMMITTING, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is decided"),
    (TransactionState.COMMITTING, EventKind.EVICTED): Row(Outcome.NOTHING, "it is decided"),
    (TransactionState.COMMITTING, EventKind.MARKED): Row(Outcome.FINISHED, "the next epoch can begin"),
    (TransactionState.COMMITTING, EventKind.LOADED): Row(Outcome.RESUMED, "markers may be missing"),
    (TransactionState.ABORTING, EventKind.OPEN): Row(
        Outcome.OPENED, "the decision stays; the epoch after it is fenced"
    ),
    (TransactionState.ABORTING, EventKind.ADD_PARTITION): Row(Outcome.ABORTED, "it is decided"),
    (TransactionState.ABORTING, EventKind.COMMIT): Row(Outcome.ABORTED, "it is decided"),
    (TransactionState.ABORTING, EventKind.ABORT): Row(
        Outcome.UNDER_WAY, "a repeated request, or aborted for another reason"
    ),
    (TransactionState.ABORTING, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is decided"),
    (TransactionState.ABORTING, EventKind.EVICTED): Row(Outcome.NOTHING, "it is decided"),
    (TransactionState.ABORTING, EventKind.MARKED): Row(Outcome.FINISHED, "the next epoch can begin"),
    (TransactionState.ABORTING, EventKind.LOADED): Row(Outcome.RESUMED, "markers may be missing"),
}

# Current and ending, while another producer has opened the id: only the outcome can still be answered, if committed.
REPLACED: Final[Mapping[tuple[TransactionState, EventKind], Row]] = {
    (TransactionState.COMMITTING, EventKind.ADD_PARTITION): Row(Outcome.FENCED, "another producer has the id"),
    (TransactionState.COMMITTING, EventKind.COMMIT): Row(Outcome.UNDER_WAY, "it was committed before it was fenced"),
    (TransactionState.COMMITTING, EventKind.ABORT): Row(Outcome.NOT_OPEN, "it is decided"),
    (TransactionState.COMMITTING, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is decided"),
    (TransactionState.COMMITTING, EventKind.MARKED): Row(Outcome.FINISHED, "the epoch of the new producer can begin"),
    (TransactionState.ABORTING, EventKind.ADD_PARTITION): Row(Outcome.FENCED, "another producer has the id"),
    (TransactionState.ABORTING, EventKind.COMMIT): Row(Outcome.FENCED, "another producer has the id"),
    (TransactionState.ABORTING, EventKind.ABORT): Row(Outcome.FENCED, "another producer has the id"),
    (TransactionState.ABORTING, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is decided"),
    (TransactionState.ABORTING, EventKind.MARKED): Row(Outcome.FINISHED, "the epoch of the new producer can begin"),
}

# Any other epoch, in any state.
ELSEWHEN: Final[Mapping[tuple[Age, EventKind], Row]] = {
    (Age.COMMITTED, EventKind.ADD_PARTITION): Row(Outcome.NOT_OPEN, "it is over"),
    (Age.COMMITTED, EventKind.COMMIT): Row(Outcome.REPEATED, "the answer was lost"),
    (Age.COMMITTED, EventKind.ABORT): Row(Outcome.NOT_OPEN, "it was committed"),
    (Age.COMMITTED, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is over"),
    (Age.COMMITTED, EventKind.MARKED): Row(Outcome.NOTHING, "it is over"),
    (Age.ABORTED, EventKind.ADD_PARTITION): Row(Outcome.ABORTED, "it is over"),
    (Age.ABORTED, EventKind.COMMIT): Row(Outcome.ABORTED, "it timed out, or the answer was lost"),
    (Age.ABORTED, EventKind.ABORT): Row(Outcome.REPEATED, "it timed out, or the answer was lost"),
    (Age.ABORTED, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is over"),
    (Age.ABORTED, EventKind.MARKED): Row(Outcome.NOTHING, "it is over"),
    (Age.FENCED, EventKind.ADD_PARTITION): Row(Outcome.FENCED, "another producer has the id"),
    (Age.FENCED, EventKind.COMMIT): Row(Outcome.FENCED, "another producer has the id"),
    (Age.FENCED, EventKind.ABORT): Row(Outcome.FENCED, "another producer has the id"),
    (Age.FENCED, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is over"),
    (Age.FENCED, EventKind.MARKED): Row(Outcome.NOTHING, "it is over"),
    (Age.OVER, EventKind.ADD_PARTITION): Row(Outcome.NOT_OPEN, "it is over, and how it ended is no longer known"),
    (Age.OVER, EventKind.COMMIT): Row(Outcome.NOT_OPEN, "it is over, and how it ended is no longer known"),
    (Age.OVER, EventKind.ABORT): Row(Outcome.NOT_OPEN, "it is over, and how it ended is no longer known"),
    (Age.OVER, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "it is over"),
    (Age.OVER, EventKind.MARKED): Row(Outcome.NOTHING, "it is over"),
    (Age.COMING, EventKind.ADD_PARTITION): Row(
        Outcome.LATER, "given out by an earlier coordinator; the markers come first"
    ),
    (Age.COMING, EventKind.COMMIT): Row(Outcome.LATER, "given out by an earlier coordinator; the markers come first"),
    (Age.COMING, EventKind.ABORT): Row(Outcome.LATER, "given out by an earlier coordinator; the markers come first"),
    (Age.COMING, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "nothing has begun"),
    (Age.COMING, EventKind.MARKED): Row(Outcome.NOTHING, "there are no partitions to mark"),
    (Age.UNKNOWN, EventKind.ADD_PARTITION): Row(
        Outcome.NOT_OPEN, "that epoch was never given out, or epochs are used up"
    ),
    (Age.UNKNOWN, EventKind.COMMIT): Row(Outcome.NOT_OPEN, "that epoch was never given out, or epochs are used up"),
    (Age.UNKNOWN, EventKind.ABORT): Row(Outcome.NOT_OPEN, "that epoch was never given out, or epochs are used up"),
    (Age.UNKNOWN, EventKind.TIMED_OUT): Row(Outcome.NOTHING, "nothing has begun"),
    (Age.UNKNOWN, EventKind.MARKED): Row(Outcome.NOTHING, "there are no partitions to mark"),
}


def row(state: TransactionState, kind: EventKind, age: Age) -> Row:
    match age:
        case Age.CURRENT:
            return PRESENT[state, kind]
        case Age.REPLACED:
            return REPLACED[state, kind]
        case _:
            return ELSEWHEN[age, kind]


def age_of(record: TransactionRecord, epoch: int) -> Age:
    if epoch >= EPOCH_END:
        return Age.UNKNOWN
    if epoch == record.epoch:
        return Age.REPLACED if epoch < record.first_epoch else Age.CURRENT
    if epoch > record.epoch:
        return Age.COMING if record.state in ENDING and epoch == _following(record) else Age.UNKNOWN
    if ended(record, epoch):
        return Age.COMMITTED
    if epoch < record.first_epoch:
        return Age.FENCED
    return Age.ABORTED if epoch >= record.known_from else Age.OVER


def step(record: TransactionRecord, event: Event) -> Step:
    """The result of an event."""
    _check(record)
    kind, epoch = _kind_of(event), getattr(event, "epoch", record.epoch)
    age = age_of(record, epoch) if hasattr(event, "epoch") else Age.CURRENT
    found = row(record.state, kind, age)
    if found.outcome in REFUSALS:
        return Step(record, found.outcome, _refusal(record, epoch, found))
    after = record
    match event:
        case Open() if found.outcome is Outcome.OPENED:
            after = _opened(record, event)
        case AddPartition() if found.outcome is Outcome.ADDED:
            if not _holds(record, event.partition) and record.partitions >= limits.TRANSACTION_PARTITIONS_MAX:
                return Step(record, Outcome.TOO_MANY, _too_many())
            after = _added(record, event.partition)
        case End() if found.outcome is Outcome.DECIDED:
            after = _decided(record, commit=event.commit, reason=event.reason, note=event.note)
        case TimedOut() if found.outcome is Outcome.DECIDED:
            after = _decided(record, commit=False, reason=f"it was open for more than {record.timeout_ms} ms")
        case Evicted() if found.outcome is Outcome.DECIDED:
            after = _decided(record, commit=False, reason="its member was removed from the group")
        case Marked() if found.outcome is Outcome.FINISHED:
            after = _finished(record)
    _check(after)
    if after.producer_id == record.producer_id:
        assert after.epoch >= record.epoch and after.first_epoch >= record.first_epoch, "epochs only rise"
    return Step(after, found.outcome)


def _kind_of(event: Event) -> EventKind:
    match event:
        case Open():
            return EventKind.OPEN
        case AddPartition():
            return EventKind.ADD_PARTITION
        case End():
            return EventKind.COMMIT if event.commit else EventKind.ABORT
        case TimedOut():
            return EventKind.TIMED_OUT
        case Evicted():
            return EventKind.EVICTED
        case Marked():
            return EventKind.MARKED
        case TransactionLoaded():
            return EventKind.LOADED


def _check(record: TransactionRecord) -> None:
    assert (record.partitions == 0) == (record.state is TransactionState.EMPTY), (
        "a transaction has partitions exactly while it is under way"
    )
    assert record.last_epoch < record.epoch <= EPOCH_MAX and 1 <= record.first_epoch <= EPOCH_MAX
    assert record.state in ENDING or record.first_epoch <= record.epoch, "a fenced transaction is not left open"


# ---- the records after


def _following(record: TransactionRecord) -> int:
    """The epoch after the one that is ending."""
    return max(record.epoch + 1, record.first_epoch)


def _opened(record: TransactionRecord, event: Open) -> TransactionRecord:
    owner = {"timeout_ms": event.timeout_ms, "group": event.group, "member": event.member}
    if record.state is TransactionState.EMPTY:
        if record.epoch + 1 >= EPOCH_END:
            return TransactionRecord(producer_id=event.producer_id, note=record.note, **owner)  # type: ignore[arg-type]
        fence = record.epoch + 1
        return replace(_without(record, record.epoch), epoch=fence, first_epoch=fence, **owner)
    # The epoch after the ending one belongs to the earlier producer, which may still get it as an answer.
    fence = min(_following(record) + 1, EPOCH_MAX)
    if record.state is TransactionState.OPEN:
        record = _decided(record, commit=False, reason="its transactional id was opened again")
    return replace(record, first_epoch=fence, **owner)


def _added(record: TransactionRecord, partition: PartitionId) -> TransactionRecord:
    if _holds(record, partition):
        return record
    topic_id, index = partition
    indexes = (*record.topics.get(topic_id, ()), index)
    return replace(record, state=TransactionState.OPEN, topics={**record.topics, topic_id: indexes})


def _holds(record: TransactionRecord, partition: PartitionId) -> bool:
    return partition[1] in record.topics.get(partition[0], ())


def _decided(record: TransactionRecord, *, commit: bool, reason: str, note: bytes = b"") -> TransactionRecord:
    if commit:
        decided = replace(record, state=TransactionState.COMMITTING, note=note or record.note)
    else:
        decided = replace(record, state=TransactionState.ABORTING, reason=reason)
    return decided if decided.topics else _finished(decided)


def _finished(record: TransactionRecord) -> TransactionRecord:
    assert record.state in ENDING
    committed, following = record.state is TransactionState.COMMITTING, _following(record)
    unused = range(record.epoch + 1, following)  # fenced before a transaction could begin
    return replace(
        _without(record, *(unused if committed else (record.epoch, *unused))),
        state=TransactionState.EMPTY,
        topics={},
        epoch=following,
        last_epoch=record.epoch,
        last_committed=committed,
    )


def _without(record: TransactionRecord, *epochs: int) -> TransactionRecord:
    """The record with these epochs as aborted."""
    aborted = record.aborted + epochs
    remembered = aborted[-limits.TRANSACTION_ABORTED_EPOCHS_MAX :]
    forgotten = aborted[: len(aborted) - len(remembered)]
    known_from = forgotten[-1] + 1 if forgotten else record.known_from
    return replace(record, aborted=remembered, known_from=known_from)


# ---- refusals


def _refusal(record: TransactionRecord, epoch: int, found: Row) -> CometError:
    name = f"transaction {epoch} of producer {record.producer_id}"
    match found.outcome:
        case Outcome.FENCED:
            return ProducerFenced(f"{name} is fenced: {found.reason}")
        case Outcome.ABORTED:
            why = record.reason if epoch >= record.last_epoch else "long ago"
            return TransactionAborted(f"{name} was aborted: {why}", details={"next_epoch": str(epoch + 1)})
        case Outcome.NOT_OPEN:
            return TransactionNotOpen(f"{name} is not open: {found.reason}")
        case _:
            assert found.outcome is Outcome.LATER
            return CoordinatorLoading(f"{name} has to wait: {found.reason}", retry_after_ms=_RETRY_MS)


def _too_many() -> InvalidArgument:
    return InvalidArgument(
        f"a transaction writes to at most {limits.TRANSACTION_PARTITIONS_MAX} partitions; use several transactions"
    )
