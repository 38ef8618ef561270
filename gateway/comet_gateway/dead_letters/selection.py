"""Selection of dead letters: by name, or by a filter. Yields to other tasks while it scans many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from comet_gateway.dead_letters.dead_letter import DeadLetter, DeadLetterOffset, DeadLetterState
from comet_gateway.dead_letters.index import DeadLetterIndex

TURN: Final = 2_000  # dead letters that are checked before other tasks get a turn


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter; None matches all. `reason` matches a part, in any case; `cause` the whole text."""

    state: DeadLetterState | None = None
    group: str | None = None
    cause: str | None = None
    reason: str | None = None
    topic: str | None = None  # the source
    from_us: int | None = None
    to_us: int | None = None  # exclusive

    def fits(self, dead_letter: DeadLetter) -> bool:
        return (
            (self.state is None or dead_letter.state is self.state)
            and (self.group is None or dead_letter.group == self.group)
            and (self.cause is None or dead_letter.cause == self.cause)
            and (self.topic is None or dead_letter.topic == self.topic)
            and (self.from_us is None or dead_letter.time_us >= self.from_us)
            and (self.to_us is None or dead_letter.time_us < self.to_us)
            and (self.reason is None or self.reason.casefold() in dead_letter.reason.casefold())
        )


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Selected dead letters in the order of their partitions and offsets."""

    dead_letters: list[DeadLetter]
    settled: int  # selected, but redriven or discarded before
    unknown: list[DeadLetterOffset]  # named, but not dead letters


def named(topic_index: DeadLetterIndex, ids: Iterable[DeadLetterOffset]) -> DeadLetterSelection:
    dead_letters: list[DeadLetter] = []
    unknown: list[DeadLetterOffset] = []
    settled = 0
    for id_ in sorted(set(ids)):
        dead_letter = topic_index.dead_letter(id_)
        if dead_letter is None:
            unknown.append(id_)
        elif dead_letter.state is DeadLetterState.PENDING:
            dead_letters.append(dead_letter)
        else:
            settled += 1
    return DeadLetterSelection(dead_letters, settled, unknown)


async def fitting(topic_index: DeadLetterIndex, wanted: Filter) -> DeadLetterSelection:
    dead_letters: list[DeadLetter] = []
    settled = 0
    async for some in _turns(topic_index, wanted):
        dead_letters += [dead_letter for dead_letter in some if dead_letter.state is DeadLetterState.PENDING]
        settled += sum(dead_letter.state is not DeadLetterState.PENDING for dead_letter in some)
    return DeadLetterSelection(dead_letters, settled, [])


Order = tuple[int, int, int]


def order(dead_letter: DeadLetter) -> Order:
    return dead_letter.time_us, dead_letter.partition, dead_letter.offset


async def newest(
    topic_index: DeadLetterIndex, wanted: Filter, limit: int, before: Order | None = None
) -> tuple[list[DeadLetter], int]:
    """The newest matches before a position, newest first; and the number of all matches."""
    matched = 0
    found: list[DeadLetter] = []
    async for some in _turns(topic_index, wanted):
        matched += len(some)
        found += some if before is None else [dead_letter for dead_letter in some if order(dead_letter) < before]
        if len(found) > limit:
            found = nlargest(limit, found, key=order)
    return nlargest(limit, found, key=order), matched


async def _turns(topic_index: DeadLetterIndex, wanted: Filter) -> AsyncIterator[list[DeadLetter]]:
    """The matches as of the start, a turn at a time."""
    dead_letters = list(topic_index.dead_letters())
    for first in range(0, len(dead_letters), TURN):
        yield [dead_letter for dead_letter in dead_letters[first : first + TURN] if wanted.fits(dead_letter)]
        await asyncio.sleep(0)
