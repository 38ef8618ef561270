"""Transactions under any schedule of requests, writes, markers and crashes: all or nothing, once, and in one way.

The model keeps what the store has and what is still to be written apart, delivers requests as late and as often as it
likes, and loses the coordinator whenever it likes. What it is checked against is dumb: what was ever told or marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.cluster import PartitionId
from comet_broker.core.transactions import (
    ENDING,
    REFUSALS,
    AddPartition,
    End,
    Event,
    Evicted,
    Marked,
    Open,
    Outcome,
    TimedOut,
    TransactionLoaded,
    TransactionRecord,
    TransactionState,
    ended,
    step,
)

TPS: list[PartitionId] = [("a" * 32, 0), ("a" * 32, 1), ("b" * 32, 0)]


def note_of(epoch: int) -> bytes:
    """What whoever ends this epoch gives as its note; every third gives none."""
    return b"" if epoch % 3 == 0 else b"%d" % epoch


@dataclass
class Ledger:
    """What one partition has been told: the leader takes batches of epochs that were added and are not over."""

    batches: dict[int, int] = field(default_factory=dict)  # epoch -> batches
    markers: dict[int, bool] = field(default_factory=dict)  # epoch -> committed

    def append(self, epoch: int) -> None:
        if not self.markers or epoch > max(self.markers):
            self.batches[epoch] = self.batches.get(epoch, 0) + 1

    def mark(self, epoch: int, committed: bool) -> None:
        assert self.markers.setdefault(epoch, committed) is committed, f"epoch {epoch} has ended in two ways"


@dataclass
class Pending:
    """An answer that waits for all that was decided before it to be written."""

    event: Event
    outcome: Outcome
    record: TransactionRecord


class World:
    """A coordinator, its store, three partitions, and all who ever had the transactional id."""

    def __init__(self) -> None:
        self.stored = self.current = TransactionRecord(producer_id=1, timeout_ms=1)
        self.writes: list[TransactionRecord] = []  # queued, in order
        self.answers: list[tuple[int, Pending]] = []  # with how many writes are before it
        self.given = {1}  # epochs that somebody was told of
        self.openers = [1]  # of those, the ones that opened the id, in order of the answers
        self.ledgers = {tp: Ledger() for tp in TPS}
        self.outcomes: dict[int, bool] = {}  # as told or marked
        self.late: list[Event] = []  # requests that come once more
        self.marking: dict[PartitionId, None] = {}  # markers that the coordinator has still to write
        self.added: dict[int, set[PartitionId]] = {}  # as answered
        self.noted: list[tuple[int, bytes]] = []  # to whom opened the id: its first epoch, and the note it was told

    # ---- the coordinator

    def take(self, event: Event) -> None:
        before = self.current
        found = step(before, event)
        if isinstance(event, AddPartition | End) and event.epoch != before.epoch:
            assert found.record is before, "what is late touches nothing"
        if found.outcome is Outcome.FINISHED:
            self.current = found.record  # it is stored with the next write, or never
        elif found.record is not before:
            self.current = found.record
            self.writes.append(found.record)
        self.answers.append((len(self.writes), Pending(event, found.outcome, self.current)))
        if self.current.state in ENDING and (before.state not in ENDING or found.outcome is Outcome.RESUMED):
            self.marking = {(topic, index): None for topic, indexes in self.current.topics.items() for index in indexes}
        self.answer()

    def answer(self) -> None:
        while self.answers and self.answers[0][0] == 0:
            _, pending = self.answers.pop(0)
            self.tell(pending)

    def tell(self, pending: Pending) -> None:
        event = pending.event
        match event:
            case Open():
                assert pending.record.first_epoch not in self.given, "an epoch is given to one only"
                assert pending.record.first_epoch > max(self.openers)
                self.noted.append((pending.record.first_epoch, pending.record.note))
                self.given.add(pending.record.first_epoch)
                self.openers.append(pending.record.first_epoch)
            case AddPartition() if pending.outcome is Outcome.ADDED:
                self.added.setdefault(event.epoch, set()).add(event.partition)
                self.ledgers[event.partition].append(event.epoch)
            case End() if pending.outcome not in REFUSALS:
                self.ended(event.epoch, event.commit)
                self.given.add(event.epoch + 1)
            case End() if pending.outcome is Outcome.FENCED:
                self.ended(event.epoch, committed=False)
            case AddPartition() | End() if pending.outcome is Outcome.ABORTED:
                self.ended(event.epoch, committed=False)

    def ended(self, epoch: int, committed: bool) -> None:
        assert self.outcomes.setdefault(epoch, committed) is committed, f"epoch {epoch} has ended in two ways"

    # ---- what may happen

    def open(self, _: int) -> None:
        self.take(Open(producer_id=2, timeout_ms=1))

    def add_partition(self, pick: int) -> None:
        self.request(AddPartition(self.pick(pick // 6), TPS[pick % 3]), twice=pick % 2 == 0)

    def commit(self, pick: int) -> None:
        self.end(self.pick(pick // 2), commit=True, twice=pick % 2 == 0)

    def abort(self, pick: int) -> None:
        self.end(self.pick(pick // 2), commit=False, twice=pick % 2 == 0)

    def end(self, epoch: int, *, commit: bool, twice: bool) -> None:
        self.request(End(epoch, commit, note=note_of(epoch)), twice)

    def pick(self, pick: int) -> int:
        """Mostly the epoch that counts, if anybody has it, now and then the latest, or an older one."""
        known = sorted(self.given, reverse=True)
        if pick % 4 < 2 and self.current.epoch in self.given:
            return self.current.epoch
        return known[0] if pick % 4 < 3 else known[pick % len(known)]

    def request(self, event: Event, twice: bool) -> None:
        if twice:
            self.late.append(event)
        self.take(event)

    def once_more(self, pick: int) -> None:
        if self.late:
            self.take(self.late.pop(pick % len(self.late)))

    def append(self, pick: int) -> None:
        """A batch may reach the leader long after its partition was added."""
        known = sorted((epoch, tp) for epoch, tps in self.added.items() for tp in tps)
        if known:
            epoch, tp = known[pick % len(known)]
            self.ledgers[tp].append(epoch)

    def nobody_comes(self, pick: int) -> None:
        self.take(Evicted() if pick % 2 else TimedOut(self.current.epoch))

    def write(self, pick: int) -> None:
        count = min(1 + pick % 3, len(self.writes))
        if not count:
            return
        self.stored = self.writes[count - 1]
        del self.writes[:count]
        self.answers = [(max(0, before - count), pending) for before, pending in self.answers]
        self.answer()

    def mark(self, pick: int) -> None:
        """Once the decision is stored."""
        if self.current.state not in ENDING or self.writes:
            return
        for tp in list(self.marking)[: 1 + pick % 3]:
            del self.marking[tp]
            self.ledgers[tp].mark(self.current.epoch, self.current.state is TransactionState.COMMITTING)
        if not self.marking:
            epoch, committed = self.current.epoch, self.current.state is TransactionState.COMMITTING
            self.take(Marked(epoch))
            self.ended(epoch, committed)
            self.given.add(epoch + 1)
            for ledger in self.ledgers.values():
                assert ledger.markers.get(epoch, committed) is committed
                assert epoch not in ledger.batches or epoch in ledger.markers, "torn: a batch without its marker"

    def crash(self, pick: int) -> None:
        """The next coordinator begins with what was written; what was under way may have been."""
        done = pick % (len(self.writes) + 1)
        if done:
            self.stored = self.writes[done - 1]
        self.writes, self.answers, self.marking = [], [], {}
        self.current = TransactionRecord.decode(self.stored.encode())
        self.take(TransactionLoaded())

    # ---- what must hold

    def nobody_waits_for_what_nobody_knows(self) -> None:
        """Every batch without a marker belongs to what is open or ending, so that its readers go on some day."""
        for tp, ledger in self.ledgers.items():
            for epoch in ledger.batches.keys() - ledger.markers.keys():
                assert epoch == self.current.epoch
                assert tp[1] in self.current.topics.get(tp[0], ()), f"{tp} was forgotten"

    def all_or_nothing(self) -> None:
        for epoch, committed in self.outcomes.items():
            assert all(ledger.markers.get(epoch, committed) is committed for ledger in self.ledgers.values())
            assert ended(self.current, epoch) in {committed, None}

    def what_was_answered_is_part_of_it(self) -> None:
        if self.current.state is not TransactionState.EMPTY:
            for topic, index in self.added.get(self.current.epoch, ()):
                assert index in self.current.topics.get(topic, ())

    def the_note_is_of_the_last_commit(self) -> None:
        """As it was told to whoever opened the id, and as the next one would be told."""
        for first_epoch, note in [*self.noted, (self.current.epoch + 1, self.current.note)]:
            committed = [epoch for epoch, yes in self.outcomes.items() if yes and epoch < first_epoch]
            at_least = max((epoch for epoch in committed if note_of(epoch)), default=0)
            of = int(note or b"0")
            assert at_least <= of < first_epoch, (
                f"whoever opened at {first_epoch} was told {note!r}, and {at_least} was committed"
            )
            assert self.outcomes.get(of, True), f"whoever opened at {first_epoch} was told {note!r}, which was aborted"

    def check(self) -> None:
        self.nobody_waits_for_what_nobody_knows()
        self.all_or_nothing()
        self.what_was_answered_is_part_of_it()
        self.the_note_is_of_the_last_commit()


Happening = Callable[[World, int], None]
USUAL: list[Happening] = [
    *(
        World.add_partition,
        World.add_partition,
        World.add_partition,
        World.append,
        World.append,
        World.commit,
        World.commit,
        World.abort,
    ),
    *(World.write, World.write, World.write, World.write, World.write, World.mark, World.mark, World.mark),
    World.once_more,
]
TROUBLE: list[Happening] = [World.open, World.nobody_comes, World.crash]


@given(st.lists(st.tuples(st.sampled_from(USUAL + TROUBLE), st.integers(0, 35)), min_size=20, max_size=100))
def test_transactions_end_once_and_in_one_way(schedule: list[tuple[Happening, int]]) -> None:
    world = World()
    for happens, pick in schedule:
        happens(world, pick)
        world.check()
