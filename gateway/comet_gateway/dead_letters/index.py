"""What is known of the letters of one topic: all of its newest records are read once, and what comes after them as it
comes. Each look goes on where the last one stopped, and stops when its time is over.

    first ········ next ········ end      of a partition: looked at · to be looked at
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import comet
from comet.errors import CorruptRecords, OffsetOutOfRange, Truncated
from comet.types import AtOffset, Latest, TopicInfo
from comet_gateway.dead_letters.letter import DeadLetter, LetterOffset, LetterState, Note, letter_of, note_of

READ_RECORDS: Final = 250  # at once: what is made of them takes the loop for some milliseconds
READ_BYTES: Final = 1 << 20
AT_ONCE: Final = 8  # partitions
REASONS_MAX: Final = 20_000  # that are kept once for all letters that have them

Cause = tuple[str, str]  # group, cause


@dataclass(slots=True)
class Room:
    """For letters, of all shelves together."""

    letters_max: int
    letters: int = 0


@dataclass(slots=True)
class IndexedPartition:
    """One partition."""

    partition: int
    first: int = -1  # -1: not begun
    next: int = 0
    epoch: int | None = None
    log_start: int = 0
    end: int = 0
    letters: dict[int, DeadLetter] = field(default_factory=dict)  # by offset, in order

    @property
    def done(self) -> bool:
        return self.first >= 0 and self.next >= self.end


@dataclass(slots=True)
class Counts:
    """Of one group and cause."""

    states: Counter[LetterState] = field(default_factory=Counter)
    newest_us: int = 0
    sources: Counter[str] = field(default_factory=Counter)  # pending letters by the topic they come from


class Shelf:
    """One topic. Owned by Shelves. `take`, `settle` and all that is asked of it are synchronous."""

    def __init__(self, info: TopicInfo, room: Room, records_max: int) -> None:
        self.topic = info.name
        self.topic_id = info.id
        self.counts: defaultdict[Cause, Counts] = defaultdict(Counts)
        self.lanes = [IndexedPartition(index) for index in range(len(info.partitions))]
        self.version = 0  # another whenever anything else is known
        self._room = room
        self._records_max = records_max  # of the log that are looked at
        self._busy = asyncio.Lock()
        self._reasons: dict[str, str] = {}

    # ---- what is known

    @property
    def complete(self) -> bool:
        """All that there was at the last look has been looked at, but for what is older than it goes back."""
        return all(lane.done for lane in self.lanes)

    @property
    def looked(self) -> int:
        return sum(lane.next - lane.first for lane in self.lanes if lane.first >= 0)

    @property
    def records(self) -> int:
        """That are to be looked at."""
        return sum(max(lane.end, lane.next) - lane.first for lane in self.lanes if lane.first >= 0)

    @property
    def older(self) -> int:
        """Records of the log that are not looked at."""
        return sum(max(0, lane.first - lane.log_start) for lane in self.lanes)

    def letters(self) -> Iterator[DeadLetter]:
        for lane in self.lanes:
            yield from lane.letters.values()

    def letter(self, place: LetterOffset) -> DeadLetter | None:
        return self.lanes[place.partition].letters.get(place.offset) if place.partition < len(self.lanes) else None

    def states(self) -> Counter[LetterState]:
        found: Counter[LetterState] = Counter()
        for counts in self.counts.values():
            found += counts.states
        return found

    # ---- what is learned

    def take(self, lane: IndexedPartition, batches: Sequence[comet.RecordBatch[bytes]]) -> None:
        for batch in batches:
            for _, partition, offset, key, value, time_us, headers in batch.records():
                if not headers:
                    continue
                note = note_of(partition, key, value, headers)
                if note is not None:
                    self.settle(note)
                    continue
                letter = letter_of(partition, offset, time_us, key, value, headers)
                if letter is not None:
                    self._add(lane, letter)

    def settle(self, note: Note) -> None:
        letter = self.letter(note.place)
        if letter is None or letter.state is LetterState.REDRIVEN:
            return
        self._count(letter, -1)
        letter.state, letter.to, letter.by = note.state, note.to, note.by
        self._count(letter, 1)

    def _add(self, lane: IndexedPartition, letter: DeadLetter) -> None:
        if letter.offset in lane.letters:
            return
        letter.reason = self._once(letter.reason)
        letter.cause, letter.group, letter.topic = map(self._once, (letter.cause, letter.group, letter.topic))
        lane.letters[letter.offset] = letter
        self._room.letters += 1
        self._count(letter, 1)
        if self._room.letters > self._room.letters_max:
            oldest = next(iter(lane.letters))
            self._drop(lane, oldest)
            lane.first = max(lane.first, oldest + 1)

    def _once(self, text: str) -> str:
        if len(self._reasons) >= REASONS_MAX:
            self._reasons.clear()
        return self._reasons.setdefault(text, text)

    def _count(self, letter: DeadLetter, by: int) -> None:
        self.version += 1
        cause = (letter.group, letter.cause)
        counts = self.counts[cause]
        counts.states[letter.state] += by
        counts.newest_us = max(counts.newest_us, letter.time_us)
        if letter.state is LetterState.PENDING:
            counts.sources[letter.topic] += by
        if not counts.states.total():
            del self.counts[cause]

    def _drop(self, lane: IndexedPartition, offset: int) -> None:
        self._count(lane.letters.pop(offset), -1)
        self._room.letters -= 1

    def _cut(self, lane: IndexedPartition, log_start: int) -> None:
        """What retention has deleted is no letter any more."""
        lane.log_start = log_start
        if log_start <= lane.first:
            return
        for offset in list(lane.letters):
            if offset >= log_start:
                break
            self._drop(lane, offset)
        lane.first = log_start
        lane.next = max(lane.next, log_start)

    def clear(self) -> None:
        for lane in self.lanes:
            self._clear(lane)

    def _clear(self, lane: IndexedPartition) -> None:
        for offset in list(lane.letters):
            self._drop(lane, offset)
        lane.first, lane.next, lane.epoch, lane.end = -1, 0, None, 0

    # ---- looking

    async def advance(self, reader: comet.Reader, until: float) -> bool:
        """Reads on to the ends of the log as they are now, until then (time of the loop) at most; whether it came
        there. Raises CometError."""
        async with self._busy:
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(lane: IndexedPartition) -> None:
                async with gate:
                    await self._advance(lane, reader, until)

            try:
                async with asyncio.TaskGroup() as tasks:
                    for lane in self.lanes:
                        tasks.create_task(one(lane))
            except* comet.CometError as errors:
                raise _first(errors) from None
        return self.complete

    async def _advance(self, lane: IndexedPartition, reader: comet.Reader, until: float) -> None:
        loop = asyncio.get_running_loop()
        end: int | None = None
        if lane.first < 0:
            found = await reader.fetch(self.topic, lane.partition, Latest(), records_max=1)
            share = max(self._records_max // len(self.lanes), 1)
            lane.first = lane.next = max(found.log_start, found.log_end - share)
            lane.log_start, lane.end = found.log_start, found.log_end
            end = found.log_end
        while end is None or lane.next < end:
            try:
                found = await reader.fetch(
                    self.topic, lane.partition, AtOffset(lane.next), epoch=lane.epoch,
                    records_max=READ_RECORDS, bytes_max=READ_BYTES,
                )  # fmt: skip
            except OffsetOutOfRange as error:
                log_start = int(error.details.get("log_start", "0"))
                if log_start <= lane.next:  # the log was made anew
                    self._clear(lane)
                    return
                self._cut(lane, log_start)
                continue
            except Truncated:
                self._clear(lane)
                return
            except CorruptRecords as error:
                lane.next, lane.epoch = int(error.details["end"]), None
                continue
            self.take(lane, found.batches)
            lane.next, lane.epoch, lane.end = found.next_offset, found.epoch, found.log_end
            self._cut(lane, found.log_start)
            end = found.log_end if end is None else end
            if loop.time() >= until:
                return
            await asyncio.sleep(0)


def _first(errors: BaseExceptionGroup[comet.CometError]) -> comet.CometError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, comet.CometError)
    return found
