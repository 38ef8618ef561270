"""One partition's batches against a log that refuses and forgets, over connections that break at every point."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from comet import records
from comet.errors import (
    CometError,
    DiskFull,
    Internal,
    ProducerFenced,
    RecordTooLarge,
    SequenceGap,
    SequenceTooOld,
    Timeout,
    UnknownProducer,
)
from comet.producer.accumulator import NO_SEQUENCE, Accumulator, ProducerBatch
from comet.records import Codec
from tests.unit.sdk_fake import FakePartition

TIMEOUT_S = 30.0


class Harness:
    """An accumulator whose wire is under the test's control."""

    def __init__(self, *, idempotent: bool = True, in_flight_max: int = 4) -> None:
        self.finished: list[ProducerBatch] = []
        self.changes = 0
        self.now = 0.0
        self.request = 0
        self.counter = 0
        self.values: dict[ProducerBatch, set[bytes]] = {}  # a batch lets go of its values when it is done
        self.accumulator = Accumulator(
            "quotes",
            0,
            idempotent=idempotent,
            in_flight_max=in_flight_max,
            finished=self.finished.append,
            changed=self._changed,
        )

    def _changed(self, accumulator: Accumulator) -> None:
        self.changes += 1
        if accumulator.settled:
            accumulator.recover()

    def add(self, count: int = 1) -> ProducerBatch:
        batch = self.accumulator.start(self.now + TIMEOUT_S)
        for _ in range(count):
            assert isinstance(batch.values, list)
            assert isinstance(batch.timestamps, list)
            batch.values.append(b"%d" % self.counter)
            batch.timestamps.append(1)
            self.counter += 1
        self.values[batch] = {value for value in batch.values if value is not None}
        self.accumulator.seal()
        return batch

    def take(self) -> ProducerBatch:
        self.request += 1
        return self.accumulator.take(self.request)

    def add_and_take(self, batches: int) -> list[ProducerBatch]:
        for _ in range(batches):
            self.add()
        return [self.take() for _ in range(batches)]


def identity(batch: ProducerBatch) -> tuple[int, int]:
    return batch.epoch, batch.sequence


def test_identities_follow_one_another() -> None:
    h = Harness()
    h.add(3)
    h.add(2)
    assert [identity(h.take()), identity(h.take())] == [(0, 0), (0, 3)]


def test_the_window_is_closed_when_it_is_full() -> None:
    h = Harness(in_flight_max=2)
    first, _ = h.add_and_take(2)
    h.add()
    assert not h.accumulator.sendable
    first.acked(0, 1)
    assert h.accumulator.sendable


def test_after_a_lost_connection_everything_goes_again_as_it_was() -> None:
    h = Harness()
    sent = h.add_and_take(3)
    before = [identity(batch) for batch in sent]
    h.accumulator.lost(CometError("cut"))
    assert [h.take() for _ in range(3)] == sent
    assert [identity(batch) for batch in sent] == before
    assert not h.finished


def test_without_idempotence_what_may_be_written_fails_with_its_outcome_unknown() -> None:
    h = Harness(idempotent=False)
    sent = h.add_and_take(2)
    waiting = h.add()
    h.accumulator.lost(CometError("cut"))
    assert h.finished == sent
    assert all(isinstance(batch.error, Timeout) and batch.error.outcome_unknown for batch in sent)
    assert h.take() is waiting


def test_a_refusal_holds_the_rest_back_until_all_is_answered() -> None:
    h = Harness()
    a, b, c = h.add_and_take(3)
    a.refused(DiskFull("full"))
    assert not h.accumulator.sendable
    b.refused(SequenceGap("after a"))
    assert not h.accumulator.sendable
    c.refused(SequenceGap("after b"))
    assert [h.take(), h.take(), h.take()] == [a, b, c]
    assert [identity(batch) for batch in (a, b, c)] == [(0, 0), (0, 1), (0, 2)]


def test_a_batch_refused_for_good_leaves_a_hole_that_ends_the_epoch() -> None:
    h = Harness()
    a, b = h.add_and_take(2)
    a.refused(RecordTooLarge("too large"))
    b.refused(SequenceGap("after a"))
    assert isinstance(a.error, RecordTooLarge)
    assert h.take() is b
    assert identity(b) == (1, 0)


def test_a_forgotten_producer_starts_a_new_epoch() -> None:
    h = Harness()
    first = h.add()
    h.take()
    first.acked(0, 1)
    second, third = h.add_and_take(2)
    second.refused(UnknownProducer("who?"))
    third.refused(UnknownProducer("who?"))
    assert [h.take(), h.take()] == [second, third]
    assert [identity(second), identity(third)] == [(1, 0), (1, 1)]


def test_a_forgotten_producer_says_nothing_of_an_attempt_that_was_never_answered() -> None:
    h = Harness()
    (first,) = h.add_and_take(1)
    first.acked(0, 1)
    (second,) = h.add_and_take(1)
    h.accumulator.lost(CometError("cut"))
    assert h.take() is second
    second.refused(UnknownProducer("who?"))
    assert isinstance(second.error, Timeout)
    assert h.accumulator.epoch == 1


def test_a_first_batch_that_may_be_written_is_not_sent_under_another_identity() -> None:
    h = Harness()
    first, second = h.add_and_take(2)
    h.accumulator.lost(CometError("cut"))
    assert [h.take(), h.take()] == [first, second]
    first.refused(UnknownProducer("forgotten"))
    second.refused(UnknownProducer("forgotten"))
    third = h.add()
    assert h.take() is third and identity(third) == (1, 0)
    assert isinstance(first.error, Timeout) and isinstance(second.error, Timeout)
    assert first.error.outcome_unknown


def test_a_gap_proves_that_a_repeated_batch_is_not_there() -> None:
    # The broker acknowledged the first, crashed and lost it before it was synced.
    h = Harness()
    (first,) = h.add_and_take(1)
    first.acked(0, 1)
    (second,) = h.add_and_take(1)
    h.accumulator.lost(CometError("crash"))
    assert h.take() is second
    second.refused(SequenceGap("nothing is there"))
    assert h.take() is second
    assert identity(second) == (1, 0)


def test_a_gap_proves_nothing_when_a_late_copy_could_close_it() -> None:
    h = Harness()
    first, second = h.add_and_take(2)
    h.accumulator.lost(CometError("cut"))
    assert [h.take(), h.take()] == [first, second]
    first.refused(RecordTooLarge("now it is"))  # but its first copy may still arrive
    assert isinstance(first.error, Timeout)
    second.refused(SequenceGap("after first"))
    assert isinstance(second.error, Timeout)


def test_what_times_out_on_the_wire_takes_its_successors_along() -> None:
    h = Harness()
    first = h.add()
    h.take()
    h.now = 20.0
    second = h.add()
    h.take()
    third = h.add()
    assert h.accumulator.expire(TIMEOUT_S, None) == [1, 2]
    assert isinstance(first.error, Timeout)
    assert isinstance(second.error, Timeout)
    assert h.take() is third
    assert identity(third) == (1, 0)


def test_what_was_refused_until_its_time_was_up_fails_with_the_refusal() -> None:
    h = Harness()
    (batch,) = h.add_and_take(1)
    batch.refused(DiskFull("full"))
    h.accumulator.expire(TIMEOUT_S, DiskFull("full"))
    assert isinstance(batch.error, DiskFull)
    h.add()
    assert identity(h.take()) == (1, 0), "its sequence was given away and never used"


def test_what_was_never_sent_is_known_not_to_be_written() -> None:
    h = Harness()
    batch = h.add()
    h.accumulator.expire(TIMEOUT_S, None)
    assert batch.error is not None
    assert not batch.error.outcome_unknown
    h.add()
    assert identity(h.take()) == (0, 0)


def test_an_answer_that_comes_too_late_is_ignored() -> None:
    h = Harness()
    (batch,) = h.add_and_take(1)
    h.accumulator.expire(TIMEOUT_S, None)
    batch.acked(7, 1)
    batch.refused(DiskFull("full"))
    assert isinstance(batch.error, Timeout)
    assert batch.base_offset == -1


def test_too_old_means_written_and_breaks_nothing() -> None:
    h = Harness()
    a, b = h.add_and_take(2)
    a.refused(SequenceTooOld("long ago"))
    b.acked(1, 1)
    h.add()
    assert identity(h.take()) == (0, 2)


def test_a_fenced_producer_stops() -> None:
    h = Harness()
    a, b = h.add_and_take(2)
    waiting = h.add()
    a.refused(ProducerFenced("another"))
    assert [type(batch.error) for batch in (a, b, waiting)] == [ProducerFenced] * 3


@pytest.mark.parametrize("error", [RecordTooLarge("x"), Internal("x"), SequenceTooOld("x")])
def test_a_batch_fails_alone(error: CometError) -> None:
    h = Harness()
    (batch,) = h.add_and_take(1)
    batch.refused(error)
    assert batch.error is error
    other = h.add()
    assert h.take() is other


class LaneMachine(RuleBasedStateMachine):
    """An accumulator, a partition as the broker keeps it, and connections whose copies arrive late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.h = Harness()
        self.log = FakePartition("quotes", 0, 1)
        self.wire: deque[tuple[int, ProducerBatch, bytes]] = deque()  # sent on this connection, not yet at the broker
        self.answers: deque[tuple[int, ProducerBatch, int | CometError]] = deque()  # from the broker, not yet here
        self.stray: list[bytes] = []  # copies of connections that are gone, which may still arrive
        self.ever_written: set[bytes] = set()
        self.truncated: set[bytes] = set()
        self.full = False

    @rule(count=st.integers(1, 3))
    def add(self, count: int) -> None:
        self.h.add(count)

    @precondition(lambda self: self.h.accumulator.sendable)
    @rule()
    def send(self) -> None:
        batch = self.h.take()
        data = b"".join(batch.encode(Codec.NONE, producer_id=7))
        self.wire.append((batch.request, batch, data))

    def _write(self, data: bytes) -> int:
        header = records.verify(data, stamped=False)
        base = self.log.check(header)
        if base is not None:
            return base
        if self.full:
            raise DiskFull("full")
        base = self.log.append(header, data)
        self.ever_written.update(value for value in records.decode(data).values if value is not None)
        return base

    @precondition(lambda self: self.wire)
    @rule()
    def arrive(self) -> None:
        request, batch, data = self.wire.popleft()
        try:
            self.answers.append((request, batch, self._write(data)))
        except CometError as error:
            self.answers.append((request, batch, error))

    @precondition(lambda self: self.wire)
    @rule()
    def refuse_for_good(self) -> None:
        request, batch, _ = self.wire.popleft()
        self.answers.append((request, batch, RecordTooLarge("says the broker")))

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        request, batch, outcome = self.answers.popleft()
        if batch.request != request:
            return  # the producer no longer waits for it
        if isinstance(outcome, CometError):
            batch.refused(outcome)
        else:
            batch.acked(outcome, 1)

    @rule()
    def cut(self) -> None:
        self.stray.extend(data for _, _, data in self.wire)
        self.wire.clear()
        self.answers.clear()
        self.h.accumulator.lost(CometError("cut"))

    @precondition(lambda self: self.stray)
    @rule()
    def stray_copy_arrives(self) -> None:
        # Copies of one connection arrive in order or not at all.
        data = self.stray.pop(0)
        try:
            self._write(data)
        except CometError:
            return

    @precondition(lambda self: len(self.log.batches) > 0)
    @rule()
    def crash_and_lose_the_tail(self) -> None:
        """A power cut takes the last batch back; with the process go all copies under way."""
        _, data = self.log.batches[-1]
        self.truncated.update(value for value in records.decode(data).values if value is not None)
        self.log.truncate(1)
        self.cut()
        self.stray.clear()

    @rule(full=st.booleans())
    def disk(self, full: bool) -> None:
        self.full = full

    @rule(seconds=st.sampled_from([1.0, 15.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.h.now += seconds
        self.h.accumulator.expire(self.h.now, None)

    @invariant()
    def nothing_is_written_twice(self) -> None:
        values = [value for value in self.log.values() if value not in self.truncated]
        assert len(values) == len(set(values)), f"written twice: {values}"

    @invariant()
    def order_is_kept(self) -> None:
        values = [int(value) for value in self.log.values() if value is not None and value not in self.truncated]
        assert values == sorted(values), f"out of order: {values}"

    @invariant()
    def an_acknowledged_batch_is_where_it_says(self) -> None:
        for batch in self.h.finished:
            if batch.error is None:
                found = [h for h, _ in self.log.batches if h.base_offset == batch.base_offset]
                lost = not found and self.truncated
                assert lost or found[0].record_count == batch.count or self.truncated

    @invariant()
    def what_failed_for_sure_is_not_there(self) -> None:
        there = set(self.log.values())
        for batch in self.h.finished:
            if batch.error is not None and not batch.error.outcome_unknown:
                assert not self.h.values[batch] & there, f"{batch.error!r}, and yet it was written"

    @invariant()
    def the_books_balance(self) -> None:
        accumulator = self.h.accumulator
        assert accumulator.on_wire == sum(batch.request != 0 for batch in accumulator.queue)
        assert accumulator.on_wire <= 4
        assert all(not batch.done for batch in accumulator.queue)
        sequences = [batch.sequence for batch in accumulator.queue if batch.sequence != NO_SEQUENCE]
        assert sequences == sorted(sequences)

    def teardown(self) -> None:
        """When everything works again, everything ends."""
        self.full = False
        for _ in range(10 * self.h.counter + 100):
            if not self.h.accumulator.pending:
                return
            if self.h.accumulator.sendable:
                self.send()
            while self.wire:
                self.arrive()
            while self.answers:
                self.answer()
        raise AssertionError("the accumulator never came to rest")


LaneMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestLane = LaneMachine.TestCase
