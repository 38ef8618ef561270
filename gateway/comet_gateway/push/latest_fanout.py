"""Snapshots and ticks of a table of latest values, encoded once and shared by as many subscribers as possible.

    TableSnapshot   a table at one moment, in parts; later subscribers share it for a while
    Ticker          the changes for conflating subscribers of one interval: those in step share them

A conflating subscriber's position is one version: it gets all later records, and the records replaced by later ones are
counted. The changes of a tick are split into linked parts, so that a slow subscriber continues in the middle; one that
is too late starts with the next tick.

Pure: no I/O; the clock is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from comet_gateway.push.events import Latest
from comet_gateway.push.latest_table import LatestTable, TableEntry, received_of
from comet_gateway.records.cursor import CursorPosition

CHAINS_MAX: Final = 8  # of one tick; other subscribers get parts of their own
EARLY: Final = 0.75  # of an interval: a subscriber that started a tick less than this before the next one skips that


class Body:
    """The bytes of one Latest event, encoded once."""

    def __init__(
        self, topic: str, records: Sequence[TableEntry], *, conflated: int, snapshot: bool, last: bool, complete: bool,
        cursor: str,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._fragments = [entry.fragment for entry in records]
        self._flags = conflated, snapshot, last, complete
        self._cursor = cursor

    @cached_property
    def members(self) -> bytes:
        return b'"topic":"%b","records":[%b],"cursor":"%b"' % (
            self._topic.encode(), b",".join(self._fragments), self._cursor.encode(),
        )  # fmt: skip

    @cached_property
    def sse(self) -> bytes:
        conflated, snapshot, last, complete = self._flags
        return b'event: %b\n%bdata: {%b,"conflated":%d,"last":%b,"complete":%b}\n\n' % (
            b"snapshot" if snapshot else b"latest",
            b"id: %b\n" % self._cursor.encode() if self._cursor else b"",
            self.members,
            conflated,
            b"true" if last else b"false",
            b"true" if complete else b"false",
        )


def event_of(
    topic: str,
    records: Sequence[TableEntry],
    *,
    conflated: int,
    snapshot: bool,
    last: bool,
    complete: bool,
    cursor: str,
) -> Latest:
    body = Body(
        topic, records, conflated=conflated, snapshot=snapshot, last=last, complete=complete, cursor=cursor
    )  # fmt: skip
    return Latest(
        topic, len(records), conflated, snapshot, last, complete, cursor, lambda: body.members, lambda: body.sse
    )  # fmt: skip


def parts_of(records: Sequence[TableEntry], bytes_max: int, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Splits records into parts of at most `bytes_max`, but at least one record: (begin, end). At least one part."""
    begin = size = 0
    for index, entry in enumerate(records):
        if index > begin and (size + len(entry.fragment) > bytes_max or index - begin == most):
            yield begin, index
            begin, size = index, 0
        size += len(entry.fragment) + 1
    yield begin, len(records)


# ---- a snapshot


class SnapshotCounts(NamedTuple):
    """Records received by the time of a snapshot, by partition."""

    all: Mapping[int, int]
    matching: Mapping[int, int]  # since the table was made


class TableSnapshot:
    """A table at one moment. Referenced by the subscribers that are reading it."""

    def __init__(self, table: LatestTable, delivery_bytes: int, taken_s: float) -> None:
        ring = table.ring
        self.taken_s = taken_s
        self.topic = ring.topic
        self.records = table.all()
        self.matching = self.records if table.encoding.filter is None else table.matching()
        self.version = table.version
        self.complete = not table.lossy
        self.knows_dead = not table.forgot_dead
        self.whole = table.whole
        self.filled_from = dict(table.filled_from)
        self.number = ring.head
        self.positions = dict(ring.positions)
        self.counts = SnapshotCounts(dict(ring.totals), dict(table.received))
        self.cursor = ring.cursor()
        self._bytes_max = delivery_bytes
        self._shared: dict[int, tuple[Latest, int]] = {}

    def shared(self, index: int) -> tuple[Latest, int]:
        """The next part without deleted keys from an index on, and the index of the part after it."""
        found = self._shared.get(index)
        if found is None:
            found = self._shared[index] = self.part(self.records, index, _alive, None, snapshot=True)
        return found

    def part(
        self, records: Sequence[TableEntry], index: int, wanted: Callable[[TableEntry], bool], permits: int | None, *,
        snapshot: bool,
    ) -> tuple[Latest, int]:  # fmt: skip
        found: list[TableEntry] = []
        size = 0
        while index < len(records):
            entry = records[index]
            if wanted(entry):
                size += len(entry.fragment) + 1
                if found and (size > self._bytes_max or len(found) == permits):
                    break
                found.append(entry)
            index += 1
        last = index == len(records)
        event = event_of(
            self.topic, found, conflated=0, snapshot=snapshot, last=last,
            complete=self.complete and (snapshot or self.knows_dead), cursor=self.cursor if last else "",
        )  # fmt: skip
        return event, index

    def count(self, partitions: frozenset[int] | None) -> int:
        """Records received by then."""
        return received_of(self.counts.all, partitions)

    def matched(self, partitions: frozenset[int] | None) -> int:
        """Records received by then that match the table's filter."""
        return received_of(self.counts.matching, partitions)


def _alive(entry: TableEntry) -> bool:
    return not entry.dead


class SnapshotWalk:
    """One subscriber's position in a snapshot: all of it, or only the matching records newer than its cursor."""

    def __init__(
        self,
        snapshot: TableSnapshot,
        partitions: frozenset[int] | None,
        newer_than: Mapping[int, CursorPosition] | None,
    ) -> None:
        self.snapshot = snapshot
        self.given = 0
        self._partitions = partitions
        self._newer_than = newer_than
        self._index = 0

    def take(self, permits: int | None) -> Latest | None:
        """The next part; None without enough permits. Must not be called after the last one."""
        if permits is not None and permits <= 0:
            return None
        event: Latest | None = None
        if self._partitions is None and self._newer_than is None:
            event, index = self.snapshot.shared(self._index)
        if event is None or (permits is not None and event.count > permits):
            event, index = self.snapshot.part(
                self.snapshot.records if self._newer_than is None else self.snapshot.matching,
                self._index, self._wants, permits, snapshot=self._newer_than is None,
            )  # fmt: skip
        self._index = index
        self.given += event.count
        return event

    def _wants(self, entry: TableEntry) -> bool:
        if self._partitions is not None and entry.partition not in self._partitions:
            return False
        if self._newer_than is None:
            return not entry.dead
        position = self._newer_than.get(entry.partition)
        return position is None or entry.offset >= position.offset


# ---- conflation


class Part(NamedTuple):
    event: Latest
    to: int  # the version after it


class Ticker:
    """The ticks of one interval, and the shared parts for subscribers in step."""

    def __init__(self, table: LatestTable, interval_s: float, delivery_bytes: int, clock: Callable[[], float]) -> None:
        self.table = table
        self.interval_s = interval_s
        self.number = 0
        self.time = clock()
        self.clock = clock
        self._delivery_bytes = delivery_bytes
        self._parts: dict[tuple[int, frozenset[int] | None], Part] = {}
        self._chains = 0

    def tick(self) -> None:
        self.number += 1
        self.time = self.clock()
        self._parts.clear()
        self._chains = 0

    def part(self, version: int, passed: int, partitions: frozenset[int] | None) -> Part:
        """The changes after a version, at which `passed` records had been received."""
        found = self._parts.get((version, partitions))
        if found is not None:
            return found
        parts = list(self._make(self.table.since(version, partitions), version, passed, partitions))
        if self._chains < CHAINS_MAX:
            self._chains += 1
            for part in parts:
                self._parts[version, partitions] = part
                version = part.to
        return parts[0]

    def some(self, version: int, passed: int, partitions: frozenset[int] | None, most: int) -> Part:
        """As many of the changes as permitted, for one subscriber."""
        records = self.table.since(version, partitions)
        return next(iter(self._make(records, version, passed, partitions, most)))

    def _make(
        self, records: Sequence[TableEntry], version: int, passed: int, partitions: frozenset[int] | None,
        most: int | None = None,
    ) -> Iterator[Part]:  # fmt: skip
        table, ring = self.table, self.table.ring
        received = table.count(partitions)
        for begin, end in parts_of(records, self._delivery_bytes, most):
            last = end == len(records)
            to = table.version if last else records[end - 1].version
            # For some partitions only, the number of conflated records is unknown until the end.
            between = to - version if partitions is None else received - passed if last else 0
            conflated = max(between - (end - begin), 0)
            yield Part(
                event_of(
                    ring.topic, records[begin:end], conflated=conflated, snapshot=False, last=last,
                    complete=not table.lossy, cursor=ring.cursor() if last else "",
                ),
                to,
            )  # fmt: skip
            version, passed = to, passed + (end - begin) + conflated
