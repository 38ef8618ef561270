"""The window of records of one partition that a share group has not finished, and the state of each of them.

One mark for each record from the floor on: its delivery count, or that it is acknowledged. Records to deliver again are
in a heap by offset, those that wait for a time in a heap by that time. Dead records are set aside, so that they hold up
nothing; when too many are set aside, further ones stay in the window.

Pure, single-threaded. Owned by a Shares (core.shares), which grants and ends the locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
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
    """The states of one group's records in one partition. Owned by a Shares."""

    def __init__(self, stored: WindowSnapshot, options: Options, *, window_max: int, dead_max: int) -> None:
        assert len(stored.marks) <= window_max
        self.options = options
        self.floor = stored.floor
        self.dead: dict[int, Dead] = dict(stored.dead)
        self.acknowledged = 0
        self.dead_lettered = 0
        self.dropped = 0  # dead, without a dead-letter topic
        self.deleted = 0  # from the log, before they were acknowledged
        self.window_max = window_max
        self._dead_max = dead_max
        self.base = stored.floor  # offset of the first entry of the three lists
        self.marks = bytearray(stored.marks)
        self.locks: list[AcquisitionLock | None] = [None] * len(stored.marks)
        self.keys = KeyOrder(stored.floor) if options.by_key else None
        self.next = stored.floor  # the first record that was not considered yet
        self.again: list[Range] = []  # heap
        self.again_count = 0
        self.delayed: list[tuple[float, int, int]] = []  # heap by the time they are due
        self.delayed_count = 0
        self.doomed: dict[int, None] = {}
        self._pass_over_acknowledged()
        self.advance()

    def snapshot(self) -> WindowSnapshot:
        return WindowSnapshot(self.floor, bytes(memoryview(self.marks)[self.floor - self.base :]), dict(self.dead))

    @property
    def waiting(self) -> int:
        """The number of records that are to be delivered again, now or later."""
        return self.delayed_count + self.again_count

    @property
    def acknowledged_above(self) -> int:
        """The number of acknowledged records above the floor."""
        return self.marks.count(ACKNOWLEDGED, self.floor - self.base)

    def wanted(self, now: float, end: int) -> int | None:
        """The next record to deliver, of those below `end`; None if none may be delivered now."""
        self.ripen(now)
        if len(self.dead) >= self._dead_max:
            return None
        if self.again:
            return self.again[0][0]
        self._pass_over_acknowledged()
        return self.next if self.next < min(end, self.floor + self.window_max) else None

    def is_new(self, offset: int) -> bool:
        """Whether the record was never considered for delivery."""
        return offset >= self.next

    def backlog(self, end: int) -> int:
        """The highest number of records that could be acquired now."""
        return self.again_count + max(0, min(end, self.floor + self.window_max) - self.next)

    # ---- states of records

    def acknowledge(self, first: int, end: int) -> None:
        self.marks[first - self.base : end - self.base] = bytes((ACKNOWLEDGED,)) * (end - first)
        self.acknowledged += end - first
        if self.keys is not None:
            for offset in range(first, end):
                self.unblock(self.keys, offset)

    def unblock(self, keys: KeyOrder, offset: int) -> None:
        """Frees the next record of a key for delivery; the one at `offset` is finished."""
        while (following := keys.done(offset)) is not None:
            if self.marks[following - self.base] < self.options.deliveries_max:
                heappush(self.again, (following, following + 1))
                self.again_count += 1
                return
            self._set_aside(following, _too_often(self.options.deliveries_max))
            offset = following

    def give_again(self, first: int, end: int, due: float | None, why: str) -> None:
        for run, upto, mark in self.same_marks(first, end):
            if mark >= self.options.deliveries_max:
                self.put_away(run, upto, why)
            elif due is None:
                heappush(self.again, (run, upto))
                self.again_count += upto - run
            else:
                heappush(self.delayed, (due, run, upto))
                self.delayed_count += upto - run

    def cut_again(self, first: int, end: int) -> list[Range]:
        """Removes the records of a range from those that are to be delivered again; returns them."""
        remaining: list[Range] = []
        cut: list[Range] = []
        for run, upto in self.again:
            middle = max(run, first), min(upto, end)
            if middle[0] >= middle[1]:
                remaining.append((run, upto))
                continue
            cut.append(middle)
            remaining += [part for part in ((run, middle[0]), (middle[1], upto)) if part[0] < part[1]]
        self.again = remaining
        heapify(self.again)
        self.again_count = sum(upto - run for run, upto in remaining)
        return cut

    def forget_again_below(self, offset: int) -> None:
        """Drops deleted records from those that are to be delivered again, now or later."""
        self.again = [(max(first, offset), end) for first, end in self.again if end > offset]
        self.delayed = [(due, max(first, offset), end) for due, first, end in self.delayed if end > offset]
        heapify(self.again)
        heapify(self.delayed)
        self.again_count = sum(end - first for first, end in self.again)
        self.delayed_count = sum(end - first for _, first, end in self.delayed)

    def uncount(self, first: int, end: int) -> int:
        """Lowers the delivery counts by one; returns the number of records that had earlier deliveries."""
        start, stop = first - self.base, end - self.base
        marks = self.marks[start:stop]
        assert min(marks) >= 1, "they were delivered"
        assert max(marks) < DOOMED, "they are not finished"
        self.marks[start:stop] = bytes(mark - 1 for mark in marks)
        return len(marks) - marks.count(1)

    def ripen(self, now: float) -> None:
        while self.delayed and self.delayed[0][0] <= now:
            _, first, end = heappop(self.delayed)
            heappush(self.again, (first, end))
            self.delayed_count -= end - first
            self.again_count += end - first

    def put_away(self, first: int, end: int, why: str = "") -> None:
        """Ends records whose deliveries are used up."""
        reason = _too_often(self.options.deliveries_max) + (f"; {why}" if why else "")
        for offset in range(first, end):
            self.die(offset, reason)

    def die(self, offset: int, reason: str) -> None:
        self._set_aside(offset, reason)
        if self.keys is not None:
            self.unblock(self.keys, offset)

    def _set_aside(self, offset: int, reason: str) -> None:
        at = offset - self.base
        if not self.options.dead_letters:
            self.dropped += 1
        elif len(self.dead) >= self._dead_max:
            self.marks[at] = DOOMED
            self.doomed[offset] = None
            return
        else:
            self.dead[offset] = Dead(min(self.marks[at], self.options.deliveries_max), reason)
        self.marks[at] = ACKNOWLEDGED

    def buried(self, offset: int) -> None:
        """A dead record was written to the dead-letter topic, or dropped."""
        if self.dead.pop(offset, None) is None:
            return
        self.dead_lettered += 1
        if self.doomed:
            doomed = next(iter(self.doomed))
            del self.doomed[doomed]
            self._set_aside(doomed, _too_often(self.options.deliveries_max))
            self.advance()

    # ---- the floor

    def _pass_over_acknowledged(self) -> None:
        """Skips records that were acknowledged in the stored state."""
        marks, at = self.marks, self.next - self.base
        while at < len(marks) and marks[at] == ACKNOWLEDGED:
            if self.keys is not None:
                self.keys.add(self.base + at, None)
            at += 1
        self.next = self.base + at

    def advance(self) -> None:
        marks, at, end = self.marks, self.floor - self.base, self.next - self.base
        while at < end and marks[at] == ACKNOWLEDGED:
            at += 1
        self.floor = self.base + at
        if at >= TRIM_RECORDS:
            del self.marks[:at]
            del self.locks[:at]
            if self.keys is not None:
                self.keys.trim(self.floor)
            self.base = self.floor

    def leave_out(self, end: int) -> None:
        """Marks records below `end` that were not considered yet as acknowledged: they are never delivered."""
        first = self.next
        if end <= first:
            return
        known = self.base + len(self.marks)
        if end > known:
            self.marks.extend(bytes(end - known))
            self.locks.extend([None] * (end - known))
        self.marks[first - self.base : end - self.base] = bytes((ACKNOWLEDGED,)) * (end - first)
        if self.keys is not None:
            for offset in range(first, end):
                self.keys.add(offset, None)
        self.next = end

    def restart(self, offset: int) -> None:
        """Begins an empty window at `offset`."""
        self.base = self.floor = self.next = offset
        self.marks.clear()
        self.locks.clear()
        if self.keys is not None:
            self.keys = KeyOrder(offset)

    def same_marks(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The range in runs of records with the same mark."""
        marks = bytes(memoryview(self.marks)[first - self.base : end - self.base])
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
