"""The rewriting of segments by a compaction plan: of the records below its end, only the last one of each key stays.

    mark      reads the keys of all batches, and sets one bit for each record that stays
    write     reads the segments again, oldest first, and writes what stays into new ones, several into one

The result depends on the plan and on the records alone: replicas that work by the same plan keep the same offsets, and
`digest` compares them. Records without a key stay. Aborted records go, and markers with them; those of committed
transactions become plain records. Tombstones go below the plan's `tombstones_end`, records that have expired by its
time as well: their keys then have no record. Oldest segments first, so that nothing older reappears in between.

A producer's last batch keeps its identity and sequence, also without records: a replica that reads this log from its
start must know it. That holds for the last REMEMBERED producers and requests; others are forgotten.

Memory: the keys of one pass, which is begun again with a part of the keys if they are too many, and a bit per record.

Blocks, for a worker; in slices, so that others have their turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

from comet.records import Batch, BatchHeader, CompactionPlan, decode
from comet.records.expiry import unexpired_rows
from comet_broker.core.isolation import AbortedTransaction
from comet_broker.ports import File
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.new_segment import NewSegment
from comet_broker.storage.scan import Damage, FileWindow, walk
from comet_broker.storage.segment import Segment
from comet_broker.storage.state import LogFolder

SLICE_BYTES: Final = 128 << 10  # read in one step
KEY_BYTES: Final = 170  # of memory for a key, beside its own bytes
BUFFER_BYTES: Final = 6 << 20  # of memory for what is read, and to let the table of keys grow
REMEMBERED: Final = 4096
SOURCES_MAX: Final = 64  # segments that become one
_CLASSES_MAX: Final = 1 << 16
_MARKED_AT_ONCE: Final = 20_000
key_hash: Callable[[bytes | None], int] = hash  # also spreads keys that are chosen against it; a simulation has its own
_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")


class CannotCompact(Exception):
    """The log cannot be compacted now: it is damaged, or its segments have changed."""


class DamagedSource(CannotCompact):
    """Offsets from `first` up to `end` cannot be read."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__(f"offsets {first} to {end - 1} are damaged")
        self.first = first
        self.end = end


class Work(NamedTuple):
    """What is rewritten: sealed segments that follow each other."""

    folder: LogFolder
    sources: tuple[Segment, ...]
    log_start: int
    plan: CompactionPlan
    aborted: Sequence[AbortedTransaction]
    segment_bytes: int
    memory_bytes: int


class Rewritten(NamedTuple):
    """A new segment, synced, under a temporary name; and the old ones that it replaces, which are pinned."""

    segment: Segment
    sources: tuple[Segment, ...]


class Result(NamedTuple):
    digest: int = 0  # of the offsets that stay
    records_before: int = 0
    records_after: int = 0
    tombstones: int = 0  # that stay


class Rewriting:
    """One rewriting. Used by one thread at a time; `release` ends it at any moment."""

    def __init__(self, work: Work) -> None:
        self.result = Result()
        self.read_bytes = 0  # in all
        self._work = work
        self._gone = {(one.producer_id, one.epoch): (one.first, one.end) for one in work.aborted}
        self._staying = bytearray()  # one bit per record
        self._records: list[int] = []  # of each source
        self._last_of_producer: OrderedDict[int, int] = OrderedDict()  # producer -> base offset of its last batch
        self._pinned: list[Segment] = []
        self._output: NewSegment | None = None
        self._key_bytes = 0  # of the keys in memory, at most
        self._steps = self._run()

    def step(self) -> Rewritten | bool:
        """Works on. True: done; False: not yet; or a new segment, to be put in the place of the old ones before the
        next step. Raises CannotCompact, CometError, OSError."""
        end = self.read_bytes + SLICE_BYTES
        for rewritten in self._steps:
            if rewritten is not None:
                return rewritten
            if self.read_bytes >= end:
                return False
        return True

    def release(self) -> None:
        """Unpins, and removes what was not put in place. Blocks."""
        self._steps.close()
        if self._output is not None:
            self._output.discard()
        self._unpin()

    def _unpin(self) -> None:
        while self._pinned:
            self._pinned.pop().unpin()

    def _run(self) -> Generator[Rewritten | None]:
        classes = 1
        while not (yield from self._mark(classes)):
            classes *= 2
            if classes > _CLASSES_MAX:
                raise CannotCompact("its keys are too large for the memory of compaction")
        yield from self._write()

    # ---- reading

    def _open(self, source: Segment) -> File:
        if not source.try_pin():
            raise CannotCompact("a segment was deleted meanwhile")
        self._pinned.append(source)
        return source.warm_up()[0]

    def _batches(self, source: Segment, file: File) -> Iterator[tuple[BatchHeader, memoryview]]:
        window = FileWindow(file, source.size)
        truncations = source.truncations
        for item in walk(file, SEGMENT_HEADER_BYTES, source.size, source.base_offset):
            if source.truncations != truncations or source.gone:
                raise CannotCompact("the log was truncated meanwhile")
            if isinstance(item, Damage):
                raise DamagedSource(item.first, source.next_offset if item.end is None else item.end)
            length = item.header.length
            self.read_bytes += length
            yield item.header, window.at(item.position, length)[:length]

    def _data(self, header: BatchHeader, stored: memoryview) -> tuple[Batch, int] | None:
        """A batch that counts, and its first record that is not deleted; None without one."""
        if header.control or header.next_offset <= self._work.log_start:
            return None
        if header.transactional and self._gone:
            first, end = self._gone.get((header.producer_id, header.producer_epoch), (0, 0))
            if first <= header.base_offset < end:
                return None
        batch = decode(stored, check=False)
        skip = bisect_left(batch.offsets, self._work.log_start) if header.base_offset < self._work.log_start else 0
        return None if skip == len(batch) else (batch, skip)

    # ---- 1: which records stay

    def _mark(self, classes: int) -> Generator[None, None, bool]:
        """Sets the bits; False if the memory does not hold the keys of one of that number of classes."""
        self._staying = bytearray()
        for number in range(classes):
            last: dict[bytes | None, int] = {}
            self._records = []
            self._key_bytes = 0
            row = 0
            for source in self._work.sources:
                before = row
                for header, stored in self._batches(source, self._open(source)):
                    if header.base_offset >= self._work.plan.clean_end:
                        break
                    self._remember(header)
                    row += self._mark_one(header, stored, row, last, (number, classes))
                    if len(last) > 1 and len(last) * KEY_BYTES + self._key_bytes > self._key_room():
                        self._unpin()
                        return False
                    yield
                self._records.append(row - before)
                self._unpin()
            ends = iter(last.values())
            while self._mark_some(ends):
                self.read_bytes += SLICE_BYTES  # as much work
                yield
        self.result = self.result._replace(records_before=row)
        return True

    def _key_room(self) -> int:
        """Of the memory, what the rest leaves, or half of it."""
        memory = self._work.memory_bytes
        return max(memory - len(self._staying) - BUFFER_BYTES, memory // 2)

    def _mark_one(
        self, header: BatchHeader, stored: memoryview, row: int, last: dict[bytes | None, int], part: tuple[int, int]
    ) -> int:
        """Notes the keys of a batch; returns the number of its records."""
        found = self._data(header, stored)
        if found is None:
            return 0
        batch, skip = found
        keys = batch.keys[skip:] if skip else batch.keys
        count, (number, classes) = len(keys), part
        self._staying.extend(bytes(max(0, (row + count + 7) // 8 - len(self._staying))))
        rows = range(row, row + count)
        known = len(last)
        if classes == 1:
            last.update(zip(keys, rows, strict=True))
        else:
            hashed, mask = key_hash, classes - 1
            last.update([(key, at) for key, at in zip(keys, rows, strict=True) if hashed(key) & mask == number])
        if last.pop(None, -1) >= 0:
            self._mark_some(iter([at for key, at in zip(keys, rows, strict=True) if key is None]), len(keys))
        if len(last) > known:
            self._key_bytes += (len(last) - known) * max(len(key) for key in keys if key is not None)
        return count

    def _mark_some(self, rows: Iterator[int], count: int = _MARKED_AT_ONCE) -> bool:
        """Sets the bits of the next rows; False at the end."""
        staying = self._staying
        for at in rows:
            staying[at >> 3] |= 1 << (at & 7)
            count -= 1
            if not count:
                return True
        return False

    def _remember(self, header: BatchHeader) -> None:
        if not header.producer_id or header.control:
            return
        known = self._last_of_producer
        known[header.producer_id] = header.base_offset
        known.move_to_end(header.producer_id)
        if len(known) > REMEMBERED:
            known.popitem(last=False)

    def _marked(self, row: int, count: int) -> int:
        """The bits of records, the first one lowest."""
        bits = int.from_bytes(memoryview(self._staying)[row >> 3 : (row + count + 7) >> 3], "little") >> (row & 7)
        return bits & ((1 << count) - 1)

    # ---- 2: the new segments

    def _write(self) -> Generator[Rewritten | None]:
        remembered = set(self._last_of_producer.values())
        row = digest = 0
        for sources in self._groups():
            files = [self._open(source) for source in sources]
            output = self._output = NewSegment(self._work.folder, sources, digest)
            for source, file in zip(sources, files, strict=True):
                for header, stored in self._batches(source, file):
                    if header.base_offset >= self._work.plan.clean_end:
                        output.copy(header, stored)
                    else:
                        row += self._write_one(output, header, stored, row, header.base_offset in remembered)
                    yield None
            output.finish()
            digest = output.digest
            self.result = self.result._replace(
                digest=digest,
                records_after=self.result.records_after + output.records,
                tombstones=self.result.tombstones + output.tombstones,
            )
            yield Rewritten(output.segment, sources)
            self._output = None
            self._unpin()

    def _groups(self) -> list[tuple[Segment, ...]]:
        """The segments that become one each, by their sizes and the records that stay."""
        groups: list[list[Segment]] = []
        size = row = 0
        for source, records in zip(self._work.sources, self._records, strict=True):
            stay = self._marked(row, records).bit_count()
            row += records
            expected = source.size * stay // records if records else 0
            if not groups or size + expected > self._work.segment_bytes or len(groups[-1]) == SOURCES_MAX:
                groups.append([])
                size = 0
            groups[-1].append(source)
            size += expected
        return [tuple(group) for group in groups]

    def _write_one(self, output: NewSegment, header: BatchHeader, stored: memoryview, row: int, keeps: bool) -> int:
        """Writes what stays of a batch; returns the number of its records."""
        keeps = keeps and header.producer_id != 0 and not header.control
        found = self._data(header, stored)
        if found is None:
            output.skip(header, alone=keeps)
            return 0
        batch, skip = found
        count = len(batch) - skip
        bits = self._marked(row, count)
        rows: Sequence[int] = range(skip, len(batch))
        if bits != (1 << count) - 1:
            rows = list(compress(rows, f"{bits:0{count}b}"[::-1].encode().translate(_DIGITS)))
        rows = self._alive(batch, rows)
        if rows:
            output.add(batch, rows, alone=keeps)
        else:
            output.skip(header, alone=keeps)
        return count

    def _alive(self, batch: Batch, rows: Sequence[int]) -> Sequence[int]:
        """Without the tombstones and records whose time has come."""
        plan, expiry = self._work.plan, batch.expiry
        if expiry is not None:
            rows = unexpired_rows(rows, expiry, plan.now_us)
        if batch.values_column.bitmap >= 0 and batch.header.base_offset < plan.tombstones_end:
            values, keys, offsets = batch.values, batch.keys, batch.offsets
            rows = [
                at for at in rows if values[at] is not None or keys[at] is None or offsets[at] >= plan.tombstones_end
            ]
        return rows
