"""Selection of dead letters: by name, or by a filter. Yields to other tasks while it scans many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from comet_gateway.dead_letters.index import DeadLetterIndex
from comet_gateway.dead_letters.letter import DeadLetter, LetterOffset, LetterState

TURN: Final = 2_000  # dead letters that are checked before other tasks get a turn


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter; None matches all. `reason` matches a part, in any case; `cause` the whole text."""

    state: LetterState | None = None
    group: str | None = None
    cause: str | None = None
    reason: str | None = None
    topic: str | None = None  # the source
    from_us: int | None = None
    to_us: int | None = None  # exclusive

    def fits(self, letter: DeadLetter) -> bool:
        return (
            (self.state is None or letter.state is self.state)
            and (self.group is None or letter.group == self.group)
            and (self.cause is None or letter.cause == self.cause)
            and (self.topic is None or letter.topic == self.topic)
            and (self.from_us is None or letter.time_us >= self.from_us)
            and (self.to_us is None or letter.time_us < self.to_us)
            and (self.reason is None or self.reason.casefold() in letter.reason.casefold())
        )


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Selected dead letters in the order of their partitions and offsets."""

    letters: list[DeadLetter]
    settled: int  # selected, but redriven or discarded before
    unknown: list[LetterOffset]  # named, but not dead letters


def named(topic_index: DeadLetterIndex, places: Iterable[LetterOffset]) -> LetterSelection:
    letters: list[DeadLetter] = []
    unknown: list[LetterOffset] = []
    settled = 0
    for place in sorted(set(places)):
        letter = topic_index.letter(place)
        if letter is None:
            unknown.append(place)
        elif letter.state is LetterState.PENDING:
            letters.append(letter)
        else:
            settled += 1
    return LetterSelection(letters, settled, unknown)


async def fitting(topic_index: DeadLetterIndex, wanted: Filter) -> LetterSelection:
    letters: list[DeadLetter] = []
    settled = 0
    async for some in _turns(topic_index, wanted):
        letters += [letter for letter in some if letter.state is LetterState.PENDING]
        settled += sum(letter.state is not LetterState.PENDING for letter in some)
    return LetterSelection(letters, settled, [])


Order = tuple[int, int, int]


def order(letter: DeadLetter) -> Order:
    return letter.time_us, letter.partition, letter.offset


async def newest(
    topic_index: DeadLetterIndex, wanted: Filter, limit: int, before: Order | None = None
) -> tuple[list[DeadLetter], int]:
    """The newest matches before a position, newest first; and the number of all matches."""
    matched = 0
    found: list[DeadLetter] = []
    async for some in _turns(topic_index, wanted):
        matched += len(some)
        found += some if before is None else [letter for letter in some if order(letter) < before]
        if len(found) > limit:
            found = nlargest(limit, found, key=order)
    return nlargest(limit, found, key=order), matched


async def _turns(topic_index: DeadLetterIndex, wanted: Filter) -> AsyncIterator[list[DeadLetter]]:
    """The matches as of the start, a turn at a time."""
    letters = list(topic_index.letters())
    for first in range(0, len(letters), TURN):
        yield [letter for letter in letters[first : first + TURN] if wanted.fits(letter)]
        await asyncio.sleep(0)
