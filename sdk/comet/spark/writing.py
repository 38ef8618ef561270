"""A task that writes, in a worker of an executor: a unit in one transaction, or rows without one.

    open the unit's id ─► its note says that it is written ─► read the input to its end, write nothing
             │
             └─► it is not ─► begin ─► rows ─► acknowledged ─► commit with the note
                                        └── any failure ──► abort ──► retry, while the input is still held,
                                                                              unless no broker answered for `timeoutMs`

An attempt begins with opening the id, so it knows the outcome of the previous one, in any worker, and fences it. A
fenced attempt does not retry: another one has taken its place.

Memory holds the unacknowledged records, and the part of the input that is kept for a retry in this task. Connections
stay open for the worker's next task.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import comet
from comet.errors import CometError, DataLoss, ProducerFenced, TransactionAborted
from comet.event_loop import call
from comet.producer.transaction import cause_of, waited_in_vain
from comet.spark.rows import Part, parts
from comet.spark.sink_options import SinkOptions
from comet.spark.write_unit import Note, Unit

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3  # of a unit in one task
HELD_BYTES: Final = 8 << 20  # of input, kept for a retry
PRODUCERS_MAX: Final = 4  # cached by a worker; each has its own connections

_producers: dict[SinkOptions, Any] = {}


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of writing a task's rows."""

    rows: int
    before: bool = False  # an earlier attempt had written them


# ---- in transactions


def write_unit(unit: Unit, batches: Iterable[pa.RecordBatch], options: SinkOptions) -> WriteResult:
    """Writes a unit, unless it is written. On an error nothing of it is visible, or the outcome is unknown: the next
    attempt finds out."""
    rows = TaskRows(batches)
    failed: CometError | None = None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            before = _last_batch(unit, options)  # also the outcome of an unanswered commit
        except CometError as error:
            _give_up(unit, error, options)
            raise
        if before is not None:
            return _compare(unit, before, rows, options)
        if failed is not None and not rows.rewind():
            raise failed
        transaction = call(_begun(_transactional(options)))
        began = time.monotonic()
        try:
            return _attempt(unit, transaction, rows, options)
        except CometError as error:
            _give_up(unit, error, options)
            in_vain = waited_in_vain(error) and time.monotonic() - began >= options.timeout_ms / 1000
            in_doubt = transaction.state == "unknown"
            if attempt == ATTEMPTS or not (in_doubt or (_passes(cause_of(error)) and not in_vain)):
                raise
            log.warning("write failed, retrying %s: %s", unit, error)
            failed = error
    raise AssertionError("the last attempt returns or raises")


def _give_up(unit: Unit, error: CometError, options: SinkOptions) -> None:
    _discard(options)
    if isinstance(cause_of(error), ProducerFenced):
        raise ProducerFenced(f"{unit} was taken over by another attempt; this one wrote nothing") from error


def _attempt(unit: Unit, transaction: comet.Transaction, rows: TaskRows, options: SinkOptions) -> WriteResult:
    try:
        for batch in rows:
            for part in parts(batch, options.topic):
                call(transaction.send_many(part.topic, partition=part.partition, **part.columns))
        note = Note(unit.batch, rows.count, options.topic).encode()
    except BaseException as error:
        call(transaction.__aexit__(type(error), error, None))
        raise
    call(_committed(transaction, note))
    return WriteResult(rows.count)


async def _begun(producer: comet.TransactionalProducer) -> comet.Transaction:
    return await producer.transaction().__aenter__()


async def _committed(transaction: comet.Transaction, note: bytes) -> None:
    transaction.note(note)
    await transaction.__aexit__(None, None, None)


def _last_batch(unit: Unit, options: SinkOptions) -> int | None:
    """Takes the unit over from an earlier writer. Returns its number of written rows; None: it is not written."""
    producer = _transactional(options)
    call(producer.reopen(unit.transactional_id))
    return unit.written(producer.note, options.topic)


def _compare(unit: Unit, before: int, rows: TaskRows, options: SinkOptions) -> WriteResult:
    """Reads the rest of the input, which is written already."""
    for _ in rows:
        pass
    problem = unit.lacking(before, rows.count)
    if problem:
        if options.fail_on_loss:
            raise DataLoss(f"{problem}. With the option failOnDataLoss=false the query continues without them")
        log.warning("%s", problem)
    return WriteResult(before, before=True)


def _passes(error: CometError) -> bool:
    """Whether another attempt may succeed."""
    return error.retriable or error.outcome_unknown or error.metadata_stale or isinstance(error, TransactionAborted)


class TaskRows:
    """The input of a task. Spark sends it once; a small input is kept and can be read again."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._held: list[pa.RecordBatch] | None = []
        self._bytes = 0
        self._again: deque[pa.RecordBatch] = deque()
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._again:  # the unread rest is kept for the next iteration
            batch = self._again.popleft()
            self.count += len(batch)
            yield batch
        for batch in self._batches:
            self.count += len(batch)
            self._hold(batch)
            yield batch

    def _hold(self, batch: pa.RecordBatch) -> None:
        if self._held is None:
            return
        self._bytes += batch.nbytes
        if self._bytes > HELD_BYTES:
            self._held = None
        else:
            self._held.append(batch)

    def rewind(self) -> bool:
        """Restarts the iteration from the first row; returns False if the input is not kept."""
        if self._held is None:
            return False
        self._again, self.count = deque(self._held), 0
        return True


# ---- without transactions


def write_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> WriteResult:
    """Writes rows; returns when all are acknowledged. A failed task may be partly written, and again by its retry."""
    producer = _plain(options)
    count = 0
    try:
        for batch in batches:
            count += len(batch)
            for part in parts(batch, options.topic):
                call(_sent(producer, part))
        call(producer.flush())
    except CometError:
        _discard(options)
        raise
    return WriteResult(count)


async def _sent(producer: comet.Producer, part: Part) -> None:
    await producer.send_many(part.topic, partition=part.partition, **part.columns)


# ---- cached producers


def _transactional(options: SinkOptions) -> comet.TransactionalProducer:
    """The worker's producer for its units, which are written one after the other."""
    return _cached(options, _make_transactional)  # type: ignore[no-any-return]


def _plain(options: SinkOptions) -> comet.Producer:
    return _cached(options, _make_plain)  # type: ignore[no-any-return]


async def _make_transactional(options: SinkOptions) -> comet.TransactionalProducer:
    return comet.TransactionalProducer(
        options.addresses(),
        encryption=options.encryption(),
        transaction_timeout_ms=options.transaction_timeout_ms,
        timeout_ms=options.timeout_ms,
        compression=options.compression,
        name="spark",
    )


async def _make_plain(options: SinkOptions) -> comet.Producer:
    return comet.Producer(
        options.addresses(),
        encryption=options.encryption(),
        acks=options.acks,
        timeout_ms=options.timeout_ms,
        compression=options.compression,
        name="spark",
    )


def _cached(options: SinkOptions, make: Any) -> Any:
    found = _producers.pop(options, None)
    if found is None:
        while len(_producers) >= PRODUCERS_MAX:
            _discard(next(iter(_producers)))
        found = call(make(options))
    _producers[options] = found  # last used, so it is discarded last
    return found


def _discard(options: SinkOptions) -> None:
    producer = _producers.pop(options, None)
    if producer is None:
        return
    try:
        call(producer.close())
    except CometError as error:
        log.info("producer closed with unwritten records: %s", error)
