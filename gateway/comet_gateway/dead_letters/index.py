"""The index of one topic's dead letters: its newest records are read once, and later ones as they are written.

Each scan continues where the last one stopped, and stops at its deadline.

    first ········ next ········ end      of a partition: scanned · to be scanned
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import comet
from comet.consumer.ranges import RangeSpec
from comet.entities import TopicInfo
from comet.types import Latest
from comet_gateway.config import READ_WAIT_MS
from comet_gateway.dead_letters.dead_letter import (
    DeadLetter,
    DeadLetterOffset,
    DeadLetterState,
    Note,
    dead_letter_of,
    note_of,
)

READ_RECORDS: Final = 250  # at once: handling them blocks the loop for some milliseconds
READ_BYTES: Final = 1 << 20
AT_ONCE: Final = 8  # partitions
REASONS_MAX: Final = 20_000  # distinct texts that dead letters share

Cause = tuple[str, str]  # group, cause


@dataclass(slots=True)
class Room:
    """Space for dead letters, shared by all indexes."""

    dead_letters_max: int
    dead_letters: int = 0


@dataclass(slots=True)
class IndexedPartition:
    """The scanned part of one partition."""

    partition: int
    first: int = -1  # -1: not begun
    next: int = 0
    epoch: int | None = None
    log_start: int = 0
    end: int = 0
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)  # by offset, in order

    @property
    def done(self) -> bool:
        return self.first >= 0 and self.next >= self.end


@dataclass(slots=True)
class Counts:
    """Counts of one group and cause."""

    states: Counter[DeadLetterState] = field(default_factory=Counter)
    newest_us: int = 0
    sources: Counter[str] = field(default_factory=Counter)  # pending dead letters by their source topic


class DeadLetterIndex:
    """The index of one topic. Owned by DeadLetterIndexes. `take`, `settle` and all queries are synchronous."""

    def __init__(self, info: TopicInfo, room: Room, records_max: int) -> None:
        self.topic = info.name
        self.topic_id = info.id
        self.counts: defaultdict[Cause, Counts] = defaultdict(Counts)
        self.sources = [IndexedPartition(index) for index in range(len(info.partitions))]
        self.version = 0  # changes with the content
        self._room = room
        self._records_max = records_max  # newest records of the log that are scanned
        self._busy = asyncio.Lock()
        self._reasons: dict[str, str] = {}

    # ---- queries

    @property
    def complete(self) -> bool:
        """Whether all records in reach at the last scan were scanned."""
        return all(source.done for source in self.sources)

    @property
    def scanned(self) -> int:
        return sum(source.next - source.first for source in self.sources if source.first >= 0)

    @property
    def records(self) -> int:
        """Records to scan."""
        return sum(max(source.end, source.next) - source.first for source in self.sources if source.first >= 0)

    @property
    def older(self) -> int:
        """Records of the log that are too old to be scanned."""
        return sum(max(0, source.first - source.log_start) for source in self.sources)

    def dead_letters(self) -> Iterator[DeadLetter]:
        for source in self.sources:
            yield from source.dead_letters.values()

    def dead_letter(self, id_: DeadLetterOffset) -> DeadLetter | None:
        return self.sources[id_.partition].dead_letters.get(id_.offset) if id_.partition < len(self.sources) else None

    def states(self) -> Counter[DeadLetterState]:
        found: Counter[DeadLetterState] = Counter()
        for counts in self.counts.values():
            found += counts.states
        return found

    # ---- changes

    def take(self, source: IndexedPartition, batches: Sequence[comet.RecordBatch[bytes]]) -> None:
        for batch in batches:
            for _, partition, offset, key, value, time_us, headers in batch.records():
                if not headers:
                    continue
                note = note_of(partition, key, value, headers)
                if note is not None:
                    self.settle(note)
                    continue
                dead_letter = dead_letter_of(partition, offset, time_us, key, value, headers)
                if dead_letter is not None:
                    self._add(source, dead_letter)

    def settle(self, note: Note) -> None:
        dead_letter = self.dead_letter(note.id)
        if dead_letter is None or dead_letter.state is DeadLetterState.REDRIVEN:
            return
        self._count(dead_letter, -1)
        dead_letter.state, dead_letter.to, dead_letter.by = note.state, note.to, note.by
        self._count(dead_letter, 1)

    def _add(self, source: IndexedPartition, dead_letter: DeadLetter) -> None:
        if dead_letter.offset in source.dead_letters:
            return
        dead_letter.reason = self._once(dead_letter.reason)
        dead_letter.cause, dead_letter.group, dead_letter.topic = map(
            self._once, (dead_letter.cause, dead_letter.group, dead_letter.topic)
        )
        source.dead_letters[dead_letter.offset] = dead_letter
        self._room.dead_letters += 1
        self._count(dead_letter, 1)
        if self._room.dead_letters > self._room.dead_letters_max:
            oldest = next(iter(source.dead_letters))
            self._drop(source, oldest)
            source.first = max(source.first, oldest + 1)

    def _once(self, text: str) -> str:
        if len(self._reasons) >= REASONS_MAX:
            self._reasons.clear()
        return self._reasons.setdefault(text, text)

    def _count(self, dead_letter: DeadLetter, by: int) -> None:
        self.version += 1
        cause = (dead_letter.group, dead_letter.cause)
        counts = self.counts[cause]
        counts.states[dead_letter.state] += by
        counts.newest_us = max(counts.newest_us, dead_letter.time_us)
        if dead_letter.state is DeadLetterState.PENDING:
            counts.sources[dead_letter.topic] += by
        if not counts.states.total():
            del self.counts[cause]

    def _drop(self, source: IndexedPartition, offset: int) -> None:
        self._count(source.dead_letters.pop(offset), -1)
        self._room.dead_letters -= 1

    def _cut(self, source: IndexedPartition, log_start: int) -> None:
        """Drops dead letters that retention has deleted."""
        source.log_start = log_start
        if log_start <= source.first:
            return
        for offset in list(source.dead_letters):
            if offset >= log_start:
                break
            self._drop(source, offset)
        source.first = log_start
        source.next = max(source.next, log_start)

    def clear(self) -> None:
        for source in self.sources:
            self._clear(source)

    def _clear(self, source: IndexedPartition) -> None:
        for offset in list(source.dead_letters):
            self._drop(source, offset)
        source.first, source.next, source.epoch, source.end = -1, 0, None, 0

    # ---- scanning

    async def advance(self, reader: comet.Reader, until: float) -> bool:
        """Scans up to the present log end offsets, until `until` (loop time) at most; whether it got there.

        Raises CometError."""
        async with self._busy:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(source: IndexedPartition) -> None:
                async with gate:
                    await self._advance(source, reader, until)

            try:
                async with asyncio.TaskGroup() as tasks:
                    for source in self.sources:
                        tasks.create_task(one(source))
            except* comet.CometError as errors:
                raise _first(errors) from None
        return self.complete

    async def _advance(self, source: IndexedPartition, reader: comet.Reader, until: float) -> None:
        if source.first < 0:
            found = await reader.fetch(self.topic, source.partition, Latest(), records_max=1, topic_id=self.topic_id)
            share = max(self._records_max // len(self.sources), 1)
            source.first = source.next = max(found.log_start, found.log_end - share)
            source.log_start, source.end = found.log_start, found.log_end
        spec = RangeSpec(
            self.topic, source.partition, source.next, None, topic_id=self.topic_id, epoch=source.epoch,
            step_records_first=READ_RECORDS, step_records=READ_RECORDS, step_bytes=READ_BYTES, wait_ms=READ_WAIT_MS,
        )  # fmt: skip
        reading = comet.RangeReader(reader, spec)
        while not reading.stopped:
            for part in await reading.step():
                if not isinstance(part, comet.Gap):
                    self.take(source, [part])
                elif part.reason == "truncated":
                    self._clear(source)
                    return
            assert reading.position is not None
            source.next, source.epoch, source.end = reading.position, reading.epoch, reading.log_end
            self._cut(source, reading.log_start)
            if asyncio.get_running_loop().time() >= until:
                return
            await asyncio.sleep(0)


def _first(errors: BaseExceptionGroup[comet.CometError]) -> comet.CometError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, comet.CometError)
    return found
