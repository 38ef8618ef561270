"""The window of records of one partition that a share group has not finished, and the state of each of them.

One mark for each record from the floor on: its delivery count, or that it is acknowledged. Records to deliver again are
in a heap by offset, those that wait for a time in a heap by that time. Dead records are set aside, so that they hold up
nothing; when too many are set aside, further ones stay in the window.

Pure, single-threaded; the base of core.shares, which adds the locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from comet_broker.core.share_keys import KeyOrder

Range = tuple[int, int]

ACKNOWLEDGED: Final = 255  # in `_marks`; every other mark but DOOMED is the delivery count
DOOMED: Final = 254  # dead, and waiting for room among those that are set aside
ATTEMPTS_MAX: Final = 250
TRIM_RECORDS: Final = 4096  # marks below the floor are freed in pieces of this size


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a group, which its members have in common."""

    lock_s: float = 30.0
    deliveries_max: int = 5
    by_key: bool = False
    dead_letters: bool = False  # the group has a dead-letter topic

    def __post_init__(self) -> None:
        assert 1 <= self.deliveries_max <= ATTEMPTS_MAX
        assert self.lock_s > 0


@dataclass(slots=True, eq=False)
class Holder:
    """The owner of locks, of one or many partitions; `open` counts its acquired records."""

    open: int = 0


@dataclass(slots=True, eq=False)
class AcquisitionLock:
    """The lock on the records that one holder acquired at one moment."""

    holder: Holder
    deadline: float
    open: int = 0
    ranges: list[Range] = field(default_factory=list)


class Granted(NamedTuple):
    first: int
    end: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Readable:
    """Records that may be acquired: those in `runs`. Those between the runs, up to `end`, are never delivered. `keys`
    are the keys from `first` on, None for records without one; only needed with `by_key`."""

    first: int
    end: int
    runs: Sequence[Range]
    keys: Sequence[int | None] = ()


class Dead(NamedTuple):
    """A record that is never delivered again."""

    attempts: int
    reason: str


class WindowSnapshot(NamedTuple):
    """The state to store. `marks` has one byte for each record from the floor on."""

    floor: int
    marks: bytes
    dead: dict[int, Dead]


class ShareWindow:
    """The states of one group's records in one partition. Subclassed by Shares."""

    def __init__(self, stored: WindowSnapshot, options: Options, *, window_max: int, dead_max: int) -> None:
        assert len(stored.marks) <= window_max
        self.options = options
        self.floor = stored.floor
        self.dead: dict[int, Dead] = dict(stored.dead)
        self.acknowledged = 0
        self.dead_lettered = 0
        self.dropped = 0  # dead, without a dead-letter topic
        self.deleted = 0  # from the log, before they were acknowledged
        self._window_max = window_max
        self._dead_max = dead_max
        self._base = stored.floor  # offset of the first entry of the three lists
        self._marks = bytearray(stored.marks)
        self._locks: list[AcquisitionLock | None] = [None] * len(stored.marks)
        self._keys = KeyOrder(stored.floor) if options.by_key else None
        self._next = stored.floor  # the first record that was not considered yet
        self._again: list[Range] = []  # heap
        self._again_count = 0
        self._waiting: list[tuple[float, int, int]] = []  # heap by the time they are due
        self._waiting_count = 0
        self._doomed: dict[int, None] = {}
        self._pass_over_acknowledged()
        self._advance()

    def snapshot(self) -> WindowSnapshot:
        return WindowSnapshot(self.floor, bytes(memoryview(self._marks)[self.floor - self._base :]), dict(self.dead))

    @property
    def waiting(self) -> int:
        """The number of records that are to be delivered again, now or later."""
        return self._waiting_count + self._again_count

    @property
    def acknowledged_above(self) -> int:
        """The number of acknowledged records above the floor."""
        return self._marks.count(ACKNOWLEDGED, self.floor - self._base)

    def wanted(self, now: float, end: int) -> int | None:
        """The next record to deliver, of those below `end`; None if none may be delivered now."""
        self._ripen(now)
        if len(self.dead) >= self._dead_max:
            return None
        if self._again:
            return self._again[0][0]
        self._pass_over_acknowledged()
        return self._next if self._next < min(end, self.floor + self._window_max) else None

    def is_new(self, offset: int) -> bool:
        """Whether the record was never considered for delivery."""
        return offset >= self._next

    def backlog(self, end: int) -> int:
        """The highest number of records that could be acquired now."""
        return self._again_count + max(0, min(end, self.floor + self._window_max) - self._next)

    # ---- states of records

    def _acknowledge(self, first: int, end: int) -> None:
        self._marks[first - self._base : end - self._base] = bytes((ACKNOWLEDGED,)) * (end - first)
        self.acknowledged += end - first
        if self._keys is not None:
            for offset in range(first, end):
                self._unblock(self._keys, offset)

    def _unblock(self, keys: KeyOrder, offset: int) -> None:
        """Frees the next record of a key for delivery; the one at `offset` is finished."""
        while (following := keys.done(offset)) is not None:
            if self._marks[following - self._base] < self.options.deliveries_max:
                heappush(self._again, (following, following + 1))
                self._again_count += 1
                return
            self._set_aside(following, _too_often(self.options.deliveries_max))
            offset = following

    def _give_again(self, first: int, end: int, due: float | None, why: str) -> None:
        for run, upto, mark in self._same_marks(first, end):
            if mark >= self.options.deliveries_max:
                self._put_away(run, upto, why)
            elif due is None:
                heappush(self._again, (run, upto))
                self._again_count += upto - run
            else:
                heappush(self._waiting, (due, run, upto))
                self._waiting_count += upto - run

    def _uncount(self, first: int, end: int) -> int:
        """Lowers the delivery counts by one; returns the number of records that had earlier deliveries."""
        start, stop = first - self._base, end - self._base
        marks = self._marks[start:stop]
        assert min(marks) >= 1, "they were delivered"
        assert max(marks) < DOOMED, "they are not finished"
        self._marks[start:stop] = bytes(mark - 1 for mark in marks)
        return len(marks) - marks.count(1)

    def _ripen(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, first, end = heappop(self._waiting)
            heappush(self._again, (first, end))
            self._waiting_count -= end - first
            self._again_count += end - first

    def _put_away(self, first: int, end: int, why: str = "") -> None:
        """Ends records whose deliveries are used up."""
        reason = _too_often(self.options.deliveries_max) + (f"; {why}" if why else "")
        for offset in range(first, end):
            self._die(offset, reason)

    def _die(self, offset: int, reason: str) -> None:
        self._set_aside(offset, reason)
        if self._keys is not None:
            self._unblock(self._keys, offset)

    def _set_aside(self, offset: int, reason: str) -> None:
        at = offset - self._base
        if not self.options.dead_letters:
            self.dropped += 1
        elif len(self.dead) >= self._dead_max:
            self._marks[at] = DOOMED
            self._doomed[offset] = None
            return
        else:
            self.dead[offset] = Dead(min(self._marks[at], self.options.deliveries_max), reason)
        self._marks[at] = ACKNOWLEDGED

    def buried(self, offset: int) -> None:
        """A dead record was written to the dead-letter topic, or dropped."""
        if self.dead.pop(offset, None) is None:
            return
        self.dead_lettered += 1
        if self._doomed:
            doomed = next(iter(self._doomed))
            del self._doomed[doomed]
            self._set_aside(doomed, _too_often(self.options.deliveries_max))
            self._advance()

    # ---- the floor

    def _pass_over_acknowledged(self) -> None:
        """Skips records that were acknowledged in the stored state."""
        marks, at = self._marks, self._next - self._base
        while at < len(marks) and marks[at] == ACKNOWLEDGED:
            if self._keys is not None:
                self._keys.add(self._base + at, None)
            at += 1
        self._next = self._base + at

    def _advance(self) -> None:
        marks, at, end = self._marks, self.floor - self._base, self._next - self._base
        while at < end and marks[at] == ACKNOWLEDGED:
            at += 1
        self.floor = self._base + at
        if at >= TRIM_RECORDS:
            del self._marks[:at]
            del self._locks[:at]
            if self._keys is not None:
                self._keys.trim(self.floor)
            self._base = self.floor

    def _leave_out(self, end: int) -> None:
        """Marks records below `end` that were not considered yet as acknowledged: they are never delivered."""
        first = self._next
        if end <= first:
            return
        known = self._base + len(self._marks)
        if end > known:
            self._marks.extend(bytes(end - known))
            self._locks.extend([None] * (end - known))
        self._marks[first - self._base : end - self._base] = bytes((ACKNOWLEDGED,)) * (end - first)
        if self._keys is not None:
            for offset in range(first, end):
                self._keys.add(offset, None)
        self._next = end

    def _restart(self, offset: int) -> None:
        """Begins an empty window at `offset`."""
        self._base = self.floor = self._next = offset
        self._marks.clear()
        self._locks.clear()
        if self._keys is not None:
            self._keys = KeyOrder(offset)

    def _same_marks(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The range in runs of records with the same mark."""
        marks = bytes(memoryview(self._marks)[first - self._base : end - self._base])
        at, size = 0, end - first
        while at < size:
            mark = marks[at]
            run = size if marks.count(mark, at) == size - at else at + 1
            while run < size and marks[run] == mark:
                run += 1
            yield first + at, first + run, mark
            at = run


def _too_often(attempts: int) -> str:
    return f"it was delivered {attempts} times"
