"""The idempotent producers of one partition, remembered so that a batch sent twice is written once.

    producer id ─► epoch, next sequence, the last 64 batches: (first sequence, count, offset, append time)

Transactions are in isolation.py. Requests with an idempotency key have a table of their own, in requests.py, so that
they do not evict producers.

A producer numbers its records per partition from 0; a batch carries the number of its first record.

    epoch below the known one                     ProducerFenced
    epoch above it, or a producer not known       must begin at sequence 0, else SequenceGap or UnknownProducer
    begins where the last batch ended             to be written
    repeats a remembered batch exactly            Duplicate: its first offset is the answer
    ends at or before the last written record     SequenceTooOld: written once, its offset no longer known
    anything else                                 SequenceGap

Producers lose detail in three steps, the one that wrote longest ago first:

    windows      64 batches each; PRODUCERS_MAX producers, BATCHES_MAX batches in all     every repeat is answered
    last batch   up to KNOWN_MAX producers, with those above                              the last batch is answered
    epoch only   the last 262,144 beyond them, see forgotten.py                           UnknownProducer in that epoch

So a retry of a first batch is recognised while its producer is in one of the three. A producer whose epoch alone is
remembered continues in the next epoch, which the SDK does by itself.

Beyond the third step a producer is gone. A client sends a batch again for RETRY_MS_MAX at most, so `check` refuses new
producers with LimitExceeded rather than drop one that wrote within PROTECTED_US. `record` never refuses: the log is
right.

The state is derived from the log: writing the same batches to an empty table gives the same table. Counting alone
decides which entries are dropped. Time decides only which batches a leader refuses. It is measured by a clock in the
table: each batch moves it by the time since the batch before, by no less than 0 and no more than STEP_US. A wall clock
that jumps a day moves it by 10 minutes. Long pauses count as STEP_US, which protects for longer. The leader adds the
time since its last batch by a monotonic clock, so that refusals end by themselves if all batches are of new producers.

Measured, of one partition: 2.6 MiB for windows, 3.5 MiB for last batches and 3.5 MiB for epochs, if all are full.
The snapshot of such a table has 6.0 MiB. It takes the loop 5 ms, once per segment, and a worker 12 ms to encode.

Pure; owned by the log of the partition, on the loop's thread. A snapshot can be encoded on another one.
"""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from comet.errors import (
    CorruptBatch,
    LimitExceeded,
    ProducerFenced,
    SequenceGap,
    SequenceTooOld,
    UnknownProducer,
)
from comet.records import BatchHeader, CompactionPlan, Flag, Marker
from comet_broker import limits
from comet_broker.core import requests
from comet_broker.core.forgotten import NEVER, Forgotten, ForgottenSnapshot
from comet_broker.core.isolation import Isolation, IsolationSnapshot
from comet_broker.core.requests import Duplicate, Requests

__all__ = [
    "BATCHES_MAX",
    "KNOWN_MAX",
    "PRODUCERS_MAX",
    "WINDOW_BATCHES",
    "Duplicate",
    "Producer",
    "ProducerSnapshot",
    "ProducerTable",
]

WINDOW_BATCHES: Final = 64
PRODUCERS_MAX: Final = 2048  # per partition, with windows
BATCHES_MAX: Final = 65_536  # in all windows
KNOWN_MAX: Final = PRODUCERS_MAX + 16_384  # with their last batch at least
MARGIN_US: Final = 3_600_000_000
PROTECTED_US: Final = limits.RETRY_MS_MAX * 1000 + MARGIN_US
STEP_US: Final = 600_000_000

_FIELDS: Final = 4  # of a remembered batch: first sequence, records that were sent, base offset, append time
_WINDOW_ITEMS: Final = WINDOW_BATCHES * _FIELDS
_MAGIC: Final = b"COMETPRD"
_HEAD: Final = struct.Struct("<8sIqI")  # magic, version, offset, producers with windows
_TIMES: Final = struct.Struct("<qq")  # the table's clock, append time of the last batch
_ENTRY: Final = struct.Struct(
    "<qIqqI"
)  # id, epoch, next sequence, last written by the table's clock, items of the window
_BATCH: Final = struct.Struct("<Iqqqqqq")  # epoch, next sequence, last written; then the last batch
_SHORT: Final = struct.Struct("<q52s")  # id, and the above
_COUNT: Final = struct.Struct("<I")
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 4
_WITHOUT_SHORT: Final = 3  # the versions before it: written when no producer had less than a window
_WITHOUT_REQUESTS: Final = 2
_WITHOUT_TRANSACTIONS: Final = 1
_TRANSACTIONAL: Final = int(Flag.TRANSACTIONAL)
_KEYED: Final = int(Flag.KEYED)


class Producer:
    """One producer. The window is flat, four integers a batch, which takes a fifth of the memory of tuples.
    `written_us` is the time of the last batch by the table's clock."""

    __slots__ = ("epoch", "next_sequence", "window", "written_us")

    def __init__(self, epoch: int, next_sequence: int, written_us: int, window: array[int]) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.written_us = written_us
        self.window = window

    def find(self, base_sequence: int, count: int) -> Duplicate | None:
        window = self.window
        for at in range(len(window) - _FIELDS, -1, -_FIELDS):
            if window[at] == base_sequence and window[at + 1] == count:
                return Duplicate(window[at + 2], window[at + 3])
        return None


class ProducerTable:
    """The producers of one partition, the one that wrote last at the end."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict()  # with windows
        self._batches = 0  # in the windows
        self._short: OrderedDict[int, bytes] = OrderedDict()  # with their last batch
        self._forgotten = Forgotten()  # with their epoch
        self._now_us = 0
        self._last_append_us = NEVER
        self.isolation = Isolation()
        self.requests = Requests()

    def __len__(self) -> int:
        """The number of producers of which at least the last batch is known."""
        return len(self._producers) + len(self._short)

    def statistics(self) -> dict[str, int]:
        return {"producers": len(self), "producers_forgotten": len(self._forgotten)}

    def check(self, header: BatchHeader, idle_us: Callable[[], int] = lambda: 0) -> Duplicate | None:
        """None if the batch may be written, a Duplicate for an exact repeat; else raises the reason. For leaders;
        `idle_us` gives the least time since the last batch was written."""
        if not header.producer_id:
            return None
        if header.flags & _KEYED:
            return self.requests.check(header)
        known = self._producers.get(header.producer_id)
        if known is None:
            known = self._short_one(header.producer_id)
        if known is None:
            self._check_unknown(header, idle_us)
            return None
        if header.producer_epoch == known.epoch and header.base_sequence == known.next_sequence:
            return None
        return self._answer_unexpected(header, known)

    def _check_unknown(self, header: BatchHeader, idle_us: Callable[[], int]) -> None:
        """Checks a batch of whose producer at most the epoch is known."""
        if header.control:
            return
        epoch = self._forgotten.find(header.producer_id)
        if epoch is not None and header.producer_epoch < epoch:
            raise _fenced(header, epoch)
        if header.base_sequence != 0 or header.producer_epoch == epoch:
            raise UnknownProducer(
                f"the batches of producer {header.producer_id} in epoch {header.producer_epoch} are no longer known, "
                f"so it is unknown whether the one at sequence {header.base_sequence} was written before; begin the "
                f"next epoch at sequence 0"
            )
        written_us = self._forgotten.dropping_us if len(self) >= KNOWN_MAX else None
        if written_us is not None and self._now_us - written_us + idle_us() < PROTECTED_US:
            raise LimitExceeded(
                f"the partition takes no new producers: the {len(self) + len(self._forgotten)} that it remembers have "
                f"written within {PROTECTED_US // 3_600_000_000} hours; keep producers longer, or add partitions",
                retry_after_ms=1000,
            )

    def _short_one(self, number: int) -> Producer | None:
        packed = self._short.get(number)
        if packed is None:
            return None
        epoch, next_sequence, written_us, *batch = _BATCH.unpack(packed)
        return Producer(epoch, next_sequence, written_us, array("q", batch))

    def _answer_unexpected(self, header: BatchHeader, known: Producer) -> Duplicate | None:
        if header.control:
            return None  # a marker, written by the coordinator
        if header.producer_epoch < known.epoch:
            raise _fenced(header, known.epoch)
        if header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            raise SequenceGap(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} at sequence "
                f"{header.base_sequence} instead of 0",
                details={"expected": "0"},
            )
        duplicate = known.find(header.base_sequence, header.span)
        if duplicate is not None:
            return duplicate
        if header.end_sequence <= known.next_sequence:
            raise SequenceTooOld(
                f"producer {header.producer_id} repeats sequence {header.base_sequence}, which was written "
                f"before the last {WINDOW_BATCHES} batches or in other batches"
            )
        raise SequenceGap(
            f"producer {header.producer_id} sends sequence {header.base_sequence}; {known.next_sequence} is next",
            details={"expected": str(known.next_sequence)},
        )

    def record(
        self,
        header: BatchHeader,
        base_offset: int,
        append_time_us: int,
        control: Marker | CompactionPlan | None = None,
    ) -> None:
        """Notes a batch that is in the log now. It counts even if `check` would refuse it: the log is right. `control`
        is the content of a control batch."""
        if not header.producer_id:
            return
        if header.flags & _KEYED:
            self.requests.record(header, base_offset, append_time_us)
            return
        if header.flags & _TRANSACTIONAL:
            if isinstance(control, Marker):  # written by the coordinator, so without a sequence
                self.isolation.note_marker(header.producer_id, header.producer_epoch, control, base_offset)
                return
            assert not header.control
            end = base_offset + header.span
            self.isolation.note_batch(header.producer_id, header.producer_epoch, base_offset, end)
        self._move_clock(append_time_us)
        number = header.producer_id
        known = self._producers.get(number)
        if known is None and (known := self._short_one(number)) is not None:
            del self._short[number]
            self._producers[number] = known
            self._batches += 1
        entry = (header.base_sequence, header.span, base_offset, append_time_us)
        if known is None or known.epoch != header.producer_epoch:
            self._batches -= 0 if known is None else len(known.window) // _FIELDS
            self._producers[number] = Producer(
                header.producer_epoch, header.end_sequence, self._now_us, array("q", entry)
            )
            self._batches += 1
        else:
            window = known.window
            window.extend(entry)
            if len(window) > _WINDOW_ITEMS:
                del window[:_FIELDS]
            else:
                self._batches += 1
            known.next_sequence = header.end_sequence
            known.written_us = self._now_us
            assert len(window) <= _WINDOW_ITEMS
        self._producers.move_to_end(number)
        if (
            len(self._producers) > PRODUCERS_MAX
            or self._batches > BATCHES_MAX
            or len(self._producers) + len(self._short) > KNOWN_MAX
        ):
            self._shorten()

    def _move_clock(self, append_time_us: int) -> None:
        """Moves the clock on by the time between two batches, by 0 to STEP_US."""
        if self._last_append_us != NEVER:
            self._now_us += min(max(0, append_time_us - self._last_append_us), STEP_US)
        self._last_append_us = append_time_us

    def _shorten(self) -> None:
        """Reduces producers to fewer details until all limits hold; the last writer keeps its window."""
        while len(self._producers) > PRODUCERS_MAX or self._batches > BATCHES_MAX:
            number, one = self._producers.popitem(last=False)
            self._batches -= len(one.window) // _FIELDS
            self._short[number] = _BATCH.pack(one.epoch, one.next_sequence, one.written_us, *one.window[-_FIELDS:])
        while len(self) > KNOWN_MAX:
            number, packed = self._short.popitem(last=False)
            epoch, _, written_us, *_ = _BATCH.unpack(packed)
            self._forgotten.add(number, epoch, written_us)
        assert self._producers and self._batches >= len(self._producers)

    # ---- snapshots

    def snapshot(self, offset: int) -> ProducerSnapshot:
        """The table after all batches below `offset`: a quick copy, to be encoded elsewhere."""
        entries = [
            (_ENTRY.pack(number, one.epoch, one.next_sequence, one.written_us, len(one.window)), one.window[:])
            for number, one in self._producers.items()
        ]
        return ProducerSnapshot(
            offset,
            entries,
            self.requests.snapshot(),
            self.isolation.snapshot(),
            (self._now_us, self._last_append_us),
            list(self._short.items()),
            self._forgotten.snapshot(),
            self.requests.snapshot_forgotten(),
        )

    @classmethod
    def restore(cls, data: bytes) -> tuple[int, ProducerTable]:
        """The offset and table of an encoded snapshot; CorruptBatch if it is damaged in any way."""
        try:
            return cls._restore(data)
        except (struct.error, ValueError) as error:
            raise CorruptBatch(f"a producer snapshot is unreadable: {error}") from None

    @classmethod
    def _restore(cls, data: bytes) -> tuple[int, ProducerTable]:
        if len(data) < _HEAD.size + _CRC.size or crc32c(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise CorruptBatch("a producer snapshot has a bad checksum")
        magic, version, offset, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or not _WITHOUT_TRANSACTIONS <= version <= _VERSION:
            raise CorruptBatch("not a producer snapshot of this version")
        table = cls()
        at = _HEAD.size
        if version > _WITHOUT_SHORT:
            table._now_us, table._last_append_us = _TIMES.unpack_from(data, at)
            at += _TIMES.size
        for _ in range(count):
            number, epoch, next_sequence, written_us, items = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            window = array("q", struct.unpack_from(f"<{items}q", data, at))
            at += 8 * items
            if version <= _WITHOUT_SHORT:
                written_us = 0  # it was a wall clock's
            table._producers[number] = Producer(epoch, next_sequence, written_us, window)
            table._batches += items // _FIELDS
        if version > _WITHOUT_SHORT:
            at = table._restore_short(data, at)
        if version > _WITHOUT_REQUESTS:
            table.requests, at = Requests.restore(data, at)
        if version > _WITHOUT_SHORT:
            at = table.requests.restore_forgotten(data, at)
        if version != _WITHOUT_TRANSACTIONS:
            table.isolation, at = Isolation.restore(data, at, in_parts=version > _WITHOUT_REQUESTS)
        if at != len(data) - _CRC.size:
            raise CorruptBatch("a producer snapshot has the wrong length")
        return offset, table

    def _restore_short(self, data: bytes, at: int) -> int:
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        for _ in range(count):
            number, packed = _SHORT.unpack_from(data, at)
            self._short[number] = packed
            at += _SHORT.size
        self._forgotten, at = Forgotten.restore(data, at)
        return at


class ProducerSnapshot(NamedTuple):
    """A copy of a table, bound to an offset."""

    offset: int
    entries: list[tuple[bytes, array[int]]]
    requests: list[tuple[int, bytes]]
    isolation: IsolationSnapshot
    times: tuple[int, int]
    short: list[tuple[int, bytes]]
    forgotten: ForgottenSnapshot
    requests_forgotten: ForgottenSnapshot

    def encode(self) -> bytes:
        parts = [
            _HEAD.pack(_MAGIC, _VERSION, self.offset, len(self.entries)) + _TIMES.pack(*self.times),
            *_flat(self.entries),
            _COUNT.pack(len(self.short)),
            *(_SHORT.pack(*one) for one in self.short),
            *self.forgotten.encode(),
            *requests.encode(self.requests),
            *self.requests_forgotten.encode(),
            *self.isolation.encode(),
        ]
        data = b"".join(parts)
        return data + _CRC.pack(crc32c(data))


def _flat(entries: Iterable[tuple[bytes, array[int]]]) -> Iterable[bytes]:
    for head, window in entries:
        yield head
        yield struct.pack(f"<{len(window)}q", *window)


def _fenced(header: BatchHeader, epoch: int) -> ProducerFenced:
    return ProducerFenced(
        f"epoch {header.producer_epoch} of producer {header.producer_id} is over: {epoch} has written"
    )


assert _BATCH.size == _SHORT.size - 8
assert PRODUCERS_MAX <= BATCHES_MAX and WINDOW_BATCHES < BATCHES_MAX and PRODUCERS_MAX < KNOWN_MAX
assert STEP_US < MARGIN_US
