"""The open and aborted transactions of a partition, and the last stable offset that follows from them.

    batch of (producer, epoch)     ─► open, from its first offset here
    marker of (producer, epoch)    ─► ended: committed, or aborted and remembered for as long as the log holds any of it

    last stable offset   the high watermark, or the first offset of the oldest transaction that is open, or whose marker
                         is not below the watermark yet: an end counts once no failover can take it back

Every transaction has an epoch of its own, so that producer and epoch name it. After its marker no batch of it, or of an
earlier epoch, may be written. If a producer's last end is no longer remembered, the leader queries the coordinator
before the first batch.

The state is derived from the log: noting the same batches in an empty one gives the same state. Entries below the log
start offset are dropped, also an open transaction of which nothing is left: so deleting records lets readers go on. The
offsets of every part of a transaction are stored, not only the first: so a replica that has seen all of it, and one
that has read the log from its new start, have the same last stable offset.

Pure; part of the partition's ProducerTable, on the loop's thread. A snapshot can be encoded on another one.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from comet.errors import LimitExceeded, ProducerFenced, TransactionAborted, TransactionNotOpen
from comet.records import Marker

OPEN_MAX: Final = 4096  # per partition, at once
ABORTED_MAX: Final = 1 << 17  # remembered per partition: 5 MiB
PARTS_MAX: Final = 64  # of a transaction, other batches between them; beyond them the last part reaches to its end
ENDED_MAX: Final = 1024  # producers whose last end is remembered; the coordinator knows the others

_FIELDS: Final = 5  # of a remembered abort: producer, epoch, first offset, marker's offset, floor
_HEAD: Final = struct.Struct("<IIII")  # open, decided, ended, aborted
_OPEN: Final = struct.Struct("<qI")  # producer, epoch; then its parts
_DECIDED: Final = struct.Struct("<q")  # marker's offset; then its parts
_WHOLE: Final = struct.Struct("<qq")  # first offset and end, of earlier versions
_PARTS: Final = struct.Struct("<I")  # how many there are; then offset and end of each
_ENDED: Final = struct.Struct("<qIBq")  # producer, epoch, committed, marker's offset


class AbortedTransaction(NamedTuple):
    """An aborted transaction: batches of this producer and epoch from `first` up to `end`, the marker, do not count."""

    producer_id: int
    epoch: int
    first: int
    end: int


class Parts:
    """The offsets of a transaction's batches: flat, offset and end of each run, rising."""

    __slots__ = ("_flat",)

    def __init__(self, flat: Iterable[int]) -> None:
        self._flat = array("q", flat)

    @property
    def first(self) -> int:
        return self._flat[0]

    @property
    def end(self) -> int:
        """The end of the last batch."""
        return self._flat[-1]

    def add(self, first: int, end: int) -> None:
        flat = self._flat
        assert flat[-1] <= first, "offsets rise"
        if flat[-1] == first or len(flat) >= 2 * PARTS_MAX:
            flat[-1] = end
        else:
            flat.extend((first, end))

    def forget_before(self, log_start: int) -> bool:
        """Drops runs below `log_start`; True if the first offset has changed. At least the last run stays."""
        flat = self._flat
        assert flat[-1] > log_start
        gone = 0
        while flat[gone + 1] <= log_start:
            gone += 2
        del flat[:gone]
        return gone > 0

    def encode(self) -> bytes:
        flat = self._flat
        return _PARTS.pack(len(flat) // 2) + struct.pack(f"<{len(flat)}q", *flat)

    @classmethod
    def restore(cls, data: bytes, at: int) -> tuple[Parts, int]:
        (count,) = _PARTS.unpack_from(data, at)
        at += _PARTS.size
        if not 0 < count <= PARTS_MAX:
            raise ValueError(f"{count} parts of a transaction")
        return cls(struct.unpack_from(f"<{2 * count}q", data, at)), at + 16 * count


class Decided(NamedTuple):
    marker: int  # its offset
    parts: Parts


class Ended(NamedTuple):
    """The last end of a producer's transactions in this partition."""

    epoch: int
    commit: bool
    offset: int  # of the marker


class Isolation:
    def __init__(self) -> None:
        self.all_decided = True  # so that the last stable offset is the high watermark
        self.any_aborted = False
        self._open: OrderedDict[tuple[int, int], Parts] = OrderedDict()  # by first offset
        self._decided: deque[Decided] = deque()  # the marker is not below the watermark yet
        self._ended: OrderedDict[int, Ended] = OrderedDict()  # by producer, the last one at the end
        # Flat, by the marker's offset. No abort that is noted after one has a first offset below its floor.
        self._aborted: array[int] = array("q")
        self._log_start = 0

    # ---- batches and markers of the log

    def note_batch(self, producer_id: int, epoch: int, first: int, end: int) -> None:
        """Notes a transactional batch that is in the log now. It counts even if `check` would refuse it: the log is
        right."""
        assert first < end
        if end <= self._log_start:
            return  # it was deleted; the log is being read again
        known = self._open.get((producer_id, epoch))
        if known is None:
            self._open[producer_id, epoch] = Parts((first, end))
        else:
            known.add(first, end)
        self.all_decided = False

    def note_marker(self, producer_id: int, epoch: int, marker: Marker, offset: int) -> None:
        known = self._open.pop((producer_id, epoch), None)
        ended = self._ended.get(producer_id)
        if ended is None or ended.epoch <= epoch:
            self._ended[producer_id] = Ended(epoch, marker.commit, offset)
            self._ended.move_to_end(producer_id)
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
        if known is None:
            return  # no batch of it is in this log
        assert known.end <= offset, "a marker lies behind all batches of its transaction"
        self._decided.append(Decided(offset, known))
        if not marker.commit:
            floor = next(iter(self._open.values())).first if self._open else offset + 1
            self._aborted.extend((producer_id, epoch, known.first, offset, floor))
            self.any_aborted = True

    def forget_before(self, log_start: int) -> None:
        """Drops the transactions, and parts of them, below the new log start offset."""
        self._log_start = max(self._log_start, log_start)
        gone = self._ends_up_to(log_start)
        del self._aborted[: gone * _FIELDS]
        for key in [key for key, parts in self._open.items() if parts.end <= log_start]:
            del self._open[key]
        if [key for key, parts in self._open.items() if parts.forget_before(log_start)]:
            self._open = OrderedDict(sorted(self._open.items(), key=lambda item: item[1].first))
        self._decided = deque(one for one in self._decided if one.parts.end > log_start)
        for one in self._decided:
            one.parts.forget_before(log_start)
        self._sum_up()

    def _sum_up(self) -> None:
        self.all_decided = not (self._open or self._decided)
        self.any_aborted = len(self._aborted) > 0

    # ---- queries of a leader

    def check(self, producer_id: int, epoch: int) -> bool:
        """Whether the transaction is open here, so that a batch of it may be written; if not, query the coordinator.
        Raises if it is over."""
        if (producer_id, epoch) in self._open:
            return True
        self.refuse_if_over(producer_id, epoch)
        if len(self._open) >= OPEN_MAX:
            raise LimitExceeded(f"{OPEN_MAX} transactions are open in this partition, its limit", retry_after_ms=100)
        if len(self._aborted) >= ABORTED_MAX * _FIELDS:
            raise LimitExceeded(
                f"the partition remembers {ABORTED_MAX} aborted transactions, its limit, until retention deletes some"
            )
        return False

    def refuse_if_over(self, producer_id: int, epoch: int) -> None:
        ended = self._ended.get(producer_id)
        if ended is None or epoch > ended.epoch:
            return
        if epoch < ended.epoch:
            raise ProducerFenced(f"epoch {epoch} of producer {producer_id} is over: {ended.epoch} has written")
        if ended.commit:
            raise TransactionNotOpen(f"the transaction in epoch {epoch} of producer {producer_id} is committed already")
        raise TransactionAborted(f"the transaction in epoch {epoch} of producer {producer_id} was aborted")

    def open_transactions(self) -> list[tuple[int, int]]:
        """Producer and epoch of the open transactions, the oldest first."""
        return list(self._open)

    def first_offset(self, producer_id: int, epoch: int) -> int:
        """The first offset of an open transaction in this partition; -1 if it has none."""
        known = self._open.get((producer_id, epoch))
        return -1 if known is None else known.first

    def ended(self, producer_id: int, epoch: int) -> Ended | None:
        """The end of the transaction, or of a later one of that producer; None if neither is known to have ended."""
        known = self._ended.get(producer_id)
        return None if known is None or known.epoch < epoch else known

    # ---- queries of readers

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: below it every transaction is decided. The watermark must not fall between calls."""
        decided = self._decided
        while decided and decided[0].marker < high_watermark:
            decided.popleft()
        self.all_decided = not (self._open or decided)
        stable = high_watermark
        if self._open:
            stable = min(stable, next(iter(self._open.values())).first)
        return min(stable, *(one.parts.first for one in decided)) if decided else stable

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have batches from `first` up to `end`."""
        flat, found = self._aborted, []
        for at in range(self._ends_up_to(first) * _FIELDS, len(flat), _FIELDS):
            if flat[at + 2] < end:
                found.append(AbortedTransaction(*flat[at : at + 4]))
            if flat[at + 4] >= end:
                break
        return found

    def _ends_up_to(self, offset: int) -> int:
        """The number of aborts with their markers at or below the offset."""
        flat = self._aborted
        return bisect_right(range(len(flat) // _FIELDS), offset, key=lambda at: flat[at * _FIELDS + 3])

    def statistics(self) -> dict[str, int]:
        return {"transactions_open": len(self._open), "transactions_aborted": len(self._aborted) // _FIELDS}

    # ---- snapshots

    def snapshot(self) -> IsolationSnapshot:
        """A quick copy, to be encoded elsewhere."""
        return IsolationSnapshot(
            [(*key, parts.encode()) for key, parts in self._open.items()],
            [(one.marker, one.parts.encode()) for one in self._decided],
            list(self._ended.items()),
            self._aborted[:],
        )

    @classmethod
    def restore(cls, data: bytes, at: int, *, in_parts: bool = True) -> tuple[Isolation, int]:
        """The decoded state, and its end in the data. Without `in_parts`: first offset and end alone, as in earlier
        versions. Raises struct.error or ValueError if it is cut off or not a snapshot."""
        one = cls()
        counts = _HEAD.unpack_from(data, at)
        at += _HEAD.size

        def parts_at(at: int) -> tuple[Parts, int]:
            return Parts.restore(data, at) if in_parts else (Parts(_WHOLE.unpack_from(data, at)), at + _WHOLE.size)

        for _ in range(counts[0]):
            producer_id, epoch = _OPEN.unpack_from(data, at)
            one._open[producer_id, epoch], at = parts_at(at + _OPEN.size)
        for _ in range(counts[1]):
            (marker,) = _DECIDED.unpack_from(data, at)
            parts, at = parts_at(at + _DECIDED.size)
            one._decided.append(Decided(marker, parts))
        for _ in range(counts[2]):
            producer_id, epoch, commit, offset = _ENDED.unpack_from(data, at)
            one._ended[producer_id] = Ended(epoch, bool(commit), offset)
            at += _ENDED.size
        items = counts[3] * _FIELDS
        one._aborted.extend(struct.unpack_from(f"<{items}q", data, at))
        one._sum_up()
        return one, at + 8 * items


class IsolationSnapshot(NamedTuple):
    open: list[tuple[int, int, bytes]]
    decided: list[tuple[int, bytes]]
    ended: list[tuple[int, Ended]]
    aborted: array[int]

    def encode(self) -> Iterator[bytes]:
        items = len(self.aborted)
        yield _HEAD.pack(len(self.open), len(self.decided), len(self.ended), items // _FIELDS)
        for producer_id, epoch, parts in self.open:
            yield _OPEN.pack(producer_id, epoch) + parts
        for marker, parts in self.decided:
            yield _DECIDED.pack(marker) + parts
        for producer_id, ended in self.ended:
            yield _ENDED.pack(producer_id, *ended)
        yield struct.pack(f"<{items}q", *self.aborted)
