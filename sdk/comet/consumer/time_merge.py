"""The merge of partitions by timestamp: ranges of one topic, read so far as the order of records needs it.

    partition 0   ··10 12 | 15 17 ··     each is a source: records read and not handed out, and its range
    partition 1   ··11    | 16 ··        the source with the oldest record is next; one without is read on,
                          ▲              unless it was read up to a later timestamp
                       position

Within a partition records keep their order: a timestamp that goes back counts as the one before it. Of equal
timestamps, the lower partition comes first. Backward is the same with all signs changed. A gap comes as soon as the
records of its partition that lie before it were handed out.

With `select` only chosen records become objects, so that most of the log costs little; and brokers that know the filter
leave out others, and tell up to which timestamp. The merge works in turns of a
few milliseconds, between which other tasks run.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import accumulate, repeat
from operator import attrgetter
from time import perf_counter
from typing import Any, Final, NamedTuple, Self

from comet.consumer.ranges import Part, RangeReader
from comet.errors import CometError
from comet.types import Gap
from comet.values.record import Record, RecordBatch

AT_ONCE: Final = 4  # ranges that are read at once
CHECK_RECORDS: Final = 128  # records between two looks at the clock
TURN_S: Final = 0.004  # then other tasks get a turn

Batch = RecordBatch[bytes]
Select = Callable[[Batch, int, int], Sequence[int]]  # a batch, and the records [begin, end) of it: indexes
ReadPosition = tuple[int, int | None]  # an offset, and the leader epoch of the record before it if known


class MergedRecord(NamedTuple):
    """One record of a merged read: its batch, and its number in it.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.Reader(address) as reader:
    ...         quotes = await reader.read_merged("quotes", start=1)
    ...         await quotes.fill()
    ...         item = quotes.head()
    ...     assert isinstance(item, comet.MergedRecord)
    ...     print(item.offset, item.number, item.size, item.record.value)
    >>> run(example)
    1 0 1 b'2'
    """

    time_us: int  # its timestamp; never goes back within a partition
    batch: Batch
    number: int  # its index in the batch
    offset: int
    epoch_before: int | None = None  # of the record before it, if known

    @property
    def record(self) -> Record[bytes]:
        """The record itself."""
        return self.batch.record(self.number)

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return self.batch.size_of(self.number)


Item = MergedRecord | Gap
Key = tuple[bool, int, int]
_make: Final[Callable[[tuple[Any, ...]], MergedRecord]] = partial(
    tuple.__new__, MergedRecord
)  # `_make` costs 3 times it


@dataclass(slots=True)
class MergeSource:
    """One range of a merge."""

    range: RangeReader
    sign: int  # 1: forward; -1: backward
    rank: int  # among equal timestamps: the partition, with the sign
    items: deque[Item] = field(default_factory=deque)  # read, and not handed out
    gaps: int = 0  # of the items
    parts: deque[Part] = field(default_factory=deque)  # read, and not made into items; the first one maybe in part
    made: int = 0  # records of the first part that were
    time_us: int | None = None  # read up to this timestamp
    epoch: int | None = None  # of the record before `next_offset`, if known
    next_offset: int | None = None  # after the last batch that was read
    behind: ReadPosition | None = None  # behind the item that was handed out last

    @property
    def open(self) -> bool:
        """Whether there is more to read."""
        return bool(self.parts) or not self.range.stopped

    def key(self) -> Key:
        """Sort key of its next item; sources that were not read, and gaps, come first."""
        if self.items:
            head = self.items[0]
            if type(head) is MergedRecord:
                return True, self.sign * head.time_us, self.rank
            return False, 0, self.rank
        return self.frontier()

    def frontier(self) -> Key:
        """Records that are still to be read do not sort before it."""
        return self.time_us is not None, self.sign * (self.time_us or 0), self.rank

    def reached(self, time_us: int) -> None:
        """Moves the timestamp that was read up to, which never goes back."""
        if self.time_us is None or self.sign * time_us > self.sign * self.time_us:
            self.time_us = time_us

    def pop(self, bound: Key | None) -> list[Item]:
        """Takes the records up to a sort key; it has no gaps."""
        items = self.items
        if bound is None or (True, self.sign * items[-1].time_us, self.rank) <= bound:  # type: ignore[union-attr]
            found = list(items)
            items.clear()
        else:
            _, time, rank = bound
            most = time if self.rank <= rank else time - 1
            count = bisect_right(items, most, key=lambda item: self.sign * item.time_us)  # type: ignore[union-attr]
            found = [items.popleft() for _ in range(count)]
        return found

    def taken(self, item: Item) -> None:
        """Moves the position behind an item that was handed out."""
        if self.sign < 0:
            self.behind = (item.first if isinstance(item, Gap) else item.offset), None
        elif isinstance(item, Gap):
            self.behind = item.end, None
        else:
            self.behind = item.offset + 1, item.batch.epoch

    def position(self) -> ReadPosition | None:
        """Where reading continues, behind what was handed out; None if nothing is known yet."""
        if not self.items:
            at = self.range.position
            return None if at is None else (at, self.range.epoch if self.sign > 0 else None)
        head = self.items[0]
        if self.sign < 0:
            return (head.end if isinstance(head, Gap) else head.offset + 1), None
        if isinstance(head, Gap):
            return self.behind or (head.first, None)
        if head.number or self.behind is None:
            return head.offset, head.epoch_before
        return self.behind


class MergedReader:
    """A merged read of partitions, made by `comet.Reader.read_merged`: an iterator over records and gaps.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         for second, text in enumerate([b"1", b"2", b"3"]):
    ...             await producer.publish("quotes", text, timestamp_us=second * 1_000_000)
    ...     async with comet.Reader(address) as reader:
    ...         async for part in await reader.read_merged("quotes"):
    ...             print("gap" if isinstance(part, comet.Gap) else part.value)
    >>> run(example)
    b'1'
    b'2'
    b'3'

    A program that needs more control calls `ready` for the items that are in order, and `fill` to read on:

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.Reader(address) as reader:
    ...         quotes = await reader.read_merged("quotes")
    ...         while await quotes.fill():
    ...             print([item.offset for item in quotes.ready() if not isinstance(item, comet.Gap)])
    >>> run(example)
    [0, 1, 2]
    """

    def __init__(
        self,
        ranges: Sequence[RangeReader],
        *,
        select: Select | None = None,
        at_once: int = AT_ONCE,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`ranges` are of different partitions, in one direction."""
        self.records = 0  # read so far
        self.bytes = 0
        self.steps = 0
        self._select = select
        self._at_once = at_once
        self._clock = clock
        self._turn = clock()
        backward = bool(ranges) and ranges[0].backward
        assert all(one.backward is backward for one in ranges), "ranges of one merge have one direction"
        sign = -1 if backward else 1
        self.sources = {one.partition: MergeSource(one, sign, sign * one.partition) for one in ranges}
        assert len(self.sources) == len(ranges), "each partition of a merge has one range"
        self._heap = [(source.key(), source) for source in self.sources.values() if source.open]
        heapify(self._heap)  # keys are unique, so that sources are never compared

    @property
    def done(self) -> bool:
        """Whether all was handed out."""
        return not self._heap

    @property
    def positions(self) -> Mapping[int, ReadPosition | None]:
        """By partition, where reading continues: an offset, and the epoch before it if known. Backward,
        the offset is the exclusive end of what is left. None: nothing of it is known yet."""
        return {partition: source.position() for partition, source in self.sources.items()}

    # ---- handing out

    def head(self) -> Item | None:
        """The next item in order; None if more has to be read first, or all was handed out."""
        return self._heap[0][1].items[0] if self._heap and self._heap[0][1].items else None

    def ready(self, items_max: int | None = None, bytes_max: int | None = None) -> list[Item]:
        """Hands out the items that are in order: none that is still to be read can precede them. With `bytes_max`, as
        many as fit, but at least one."""
        left = sys.maxsize if items_max is None else items_max
        if bytes_max is None and (all_of_them := self._ready_at_once(left)):
            return all_of_them
        heap, found, size = self._heap, list[Item](), 0
        while heap and heap[0][1].items and left > 0:
            source = heappop(heap)[1]
            items, before = source.items, len(found)
            # Up to the next source's item, so that those of a single source are handed out at once.
            bound = heap[0][0] if heap else None
            while items and left > 0 and (bound is None or source.key() < bound):
                if bytes_max is not None:
                    head = items[0]
                    size += 0 if isinstance(head, Gap) else head.size
                    if size > bytes_max and found:
                        left = 0
                        break
                source.gaps -= isinstance(items[0], Gap)
                found.append(items.popleft())
                left -= 1
            if len(found) > before:
                source.taken(found[-1])
            self._push(source)
        return found

    def _ready_at_once(self, items_max: int) -> list[Item]:
        """All items that are in order, sorted at once; none if there are more than `items_max`, or gaps."""
        heap, sources, bound = self._heap, list[MergeSource](), None
        while heap and heap[0][1].items and (bound is None or heap[0][0] <= bound):
            source = heappop(heap)[1]
            sources.append(source)
            if source.open:
                bound = source.frontier() if bound is None else min(bound, source.frontier())
        if heap and not heap[0][1].items:  # it was read so far without a chosen record, and may have one there
            bound = heap[0][0] if bound is None else min(bound, heap[0][0])
        found = list[Item]()
        if sum(len(one.items) for one in sources) <= items_max and not any(one.gaps for one in sources):
            for source in sorted(sources, key=lambda one: one.rank):
                if some := source.pop(bound):
                    source.taken(some[-1])
                    found += some
            if len(sources) > 1:
                found.sort(key=attrgetter("time_us"), reverse=sources[0].sign < 0)  # stable: ranks stay in order
        for source in sources:
            self._push(source)
        return found

    def _push(self, source: MergeSource) -> None:
        if source.items or source.open:
            heappush(self._heap, (source.key(), source))

    # ---- reading

    async def fill(self) -> bool:
        """Reads the ranges that the next item waits for, some at once. False: nothing is left to read or hand out."""
        sources: list[MergeSource] = []
        while self._heap and not self._heap[0][1].items and len(sources) < self._at_once:
            sources.append(heappop(self._heap)[1])
        self.steps += len(sources)
        try:
            if len(sources) == 1:
                await self._read(sources[0])
            else:
                async with asyncio.TaskGroup() as group:
                    for source in sources:
                        group.create_task(self._read(source))
        except* CometError as errors:
            raise _first(errors) from None
        finally:
            for source in sources:
                self._push(source)
        return bool(self._heap)

    async def _read(self, source: MergeSource) -> None:
        """Reads on. If it is cancelled, the next call goes on there."""
        reading = source.range
        if not source.parts:
            source.next_offset, source.epoch = reading.position, reading.epoch
            before = reading.left_out
            try:
                source.parts.extend(await reading.step())
            except CometError as error:
                error.details.setdefault("partition", str(reading.partition))
                raise
            finally:
                self.records += reading.left_out - before
        while source.parts:
            part = source.parts[0]
            if isinstance(part, Gap):
                source.items.append(part)
                source.gaps += 1
                source.parts.popleft()
                continue
            self._add(source, part)
            if self._clock() - self._turn > TURN_S:
                await asyncio.sleep(0)
                self._turn = self._clock()
        if reading.times is not None:  # of records that the broker has left out, too
            source.reached(reading.times[0 if source.sign < 0 else 1])

    def _add(self, source: MergeSource, batch: Batch) -> None:
        """Makes some records of the source's first part into items."""
        count, offsets, timestamps, back = len(batch), batch.offsets, batch.timestamps, source.sign < 0
        before = source.epoch if source.next_offset == batch.first_offset else None
        done = min(source.made + CHECK_RECORDS, count)
        begin, end = (count - done, count - source.made) if back else (source.made, done)
        found = range(begin, end) if self._select is None else self._select(batch, begin, end)
        if found:
            # No step of Python for each record: without a filter, making records is most of the cost of a read.
            numbers, furthest = (found[::-1], min) if back else (found, max)
            times = [*map(timestamps.__getitem__, numbers)]
            if source.time_us is not None:
                times[0] = furthest(times[0], source.time_us)
            times = [*accumulate(times, furthest)]
            epochs = map({0: before}.get, numbers, repeat(batch.epoch))
            columns = zip(times, repeat(batch), numbers, map(offsets.__getitem__, numbers), epochs)
            source.items.extend(map(_make, columns))
            source.time_us = times[-1]
        source.made = done
        if done == count:
            source.reached(min(timestamps) if back else max(timestamps))
            source.next_offset, source.epoch, source.made = batch.next_offset, batch.epoch, 0
            source.parts.popleft()
            self.records += count
            self.bytes += batch.size

    # ---- as an iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[bytes] | Gap:
        while (item := self._take_ready()) is None:
            if not await self.fill():
                raise StopAsyncIteration
        return item

    def _take_ready(self) -> Record[bytes] | Gap | None:
        """The next item that was read and is in order, or None."""
        if self.head() is None:
            return None
        (item,) = self.ready(1)
        return item if isinstance(item, Gap) else item.record


def _first(errors: BaseExceptionGroup[CometError]) -> CometError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, CometError)
    return found
