"""The recent end of a partition, in memory, from which live readers and followers are served.

A tail holds the last batches as the producer sent them, each with the stamp that the leader gave it, and the encoded
delivery of a batch from its first use on, so that any number of subscribers get the same bytes. Followers get theirs
before readers do, under an older high watermark, hence an encoding of their own.
All tails share one budget; the tail that was written least recently is evicted first.

Single-threaded; owned by the broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from comet.records import STAMP_BYTES
from comet.wire.frames import DELIVERY_PREFIX_BYTES, PARTS_FROM_BYTES, FrameParts, Outgoing, Part, delivery_prefix

ENTRY_OVERHEAD_BYTES: Final = 512  # the objects around a small batch
RECENT_ENTRIES: Final = 64  # a reader's position is searched one by one among them


@dataclass(slots=True)
class TailEntry:
    base_offset: int
    next_offset: int
    stamp: bytes
    received: memoryview | None  # the batch after its stamp, until `frame` has it
    size: int  # of the whole batch
    frame: Outgoing | None = None  # the delivery of just this batch to readers, once encoded
    follower_frame: Outgoing | None = None  # and to followers
    follower_watermark: int = -1  # in `follower_frame`: a follower that catches up later needs a later one

    @property
    def rest(self) -> memoryview:
        """The batch after its stamp."""
        if self.received is not None:
            return self.received
        assert self.frame is not None
        last = self.frame if isinstance(self.frame, bytes) else self.frame.parts[-1]
        return memoryview(last)[STAMP_BYTES - self.size :]


@dataclass(frozen=True, slots=True)
class TailFrame:
    """An encoded delivery that takes its reader to `next_offset`; `size` counts the batches in it."""

    frame: Outgoing
    size: int
    next_offset: int


def _frame(parts: Sequence[Part], size: int) -> Outgoing:
    """A delivery. A large one is not joined: its parts are the memory in which the batches came."""
    if size < PARTS_FROM_BYTES:
        return b"".join(parts)
    prefix, stamp, *rest = parts
    return FrameParts((bytes(prefix) + bytes(stamp), *rest), DELIVERY_PREFIX_BYTES + size)


class TailBudget:
    """The memory that all tails share."""

    def __init__(self, total_bytes_max: int, partition_bytes_max: int) -> None:
        assert 0 < partition_bytes_max <= total_bytes_max
        self.total_bytes_max = total_bytes_max
        self.partition_bytes_max = partition_bytes_max
        self.used_bytes = 0
        self._recent: OrderedDict[Tail, None] = OrderedDict()

    def _charge(self, tail: Tail, size: int) -> None:
        self.used_bytes += size
        self._recent[tail] = None
        self._recent.move_to_end(tail)
        while self.used_bytes > self.total_bytes_max:
            oldest = next(iter(self._recent))
            oldest._drop_first()
        assert self.used_bytes >= 0

    def _release(self, tail: Tail, size: int) -> None:
        self.used_bytes -= size
        if not tail.entries:
            self._recent.pop(tail, None)
        assert self.used_bytes >= 0


class Tail:
    """The tail of one partition: consecutive batches, the last one ending at the log's end."""

    def __init__(self, handle: int, budget: TailBudget) -> None:
        self.handle = handle
        self.entries: deque[TailEntry] = deque()
        self.used_bytes = 0
        self._budget = budget
        # To followers -> first base, end and, for followers, the watermark.
        self._joined: dict[bool, tuple[tuple[int, int, int], TailFrame]] = {}

    def push(self, base_offset: int, next_offset: int, stamp: bytes, rest: memoryview) -> None:
        assert len(stamp) == STAMP_BYTES
        assert base_offset < next_offset
        if self.entries and self.entries[-1].next_offset != base_offset:
            self.clear()  # some batches were written while there was no subscriber
        entry = TailEntry(base_offset, next_offset, stamp, rest, STAMP_BYTES + len(rest))
        self.entries.append(entry)
        self._charge(entry.size + ENTRY_OVERHEAD_BYTES)
        while self.used_bytes > self._budget.partition_bytes_max:
            self._drop_first()

    def frame_from(
        self, offset: int, end: int, high_watermark: int, leader_epoch: int, bytes_max: int, *, follower: bool = False
    ) -> TailFrame | None:
        """The delivery for a reader at `offset`, of whole batches below `end`: at least one, and more up to
        `bytes_max`; None if the offset is not in the tail."""
        entries = self.entries
        if not entries or not entries[0].base_offset <= offset < entries[-1].next_offset:
            return None
        last = entries[-1]
        if last.base_offset <= offset:
            if last.next_offset > end:
                return None
            return self._single(last, high_watermark, leader_epoch, follower)
        return self._several(offset, end, high_watermark, leader_epoch, bytes_max, follower)

    def _several(
        self, offset: int, end: int, high_watermark: int, leader_epoch: int, bytes_max: int, follower: bool
    ) -> TailFrame | None:
        chosen: list[TailEntry] = []
        size = 0
        for entry in self._from(offset):
            if entry.next_offset > end or (chosen and size + entry.size > bytes_max):
                break
            chosen.append(entry)
            size += entry.size
        if len(chosen) < 2:
            return self._single(chosen[0], high_watermark, leader_epoch, follower) if chosen else None
        first, last = chosen[0].base_offset, chosen[-1].next_offset
        key = (first, last, high_watermark if follower else -1)
        known = self._joined.get(follower)
        if known is not None and known[0] == key:
            return known[1]
        parts: list[Part] = [delivery_prefix(self.handle, high_watermark, leader_epoch, size)]
        for entry in chosen:
            parts += (entry.stamp, entry.rest)
        joined = TailFrame(_frame(parts, size), size, last)
        self._joined[follower] = (key, joined)
        return joined

    def entries_from(self, offset: int) -> Iterable[TailEntry]:
        """The entries from the one that holds `offset` on; none if the offset is not in the tail."""
        entries = self.entries
        if not entries or not entries[0].base_offset <= offset < entries[-1].next_offset:
            return ()
        return self._from(offset)

    def _from(self, offset: int) -> Iterable[TailEntry]:
        """The entries from the one that holds `offset` on. A reader that keeps up is a few entries from the end, and a
        deque is fast near its ends."""
        recent: list[TailEntry] = []
        for entry in reversed(self.entries):
            recent.append(entry)
            if entry.base_offset <= offset:
                return reversed(recent)
            if len(recent) == RECENT_ENTRIES:
                break
        start = bisect_right(self.entries, offset, key=lambda entry: entry.base_offset) - 1
        return islice(self.entries, start, None)

    def _single(self, entry: TailEntry, high_watermark: int, leader_epoch: int, follower: bool) -> TailFrame:
        frame = entry.frame
        if follower:
            frame = entry.follower_frame if entry.follower_watermark == high_watermark else None
        if frame is None:
            prefix = delivery_prefix(self.handle, high_watermark, leader_epoch, entry.size)
            frame = _frame((prefix, entry.stamp, entry.rest), entry.size)
            if follower:
                entry.follower_frame, entry.follower_watermark = frame, high_watermark
            else:
                entry.frame = frame
                entry.received = None  # the frame has the bytes, and joins them at most once
        return TailFrame(frame, entry.size, entry.next_offset)

    def drop_before(self, offset: int) -> None:
        """Drops the batches that begin below an offset: the log has them in another form."""
        while self.entries and self.entries[0].base_offset < offset:
            self._drop_first()

    def clear(self) -> None:
        while self.entries:
            self._drop_first()
        assert self.used_bytes == 0

    def _drop_first(self) -> None:
        entry = self.entries.popleft()
        size = entry.size + ENTRY_OVERHEAD_BYTES
        self.used_bytes -= size
        self._budget._release(self, size)
        self._joined.clear()

    def _charge(self, size: int) -> None:
        self.used_bytes += size
        self._budget._charge(self, size)
