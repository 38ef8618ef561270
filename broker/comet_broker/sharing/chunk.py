"""A range of a partition's log in memory, from which records are acquired: whole batches, and their positions.

The bytes come from the tail or the log, as those of feeds do, and are verified. Only a few header bytes of each batch
are read: where it begins, where it ends, and whether it counts; only a group by key has its keys read, and only of a
batch whose records expire are the times read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from comet import records
from comet.errors import CorruptBatch
from comet.records.expiry import has_expired
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet_broker.core.isolation import AbortedTransaction
from comet_broker.core.shares import Granted, Readable

# base_offset, length, flags, producer_id, last_offset_delta, producer_epoch: see proto/BATCH.md.
_HEADER: Final = Struct("<q12xI10xH4xq24xII")
_CONTROL: Final = int(records.Flag.CONTROL)
_TRANSACTIONAL: Final = int(records.Flag.TRANSACTIONAL)
_OFFSET_DELTAS: Final = int(records.Flag.OFFSET_DELTAS)
_EXPIRY: Final = int(records.Flag.EXPIRY)
_KEYS: Final = int(records.Flag.KEYS)

INT64_MAX: Final = (1 << 63) - 1
Range = tuple[int, int]

assert _HEADER.size == 80


class BatchSpan(NamedTuple):
    """One batch: its first offset, the one after its last, and its bytes."""

    first: int
    end: int
    start: int
    stop: int


class Chunk:
    """Whole batches, and the ranges of their records that can be given. Immutable."""

    def __init__(self, data: memoryview, aborted: Sequence[AbortedTransaction], *, by_key: bool, now_us: int) -> None:
        gone = {(one.producer_id, one.epoch): (one.first, one.end) for one in aborted}
        self.data = data
        self.expires_us = 0  # when the next of its records expires; 0: never
        self._aborted = aborted
        self._by_key = by_key
        self.spans: list[BatchSpan] = []
        runs: list[Range] = []
        keys: list[int | None] = []
        at, size = 0, len(data)
        while at < size:
            base, length, flags, producer, last_delta, epoch = _HEADER.unpack_from(data, at)
            end = base + last_delta + 1
            self.spans.append(BatchSpan(base, end, at, at + length))
            counts = not flags & _CONTROL
            if counts and gone and flags & _TRANSACTIONAL:
                first, after = gone.get((producer, epoch), (end, end))
                counts = not first <= base < after
            if counts:
                self._add_runs(runs, data[at : at + length], base, end, flags, now_us)
            if by_key:
                keys += _keys(data[at : at + length], base, end) if counts and flags & _KEYS else [None] * (end - base)
            at += length
        self.first, self.end = self.spans[0].first, self.spans[-1].end
        self.readable = Readable(self.first, self.end, runs, keys)

    def __len__(self) -> int:
        return len(self.data)

    def unexpired(self, now_us: int) -> Chunk:
        """The same without the records that have expired since."""
        if not has_expired(self.expires_us, now_us):
            return self
        return Chunk(self.data, self._aborted, by_key=self._by_key, now_us=now_us)

    def _add_runs(self, runs: list[Range], batch: memoryview, base: int, end: int, flags: int, now_us: int) -> None:
        there: Iterable[Range] = [(base, end)]
        if flags & (_OFFSET_DELTAS | _EXPIRY):
            found = records.decode(batch, check=False)
            offsets, expiry = found.offsets, found.expiry
            if expiry is not None:
                offsets = [offset for offset, at in zip(offsets, expiry, strict=True) if not 0 < at <= now_us]
                later = [at for at in expiry if at > now_us]
                self.expires_us = min([*later, self.expires_us or INT64_MAX]) if later else self.expires_us
            there = [(one, one + 1) for one in offsets]
        for first, after in there:
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], after)
            else:
                runs.append((first, after))

    def records_in(self, size: int) -> int:
        """The approximate number of records in that many bytes, at least one."""
        return max(1, size * sum(end - first for first, end in self.readable.runs) // len(self.data))

    def frame(self, subscription: int, handle: int, leader_epoch: int, granted: Sequence[Granted]) -> bytes:
        """The frame with the records granted, and the batches that hold them."""
        delivery = groups_pb.ShareDelivery(
            subscription=subscription,
            partition=handle,
            leader_epoch=leader_epoch,
            acquired=acquired_ranges(granted),
            batches=self.batches(granted),
        )
        return pb.ServerFrame(share_delivery=delivery).SerializeToString()

    def batches(self, granted: Sequence[Granted]) -> bytes:
        """The batches with the granted records, in order."""
        spans = self.spans
        stretches: list[list[int]] = []
        at = 0
        for first, end, _ in granted:
            if at < len(spans) and spans[at].end <= first:
                at = bisect_right(spans, first, at, key=_first) - 1
            while at < len(spans) and spans[at].first < end:
                start, stop = spans[at].start, spans[at].stop
                if stretches and stretches[-1][1] >= start:
                    stretches[-1][1] = max(stop, stretches[-1][1])
                else:
                    stretches.append([start, stop])
                if spans[at].end > end:
                    break
                at += 1
        if len(stretches) == 1:
            start, stop = stretches[0]
            return bytes(self.data[start:stop])
        return b"".join([self.data[start:stop] for start, stop in stretches])


def acquired_ranges(granted: Sequence[Granted]) -> list[groups_pb.AcquiredRecords]:
    return [
        groups_pb.AcquiredRecords(first=first, end=end, delivery_count=delivery_count)
        for first, end, delivery_count in granted
    ]


def _first(span: BatchSpan) -> int:
    return span.first


def _keys(batch: memoryview, base: int, end: int) -> list[int | None]:
    """One entry for each offset. Keys with the same hash wait for each other, which does no harm. Unreadable keys are
    None: the members see the error of the batch, and the records behind it are still given."""
    spans: list[int | None] = [None] * (end - base)
    try:
        decoded = records.decode(batch, check=False)
        hashed: list[int | None] = [None if key is None else hash(key) for key in decoded.keys]
        if len(hashed) == end - base:
            return hashed
        for offset, key in zip(decoded.offsets, hashed, strict=True):
            spans[offset - base] = key
    except CorruptBatch:
        pass
    return spans


class ChunkReader(Protocol):
    """A reader that keeps chunks."""

    @property
    def chunks(self) -> list[Chunk]: ...


class Chunks:
    """The chunks of all readers of all groups, in bounded number. Owned by the table."""

    def __init__(self, chunks_max: int) -> None:
        self._recent: OrderedDict[tuple[ChunkReader, Chunk], None] = OrderedDict()
        self._chunks_max = chunks_max

    def use(self, reader: ChunkReader, chunk: Chunk) -> None:
        self._recent[reader, chunk] = None
        self._recent.move_to_end((reader, chunk))
        while len(self._recent) > self._chunks_max:
            (other, oldest), _ = self._recent.popitem(last=False)
            other.chunks.remove(oldest)

    def __len__(self) -> int:
        return len(self._recent)

    def forget(self, reader: ChunkReader, chunk: Chunk) -> None:
        self._recent.pop((reader, chunk), None)
