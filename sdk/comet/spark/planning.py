"""Plans the ranges of offsets to read, their parts, and the limit of a batch. Pure.

A stream's offset is a document that Spark stores as JSON and compares as text, so its keys are always in one order:

    {"quotes": "3f2a…",            the topic's id; it changes if the topic is recreated. Not in old documents
     "quotes/0": [1042, 3],        next offset, epoch of the record before it (-1: unknown)
     "quotes/1": [988, 3]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapreplace
from typing import Any, Final, NamedTuple

from comet.errors import InvalidArgument
from comet.types import TopicPartition

NO_EPOCH: Final = -1
MAX_OFFSET: Final = (1 << 63) - 1


class OffsetAndEpoch(NamedTuple):
    """The offset up to which a partition was or can be read. `epoch` is that of the record before `offset`."""

    offset: int
    epoch: int = NO_EPOCH
    topic_id: str = ""  # as far as known

    def same_topic(self, other: OffsetAndEpoch) -> bool:
        """Whether both are of the same topic; true if an id is unknown."""
        return not (self.topic_id and other.topic_id) or self.topic_id == other.topic_id


Marks = Mapping[TopicPartition, OffsetAndEpoch]


class Loss(NamedTuple):
    """Lost records, with which a stream cannot continue."""

    tp: TopicPartition
    kind: str
    problem: str


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a partition to read; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    epoch: int = NO_EPOCH  # of the record before `start`
    last: int = NO_EPOCH  # of the record before `end` when planned: records of later epochs are not part of the range
    topic_id: str = ""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def after(self, offset: int) -> Range:
        """The part of the range from that offset."""
        if offset <= self.start:
            return self
        return replace(self, start=min(offset, self.end), epoch=_between(self.epoch, self.last))


def document(marks: Marks) -> dict[str, Any]:
    ids = {tp.topic: mark.topic_id for tp, mark in marks.items() if mark.topic_id}
    found: dict[str, Any] = {}
    for tp, mark in sorted(marks.items()):
        if tp.topic in ids:
            found[tp.topic] = ids[tp.topic]
        found[f"{tp.topic}/{tp.partition}"] = [mark.offset, mark.epoch]
    return found


def marks(document: Mapping[str, Any]) -> dict[TopicPartition, OffsetAndEpoch]:
    """Parses a document. Raises InvalidArgument if it is not an offset of this source."""
    ids = {key: value for key, value in document.items() if "/" not in key and isinstance(value, str)}
    found: dict[TopicPartition, OffsetAndEpoch] = {}
    for key, value in document.items():
        if key in ids:
            continue
        topic, slash, number = key.rpartition("/")
        if not slash or not number.isdecimal() or not isinstance(value, list) or len(value) != 2:
            raise InvalidArgument(f"{key!r}: {value!r} in the checkpoint is not an offset of a Comet source")
        offset, epoch = map(int, value)
        found[TopicPartition(topic, int(number))] = OffsetAndEpoch(offset, epoch, ids.get(topic, ""))
    return found


def first_of(start: Marks, tp: TopicPartition, end: OffsetAndEpoch) -> OffsetAndEpoch:
    """The start of a read up to `end`. A new partition, or one of a recreated topic, is read from its beginning."""
    before = start.get(tp)
    return before if before is not None and before.same_topic(end) else OffsetAndEpoch(0, NO_EPOCH, end.topic_id)


def between(start: Marks, end: Marks) -> list[Range]:
    """The ranges between two offsets, by partition."""
    found = []
    for tp, mark in sorted(end.items()):
        first = first_of(start, tp, mark)
        if mark.offset > first.offset:
            found.append(Range(*tp, first.offset, mark.offset, first.epoch, mark.epoch, mark.topic_id))
    return found


def readable(start: Marks, newest: Marks) -> tuple[dict[TopicPartition, OffsetAndEpoch], list[Loss]]:
    """The end offsets up to which the stream can read, and its losses. An offset of one topic never goes back: a
    deleted or truncated partition keeps its offset. A topic that was deleted and recreated is read from its start."""
    found, losses = dict(newest), []
    ids = {tp.topic: mark for tp, mark in newest.items()}
    for tp, mark in start.items():
        now = newest.get(tp)
        if now is None:
            kind, problem = "gone", "no longer exists: was the topic deleted or recreated?"
            if tp.topic not in ids or mark.same_topic(ids[tp.topic]):
                found[tp] = mark
        elif not mark.same_topic(now):
            kind, problem = (
                "recreated",
                f"was read up to {mark.offset}, but the topic was deleted and recreated since",
            )
        elif now.offset < mark.offset:
            kind = "shorter"
            problem = f"ends at {now.offset}, before the next offset {mark.offset}: was the topic recreated?"
            found[tp] = mark._replace(topic_id=mark.topic_id or now.topic_id)
        else:
            continue
        losses.append(Loss(tp, f"{kind} {mark.topic_id}", f"{tp.topic}/{tp.partition} {problem}"))
    return found, losses


def there(ranges: Iterable[Range], ids: Mapping[TopicPartition, str]) -> tuple[list[Range], list[Loss]]:
    """The ranges of current topics, and losses for recreated ones. Reading reports missing partitions."""
    found, losses = [], []
    for one in ranges:
        now = ids.get(one.tp, "")
        if not (now and one.topic_id) or now == one.topic_id:
            found.append(one)
            continue
        lost = f"{one.topic}/{one.partition}: offsets {one.start} to {one.end} are lost"
        losses.append(Loss(one.tp, f"planned {one.topic_id}", f"{lost}: the topic was deleted and recreated"))
    return found, losses


def split(ranges: Iterable[Range], partitions_min: int) -> list[Range]:
    """Splits ranges into at least `partitions_min` parts, if there are as many records: larger ranges into more parts.
    The same ranges always give the same parts, in the same order."""
    whole = list(ranges)
    total = sum(one.size for one in whole)
    if len(whole) >= partitions_min or not total:
        return whole
    found: list[Range] = []
    for one in whole:
        parts = max(1, min(one.size, -(-partitions_min * one.size // total)))
        edges = [one.start + one.size * number // parts for number in range(parts + 1)]
        inner = _between(one.epoch, one.last)
        for number in range(parts):
            epoch = one.epoch if number == 0 else inner
            found.append(replace(one, start=edges[number], end=edges[number + 1], epoch=epoch))
    return found


def packed(ranges: Iterable[Range], partitions_max: int) -> list[tuple[Range, ...]]:
    """The ranges of each task: one, or several if there are fewer tasks. Each range, the largest first, goes to
    the task with the fewest records. The same ranges always give the same tasks."""
    whole = list(ranges)
    if not partitions_max or len(whole) <= partitions_max:
        return [(one,) for one in whole]
    tasks: list[list[int]] = [[] for _ in range(partitions_max)]
    sizes = [(0, task) for task in range(partitions_max)]  # a heap
    for number in sorted(range(len(whole)), key=lambda number: (-whole[number].size, number)):
        size, task = sizes[0]
        tasks[task].append(number)
        heapreplace(sizes, (size + whole[number].size, task))
    return [tuple(whole[number] for number in sorted(task)) for task in tasks]


def _between(before: int, after: int) -> int:
    """The epoch of records between two with these epochs, if known: epochs only grow."""
    return before if before == after else NO_EPOCH


def capped(start: Marks, end: Marks, most: int) -> dict[TopicPartition, OffsetAndEpoch]:
    """An end at most `most` records after `start`. Each partition gets a share by its number of waiting records, and at
    least one record while there are enough for all. The epoch of a reduced end may be unknown."""
    waiting = {tp: mark.offset - first_of(start, tp, mark).offset for tp, mark in sorted(end.items())}
    waiting = {tp: size for tp, size in waiting.items() if size > 0}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    shares = {tp: size * most // total for tp, size in waiting.items()}
    left = most - sum(shares.values())
    for tp in sorted(waiting, key=lambda tp: (shares[tp] > 0, -(waiting[tp] * most % total), tp))[:left]:
        shares[tp] += 1
    found: dict[TopicPartition, OffsetAndEpoch] = {}
    for tp, mark in end.items():
        before = first_of(start, tp, mark)
        share = shares.get(tp, 0)
        if tp not in waiting or share >= waiting[tp]:
            found[tp] = mark
        else:
            cut = OffsetAndEpoch(before.offset + share, _between(before.epoch, mark.epoch), mark.topic_id)
            found[tp] = before if share == 0 else cut
    return found


@dataclass(slots=True)
class FilterBounds:
    """The bounds on partitions and offsets that follow from filters, all of which must hold. Filters on other columns
    change nothing."""

    partitions: set[int] | None = None  # None: all
    topics: set[str] | None = None
    first: int = 0
    end: int = MAX_OFFSET

    def add(self, kind: str, column: tuple[str, ...], value: Any) -> None:
        """Adds a filter, by the name of its class."""
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
