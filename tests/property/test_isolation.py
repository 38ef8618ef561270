"""What a partition knows of its transactions against a list of what is in its log.

Transactions begin, write, end in any order; the watermark rises; records are deleted; the process dies and takes up a
snapshot and the batches after it; the log is cut back. Every answer is compared with a scan of the list.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from comet.errors import CometError
from comet.records import Marker
from comet_broker.core.isolation import AbortedTransaction, Isolation

PRODUCERS = st.sampled_from([1, 2, 3])


class Entry(NamedTuple):
    """One batch of a log."""

    producer: int  # 0: no transaction's
    epoch: int
    first: int
    end: int
    commit: bool | None = None  # of a marker


class IsolationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.high_watermark = 0
        self.log_start = 0
        self.shown = 0
        self.isolation = Isolation()
        self.snapshots: list[tuple[int, bytes]] = []

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0

    def epoch_of(self, producer: int) -> int:
        return 1 + sum(1 for one in self.log if one.producer == producer and one.commit is not None)

    @rule(producer=st.just(0) | PRODUCERS, count=st.integers(1, 3))
    def write(self, producer: int, count: int) -> None:
        epoch = self.epoch_of(producer)
        entry = Entry(producer, epoch, self.end, self.end + count)
        if producer:
            begun = any((one.producer, one.epoch) == (producer, epoch) and one.end > self.log_start for one in self.log)
            assert self.isolation.check(producer, epoch) == begun, "the coordinator is asked before the first one"
        self.log.append(entry)
        note(self.isolation, entry)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer: int, *, commit: bool) -> None:
        entry = Entry(producer, self.epoch_of(producer), self.end, self.end + 1, commit)
        self.log.append(entry)
        note(self.isolation, entry)
        ended = self.isolation.ended(producer, entry.epoch)
        assert ended == (entry.epoch, commit, entry.first)

    @rule(share=st.floats(0, 1))
    def watermark_rises(self, share: float) -> None:
        bounds = [one.end for one in self.log if one.end > self.high_watermark]
        if bounds:
            self.high_watermark = bounds[round(share * (len(bounds) - 1))]

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        self.log_start += round(share * (self.high_watermark - self.log_start))
        self.isolation.forget_before(self.log_start)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.end, b"".join(self.isolation.snapshot().encode())))

    @rule(last=st.integers(0, 2))
    def die(self, last: int) -> None:
        self.open_again(self.snapshots[: len(self.snapshots) - last])

    @rule(share=st.floats(0, 1))
    def cut_back(self, share: float) -> None:
        bounds = [one.end for one in self.log if one.end >= self.high_watermark]
        if bounds:
            end = bounds[round(share * (len(bounds) - 1))]
            self.log = [one for one in self.log if one.end <= end]
            self.snapshots = [(offset, data) for offset, data in self.snapshots if offset <= end]
            self.open_again(self.snapshots)

    def open_again(self, snapshots: list[tuple[int, bytes]]) -> None:
        offset, data = snapshots[-1] if snapshots else (0, b"")
        self.isolation = Isolation()
        if data:
            self.isolation, length = Isolation.restore(data, 0)
            assert length == len(data)
        self.isolation.forget_before(self.log_start)
        for entry in self.log:
            if entry.first >= offset:
                note(self.isolation, entry)
        self.isolation.forget_before(self.log_start)

    # ---- the list's answers

    def pieces(self) -> dict[tuple[int, int], tuple[list[Entry], Entry | None]]:
        """Of each transaction what is there, and its marker."""
        found: dict[tuple[int, int], tuple[list[Entry], Entry | None]] = {}
        for one in self.log:
            if one.producer:
                batches, marker = found.get((one.producer, one.epoch), ([], None))
                if one.commit is not None:
                    marker = one
                elif one.end > self.log_start:
                    batches = [*batches, one]
                found[one.producer, one.epoch] = (batches, marker)
        return found

    @invariant()
    def the_stable_end_lies_before_what_is_undecided(self) -> None:
        stable = max(self.isolation.last_stable_offset(self.high_watermark), self.log_start)
        expected = self.high_watermark
        for batches, marker in self.pieces().values():
            if batches and (marker is None or marker.first >= self.high_watermark):
                expected = min(expected, batches[0].first)
        expected = max(expected, self.log_start)
        assert stable == expected
        assert stable >= self.shown, "it never goes back"
        self.shown = stable

    @invariant()
    def what_was_aborted_is_known_for_as_long_as_it_is_there(self) -> None:
        spans = [(0, self.end + 1), *((one.first, one.end) for one in self.log if one.end > self.log_start)]
        for first, end in spans:
            found = self.isolation.aborted(first, end)
            assert len(set(found)) == len(found)
            wanted = set()
            for (producer, epoch), (batches, marker) in self.pieces().items():
                if marker is None or marker.commit or not batches:
                    assert all((one.producer_id, one.epoch) != (producer, epoch) or not batches for one in found)
                elif any(one.first < end and one.end > first for one in batches):
                    wanted.add((producer, epoch, marker.first))
            told = {(one.producer_id, one.epoch, one.end): one for one in found}
            assert wanted <= set(told), "who reads there is told"
            for producer, epoch, at in wanted:
                begin = self.pieces()[producer, epoch][0][0].first
                assert told[producer, epoch, at].first <= begin
        assert all(isinstance(one, AbortedTransaction) for one in self.isolation.aborted(0, self.end))

    @invariant()
    def nothing_follows_a_marker(self) -> None:
        for producer, epoch in self.pieces():
            if epoch < self.epoch_of(producer):
                try:
                    self.isolation.check(producer, epoch)
                except CometError:
                    continue
                raise AssertionError("a batch after the marker")


def note(isolation: Isolation, entry: Entry) -> None:
    if entry.commit is not None:
        isolation.note_marker(entry.producer, entry.epoch, Marker(entry.commit, -1), entry.first)
    elif entry.producer:
        isolation.note_batch(entry.producer, entry.epoch, entry.first, entry.end)


IsolationMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
TestIsolation = IsolationMachine.TestCase


def test_a_snapshot_from_before_a_deletion_is_no_step_back() -> None:
    """The transaction began below the log's start; who reads the log from there finds a later part of it only."""
    machine = IsolationMachine()
    machine.write(count=1, producer=3)
    machine.watermark_rises(0.0)
    machine.end_transaction(commit=False, producer=1)
    machine.watermark_rises(0.0)
    machine.write(count=1, producer=3)
    machine.take_snapshot()
    machine.delete(0.5)
    machine.die(last=1)
    machine.the_stable_end_lies_before_what_is_undecided()
    machine.die(last=0)
    machine.the_stable_end_lies_before_what_is_undecided()
