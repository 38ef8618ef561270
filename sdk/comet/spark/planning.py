"""Which offsets are read, in how many parts, and how far this time. Pure.

A stream's offset is a document that Spark keeps as JSON and compares as text, so that its keys are always sorted:

    {"quotes/0": [1042, 3], "quotes/1": [988, 3]}      next offset, epoch of the record before it (-1: none is known)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from comet.errors import InvalidArgument
from comet.types import TopicPartition

NO_EPOCH: Final = -1
MAX_OFFSET: Final = (1 << 63) - 1


class Mark(NamedTuple):
    """How far a partition was read, or can be. `epoch` is that of the record before `offset`."""

    offset: int
    epoch: int = NO_EPOCH


Marks = Mapping[TopicPartition, Mark]


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a partition, all of which is to be read: up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    epoch: int = NO_EPOCH  # of the record before `start`

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def after(self, offset: int) -> Range:
        """What of it lies from that offset on."""
        return self if offset <= self.start else replace(self, start=min(offset, self.end), epoch=NO_EPOCH)


def document(marks: Marks) -> dict[str, list[int]]:
    return {f"{place.topic}/{place.partition}": [*mark] for place, mark in sorted(marks.items())}


def marks(document: Mapping[str, Any]) -> dict[TopicPartition, Mark]:
    """Raises InvalidArgument for what no version of us wrote."""
    found: dict[TopicPartition, Mark] = {}
    for key, value in document.items():
        topic, slash, number = key.rpartition("/")
        if not slash or not number.isdecimal() or not isinstance(value, list) or len(value) != 2:
            raise InvalidArgument(f"the checkpoint holds {key!r}: {value!r}, which is no offset of a Comet source")
        found[TopicPartition(topic, int(number))] = Mark(*map(int, value))
    return found


def between(start: Marks, end: Marks) -> list[Range]:
    """What lies between two offsets, by place. A partition that is new is read from its beginning."""
    found = []
    for place, mark in sorted(end.items()):
        first = start.get(place, Mark(0))
        if mark.offset > first.offset:
            found.append(Range(place.topic, place.partition, first.offset, mark.offset, first.epoch))
    return found


def split(ranges: Iterable[Range], partitions_min: int) -> list[Range]:
    """In at least so many parts, where there are as many records: the larger a range, the more parts it is cut in.
    The same ranges always give the same parts, in the same order."""
    whole = list(ranges)
    total = sum(one.size for one in whole)
    if len(whole) >= partitions_min or not total:
        return whole
    found: list[Range] = []
    for one in whole:
        parts = max(1, min(one.size, round(partitions_min * one.size / total)))
        edges = [one.start + one.size * number // parts for number in range(parts + 1)]
        for number in range(parts):
            epoch = one.epoch if number == 0 else NO_EPOCH
            found.append(Range(one.topic, one.partition, edges[number], edges[number + 1], epoch))
    return found


def capped(start: Marks, end: Marks, most: int) -> dict[TopicPartition, Mark]:
    """An offset at most so many records after `start`: each partition gets its share of what waits, and one record at
    least of those that have any, as far as that goes round. What is cut short has no epoch: nobody asked for it."""
    waiting = {place: mark.offset - start.get(place, Mark(0)).offset for place, mark in sorted(end.items())}
    waiting = {place: size for place, size in waiting.items() if size > 0}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    shares = {place: size * most // total for place, size in waiting.items()}
    left = most - sum(shares.values())
    for place in sorted(waiting, key=lambda place: (shares[place] > 0, -(waiting[place] * most % total), place))[:left]:
        shares[place] += 1
    found: dict[TopicPartition, Mark] = {}
    for place, mark in end.items():
        before = start.get(place, Mark(0))
        share = shares.get(place, 0)
        if place not in waiting or share >= waiting[place]:
            found[place] = mark
        else:
            found[place] = before if share == 0 else Mark(before.offset + share)
    return found


@dataclass(slots=True)
class Bounds:
    """What filters let through at most, as far as ranges can be cut by it. Filters are all to hold; one that says
    nothing of partitions, offsets and times changes nothing here."""

    partitions: set[int] | None = None  # None: all
    topics: set[str] | None = None
    first: int = 0
    end: int = MAX_OFFSET

    def add(self, kind: str, column: tuple[str, ...], value: Any) -> None:
        """One filter, by the name of its class."""
        match column, kind:
            case ("partition",), "EqualTo" | "In":
                self.partitions = _both(self.partitions, value if kind == "In" else (value,))
            case ("topic",), "EqualTo" | "In":
                self.topics = _both(self.topics, value if kind == "In" else (value,))
            case ("offset",), "EqualTo":
                self.first, self.end = max(self.first, value), min(self.end, value + 1)
            case ("offset",), "GreaterThan" | "GreaterThanOrEqual":
                self.first = max(self.first, value + (kind == "GreaterThan"))
            case ("offset",), "LessThan" | "LessThanOrEqual":
                self.end = min(self.end, value + (kind == "LessThanOrEqual"))

    def cut(self, ranges: Iterable[Range]) -> list[Range]:
        found = []
        for one in ranges:
            inside = (self.partitions is None or one.partition in self.partitions) and (
                self.topics is None or one.topic in self.topics
            )
            part = replace(one.after(self.first), end=min(one.end, self.end))
            if inside and part.size > 0:
                found.append(part)
        return found


def _both(before: set[Any] | None, now: Iterable[Any]) -> set[Any]:
    return set(now) if before is None else before & set(now)
