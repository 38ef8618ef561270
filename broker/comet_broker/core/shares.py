"""What a shared group has of one partition: which records are settled, which are leased to whom, which come again.

    below the floor     settled, all of them, or set aside as dead
    floor ─► window     per record: settled, leased, again (may be leased now), waiting (until it is due), held back
                        (by key: an earlier record of its key is not settled), or not looked at yet
    beyond              not looked at yet; the window reaches `window_max` records above the floor, no further

    acquire ─► leased ─┬─ accept ──────────────► settled
                       ├─ release, expiry, drop ► again or waiting, or dead when it was delivered `attempts_max` times
                       ├─ give_back ───────────► again, and that it was delivered does not count
                       ├─ reject ──────────────► dead
                       └─ extend ──────────────► leased
    dead: set aside to be written elsewhere, then forgotten; where there is nowhere to write it to, it is dropped

The machine never looks at a record: it is told which offsets there are to give (`Readable`), and, by key, their keys.

Restored from what `snapshot` gave at any moment, nothing is lost: what was leased is given again, with its attempts.

Pure, single-threaded. Half-open ranges everywhere. Costs are per range and per frame; where records are settled one by
one, a fraction of a microsecond each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from comet_broker.core.share_keys import KeyOrder
from comet_broker.core.share_window import (
    ATTEMPTS_MAX,
    DOOMED,
    SETTLED,
    Dead,
    Granted,
    Holder,
    Lease,
    Options,
    Range,
    Readable,
    ShareWindow,
    WindowSnapshot,
)

__all__ = ["ATTEMPTS_MAX", "Dead", "Granted", "Holder", "Lease", "Options", "Readable", "Shares", "WindowSnapshot"]

LEASES_LISTED_MIN: Final = 256


class Shares(ShareWindow):
    """One group at one partition. Owned by its driver."""

    def __init__(self, kept: WindowSnapshot, options: Options, *, window_max: int, dead_max: int) -> None:
        super().__init__(kept, options, window_max=window_max, dead_max=dead_max)
        self.in_flight = 0
        self.delivered = 0
        self.redelivered = 0
        self._by_deadline: deque[Lease] = deque()
        self._tidy_at = LEASES_LISTED_MIN
        self._held: dict[Holder, dict[Lease, None]] = {}

    def due(self) -> float | None:
        """When a lease ends, or a record comes again; None while nothing of the kind is ahead."""
        while self._by_deadline and not self._by_deadline[0].open:
            self._by_deadline.popleft()
        times = [self._waiting[0][0]] if self._waiting else []
        if self._by_deadline:
            times.append(self._by_deadline[0].deadline)
        return min(times, default=None)

    # ---- giving

    def acquire(self, now: float, holder: Holder, count: int, readable: Readable) -> list[Granted]:
        """Leases up to `count` records of those at hand: first what comes again, then what is new, by offset."""
        assert count > 0
        self._ripen(now)
        lease = Lease(holder, now + self.options.lease_s)
        granted: list[Granted] = []
        count -= self._acquire_again(lease, count, readable, granted)
        if count and readable.first <= self._next < readable.end:
            if self._keys is None:
                self._acquire_new(lease, count, readable, granted)
            else:
                self._acquire_by_key(self._keys, lease, count, readable, granted)
            self._advance()
        if granted:
            self._book(lease)
            assert self.floor <= granted[0].first
        return granted

    def _acquire_again(self, lease: Lease, count: int, readable: Readable, granted: list[Granted]) -> int:
        taken = 0
        while self._again and taken < count and readable.first <= self._again[0][0] < readable.end:
            first, last = heappop(self._again)
            end = min(last, readable.end, first + count - taken)
            if end < last:
                heappush(self._again, (end, last))
            taken += end - first
            for run, upto, mark in self._same_marks(first, end):
                self._grant(lease, run, upto, mark + 1, granted)
        self._again_count -= taken
        return taken

    def _acquire_new(self, lease: Lease, count: int, readable: Readable, granted: list[Granted]) -> None:
        limit = min(readable.end, self.floor + self._window_max)
        for run_first, run_end in readable.runs:
            end = min(run_end, limit)
            if end <= self._next:
                continue
            if run_first > self._next:
                self._leave_out(min(run_first, limit))
            while count and self._next < end:
                count -= self._take(lease, min(end, self._next + count), granted)
            if self._next < end:
                return
        self._leave_out(limit)

    def _take(self, lease: Lease, end: int, granted: list[Granted]) -> int:
        """Leases new records up to `end`, or as far as what is known of them is the same; returns how many."""
        first, known = self._next, self._base + len(self._marks)
        if first >= known:
            self._marks.extend(bytes(end - first))
            self._leases.extend([None] * (end - first))
            self._next = end
            self._grant(lease, first, end, 1, granted)
            return end - first
        first, end, mark = next(self._same_marks(first, min(end, known)))
        self._next = end
        if mark == SETTLED:
            return 0
        if mark >= self.options.attempts_max:
            self._put_away(first, end)
            return 0
        self._grant(lease, first, end, mark + 1, granted)
        return end - first

    def _acquire_by_key(
        self, keys: KeyOrder, lease: Lease, count: int, readable: Readable, granted: list[Granted]
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
                    self._leases.append(None)
                mark = self._marks[offset - self._base]
                self._next += 1
                free = keys.add(offset, None if mark == SETTLED else readable.keys[offset - readable.first])
                if mark == SETTLED:
                    continue
                if mark >= self.options.attempts_max:
                    if free:
                        self._put_away(offset, offset + 1)
                elif free:
                    self._grant(lease, offset, offset + 1, mark + 1, granted)
                    count -= 1
        self._leave_out(limit)

    def _grant(self, lease: Lease, first: int, end: int, attempt: int, granted: list[Granted]) -> None:
        size, at = end - first, first - self._base
        assert self._leases[at] is None, "never leased to two at once"
        assert self._marks[at] < DOOMED, "never given again when it is settled"
        self._marks[at : at + size] = bytes((attempt,)) * size
        self._leases[at : at + size] = [lease] * size
        lease.open += size
        self.delivered += size
        if attempt > 1:
            self.redelivered += size
        if granted and granted[-1].end == first and granted[-1].attempt == attempt:
            first = granted.pop().first
            lease.ranges.pop()
        granted.append(Granted(first, end, attempt))
        lease.ranges.append((first, end))

    def _book(self, lease: Lease) -> None:
        assert not self._by_deadline or self._by_deadline[-1].deadline <= lease.deadline
        self._by_deadline.append(lease)
        self._held.setdefault(lease.holder, {})[lease] = None
        lease.holder.open += lease.open
        self.in_flight += lease.open
        if len(self._by_deadline) >= self._tidy_at:
            self._by_deadline = deque(one for one in self._by_deadline if one.open)
            self._tidy_at = max(LEASES_LISTED_MIN, 2 * len(self._by_deadline))

    # ---- what becomes of a lease

    def accept(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """These are done. Returns what of it was not leased to the holder, and is as it was."""
        lost: list[Range] = []
        base, leases, marks, keys = self._base, self._leases, self._marks, self._keys
        size = len(leases)
        settled = 0
        for first, end in zip(firsts, ends, strict=True):
            at = first - base
            if end - first != 1 or not 0 <= at < size:
                for lease, run, upto in self._leased(holder, first, end, lost):
                    self._unlease(lease, run, upto)
                    self._settle(run, upto)
                continue
            found = leases[at]
            if found is None or found.holder is not holder:
                lost.append((first, end))
                continue
            leases[at] = None
            marks[at] = SETTLED
            settled += 1
            found.open -= 1
            if not found.open:
                del self._held[holder][found]
            if keys is not None:
                self._unblock(keys, first)
        holder.open -= settled
        self.in_flight -= settled
        self.settled += settled
        self._advance()
        return lost

    def release(
        self, now: float, holder: Holder, firsts: Sequence[int], ends: Sequence[int], delay_s: float = 0.0
    ) -> list[Range]:
        """These are to be delivered again, after a while. Returns what was not leased to the holder."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lease, run, upto in self._leased(holder, first, end, lost):
                self._unlease(lease, run, upto)
                self._give_again(run, upto, now + delay_s if delay_s > 0 else None, "it was handed back each time")
        self._advance()
        return lost

    def reject(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int], reason: str) -> list[Range]:
        """These are never to be delivered again. Returns what was not leased to the holder."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lease, run, upto in self._leased(holder, first, end, lost):
                self._unlease(lease, run, upto)
                for offset in range(run, upto):
                    self._die(offset, reason)
        self._advance()
        return lost

    def give_back(self, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """It is as if these had not been leased: nobody has seen them. Returns what was not leased to the holder."""
        lost: list[Range] = []
        for first, end in zip(firsts, ends, strict=True):
            for lease, run, upto in self._leased(holder, first, end, lost):
                self._unlease(lease, run, upto)
                self.delivered -= upto - run
                self.redelivered -= self._uncount(run, upto)
                self._give_again(run, upto, None, "")
        self._advance()
        return lost

    def extend(self, now: float, holder: Holder, firsts: Sequence[int], ends: Sequence[int]) -> list[Range]:
        """The leases of these begin anew. Returns what was not leased to the holder."""
        lost: list[Range] = []
        renewed = Lease(holder, now + self.options.lease_s)
        for first, end in zip(firsts, ends, strict=True):
            for lease, run, upto in self._leased(holder, first, end, lost):
                if lease is renewed:
                    continue  # named twice
                self._unlease(lease, run, upto)
                self._leases[run - self._base : upto - self._base] = [renewed] * (upto - run)
                renewed.open += upto - run
                renewed.ranges.append((run, upto))
        if renewed.open:
            self._book(renewed)
        return lost

    def expire(self, now: float) -> int:
        """Takes back what was not settled in time; returns how many records."""
        count = 0
        while self._by_deadline and (not self._by_deadline[0].open or self._by_deadline[0].deadline <= now):
            lease = self._by_deadline.popleft()
            count += self._take_back(lease, "it was not settled in time")
        self._ripen(now)
        self._advance()
        return count

    def drop(self, holder: Holder) -> int:
        """The holder is gone: what it had is free at once; returns how many records."""
        count = sum(self._take_back(lease, "its member went away") for lease in list(self._held.get(holder, ())))
        self._held.pop(holder, None)
        self._advance()
        return count

    def forgive(self, now: float) -> None:
        """The clock ran on while nobody could settle anything: all leases begin anew."""
        for lease in self._by_deadline:
            lease.deadline = now + self.options.lease_s

    def _take_back(self, lease: Lease, why: str) -> int:
        count = lease.open
        for first, end in list(lease.ranges) if count else ():
            for found, run, upto in self._leased(lease.holder, first, end, []):
                if found is lease:
                    self._unlease(lease, run, upto)
                    self._give_again(run, upto, None, why)
        assert not lease.open
        return count

    def _leased(self, holder: Holder, first: int, end: int, lost: list[Range]) -> Iterator[tuple[Lease, int, int]]:
        """What of a range is leased to the holder, in runs of one lease each. The caller may end those leases."""
        base = self._base
        start, stop = max(first, base), min(end, base + len(self._leases))
        if start >= stop:
            lost.append((first, end))
            return
        if first < start:
            lost.append((first, start))
        leases = self._leases[start - base : stop - base]
        at, size = 0, stop - start
        while at < size:
            lease = leases[at]
            run = size if leases.count(lease) == size else at + 1
            while run < size and leases[run] is lease:
                run += 1
            if lease is not None and lease.holder is holder:
                yield lease, start + at, start + run
            else:
                lost.append((start + at, start + run))
            at = run
        if stop < end:
            lost.append((stop, end))

    def _unlease(self, lease: Lease, first: int, end: int) -> None:
        size, at = end - first, first - self._base
        self._leases[at : at + size] = [None] * size
        lease.open -= size
        lease.holder.open -= size
        self.in_flight -= size
        assert min(lease.open, lease.holder.open, self.in_flight) >= 0
        if not lease.open:
            self._held[lease.holder].pop(lease, None)

    # ---- what is gone

    def pass_over(self, first: int, end: int) -> None:
        """Nobody can read these: they are given to nobody any more. What is leased stays so."""
        kept: list[Range] = []
        cut: list[Range] = []
        for run, upto in self._again:
            middle = max(run, first), min(upto, end)
            if middle[0] >= middle[1]:
                kept.append((run, upto))
                continue
            cut.append(middle)
            kept += [part for part in ((run, middle[0]), (middle[1], upto)) if part[0] < part[1]]
        self._again = kept
        heapify(self._again)
        self._again_count = sum(upto - run for run, upto in kept)
        for run, upto in cut:
            self._settle(run, upto)
        if first <= self._next:
            self._leave_out(min(end, self.floor + self._window_max))
        self._advance()

    def forget_below(self, offset: int) -> int:
        """The log begins at `offset` now: what lies below can be given to nobody. Returns how many were not settled."""
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
            if self._marks[record - self._base] != SETTLED:
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
        lease = self._leases[offset - self._base]
        if lease is not None:
            self._unlease(lease, offset, offset + 1)
        out_of_the_way = offset in self._doomed or offset >= self._next
        self._doomed.pop(offset, None)
        self._marks[offset - self._base] = SETTLED
        self.deleted += 1
        if self._keys is not None and not out_of_the_way:
            self._unblock(self._keys, offset)
