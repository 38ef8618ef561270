"""The accumulator of one partition: fills batches, numbers them, and tracks their answers. Pure; it does no I/O.

    send ─► open batch ─► queue ═════════════════════════════════► answered
                          │ waiting │ on the wire (≤ in_flight_max) │
                          └─────────┴────── taken from the left ────┘

The rules that keep an idempotent partition exact
-------------------------------------------------
Each batch gets an *identity*, (producer epoch, sequence of its first record), when it is first put on the wire, in
order and without holes. The broker writes a batch once per identity, and only next to its predecessor.

1. **A batch that may have been written keeps its identity for good.** When a connection is lost, a batch on the wire
   becomes `maybe_written`: it is sent again unchanged, and the broker answers with the offset of the first copy if
   there is one. No path gives such a batch a new identity, because then it could be written twice.
2. **A refusal is an answer: that attempt wrote nothing.** A batch whose every attempt was refused is known not to
   be in the log. After a refusal nothing more is sent until all that is on the wire is answered, so order holds.
3. **A hole ends the epoch.** When a batch that had an identity will never be written under it (it failed for good,
   or it timed out), no later sequence of the epoch can be: the accumulator goes on under the next epoch, from sequence
   0. What is known not to be in the log moves along; what may be written fails with Timeout, its outcome unknown. The
   first batch of the new epoch fences the old one, so that late copies of batches that timed out are refused.
4. **A gap proves absence.** SEQUENCE_GAP says that the log of the partition ends before the batch's predecessor.
   Unless a batch of unknown outcome was given up in this epoch (a *ghost*, whose late copy could close the gap), the
   batch is not there and can never be, and moves along. That is what happens when a broker lost its unsynced tail in
   a crash.
5. **UNKNOWN_PRODUCER proves nothing** about an earlier attempt: the broker has forgotten. Only a batch that no
   earlier attempt can have written moves to a new epoch. The usual case is a producer that was idle for days.

Without idempotence there are no identities: a batch that may have been written is never sent again.

In a transaction the epoch is the transaction: where rule 3 would go on under the next epoch, all batches fail instead,
and the transaction with them. `begin` starts the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from comet import records
from comet.errors import (
    CometError,
    ProducerFenced,
    SequenceGap,
    SequenceTooOld,
    Timeout,
    Unavailable,
    UnknownProducer,
)
from comet.records import Codec
from comet.wire.record_ttl import BY_TOPIC, expiry_column

HeaderPairs = Sequence[tuple[str, bytes]]

NO_SEQUENCE: Final = -1


class ProducerBatch:
    """A batch of one partition, from its first record until its answer.

    Owned by its accumulator. Deliveries refer to it, also long after, so it drops its records when it is done.
    """

    __slots__ = (
        "accumulator",
        "append_time_us",
        "attempts",
        "base_offset",
        "began_us",
        "count",
        "deadline",
        "done",
        "epoch",
        "error",
        "expiry",
        "headers",
        "keys",
        "lengths",
        "maybe_written",
        "request",
        "seen",
        "sequence",
        "size",
        "timestamps",
        "ttl_ms",
        "values",
        "waiters",
    )

    def __init__(self, accumulator: Accumulator, deadline: float) -> None:
        self.accumulator = accumulator
        self.values: Sequence[bytes | None] = []
        self.keys: Sequence[bytes | None] | None = None
        self.headers: list[HeaderPairs | None] | None = None
        self.timestamps: int | list[int] = []
        self.expiry: list[int] | None = None  # of the records, if one has a time to live of its own; see record_ttl
        self.ttl_ms = accumulator.ttl_ms  # of the others
        self.lengths: int | list[int] | None = None  # of the values, if known
        self.size = 0
        self.count = 0  # set when it is first sent; values are dropped when it is done
        self.began_us = (
            0  # when its first record came, by the producer's clock; a timer's clock may tick in milliseconds
        )
        self.deadline = deadline
        self.epoch = 0
        self.sequence = NO_SEQUENCE
        self.request = 0  # number on the wire; 0 while it is not there
        self.attempts = 0
        self.maybe_written = False
        self.done = False
        self.error: CometError | None = None
        self.base_offset = -1
        self.append_time_us = 0
        self.waiters: list[Any] | None = None
        self.seen = False  # the error was given to a caller

    def __len__(self) -> int:
        return len(self.values)

    def encode(self, codec: Codec, producer_id: int, transactional: bool = False) -> list[bytes]:
        """The encoded batch, in parts."""
        expiry = None
        if self.expiry is not None or self.ttl_ms > 0:
            expiry = expiry_column(self.expiry, self.timestamps, self.values, self.ttl_ms)
        if producer_id:
            return records.encode(
                self.values, keys=self.keys, timestamps=self.timestamps, headers=self.headers,
                lengths=self.lengths, codec=codec, producer_id=producer_id, producer_epoch=self.epoch,
                base_sequence=self.sequence, expiry=expiry, transactional=transactional,
            )  # fmt: skip
        return records.encode(
            self.values, keys=self.keys, timestamps=self.timestamps, headers=self.headers, lengths=self.lengths,
            codec=codec, expiry=expiry,
        )  # fmt: skip

    # Called by the connection, see in_flight.Produced.

    def acked(self, base_offset: int, append_time_us: int) -> None:
        self.accumulator.acked(self, base_offset, append_time_us)

    def refused(self, error: CometError) -> None:
        self.accumulator.refused(self, error)


class Accumulator:
    """One partition's batches. Its owner, the sender, does the I/O. `finished` is called when a batch is done, and
    `changed` after an answer, when there may be something to send.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        idempotent: bool,
        in_flight_max: int,
        finished: Callable[[ProducerBatch], None],
        changed: Callable[[Accumulator], None],
        transactional: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.queue: deque[ProducerBatch] = deque()  # sealed, in order; a prefix of it is or was on the wire
        self.on_wire = 0
        self.epoch = 0
        self.ttl_ms = 0  # of records without one of their own, in batches that begin from now on; 0: without end
        self.trouble: CometError | None = None  # why nothing is sent until `recover`
        self._next_sequence = 0
        self._epoch_ends = False
        self._ghost = False
        self._idempotent = idempotent
        self._transactional = transactional
        self._in_flight_max = in_flight_max
        self._sent = 0  # length of the prefix of the queue that has been put on the wire since the last recovery
        self._finished = finished
        self._changed = changed

    # ---- filling

    def start(self, deadline: float) -> ProducerBatch:
        """Opens an empty batch."""
        assert self.open is None
        self.open = ProducerBatch(self, deadline)
        return self.open

    def seal(self) -> None:
        """Closes the open batch to further records."""
        if self.open is not None:
            self.queue.append(self.open)
            self.open = None

    def add(self, batch: ProducerBatch) -> None:
        """Queues a complete batch, after the open one."""
        self.seal()
        self.queue.append(batch)

    def begin(self, epoch: int) -> None:
        """Begins the next transaction: its first batch has sequence 0 of that epoch."""
        assert self._transactional and not self.pending and self.on_wire == 0
        self.epoch = epoch
        self._next_sequence = 0
        self._epoch_ends = self._ghost = False

    @property
    def pending(self) -> bool:
        """Whether there is a batch without an answer."""
        return self.open is not None or bool(self.queue)

    # ---- sending

    @property
    def sendable(self) -> bool:
        """Whether a sealed batch may be sent now."""
        return self.has_room and self.unsent

    @property
    def unsent(self) -> bool:
        """Whether there is a sealed batch that is not on the wire, with or without room for it."""
        return self._sent < len(self.queue)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be sent."""
        return self.trouble is None and self.on_wire < self._in_flight_max

    def take(self, request: int) -> ProducerBatch:
        """The next batch, with its identity; the caller puts it on the wire under that number."""
        assert self.sendable, "nothing may be sent now"
        batch = self.queue[self._sent]
        assert not batch.done and not batch.request
        if self._idempotent and batch.sequence == NO_SEQUENCE:
            batch.epoch = self.epoch
            batch.sequence = self._next_sequence
            self._next_sequence += len(batch)
        batch.attempts += 1
        batch.count = len(batch)
        batch.request = request
        self._sent += 1
        self.on_wire += 1
        return batch

    def sent_unasked(self, batch: ProducerBatch) -> None:
        """With acks=0 a batch is done once it is handed over; there is no answer."""
        self._off_wire(batch)
        self._remove(batch)
        self._finish(batch, None)

    # ---- answers

    def acked(self, batch: ProducerBatch, base_offset: int, append_time_us: int) -> None:
        if batch.done:
            return  # it timed out before the answer
        batch.base_offset = base_offset
        batch.append_time_us = append_time_us
        self._off_wire(batch)
        self._remove(batch)
        self._finish(batch, None)
        self._changed(self)

    def refused(self, batch: ProducerBatch, error: CometError) -> None:
        """Handles a refusal: the attempt wrote nothing, unless the error says otherwise. `recover` follows once
        everything on the wire is answered."""
        if batch.done:
            return
        self._off_wire(batch)
        kind = type(error)
        if kind is SequenceGap and not self._ghost:
            batch.maybe_written = False  # rule 4
        if error.retriable and error.outcome_unknown:
            self._refused_after_writing(batch, error)
        elif not self._idempotent and (error.retriable or error.metadata_stale):
            self._trouble(error)
        elif kind is SequenceGap or kind is UnknownProducer:
            if self._is_first(batch):
                self._epoch_ends = True
            self._trouble(error)
        elif error.retriable or error.metadata_stale:
            self._trouble(error)
        else:
            self._refused_for_good(batch, error)
        self._changed(self)

    def _refused_after_writing(self, batch: ProducerBatch, error: CometError) -> None:
        """The leader stepped down with the batch in its log: only the next leader knows whether it stays."""
        batch.maybe_written = True
        if not self._idempotent:
            self._remove(batch)
            self._finish(batch, _unknown(f"{error}; without idempotence it is not sent again", batch))
        self._trouble(error)

    def _refused_for_good(self, batch: ProducerBatch, error: CometError) -> None:
        self._remove(batch)
        if isinstance(error, SequenceTooOld):
            self._finish(batch, error)  # it was written, and its sequence is used
            return
        if self._idempotent:
            self._epoch_ends = True
            self._ghost = self._ghost or batch.maybe_written or error.outcome_unknown
            self._trouble(error)
        if batch.maybe_written and not error.outcome_unknown:
            error = _unknown(f"an earlier attempt was not answered, and this one was refused: {error}", batch)
        self._finish(batch, error)
        if isinstance(error, ProducerFenced):
            self.fail(error)

    def _is_first(self, batch: ProducerBatch) -> bool:
        """Whether no earlier batch is unanswered that the refused one could be waiting for."""
        return self.queue[0] is batch

    def _trouble(self, error: CometError) -> None:
        # The first error is the cause; the gaps behind it are its consequences.
        if self.trouble is None or isinstance(self.trouble, SequenceGap):
            self.trouble = error

    @property
    def settled(self) -> bool:
        """Whether there was trouble and everything on the wire has been answered: `recover` may be called."""
        return self.trouble is not None and self.on_wire == 0

    def recover(self) -> None:
        """Prepares all unanswered batches to be sent again, under a new epoch if the old one has a hole."""
        assert self.on_wire == 0
        self.trouble = None
        self._sent = 0
        if self._epoch_ends:
            self._next_epoch()
        assert not any(batch.request for batch in self.queue)

    def lost(self, error: CometError) -> None:
        """Handles a lost connection: batches on the wire may or may not have been written."""
        for batch in list(self.queue)[: self._sent]:
            if batch.request:
                self._off_wire(batch)
                batch.maybe_written = True
        self._sent = 0
        if not self._idempotent:
            self._give_up(
                [batch for batch in self.queue if batch.maybe_written],
                f"the connection was lost before the answer, and without idempotence it is not sent again: {error}",
            )
        if self.trouble is not None:
            self.recover()
        assert self.on_wire == 0 and self.trouble is None

    def _next_epoch(self) -> None:
        """Rule 3: batches known not to be in the log move to a new epoch; the others fail."""
        if self._transactional:
            self._give_up(list(self.queue), "a batch of its transaction was not written, so the transaction ends")
            return
        self._give_up(
            [batch for batch in self.queue if batch.maybe_written],
            "its predecessor was not written, and it may have been: it cannot be sent again",
        )
        self.epoch += 1
        self._next_sequence = 0
        self._epoch_ends = False
        self._ghost = False
        for batch in self.queue:
            assert not batch.maybe_written and not batch.done
            batch.sequence = NO_SEQUENCE

    # ---- giving up

    def next_deadline(self) -> float | None:
        """When the oldest batch times out."""
        if self.queue:
            return self.queue[0].deadline
        return self.open.deadline if self.open is not None else None

    def expire(self, now: float, reason: CometError | None) -> list[int]:
        """Fails batches that have waited too long, and those whose outcome depends on them.

        `reason` is the error that kept them from being sent, if any. Returns the request numbers that are no longer
        waited for.
        """
        if self.open is not None and self.open.deadline <= now:
            self.seal()
        late = [batch for batch in self.queue if batch.deadline <= now]
        if not late:
            return []
        unknown = any(batch.maybe_written or batch.request for batch in late)
        forgotten: list[int] = []
        if unknown:
            # Their successors of the same epoch could only be written after them.
            late = [batch for batch in self.queue if batch.deadline <= now or batch.maybe_written or batch.request]
        for batch in late:
            if batch.request:
                forgotten.append(batch.request)
                self._off_wire(batch)
                batch.maybe_written = True
        self._fail_late(late, reason)
        if forgotten:
            assert self.on_wire == 0
        if self.on_wire == 0:
            self.recover()
        self._changed(self)
        return forgotten

    def _fail_late(self, late: list[ProducerBatch], reason: CometError | None) -> None:
        cause = reason or self.trouble
        for batch in late:
            self._remove(batch)
            if batch.sequence != NO_SEQUENCE:
                self._epoch_ends = self._idempotent
                self._ghost = self._ghost or batch.maybe_written
            if batch.maybe_written:
                self._finish(batch, _unknown(str(cause or "no acknowledgement came in time"), batch))
            else:
                self._finish(batch, cause or Unavailable("it could not be sent in time; nothing was written"))

    def fail(self, error: CometError) -> None:
        """Fails all unanswered batches: the topic was deleted, or the producer closed."""
        self.seal()
        batches = list(self.queue)
        for batch in batches:
            if batch.request:
                self._off_wire(batch)
                batch.maybe_written = True
            self._remove(batch)
            self._epoch_ends = self._epoch_ends or batch.sequence != NO_SEQUENCE
        for batch in batches:
            self._finish(batch, error)
        self._sent = 0
        self.recover()

    def _give_up(self, batches: Iterable[ProducerBatch], why: str) -> None:
        for batch in batches:
            self._remove(batch)
            self._finish(batch, _unknown(why, batch))

    # ---- bookkeeping

    def _off_wire(self, batch: ProducerBatch) -> None:
        assert batch.request and self.on_wire > 0
        batch.request = 0
        self.on_wire -= 1

    def _remove(self, batch: ProducerBatch) -> None:
        """Takes a batch out of the queue; it is nearly always the first."""
        index = 0 if self.queue[0] is batch else self.queue.index(batch)
        del self.queue[index]
        if index < self._sent:
            self._sent -= 1
        assert self._sent >= 0

    def _finish(self, batch: ProducerBatch, error: CometError | None) -> None:
        assert not batch.done and not batch.request
        batch.done = True
        batch.error = error
        batch.count = len(batch)
        batch.values, batch.keys, batch.headers, batch.timestamps, batch.lengths = (), None, None, 0, None
        batch.expiry = None
        self._finished(batch)


def _unknown(why: str, batch: ProducerBatch) -> Timeout:
    accumulator = batch.accumulator
    return Timeout(
        f"{len(batch)} records for {accumulator.topic}/{accumulator.partition} may or may not have been written: {why}",
        details={"topic": accumulator.topic, "partition": str(accumulator.partition)},
    )


def add_extras(batch: ProducerBatch, index: int, key: Any, pairs: HeaderPairs | None) -> None:
    """Adds key and headers of the record at `index`; a column is created with its first entry."""
    if key is not None and batch.keys is None:
        batch.keys = [None] * index
    if batch.keys is not None:
        batch.keys.append(key)  # type: ignore[attr-defined]  # an open batch owns its lists
    if pairs and batch.headers is None:
        batch.headers = [None] * index
    if batch.headers is not None:
        batch.headers.append(pairs)


def add_expiry(batch: ProducerBatch, index: int, expiry: int) -> None:
    """Adds when the record at `index` expires; the column is created with its first entry."""
    if batch.expiry is None:
        batch.expiry = [BY_TOPIC] * index
    batch.expiry.append(expiry)
