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
from heapq import heappop, heappush
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


class Shares:
    """One group in one partition. Owned by its driver."""

    def __init__(self, stored: WindowSnapshot, options: Options, *, window_max: int, dead_max: int) -> None:
        self.window = ShareWindow(stored, options, window_max=window_max, dead_max=dead_max)
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
        times = [self.window.delayed[0][0]] if self.window.delayed else []
        if self._by_deadline:
            times.append(self._by_deadline[0].deadline)
        return min(times, default=None)

    # ---- acquiring

    def acquire(self, now: float, holder: Holder, count: int, readable: Readable) -> list[Granted]:
        """Acquires up to `count` of the readable records: first redeliveries, then new ones, by offset."""
        assert count > 0
        self.window.ripen(now)
        lock = AcquisitionLock(holder, now + self.window.options.lock_s)
        granted: list[Granted] = []
        count -= self._acquire_again(lock, count, readable, granted)
        if count and readable.first <= self.window.next < readable.end:
            if self.window.keys is None:
                self._acquire_new(lock, count, readable, granted)
            else:
                self._acquire_by_key(self.window.keys, lock, count, readable, granted)
            self.window.advance()
        if granted:
            self._book(lock)
            assert self.window.floor <= granted[0].first
        return granted

    def _acquire_again(self, lock: AcquisitionLock, count: int, readable: Readable, granted: list[Granted]) -> int:
        taken = 0
        while self.window.again and taken < count and readable.first <= self.window.again[0][0] < readable.end:
            first, last = heappop(self.window.again)
            end = min(last, readable.end, first + count - taken)
            if end < last:
                heappush(self.window.again, (end, last))
            taken += end - first
            for run, upto, mark in self.window.same_marks(first, end):
                self._grant(lock, run, upto, mark + 1, granted)
        self.window.again_count -= taken
        return taken

    def _acquire_new(self, lock: AcquisitionLock, count: int, readable: Readable, granted: list[Granted]) -> None:
        limit = min(readable.end, self.window.floor + self.window.window_max)
        for run_first, run_end in readable.runs:
            end = min(run_end, limit)
            if end <= self.window.next:
                continue
            if run_first > self.window.next:
                self.window.leave_out(min(run_first, limit))
            while count and self.window.next < end:
                count -= self._take(lock, min(end, self.window.next + count), granted)
            if self.window.next < end:
                return
        self.window.leave_out(limit)

    def _take(self, lock: AcquisitionLock, end: int, granted: list[Granted]) -> int:
        """Acquires new records up to `end`, as far as their marks are the same; returns how many."""
        first, known = self.window.next, self.window.base + len(self.window.marks)
        if first >= known:
            self.window.marks.extend(bytes(end - first))
            self.window.locks.extend([None] * (end - first))
            self.window.next = end
            self._grant(lock, first, end, 1, granted)
            return end - first
        first, end, mark = next(self.window.same_marks(first, min(end, known)))
        self.window.next = end
        if mark == ACKNOWLEDGED:
            return 0
        if mark >= self.window.options.deliveries_max:
            self.window.put_away(first, end)
            return 0
        self._grant(lock, first, end, mark + 1, granted)
        return end - first

    def _acquire_by_key(
        self, keys: KeyOrder, lock: AcquisitionLock, count: int, readable: Readable, granted: list[Granted]
    ) -> None:
        limit = min(readable.end, self.window.floor + self.window.window_max)
        for run_first, run_end in readable.runs:
            end = min(run_end, limit)
            if run_first > self.window.next:
                self.window.leave_out(min(run_first, limit))
            while self.window.next < end:
                if not count:
                    return
                offset, known = self.window.next, self.window.base + len(self.window.marks)
                if offset >= known:
                    self.window.marks.append(0)
                    self.window.locks.append(None)
                mark = self.window.marks[offset - self.window.base]
                self.window.next += 1
                free = keys.add(offset, None if mark == ACKNOWLEDGED else readable.keys[offset - readable.first])
                if mark == ACKNOWLEDGED:
                    continue
                if mark >= self.window.options.deliveries_max:
                    if free:
                        self.window.put_away(offset, offset + 1)
                elif free:
                    self._grant(lock, offset, offset + 1, mark + 1, granted)
                    count -= 1
        self.window.leave_out(limit)

    def _grant(self, lock: AcquisitionLock, first: int, end: int, delivery_count: int, granted: list[Granted]) -> None:
        size, at = end - first, first - self.window.base
        assert self.window.locks[at] is None, "never acquired by two at once"
        assert self.window.marks[at] < DOOMED, "never delivered again once acknowledged"
        self.window.marks[at : at + size] = bytes((delivery_count,)) * size
        self.window.locks[at : at + size] = [lock] * size
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
        base, locks, marks, keys = self.window.base, self.window.locks, self.window.marks, self.window.keys
        size = len(locks)
        acknowledged = 0
        for first, end in zip(firsts, ends, strict=True):
            at = first - base
            if end - first != 1 or not 0 <= at < size:
                for lock, run, upto in self._acquired(holder, first, end, lost):
                    self._unlock(lock, run, upto)
                    self.window.acknowledge(run, upto)
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
                self.window.unblock(keys, first)
        holder.open -= acknowledged
        self.in_flight -= acknowledged
        self.window.acknowledged += acknowledged
        self.window.advance()
        return lost

    def release(
        self, now: float, holder: Holder, firsts: Sequence[int], ends: Sequence[int], delay_s: float = 0.0
    ) -> list[Range]:
        """Releases records for redelivery after `delay_s`. Returns the ranges that the holder had not acquired."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                self._unlock(lock, run, upto)
                self.window.give_again(run, upto, now + delay_s if delay_s > 0 else None, "it was released each time")
        self.window.advance()
        return lost

    def reject(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], reason: str) -> list[Range]:
        """Rejects records: no further delivery. Returns the ranges that the holder had not acquired."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                self._unlock(lock, run, upto)
                for offset in range(run, upto):
                    self.window.die(offset, reason)
        self.window.advance()
        return lost

    def give_back(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Undoes the acquisition of records that no client has seen. Returns the ranges that the holder had not
        acquired."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                self._unlock(lock, run, upto)
                self.delivered -= upto - run
                self.redelivered -= self.window.uncount(run, upto)
                self.window.give_again(run, upto, None, "")
        self.window.advance()
        return lost

    def extend(self, now: float, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """Restarts the locks of records. Returns the ranges that the holder had not acquired."""
        lost: list[Range] = []
        renewed = AcquisitionLock(holder, now + self.window.options.lock_s)
        for first, end in zip(firsts, ends, strict=True):
            for lock, run, upto in self._acquired(holder, first, end, lost):
                if lock is renewed:
                    continue  # named twice
                self._unlock(lock, run, upto)
                self.window.locks[run - self.window.base : upto - self.window.base] = [renewed] * (upto - run)
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
        self.window.ripen(now)
        self.window.advance()
        return count

    def drop(self, holder: Holder) -> int:
        """Takes back the records of a holder that is gone; returns how many."""
        count = sum(self._take_back(lock, "its member went away") for lock in list(self._held.get(holder, ())))
        self._held.pop(holder, None)
        self.window.advance()
        return count

    def forgive(self, now: float) -> None:
        """Restarts all locks after a stall, in which acknowledgements were impossible."""
        for lock in self._by_deadline:
            lock.deadline = now + self.window.options.lock_s

    def _take_back(self, lock: AcquisitionLock, why: str) -> int:
        count = lock.open
        for first, end in list(lock.ranges) if count else ():
            for found, run, upto in self._acquired(lock.holder, first, end, []):
                if found is lock:
                    self._unlock(lock, run, upto)
                    self.window.give_again(run, upto, None, why)
        assert not lock.open
        return count

    def _acquired(
        self, holder: Holder, first: int, end: int, lost: list[Range]
    ) -> Iterator[tuple[AcquisitionLock, int, int]]:
        """The parts of a range that the holder has acquired, in runs of one lock each. The caller may end the locks."""
        base = self.window.base
        start, stop = max(first, base), min(end, base + len(self.window.locks))
        if start >= stop:
            lost.append((first, end))
            return
        if first < start:
            lost.append((first, start))
        locks = self.window.locks[start - base : stop - base]
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
        size, at = end - first, first - self.window.base
        self.window.locks[at : at + size] = [None] * size
        lock.open -= size
        lock.holder.open -= size
        self.in_flight -= size
        assert min(lock.open, lock.holder.open, self.in_flight) >= 0
        if not lock.open:
            self._held[lock.holder].pop(lock, None)

    # ---- deleted and unreadable records

    def pass_over(self, first: int, end: int) -> None:
        """Ends the delivery of unreadable records. Acquired ones stay acquired."""
        for run, upto in self.window.cut_again(first, end):
            self.window.acknowledge(run, upto)
        if first <= self.window.next:
            self.window.leave_out(min(end, self.window.floor + self.window.window_max))
        self.window.advance()

    def forget_below(self, offset: int) -> int:
        """Drops deleted records: the log start offset is `offset` now. Returns how many were not acknowledged."""
        before = self.window.deleted
        if offset > self.window.floor:
            self._forget_below(offset)
        for dead in [dead for dead in self.window.dead if dead < offset]:
            del self.window.dead[dead]
            self.window.deleted += 1
        return self.window.deleted - before

    def _forget_below(self, offset: int) -> None:
        known = self.window.base + len(self.window.marks)
        for record in range(self.window.floor, min(offset, known)):
            if self.window.marks[record - self.window.base] != ACKNOWLEDGED:
                self._delete(record)
        if offset >= known:
            self.window.deleted += offset - known
            self.window.restart(offset)
        else:
            self.window.leave_out(offset)
        self.window.forget_again_below(offset)
        self.window.advance()
        assert self.window.floor >= offset

    def _delete(self, offset: int) -> None:
        lock = self.window.locks[offset - self.window.base]
        if lock is not None:
            self._unlock(lock, offset, offset + 1)
        out_of_the_way = offset in self.window.doomed or offset >= self.window.next
        self.window.doomed.pop(offset, None)
        self.window.marks[offset - self.window.base] = ACKNOWLEDGED
        self.window.deleted += 1
        if self.window.keys is not None and not out_of_the_way:
            self.window.unblock(self.window.keys, offset)
