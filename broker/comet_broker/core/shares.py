"""The state of a share group in one partition: acknowledged records, acquired records and redeliveries.

    below the floor     acknowledged, all of them, or set aside as dead
    floor ─► window     per record: acknowledged, acquired, again, waiting (until it is due), held back
                        (by key: an earlier record of its key is not acknowledged), or new
    beyond              new; the window reaches `window_max` records above the floor, no further

    acquire ─► acquired ─┬─ accept ──────────────► acknowledged
                       ├─ release, expiry, drop ► again or waiting, or dead when it was delivered `deliveries_max` times
                       ├─ give_back ───────────► again, without counting the delivery
                       ├─ reject ──────────────► dead
                       └─ extend ──────────────► acquired
    dead: set aside to be written to the dead-letter topic, then forgotten; dropped if there is no such topic

No record is read here: the caller passes the offsets that may be acquired (`Readable`), and, by key, their keys.

Restored from any `snapshot`, no record is lost: acquired ones are delivered again, with their delivery counts.

Pure, single-threaded. Half-open ranges everywhere. Costs are per range and per frame; where records are acknowledged
one by one, a fraction of a microsecond each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from comet_broker.core.share_keys import KeyOrder
from comet_broker.core.share_window import (
    ACKNOWLEDGED,
    ATTEMPTS_MAX,
    DOOMED,
    AcquisitionLock,
    Dead,
    Granted,
    Holder,
    Options,
    Range,
    Readable,
    ShareWindow,
    WindowSnapshot,
)

__all__ = [
    "ATTEMPTS_MAX",
    "AcquisitionLock",
    "Dead",
    "Granted",
    "Holder",
    "Options",
    "Readable",
    "Shares",
    "WindowSnapshot",
]

LOCKS_LISTED_MIN: Final = 256


class Shares(ShareWindow):
    """One group in one partition. Owned by its driver."""

    def __init__(self, stored: WindowSnapshot, options: Options, *, window_max: int, dead_max: int) -> None:
        super().__init__(stored, options, window_max=window_max, dead_max=dead_max)
        self.in_flight = 0
        self.delivered = 0
        self.redelivered = 0
        self._by_deadline: deque[AcquisitionLock] = deque()
        self._tidy_at = LOCKS_LISTED_MIN
        self._held: dict[Holder, dict[AcquisitionLock, None]] = {}

    def due(self) -> float | None:
        """The time at which the next lock ends or the next record becomes due; None if there is neither."""
        while self._by_deadline and not self._by_deadline[0].open:
            self._by_deadline.popleft()
        times = [self._waiting[0][0]] if self._waiting else []
        if self._by_deadline:
            times.append(self._by_deadline[0].deadline)
        return min(times, default=None)

    # ---- acquiring

    def acquire(self, now: float, holder: Holder, count: int, readable: Readable) -> list[Granted]:
        """Acquires up to `count` of the readable records: first redeliveries, then new ones, by offset."""
        assert count > 0
        self._ripen(now)
        lock = AcquisitionLock(holder, now + self.options.lock_s)
        granted: list[Granted] = []
        count -= self._acquire_again(lock, count, readable, granted)
        if count and readable.first <= self._next < readable.end:
            if self._keys is None:
                self._acquire_new(lock, count, readable, granted)
            else:
                self._acquire_by_key(self._keys, lock, count, readable, granted)
            self._advance()
        if granted:
            self._book(lock)
            assert self.floor <= granted[0].first
        return granted

    def _acquire_again(self, lock: AcquisitionLock, count: int, readable: Readable, granted: list[Granted]) -> int:
        taken = 0
        while self._again and taken < count and readable.first <= self._again[0][0] < readable.end:
            first, last = heappop(self._again)
            end = min(last, readable.end, first + count - taken)
            if end < last:
                heappush(self._again, (end, last))
            taken += end - first
            for run, upto, mark in self._same_marks(first, end):
                self._grant(lock, run, upto, mark + 1, granted)
        self._again_count -= taken
        return taken

    def _acquire_new(self, lock: AcquisitionLock, count: int, readable: Readable, granted: list[Granted]) -> None:
        limit = min(readable.end, self.floor + self._window_max)
        for run_first, run_end in readable.runs:
            end = min(run_end, limit)
            if end <= self._next:
                continue
            if run_first > self._next:
                self._leave_out(min(run_first, limit))
            while count and self._next < end:
                count -= self._take(lock, min(end, self._next + count), granted)
            if self._next < end:
                return
        self._leave_out(limit)

    def _take(self, lock: AcquisitionLock, end: int, granted: list[Granted]) -> int:
        """Acquires new records up to `end`, as far as their marks are the same; returns how many."""
        first, known = self._next, self._base + len(self._marks)
        if first >= known:
            self._marks.extend(bytes(end - first))
            self._locks.extend([None] * (end - first))
            self._next = end
            self._grant(lock, first, end, 1, granted)
            return end - first
        first, end, mark = next(self._same_marks(first, min(end, known)))
        self._next = end
        if mark == ACKNOWLEDGED:
            return 0
        if mark >= self.options.deliveries_max:
            self._put_away(first, end)
            return 0
        self._grant(lock, first, end, mark + 1, granted)
        return end - first

    def _acquire_by_key(
        self, keys: KeyOrder, lock: AcquisitionLock, count: int, readable: Readable, granted: list[Granted]
    ) -> None:
        limit = min(readable.end, self.floor + self._window_max)
        for run_first, run_end in readable.runs:
            end = min(run_end, limit)
            if run_first > self._next:
                self._leave_out(min(run_first, limit))
            while self._next < end:
                if not count:
                    return
                offset, known = self._next, self._base + len(self._marks)
                if offset >= known:
                    self._marks.append(0)
                    self._locks.append(None)
                mark = self._marks[offset - self._base]
                self._next += 1
                free = keys.add(offset, None if mark == ACKNOWLEDGED else readable.keys[offset - readable.first])
                if mark == ACKNOWLEDGED:
                    continue
                if mark >= self.options.deliveries_max:
                    if free:
                        self._put_away(offset, offset + 1)
                elif free:
                    self._grant(lock, offset, offset + 1, mark + 1, granted)
                    count -= 1
        self._leave_out(limit)

    def _grant(self, lock: AcquisitionLock, first: int, end: int, delivery_count: int, granted: list[Granted]) -> None:
        size, at = end - first, first - self._base
        assert self._locks[at] is None, "never acquired by two at once"
        assert self._marks[at] < DOOMED, "never delivered again once acknowledged"
        self._marks[at : at + size] = bytes((delivery_count,)) * size
        self._locks[at : at + size] = [lock] * size
        lock.open += size
        self.delivered += size
        if delivery_count > 1:
            self.redelivered += size
        if granted and granted[-1].end == first and granted[-1].delivery_count == delivery_count:
            first = granted.pop().first
            lock.ranges.pop()
        granted.append(Granted(first, end, delivery_count))
        lock.ranges.append((first, end))

    def _book(self, lock: AcquisitionLock) -> None:
        assert not self._by_deadline or self._by_deadline[-1].deadline <= lock.deadline
        self._by_deadline.append(lock)
        self._held.setdefault(lock.holder, {})[lock] = None
        lock.holder.open += lock.open
        self.in_flight += lock.open
        if len(self._by_deadline) >= self._tidy_at:
            self._by_deadline = deque(one for one in self._by_deadline if one.open)
            self._tidy_at = max(LOCKS_LISTED_MIN, 2 * len(self._by_deadline))

    # ---- the end of a lock

    def accept(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Accepts records. Returns the ranges that the holder had not acquired, which stay as they were."""
        lost: list[Range] = []
        base, locks, marks, keys = self._base, self._locks, self._marks, self._keys
        size = len(locks)
        acknowledged = 0
        for first, end in zip(firsts, ends, strict=True):
            at = first - base
            if end - first != 1 or not 0 <= at < size:
                for lock, run, upto in self._acquired(holder, first, end, lost):
                    self._unlock(lock, run, upto)
                    self._acknowledge(run, upto)
                continue
            found = locks[at]
            if found is None or found.holder is not holder:
                lost.append((first, end))
                continue
            locks[at] = None
            marks[at] = ACKNOWLEDGED
            acknowledged += 1
            found.open -= 1
            if not found.open:
                del self._held[holder][found]
            if keys is not None:
                self._unblock(keys, first)
        holder.open -= acknowledged
        self.in_flight -= acknowledged
        self.acknowledged += acknowledged
        self._advance()
        return lost

    def release(
        self, now: float, holder: Holder, firsts: Sequence[int], ends: Sequence[int], delay_s: float = 0.0
    ) -> list[Range]:
        """Releases records for redelivery after `delay_s`. Returns the ranges that the holder had not acquired."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                self._unlock(lock, run, upto)
                self._give_again(run, upto, now + delay_s if delay_s > 0 else None, "it was released each time")
        self._advance()
        return lost

    def reject(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], reason: str) -> list[Range]:
        """Rejects records: no further delivery. Returns the ranges that the holder had not acquired."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                self._unlock(lock, run, upto)
                for offset in range(run, upto):
                    self._die(offset, reason)
        self._advance()
        return lost

    def give_back(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Undoes the acquisition of records that no client has seen. Returns the ranges that the holder had not
        acquired."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                self._unlock(lock, run, upto)
                self.delivered -= upto - run
                self.redelivered -= self._uncount(run, upto)
                self._give_again(run, upto, None, "")
        self._advance()
        return lost

    def extend(self, now: float, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Restarts the locks of records. Returns the ranges that the holder had not acquired."""
        lost: list[Range] = []
        renewed = AcquisitionLock(holder, now + self.options.lock_s)
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                if lock is renewed:
                    continue  # named twice
                self._unlock(lock, run, upto)
                self._locks[run - self._base : upto - self._base] = [renewed] * (upto - run)
                renewed.open += upto - run
                renewed.ranges.append((run, upto))
        if renewed.open:
            self._book(renewed)
        return lost

    def expire(self, now: float) -> int:
        """Takes back records whose locks have expired; returns how many."""
        count = 0
        while self._by_deadline and (not self._by_deadline[0].open or self._by_deadline[0].deadline <= now):
            lock = self._by_deadline.popleft()
            count += self._take_back(lock, "it was not acknowledged in time")
        self._ripen(now)
        self._advance()
        return count

    def drop(self, holder: Holder) -> int:
        """Takes back the records of a holder that is gone; returns how many."""
        count = sum(self._take_back(lock, "its member went away") for lock in list(self._held.get(holder, ())))
        self._held.pop(holder, None)
        self._advance()
        return count

    def forgive(self, now: float) -> None:
        """Restarts all locks after a stall, in which acknowledgements were impossible."""
        for lock in self._by_deadline:
            lock.deadline = now + self.options.lock_s

    def _take_back(self, lock: AcquisitionLock, why: str) -> int:
        count = lock.open
        for first, end in list(lock.ranges) if count else ():
            for found, run, upto in self._acquired(lock.holder, first, end, []):
                if found is lock:
                    self._unlock(lock, run, upto)
                    self._give_again(run, upto, None, why)
        assert not lock.open
        return count

    def _acquired(
        self, holder: Holder, first: int, end: int, lost: list[Range]
    ) -> Iterator[tuple[AcquisitionLock, int, int]]:
        """The parts of a range that the holder has acquired, in runs of one lock each. The caller may end the locks."""
        base = self._base
        start, stop = max(first, base), min(end, base + len(self._locks))
        if start >= stop:
            lost.append((first, end))
            return
        if first < start:
            lost.append((first, start))
        locks = self._locks[start - base : stop - base]
        at, size = 0, stop - start
        while at < size:
            lock = locks[at]
            run = size if locks.count(lock) == size else at + 1
            while run < size and locks[run] is lock:
                run += 1
            if lock is not None and lock.holder is holder:
                yield lock, start + at, start + run
            else:
                lost.append((start + at, start + run))
            at = run
        if stop < end:
            lost.append((stop, end))

    def _unlock(self, lock: AcquisitionLock, first: int, end: int) -> None:
        size, at = end - first, first - self._base
        self._locks[at : at + size] = [None] * size
        lock.open -= size
        lock.holder.open -= size
        self.in_flight -= size
        assert min(lock.open, lock.holder.open, self.in_flight) >= 0
        if not lock.open:
            self._held[lock.holder].pop(lock, None)

    # ---- deleted and unreadable records

    def pass_over(self, first: int, end: int) -> None:
        """Ends the delivery of unreadable records. Acquired ones stay acquired."""
        remaining: list[Range] = []
        cut: list[Range] = []
        for run, upto in self._again:
            middle = max(run, first), min(upto, end)
            if middle[0] >= middle[1]:
                remaining.append((run, upto))
                continue
            cut.append(middle)
            remaining += [part for part in ((run, middle[0]), (middle[1], upto)) if part[0] < part[1]]
        self._again = remaining
        heapify(self._again)
        self._again_count = sum(upto - run for run, upto in remaining)
        for run, upto in cut:
            self._acknowledge(run, upto)
        if first <= self._next:
            self._leave_out(min(end, self.floor + self._window_max))
        self._advance()

    def forget_below(self, offset: int) -> int:
        """Drops deleted records: the log start offset is `offset` now. Returns how many were not acknowledged."""
        before = self.deleted
        if offset > self.floor:
            self._forget_below(offset)
        for dead in [dead for dead in self.dead if dead < offset]:
            del self.dead[dead]
            self.deleted += 1
        return self.deleted - before

    def _forget_below(self, offset: int) -> None:
        known = self._base + len(self._marks)
        for record in range(self.floor, min(offset, known)):
            if self._marks[record - self._base] != ACKNOWLEDGED:
                self._delete(record)
        if offset >= known:
            self.deleted += offset - known
            self._restart(offset)
        else:
            self._leave_out(offset)
        self._again = [(max(first, offset), end) for first, end in self._again if end > offset]
        self._waiting = [(due, max(first, offset), end) for due, first, end in self._waiting if end > offset]
        heapify(self._again)
        heapify(self._waiting)
        self._again_count = sum(end - first for first, end in self._again)
        self._waiting_count = sum(end - first for _, first, end in self._waiting)
        self._advance()
        assert self.floor >= offset

    def _delete(self, offset: int) -> None:
        lock = self._locks[offset - self._base]
        if lock is not None:
            self._unlock(lock, offset, offset + 1)
        out_of_the_way = offset in self._doomed or offset >= self._next
        self._doomed.pop(offset, None)
        self._marks[offset - self._base] = ACKNOWLEDGED
        self.deleted += 1
        if self._keys is not None and not out_of_the_way:
            self._unblock(self._keys, offset)
