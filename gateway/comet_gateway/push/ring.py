"""The recent records of one topic, in order of arrival, for all its subscribers.

    tail                                      head
     │ chunk p0 │ chunk p1 │ hole p1 │ chunk p0 │
     └ tail_positions: position of each            └ positions: position of each partition behind the newest
       partition before the oldest

Items are numbered. A live subscriber's position is a number; that of others is an offset for each partition, and they
enter the ring once it holds their next records in all partitions (`entry`). Old items are evicted by size, without
regard to slow subscribers.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from comet_gateway.push.chunk import Chunk, Hole, Source
from comet_gateway.push.events import Missing
from comet_gateway.records.cursor import Cursor, CursorPosition, position_text

Item = Chunk | Hole
# The share that is evicted at once, so that subscribers at the tail are moved rarely.
EVICT_PART: Final = 16
CUTS_MAX: Final = 100


class Entry(NamedTuple):
    """Where a subscriber with a position in each partition enters the ring."""

    number: int  # the first item to read
    in_step: int | None  # from this item on all its positions are the ring's; None: some are beyond the head


class Track:
    """The items of one partition: they hold all its records from `start` on."""

    __slots__ = ("ends", "numbers", "since", "start")

    def __init__(self, start: int, since: int = 0) -> None:
        self.start = start
        self.since = since  # items with lower numbers are from before a truncation: only live subscribers get them
        self.numbers: list[int] = []
        self.ends: list[int] = []  # the offset behind each item, in order


class Ring:
    """The ring. Owned by a feed."""

    def __init__(
        self, topic: str, topic_id: bytes, positions: Mapping[int, CursorPosition], delivery_bytes: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.positions: dict[int, CursorPosition] = dict(positions)
        self.tail_positions: dict[int, CursorPosition] = dict(positions)
        self.totals: dict[int, int] = dict.fromkeys(positions, 0)  # records ever received
        self.tail_totals: dict[int, int] = dict.fromkeys(positions, 0)  # of those, records evicted
        self.total = 0
        self.bytes = 0
        self.tail = 0  # the number of the oldest item
        self.head = 0  # the number of the next item
        self._items: list[Item] = []
        self._tracks: dict[int, Track] = {index: Track(position.offset) for index, position in positions.items()}
        self.cuts = 0  # truncations of a log
        self._cuts: deque[tuple[int, int]] = deque(maxlen=CUTS_MAX)  # (partition, offset) of the latest ones
        self._delivery_bytes = delivery_bytes
        # The text of each partition's position; the one that moved last comes last.
        self._texts: dict[int, str] = {index: position_text(index, *position) for index, position in positions.items()}
        self._head = f"c1.{topic_id.hex()}"

    @property
    def records(self) -> int:
        return self.total - sum(self.tail_totals.values())

    def at(self, number: int) -> Item:
        assert self.tail <= number
        return self._items[number - self.tail]

    # ---- arriving records

    def add(self, source: Source) -> list[Chunk]:
        """Adds a batch, split into chunks."""
        made: list[Chunk] = []
        partition = source.partition
        if partition not in self.positions:
            self._add_partition(partition, source.offsets[0])
        for begin, end, size in source.cuts(self._delivery_bytes):
            start, prefix = self.positions[partition], self._prefix(partition)
            chunk = Chunk(
                source, begin, end, size, start=start, prefix=prefix, before=self.total, grew=self._grew
            )  # fmt: skip
            self._append(chunk)
            self.totals[partition] += chunk.count
            self.total += chunk.count
            made.append(chunk)
        return made

    def skip(self, missing: Missing) -> None:
        """Adds a gap. After a truncation, other records follow at offsets that existed before."""
        partition, truncated = missing.partition, missing.reason == "truncated"
        if partition not in self.positions:
            self._add_partition(partition, missing.first)
        following = CursorPosition(missing.first if truncated else missing.end)
        start, prefix = self.positions[partition], self._prefix(partition)
        self._append(Hole(missing, start=start, next=following, prefix=prefix, before=self.total))
        if truncated:
            self._tracks[partition] = Track(following.offset, self.head)
            self.cuts += 1
            self._cuts.append((partition, following.offset))

    def _add_partition(self, partition: int, first: int) -> None:
        """Adds a partition that is new in the topic, and is read from its first record."""
        self.positions[partition] = self.tail_positions[partition] = CursorPosition(first)
        self.totals[partition] = self.tail_totals[partition] = 0
        self._tracks[partition] = Track(first)

    def _append(self, item: Item) -> None:
        track = self._tracks[item.partition]
        track.numbers.append(self.head)
        track.ends.append(item.next.offset)
        self._items.append(item)
        self.head += 1
        self.bytes += item.size
        self.positions[item.partition] = item.next
        self._texts[item.partition] = position_text(item.partition, *item.next)

    def _prefix(self, partition: int) -> str:
        """The text of a cursor up to the position of the partition that moves."""
        self._texts.pop(partition, None)
        return ".".join([self._head, *self._texts.values(), ""])

    def _grew(self, size: int) -> None:
        self.bytes += size

    def cut_since(self, cuts: int) -> list[tuple[int, int]]:
        """(partition, offset) of each truncation after the first `cuts`."""
        since = self.cuts - cuts
        return list(self._cuts)[-since:] if since <= len(self._cuts) else [(index, 0) for index in self.positions]

    # ---- eviction

    def excess(self, bytes_max: int) -> int:
        """The new tail for a ring above `bytes_max`, with some spare room."""
        number, size = self.tail, self.bytes
        if size > bytes_max:
            keep = bytes_max - bytes_max // EVICT_PART
            while size > keep and number < self.head:
                size -= self.at(number).size
                number += 1
        return number

    def evict(self, tail: int) -> None:
        """Evicts the items before a number. Subscribers at them must first get their positions: `positions_before`."""
        assert self.tail <= tail <= self.head
        gone = tail - self.tail
        for item in self._items[:gone]:
            self.bytes -= item.size
            self.tail_positions[item.partition] = item.next
            if isinstance(item, Chunk):
                item.leave()
                self.tail_totals[item.partition] += item.count
        del self._items[:gone]
        self.tail = tail
        for track in self._tracks.values():
            left = bisect_left(track.numbers, tail)
            if left:
                track.start = track.ends[left - 1]
                del track.numbers[:left], track.ends[:left]

    # ---- positions

    def count(self, partitions: frozenset[int] | None) -> int:
        """Records ever received of some partitions."""
        return self.total if partitions is None else sum(self.totals.get(index, 0) for index in partitions)

    def count_before(self, number: int, partitions: frozenset[int] | None) -> int:
        """Of those, records before an item."""
        if partitions is None:
            return self.total if number == self.head else self.at(number).before
        items = self._items[number - self.tail :]
        return self.count(partitions) - sum(
            item.count for item in items if isinstance(item, Chunk) and item.partition in partitions
        )

    def has(self, partition: int, offset: int) -> bool:
        """Whether the next record from that offset is in the ring, or will be."""
        track = self._tracks.get(partition)
        return track is None or offset >= track.start

    def vouches(self, partition: int, position: CursorPosition) -> bool:
        """Whether a position is valid: the record before it is in the ring, with the same epoch."""
        track = self._tracks.get(partition)
        if track is None or position.offset <= track.start or position.offset > self.positions[partition].offset:
            return track is not None and position == self.tail_positions[partition] and position.epoch is not None
        item = self.at(track.numbers[bisect_right(track.ends, position.offset - 1)])
        return isinstance(item, Chunk) and position.epoch == item.source.epoch and position.epoch is not None

    def entry(self, positions: Mapping[int, CursorPosition]) -> Entry | None:
        """Where to enter the ring with these positions; None while it lacks the next records of one partition."""
        number, in_step, beyond = self.head, self.tail, False
        for partition, position in positions.items():
            track = self._tracks.get(partition)
            if track is None:
                beyond = beyond or position.offset > 0  # it is read from its first record
                continue
            if position.offset < track.start:
                return None
            in_step = max(in_step, track.since)
            index = bisect_right(track.ends, position.offset)  # the first that ends behind it
            if index < len(track.ends):
                number = min(number, track.numbers[index])
                inside = position.offset > self.at(track.numbers[index]).start.offset
                in_step = max(in_step, track.numbers[index] + 1 if inside else 0)
            elif position.offset > self.positions[partition].offset:
                beyond = True
            if index:
                in_step = max(in_step, track.numbers[index - 1] + 1)
        return Entry(number, None if beyond else max(in_step, number))

    def stale(self, number: int, partition: int) -> bool:
        """Whether the log was truncated after that item: a subscriber that reads the log must not use it."""
        return number < self._tracks[partition].since

    def positions_before(self, number: int) -> dict[int, CursorPosition]:
        """The position of each partition before an item."""
        found = dict(self.tail_positions)
        for item in self._items[: number - self.tail]:
            found[item.partition] = item.next
        return found

    def cursor(self) -> str:
        """The cursor behind the newest item."""
        return ".".join([self._head, *self._texts.values()])

    def cursor_at(self, number: int, skip: int = 0) -> str:
        """The cursor before an item, or before the record of index `skip` in it."""
        if number == self.head:
            return self.cursor()
        item = self.at(number)
        position = item.position(skip) if isinstance(item, Chunk) else item.start
        return item.prefix + position_text(item.partition, *position)

    def cursor_of(self, positions: Mapping[int, CursorPosition]) -> str:
        return str(Cursor(self.topic_id, positions))

    def prefix_of(self, positions: Mapping[int, CursorPosition], partition: int) -> str:
        """The text of a cursor up to the position of the partition that moves, for a subscriber's own positions."""
        others: Iterable[str] = (position_text(index, *at) for index, at in positions.items() if index != partition)
        return ".".join([self._head, *others, ""])
