"""What one partition remembers of its idempotent producers, so that a batch sent twice is written once.

    producer id ─► epoch, next sequence, the last 64 batches: (first sequence, count, offset, append time)

and of the transactions among them, see isolation.py; and of requests with an idempotency key, which are no producers'
and must not push those out: see requests.py.

A producer numbers its records per partition from 0; a batch carries the number of its first record.

    epoch below the known one                     ProducerFenced
    epoch above it, or a producer not known       must begin at sequence 0, else SequenceGap or UnknownProducer
    begins where the last batch ended             to be written
    repeats a remembered batch exactly            Duplicate: its first offset is the answer
    ends at or before what was written            SequenceTooOld: written once, its offset no longer known
    anything else                                 SequenceGap

The state is derived from the log: writing the same batches to an empty table gives the same table. That holds for
forgetting, too: beyond PRODUCERS_MAX the one goes whose last batch lies furthest back in the log. Time plays no part:
a clock that jumps a day ahead would have everybody forgotten.

Pure; owned by the log of the partition, on the loop's thread. A snapshot can be encoded on another one.
"""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from comet.errors import CorruptBatch, ProducerFenced, SequenceGap, SequenceTooOld, UnknownProducer
from comet.records import BatchHeader, Flag, Marker
from comet_broker.core import requests
from comet_broker.core.isolation import Isolation, IsolationSnapshot
from comet_broker.core.requests import Duplicate, Requests

__all__ = ["PRODUCERS_MAX", "WINDOW_BATCHES", "Duplicate", "Producer", "ProducerSnapshot", "ProducerTable"]

WINDOW_BATCHES: Final = 64
PRODUCERS_MAX: Final = 1024  # per partition; with full windows about 2 MiB

_FIELDS: Final = 4  # of a remembered batch: first sequence, record count, base offset, append time
_WINDOW_ITEMS: Final = WINDOW_BATCHES * _FIELDS
_MAGIC: Final = b"COMETPRD"
_HEAD: Final = struct.Struct("<8sIqI")  # magic, version, offset, producers
_ENTRY: Final = struct.Struct("<qIqqI")  # id, epoch, next sequence, last append time, items of the window
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 3
_WITHOUT_REQUESTS: Final = 2  # the versions before it: written when there were none
_WITHOUT_TRANSACTIONS: Final = 1
_TRANSACTIONAL: Final = int(Flag.TRANSACTIONAL)
_KEYED: Final = int(Flag.KEYED)


class Producer:
    """What is known of one producer. The window is flat, four integers a batch, because that is a fifth of the
    memory of tuples."""

    __slots__ = ("epoch", "last_append_us", "next_sequence", "window")

    def __init__(self, epoch: int, next_sequence: int, last_append_us: int, window: array[int]) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.last_append_us = last_append_us
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
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self.isolation = Isolation()
        self.requests = Requests()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """None if the batch may be written; where an exact repeat was; else raises the reason against it."""
        if not header.producer_id:
            return None
        if header.flags & _KEYED:
            return self.requests.check(header)
        known = self._producers.get(header.producer_id)
        if known is None:
            if header.base_sequence == 0:
                return None
            raise UnknownProducer(
                f"producer {header.producer_id} is not known here and begins at sequence {header.base_sequence}: "
                f"start again with a new producer id"
            )
        if header.producer_epoch == known.epoch and header.base_sequence == known.next_sequence:
            return None
        return self._answer_unexpected(header, known)

    def _answer_unexpected(self, header: BatchHeader, known: Producer) -> Duplicate | None:
        if header.control:
            return None  # not the producer's
        if header.producer_epoch < known.epoch:
            raise ProducerFenced(
                f"epoch {header.producer_epoch} of producer {header.producer_id} is over: {known.epoch} has written"
            )
        if header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            raise SequenceGap(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} at sequence "
                f"{header.base_sequence} instead of 0",
                details={"expected": "0"},
            )
        duplicate = known.find(header.base_sequence, header.record_count)
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

    def record(self, header: BatchHeader, base_offset: int, append_time_us: int, marker: Marker | None = None) -> None:
        """Notes a batch that is now in the log, whatever `check` would have said: the log is right. With a control
        batch comes what it says."""
        if not header.producer_id:
            return
        if header.flags & _KEYED:
            self.requests.record(header, base_offset, append_time_us)
            return
        if header.flags & _TRANSACTIONAL:
            if marker is not None:  # nothing that its producer wrote
                self.isolation.note_marker(header.producer_id, header.producer_epoch, marker, base_offset)
                return
            assert not header.control
            end = base_offset + header.last_offset_delta + 1
            self.isolation.note_batch(header.producer_id, header.producer_epoch, base_offset, end)
        known = self._producers.get(header.producer_id)
        entry = (header.base_sequence, header.record_count, base_offset, append_time_us)
        if known is None or known.epoch != header.producer_epoch:
            window = array("q", entry)
            self._producers[header.producer_id] = Producer(
                header.producer_epoch, header.end_sequence, append_time_us, window
            )
            self._forget()
        else:
            window = known.window
            window.extend(entry)
            if len(window) > _WINDOW_ITEMS:
                del window[:_FIELDS]
            known.next_sequence = header.end_sequence
            known.last_append_us = append_time_us
        self._producers.move_to_end(header.producer_id)
        assert len(window) <= _WINDOW_ITEMS

    def _forget(self) -> None:
        """Makes room whenever a producer joins: only then can the table grow."""
        while len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)

    # ---- snapshots

    def snapshot(self, offset: int) -> ProducerSnapshot:
        """The table as it is after all batches below `offset`: a quick copy, to be encoded elsewhere."""
        entries = [
            (_ENTRY.pack(number, one.epoch, one.next_sequence, one.last_append_us, len(one.window)), one.window[:])
            for number, one in self._producers.items()
        ]
        return ProducerSnapshot(offset, entries, self.requests.snapshot(), self.isolation.snapshot())

    @classmethod
    def restore(cls, data: bytes) -> tuple[int, ProducerTable]:
        """The offset and table of an encoded snapshot; CorruptBatch if it is damaged in any way."""
        try:
            return cls._restore(data)
        except (struct.error, ValueError) as error:
            raise CorruptBatch(f"a producer snapshot that cannot be read: {error}") from None

    @classmethod
    def _restore(cls, data: bytes) -> tuple[int, ProducerTable]:
        if len(data) < _HEAD.size + _CRC.size or crc32c(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise CorruptBatch("a producer snapshot with a bad checksum")
        magic, version, offset, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or version not in (_VERSION, _WITHOUT_REQUESTS, _WITHOUT_TRANSACTIONS):
            raise CorruptBatch("not a producer snapshot of this version")
        table = cls()
        at = _HEAD.size
        for _ in range(count):
            number, epoch, next_sequence, last_append_us, items = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            window = array("q", struct.unpack_from(f"<{items}q", data, at))
            at += 8 * items
            table._producers[number] = Producer(epoch, next_sequence, last_append_us, window)
        if version == _VERSION:
            table.requests, at = Requests.restore(data, at)
        if version != _WITHOUT_TRANSACTIONS:
            table.isolation, at = Isolation.restore(data, at, in_parts=version == _VERSION)
        if at != len(data) - _CRC.size:
            raise CorruptBatch("a producer snapshot of the wrong length")
        return offset, table


class ProducerSnapshot(NamedTuple):
    """A copy of a table, bound to an offset."""

    offset: int
    entries: list[tuple[bytes, array[int]]]
    requests: list[tuple[int, bytes]]
    isolation: IsolationSnapshot

    def encode(self) -> bytes:
        head = _HEAD.pack(_MAGIC, _VERSION, self.offset, len(self.entries))
        data = b"".join((head, *_flat(self.entries), *requests.encode(self.requests), *self.isolation.encode()))
        return data + _CRC.pack(crc32c(data))


def _flat(entries: Iterable[tuple[bytes, array[int]]]) -> Iterable[bytes]:
    for head, window in entries:
        yield head
        yield struct.pack(f"<{len(window)}q", *window)
