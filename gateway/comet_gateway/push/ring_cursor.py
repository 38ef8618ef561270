"""One subscriber's position in one topic, and its next event. Its memory does not grow with its lag.

    LIVE      the number of an item in the ring, and how many of its records were given
    BEHIND    a position in each partition: records no longer in the ring are read from the log, one piece at a time,
              until the ring has the next ones of all; then it walks through the ring until its positions are the ring's

The cursor decides; its subscription delivers the events, and performs the reads that it requests (`Read`).
Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from comet_gateway.push.chunk import Chunk, Hole, Slice, Source
from comet_gateway.push.events import Event, Failed, Lost, Missing
from comet_gateway.push.latest_fanout import SnapshotWalk
from comet_gateway.push.ring import Ring
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest
from comet_gateway.records.cursor import CursorPosition


class Read(NamedTuple):
    """A request to read a piece of the log."""

    partition: int
    position: CursorPosition


class RingCursor:
    """A subscriber's cursor in one feed's ring. Owned by a subscription."""

    def __init__(self, ring: Ring, request: SubscribeRequest) -> None:
        self.ring = ring
        self.partitions = request.partitions
        self.values = request.values
        self.buffer = request.buffer if request.policy is Policy.DROP_OLDEST else None
        self._everything = self.partitions is None and self.buffer is None
        self.delivered = 0
        self.dropped = 0
        self.conflated = 0
        self.failed: Failed | None = None
        self.over = False  # it was given the failure
        self.first: deque[Event] = deque()  # events to give first
        self.walk: SnapshotWalk | None = None  # in a snapshot, before the records that follow it
        self._number = ring.head
        self._skip = 0
        self._passed = ring.count(self.partitions)  # records of the ring's count that it has passed, given or dropped
        self._positions: dict[int, CursorPosition] | None = None  # None: live
        self._walking = False  # in the ring, from `_number` on
        self._in_step: int | None = None
        self._read: deque[tuple[Source, int, int]] = deque()  # read from the log, not given yet
        self._read_to: tuple[int, CursorPosition] | None = None
        self._doubted: set[int] = set()  # partitions truncated since: only the log is valid
        self._cuts = ring.cuts
        self._least_behind: int | None = None
        self._last_read = -1

    # ---- start

    def begin_at(self, positions: Mapping[int, CursorPosition]) -> None:
        """Starts at a position in each partition."""
        self._positions = dict(positions)
        self._walking = False
        self._read.clear()
        self._cuts = self.ring.cuts

    def begin_with(self, walk: SnapshotWalk) -> None:
        """Starts with a snapshot, then the records after it."""
        self.walk = walk
        snapshot = walk.snapshot
        if snapshot.number < self.ring.tail:
            self._begin_behind(snapshot.positions, snapshot.number)
            return
        self._number = snapshot.number
        self._passed = snapshot.count(self.partitions)

    def cursor(self) -> str:
        """The text of its position."""
        if self._positions is None:
            return self.ring.cursor_at(self._number, self._skip)
        return self.ring.cursor_of(self._positions)

    @property
    def live(self) -> bool:
        return self._positions is None

    @property
    def number(self) -> int:
        return self._number

    @property
    def behind(self) -> int:
        """Its lag in records; an estimate while it reads the log."""
        if self._positions is None:
            return self.ring.count(self.partitions) - self._passed
        ends = self.ring.positions
        return sum(max(ends[index].offset - at.offset, 0) for index, at in self._positions.items() if index in ends)

    def uproot(self, positions: Mapping[int, CursorPosition]) -> None:
        """Moves out of the ring, before its item is evicted; `positions` are the positions before that."""
        assert self._positions is None
        found = dict(positions)
        item = self.ring.at(self._number)
        if self._skip and isinstance(item, Chunk):
            found[item.partition] = item.position(self._skip)
        self._least_behind = 0
        self._begin_behind(found, self._number)

    def _begin_behind(self, positions: Mapping[int, CursorPosition], number: int) -> None:
        """Continues at the positions before an evicted item. A log may have been truncated since."""
        self.begin_at(self._chosen(positions))
        self._doubted.update(index for index in positions if self._wants(index) and self.ring.stale(number, index))

    def _chosen(self, positions: Mapping[int, CursorPosition]) -> dict[int, CursorPosition]:
        if self.partitions is None:
            return dict(positions)
        return {index: position for index, position in positions.items() if index in self.partitions}

    def _wants(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions

    # ---- next event

    @property
    def idle(self) -> bool:
        """Whether it has been given all records, and has no other event."""
        return self._number == self.ring.head and self._positions is None and self.failed is None and self.walk is None

    def take(self, permits: int | None = None) -> Event | Read | None:
        """The next event, of at most `permits` records; or a read that is needed first; None: nothing now."""
        if self.first:
            return self.first.popleft()
        if self._everything and permits is None and self._positions is None and self._skip == 0 and self.walk is None:
            # The fast path of nearly all calls: a thousand subscribers may take every chunk.
            number, ring = self._number, self.ring
            if number < ring.head:
                item = ring.at(number)
                if isinstance(item, Chunk):
                    self._number = number + 1
                    count = item.end - item.begin
                    self._passed += count
                    self.delivered += count
                    return item.whole(self.values)
        if self.walk is not None:
            event = self.walk.take(permits)
            if event is not None:
                self.delivered += event.count
                self.walk = None if event.last else self.walk
            return event
        found = self._take_behind(permits) if self._positions is not None else self._take_live(permits)
        if found is None and self.failed is not None and not self.over and self._at_end():
            self.over = True
            return self.failed
        if isinstance(found, Read) and self.failed is not None:
            self.over = True
            return self.failed
        return found

    def _at_end(self) -> bool:
        return self._positions is not None or self._number == self.ring.head

    def _take_live(self, permits: int | None) -> Event | None:
        ring = self.ring
        if self.buffer is not None and (behind := self.behind) > self.buffer:
            return self._drop(behind - self.buffer)
        while self._number < ring.head:
            item = ring.at(self._number)
            if self.partitions is not None and item.partition not in self.partitions:
                self._number += 1
            elif isinstance(item, Hole):
                self._number += 1
                return Lost(ring.topic, _size(item.missing), (item.missing,), ring.cursor_at(self._number))
            elif permits is not None and permits <= 0:
                return None
            else:
                left = item.count - self._skip
                count = left if permits is None else min(left, permits)
                event = item.part(self._skip, count, self.values)
                self._move(count, left)
                self.delivered += count
                return event
        return None

    def _move(self, count: int, left: int) -> None:
        self._passed += count
        self._number, self._skip = (self._number + 1, 0) if count == left else (self._number, self._skip + count)

    def _drop(self, excess: int) -> Lost:
        """Skips records of the ring, and reports them."""
        ring, ranges, count = self.ring, _Ranges(), 0
        while excess > 0 and self._number < ring.head:
            item = ring.at(self._number)
            if not self._wants(item.partition):
                self._number += 1
            elif isinstance(item, Hole):
                ranges.add(item.missing)
                count += _size(item.missing)
                self._number += 1
            else:
                left = item.count - self._skip
                dropped = min(left, excess)
                first, end = item.position(self._skip), item.position(self._skip + dropped)
                ranges.add(Missing(item.partition, first.offset, end.offset, "dropped"))
                excess -= dropped
                count += dropped
                self.dropped += dropped
                self._move(dropped, left)
        return Lost(ring.topic, count, ranges.found(), self.cursor())

    # ---- behind the ring

    def _take_behind(self, permits: int | None) -> Event | Read | None:
        assert self._positions is not None
        if permits is not None and permits <= 0:
            return None
        if self._read:
            return self._give_read(permits)
        if self.buffer is not None and self._falls_back(self.buffer):
            return self._drop_to_ring()
        if self._cuts != self.ring.cuts:
            cuts, self._cuts = self.ring.cut_since(self._cuts), self.ring.cuts
            self._walking = False  # some of the items ahead may be invalid
            self._doubted.update(
                index for index, offset in cuts if index in self._positions and self._positions[index].offset > offset
            )
        for index in self.ring.tail_positions:
            if index not in self._positions and self._wants(index):
                self._positions[index] = CursorPosition(0)  # added since
        if self._walking and not self._doubted and self._number >= self.ring.tail:
            return self._walk(permits)
        return self._enter(permits)

    def _enter(self, permits: int | None) -> Event | Read | None:
        assert self._positions is not None
        wanted = sorted(
            index for index, position in self._positions.items()
            if index in self._doubted or not self.ring.has(index, position.offset)
        )  # fmt: skip
        if wanted:
            # In turn, so that no partition falls behind.
            self._last_read = next((index for index in wanted if index > self._last_read), wanted[0])
            return Read(self._last_read, self._positions[self._last_read])
        entry = self.ring.entry(self._positions)
        assert entry is not None
        self._walking, self._number, self._in_step = True, *entry
        return self._walk(permits)

    def _walk(self, permits: int | None) -> Event | None:
        ring = self.ring
        assert self._positions is not None
        while self._in_step is None or self._number < self._in_step:
            if self._number == ring.head:
                self._walking = False  # the next records are checked again
                return None
            item = ring.at(self._number)
            position = self._positions.get(item.partition)
            if (
                not self._wants(item.partition)
                or ring.stale(self._number, item.partition)
                or (position is not None and item.next.offset <= position.offset)
            ):
                self._number += 1
                continue
            if isinstance(item, Hole):
                self._number += 1
                self._positions[item.partition] = item.next
                first = item.missing.first if position is None else max(item.missing.first, position.offset)
                missing = item.missing._replace(first=min(first, item.missing.end))
                return Lost(ring.topic, _size(missing), (missing,), self.cursor())
            skip = 0 if position is None else item.skip_to(position.offset)
            left = item.count - skip
            if left == 0:
                self._positions[item.partition] = item.next
                self._number += 1
                continue
            count = left if permits is None else min(left, permits)
            prefix = ring.prefix_of(self._positions, item.partition)
            event = item.part(skip, count, self.values, prefix)
            self._positions[item.partition] = item.position(skip + count)
            if count == left:
                self._number += 1
            self.delivered += count
            return event
        self._skip = 0
        self._passed = ring.count_before(self._number, self.partitions)
        self._positions, self._walking, self._least_behind = None, False, None
        return self._take_live(permits)

    def _give_read(self, permits: int | None) -> Event:
        assert self._positions is not None
        source, begin, end = self._read.popleft()
        count = end - begin if permits is None else min(end - begin, permits)
        if begin + count < end:
            self._read.appendleft((source, begin + count, end))
        prefix = self.ring.prefix_of(self._positions, source.partition)
        event = Slice(source, begin, begin + count, self.values, prefix)
        self._positions[source.partition] = source.position(begin + count)
        if not self._read and self._read_to is not None:
            self._positions[self._read_to[0]] = self._read_to[1]
        self.delivered += count
        return event

    # ---- finished reads

    def filled(self, read: Read, sources: Sequence[Source], following: CursorPosition, delivery_bytes: int) -> None:
        """Takes the result of a read, up to the position `following`."""
        if self._positions is None or self._positions.get(read.partition) != read.position or self._read:
            return  # its position has changed meanwhile
        self._doubted.discard(read.partition)
        for source in sources:
            begin = source.index(read.position.offset)
            self._read.extend((source, begin + one, begin + end) for one, end in _cuts(source, begin, delivery_bytes))
        self._read_to = (read.partition, following)
        if not self._read:
            self._positions[read.partition] = following

    def missed(self, read: Read, missing: Missing, following: CursorPosition) -> None:
        """Takes a gap as the result of a read."""
        if self._positions is None or self._positions.get(read.partition) != read.position:
            return
        self._doubted.discard(read.partition)
        self._positions[read.partition] = following
        self.first.append(Lost(self.ring.topic, _size(missing), (missing,), self.cursor()))

    # ---- too slow

    def _falls_back(self, buffer: int) -> bool:
        """Whether its lag has grown by `buffer` records: the topic is faster than the client."""
        behind = self.behind
        if self._least_behind is None or behind < self._least_behind:
            self._least_behind = behind
        return behind > self._least_behind + buffer

    def _drop_to_ring(self) -> Lost:
        assert self._positions is not None
        ring, ranges = self.ring, _Ranges()
        count = 0
        for index, end in self._chosen(ring.tail_positions).items():
            first = self._positions.get(index, CursorPosition(0)).offset
            if first < end.offset:
                ranges.add(Missing(index, first, end.offset, "dropped"))
                count += end.offset - first
        self.dropped += count
        ahead = {index: position for index, position in self._positions.items() if ring.has(index, position.offset)}
        self._positions = self._chosen(ring.tail_positions) | ahead
        self._doubted.clear()
        self._least_behind = None
        return Lost(ring.topic, count, ranges.found(), self.cursor())


class _Ranges:
    """Missing records; adjacent ranges are joined."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], Missing] = {}
        self._done: list[Missing] = []

    def add(self, missing: Missing) -> None:
        key = (missing.partition, missing.reason)
        last = self._last.get(key)
        if last is not None and last.end == missing.first:
            self._last[key] = last._replace(end=missing.end)
        else:
            if last is not None:
                self._done.append(last)
            self._last[key] = missing

    def found(self) -> tuple[Missing, ...]:
        return tuple(sorted([*self._done, *self._last.values()]))


def _size(missing: Missing) -> int:
    return missing.end - missing.first


def _cuts(source: Source, begin: int, bytes_max: int) -> list[tuple[int, int]]:
    """Splits the records from `begin` on into parts, counted from there."""
    found: list[tuple[int, int]] = []
    for first, end, _ in source.cuts(bytes_max):
        if end > begin:
            found.append((max(first, begin) - begin, end - begin))
    return found
