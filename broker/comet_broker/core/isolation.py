"""Which transactions of a partition are open, which were aborted, and so up to where readers may rely on what is there.

    batch of (producer, epoch)     ─► open, from its first offset here
    marker of (producer, epoch)    ─► ended: committed, or aborted and remembered for as long as the log holds any of it

    stable end   the high watermark, or the first offset of the oldest transaction that is open, or whose marker is not
                 below the watermark yet: an end counts once no failover can take it back

Every transaction has an epoch of its own, so that producer and epoch name it. After its marker no batch of it, or of an
earlier epoch, may be written; of whom that is no longer remembered, the coordinator is asked before the first batch.

The state is derived from the log: noting the same batches in an empty one gives the same state. What lies below the
log's start is forgotten, an open transaction too, of which nothing is left: so deleting records frees their readers.

Pure; part of the partition's ProducerTable, on the loop's thread. A snapshot can be encoded on another one.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from comet.errors import LimitExceeded, ProducerFenced, TransactionAborted, TransactionNotOpen
from comet.records import Marker

OPEN_MAX: Final = 4096  # per partition, at once
ABORTED_MAX: Final = 1 << 17  # remembered per partition: 5 MiB
ENDED_MAX: Final = 1024  # producers of which the last end is remembered; the coordinator knows the others

_FIELDS: Final = 5  # of a remembered abort: producer, epoch, first offset, marker's offset, floor
_HEAD: Final = struct.Struct("<IIII")  # open, decided, ended, aborted
_OPEN: Final = struct.Struct("<qIqq")  # producer, epoch, first offset, end
_DECIDED: Final = struct.Struct("<qqq")  # marker's offset, first offset, end
_ENDED: Final = struct.Struct("<qIBq")  # producer, epoch, committed, marker's offset


class AbortedTransaction(NamedTuple):
    """Batches of this producer and epoch from `first` up to `end`, where the marker lies, do not count."""

    producer_id: int
    epoch: int
    first: int
    end: int


class Open(NamedTuple):
    first: int
    end: int  # of the last batch that is there


class Decided(NamedTuple):
    marker: int  # its offset
    first: int
    end: int


class Ended(NamedTuple):
    """The last end of a producer's transactions in this partition."""

    epoch: int
    commit: bool
    offset: int  # of the marker


class Isolation:
    def __init__(self) -> None:
        self.all_decided = True  # so that the stable end is the high watermark
        self.any_aborted = False
        self._open: OrderedDict[tuple[int, int], Open] = OrderedDict()  # by first offset
        self._decided: deque[Decided] = deque()  # the marker is not below the watermark yet
        self._ended: OrderedDict[int, Ended] = OrderedDict()  # by producer, the last one at the end
        # Flat, by the marker's offset. No abort that is noted after one has a first offset below its floor.
        self._aborted: array[int] = array("q")
        self._log_start = 0

    # ---- what is in the log

    def note_batch(self, producer_id: int, epoch: int, first: int, end: int) -> None:
        """A transactional batch is in the log now, whatever `check` would have said: the log is right."""
        assert first < end
        key = (producer_id, epoch)
        known = self._open.get(key)
        assert known is None or known.end <= first, "offsets rise"
        if known is not None and known.end <= self._log_start:  # while the log is read again
            del self._open[key]
            known = None
        self._open[key] = Open(first if known is None else known.first, end)
        self.all_decided = False

    def note_marker(self, producer_id: int, epoch: int, marker: Marker, offset: int) -> None:
        known = self._open.pop((producer_id, epoch), None)
        if known is not None and known.end <= self._log_start:  # while the log is read again
            known = None
        ended = self._ended.get(producer_id)
        if ended is None or ended.epoch <= epoch:
            self._ended[producer_id] = Ended(epoch, marker.commit, offset)
            self._ended.move_to_end(producer_id)
            while len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
        if known is None:
            return  # nothing of it is here
        assert known.end <= offset, "a marker lies behind all that it is about"
        self._decided.append(Decided(offset, *known))
        if not marker.commit:
            floor = next(iter(self._open.values())).first if self._open else offset + 1
            self._aborted.extend((producer_id, epoch, known.first, offset, floor))
            self.any_aborted = True

    def forget_before(self, log_start: int) -> None:
        """Nothing below is there any more."""
        self._log_start = max(self._log_start, log_start)
        gone = self._ends_up_to(log_start)
        del self._aborted[: gone * _FIELDS]
        for key in [key for key, one in self._open.items() if one.end <= log_start]:
            del self._open[key]
        self._decided = deque(one for one in self._decided if one.end > log_start)
        self._sum_up()

    def _sum_up(self) -> None:
        self.all_decided = not (self._open or self._decided)
        self.any_aborted = len(self._aborted) > 0

    # ---- what a leader asks

    def check(self, producer_id: int, epoch: int) -> bool:
        """Whether the transaction is open here, so that more of it may be written; else the coordinator is to be asked.
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
        """Producer and epoch of those that are open, the oldest first."""
        return list(self._open)

    def first_offset(self, producer_id: int, epoch: int) -> int:
        """Where an open transaction begins in this partition; -1 where there is nothing of it."""
        known = self._open.get((producer_id, epoch))
        return -1 if known is None else known.first

    def ended(self, producer_id: int, epoch: int) -> Ended | None:
        """How the transaction ended, or a later one of that producer; None if neither is known to have ended."""
        known = self._ended.get(producer_id)
        return None if known is None or known.epoch < epoch else known

    # ---- what readers ask

    def stable_end(self, high_watermark: int) -> int:
        """Below it every transaction is decided. The watermark must not be below that of an earlier call."""
        decided = self._decided
        while decided and decided[0].marker < high_watermark:
            decided.popleft()
        self.all_decided = not (self._open or decided)
        stable = high_watermark
        if self._open:
            stable = min(stable, next(iter(self._open.values())).first)
        return min(stable, *(one.first for one in decided)) if decided else stable

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those of which the offsets from `first` up to `end` may hold batches."""
        flat, found = self._aborted, []
        for at in range(self._ends_up_to(first) * _FIELDS, len(flat), _FIELDS):
            if flat[at + 2] < end:
                found.append(AbortedTransaction(*flat[at : at + 4]))
            if flat[at + 4] >= end:
                break
        return found

    def _ends_up_to(self, offset: int) -> int:
        """How many of the aborts have their markers at or below the offset."""
        flat = self._aborted
        return bisect_right(range(len(flat) // _FIELDS), offset, key=lambda at: flat[at * _FIELDS + 3])

    def statistics(self) -> dict[str, int]:
        return {"transactions_open": len(self._open), "transactions_aborted": len(self._aborted) // _FIELDS}

    # ---- snapshots

    def snapshot(self) -> IsolationSnapshot:
        """A quick copy, to be encoded elsewhere."""
        return IsolationSnapshot(
            list(self._open.items()), list(self._decided), list(self._ended.items()), self._aborted[:]
        )

    @classmethod
    def restore(cls, data: bytes, at: int) -> tuple[Isolation, int]:
        """What was encoded, and where it ends in the data. Raises struct.error if it is cut off."""
        one = cls()
        counts = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        for _ in range(counts[0]):
            producer_id, epoch, first, end = _OPEN.unpack_from(data, at)
            one._open[producer_id, epoch] = Open(first, end)
            at += _OPEN.size
        for _ in range(counts[1]):
            one._decided.append(Decided(*_DECIDED.unpack_from(data, at)))
            at += _DECIDED.size
        for _ in range(counts[2]):
            producer_id, epoch, commit, offset = _ENDED.unpack_from(data, at)
            one._ended[producer_id] = Ended(epoch, bool(commit), offset)
            at += _ENDED.size
        items = counts[3] * _FIELDS
        one._aborted.extend(struct.unpack_from(f"<{items}q", data, at))
        one._sum_up()
        return one, at + 8 * items


class IsolationSnapshot(NamedTuple):
    open: list[tuple[tuple[int, int], Open]]
    decided: list[Decided]
    ended: list[tuple[int, Ended]]
    aborted: array[int]

    def encode(self) -> Iterator[bytes]:
        items = len(self.aborted)
        yield _HEAD.pack(len(self.open), len(self.decided), len(self.ended), items // _FIELDS)
        for (producer_id, epoch), (first, end) in self.open:
            yield _OPEN.pack(producer_id, epoch, first, end)
        for decided in self.decided:
            yield _DECIDED.pack(*decided)
        for producer_id, ended in self.ended:
            yield _ENDED.pack(producer_id, *ended)
        yield struct.pack(f"<{items}q", *self.aborted)
