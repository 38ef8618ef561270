"""A table of latest values: the newest record of each key of a topic, in the order of their numbered updates.

The newest is the last received of the same partition; between partitions, the one with the later timestamp. Records
without a key count as one key. `latest_fanout` serves tables to subscribers.

An entry that has expired is neither in a snapshot nor among changes.

A table with a filter has two entries of a key: the newest record, for snapshots, and the newest record that matches,
for changes. A newest record that does not match is `hidden`: its key is not in a snapshot.

Pure: no I/O; the clock is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat, takewhile
from typing import Final, NamedTuple

from comet.filters import Filter
from comet.records.expiry import has_expired
from comet.types import wall_clock_us
from comet_gateway.push.chunk import Source
from comet_gateway.push.ring import Ring
from comet_gateway.records.cursor import CursorPosition
from comet_gateway.records.record_json import Values

ENTRY_OVERHEAD: Final = 300  # bytes of memory of an entry beside its key and record


class TableEntry(NamedTuple):
    version: int
    partition: int
    offset: int
    timestamp_us: int
    fragment: bytes
    dead: bool  # a tombstone, or hidden
    expires_us: int = 0  # 0: never

    @property
    def hidden(self) -> bool:
        """Whether it does not match the table's filter."""
        return not self.fragment

    def beats(self, other: TableEntry) -> bool:
        """Whether it is newer; both may have been read from the log."""
        if self.partition == other.partition:
            return self.offset >= other.offset
        return self.timestamp_us >= other.timestamp_us


class Encoding(NamedTuple):
    """What a table holds of records: the form of values, and its filter."""

    values: Values
    filter: Filter | None = None

    def __str__(self) -> str:
        return self.values.value if self.filter is None else f"{self.values.value}, {self.filter.text}"

    def entries(
        self, source: Source, version: int, *, counted: bool = True
    ) -> Iterator[tuple[bytes | None, TableEntry]]:
        """The entries of a batch with their keys. With `counted`, each record that matches has the next version."""
        batch, partition = source.batch, source.partition
        for key, value, offset, timestamp_us, fragment, expires_us in zip(
            batch.keys,
            batch.values,
            source.offsets,
            batch.timestamps,
            self._fragments(source),
            repeat(0, len(source)) if source.expiry is None else source.expiry,
            strict=True,
        ):
            hidden = not fragment
            version += counted and not hidden
            yield (
                key,
                TableEntry(version, partition, offset, timestamp_us, fragment, value is None or hidden, expires_us),
            )

    def _fragments(self, source: Source) -> Sequence[bytes]:
        """The records as JSON; empty for those that do not match."""
        if self.filter is None:
            return source.fragments(self.values)
        rows = source.rows(self.filter, 0, len(source))
        made = [b""] * len(source)
        for row, fragment in zip(rows, source.encoded(self.values, rows), strict=True):
            made[row] = fragment
        return made


class KeyEntries:
    """One entry of each key, in the order of updates, within a bound. Owned by a table or its filling."""

    def __init__(self, keys_max: int, bytes_max: int) -> None:
        self.bytes = 0
        self.lossy = False  # it does not hold all keys, or could not read all records
        self.forgot_dead = False  # tombstones of some deleted keys, or hidden records, were dropped
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._entries: OrderedDict[bytes | None, TableEntry] = OrderedDict()
        self._dead: OrderedDict[bytes | None, None] = OrderedDict()  # keys whose entry is dead

    def __len__(self) -> int:
        return len(self._entries)

    def offer(self, key: bytes | None, entry: TableEntry) -> None:
        """Takes the entry, unless that of its key is newer."""
        entries, old = self._entries, self._entries.get(key)
        if old is None:
            self.bytes += ENTRY_OVERHEAD + len(key or b"")
        elif entry.beats(old):
            self.bytes -= len(old.fragment)
            entries.move_to_end(key)
        else:
            return
        entries[key] = entry
        self.bytes += len(entry.fragment)
        if entry.dead:
            self._dead[key] = None
            self._dead.move_to_end(key)
        elif old is not None and old.dead:
            del self._dead[key]

    def _remove(self, key: bytes | None) -> None:
        entry = self._entries.pop(key)
        self._dead.pop(key, None)
        self.bytes -= ENTRY_OVERHEAD + len(key or b"") + len(entry.fragment)

    def shrink(self) -> None:
        """Evicts dead entries first, then the least recently written ones."""
        while len(self._entries) > self._keys_max or (self.bytes > self._bytes_max and len(self._entries) > 1):
            if self._dead:
                self._remove(next(iter(self._dead)))
                self.forgot_dead = True
            else:
                self._remove(next(iter(self._entries)))
                self.lossy = True

    def cut(self, partition: int, offset: int) -> None:
        """Drops records from behind a truncation; the previous records of their keys are unknown."""
        for key in [
            key for key, entry in self._entries.items() if entry.partition == partition and entry.offset >= offset
        ]:
            self._remove(key)
            self.lossy = True

    def filled(self, filling: KeyEntries) -> None:
        """Adds older entries, read from the log. An entry that was dropped as dead may have an older one there."""
        before = self._entries
        self._entries, self._dead, self.bytes = OrderedDict(), OrderedDict(), 0
        for entries in (filling._entries, before):
            for key, entry in entries.items():
                self.offer(key, entry)
        self.lossy = self.lossy or filling.lossy or self.forgot_dead
        self.shrink()

    def since(self, version: int, partitions: frozenset[int] | None) -> list[TableEntry]:
        """Entries after a version, the oldest first."""
        found: list[TableEntry] = []
        for entry in reversed(self._entries.values()):
            if entry.version <= version:
                break
            if partitions is None or entry.partition in partitions:
                found.append(entry)
        found.reverse()
        return found

    def all(self) -> list[TableEntry]:
        return list(self._entries.values())


class NewestRecords:
    """The newest record of each key, and the newest that matches the filter: the same without a filter. Both are within
    `bytes_max` together."""

    def __init__(self, encoding: Encoding, keys_max: int, bytes_max: int) -> None:
        self.latest = self.matching = KeyEntries(keys_max, bytes_max)
        if encoding.filter is not None:
            self.latest, self.matching = KeyEntries(keys_max, bytes_max // 2), KeyEntries(keys_max, bytes_max // 2)

    @property
    def maps(self) -> tuple[KeyEntries, ...]:
        return (self.latest,) if self.matching is self.latest else (self.latest, self.matching)

    def take(self, found: Iterable[tuple[bytes | None, TableEntry]]) -> None:
        latest, matching = self.latest, self.matching
        for key, entry in found:
            latest.offer(key, entry)
            if matching is not latest and not entry.hidden:
                matching.offer(key, entry)
        for entries in self.maps:
            entries.shrink()


class LatestTable:
    """The table. Owned by a feed; lives while it has subscribers, and for a while after."""

    def __init__(
        self, ring: Ring, encoding: Encoding, keys_max: int, bytes_max: int,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:  # fmt: skip
        self.ring = ring
        self.encoding = encoding
        self.version = 0  # records received that match
        self.received: dict[int, int] = {}  # of those, by partition
        self.filled_from = {index: position.offset for index, position in ring.positions.items()}
        self.whole = False  # filled from the log start offset
        self._clock_us = clock_us
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._newest = NewestRecords(encoding, keys_max, bytes_max)

    def __len__(self) -> int:
        return len(self._newest.latest)

    @property
    def bytes(self) -> int:
        return sum(entries.bytes for entries in self._newest.maps)

    @property
    def lossy(self) -> bool:
        """Whether it does not hold all keys, or could not read all records."""
        return any(entries.lossy for entries in self._newest.maps)

    @property
    def forgot_dead(self) -> bool:
        """Whether tombstones of some deleted keys were dropped."""
        return self._newest.matching.forgot_dead

    def count(self, partitions: frozenset[int] | None) -> int:
        """Records received that match."""
        return received_of(self.received, partitions)

    # ---- arriving records

    def apply(self, source: Source) -> None:
        """Applies the next records."""
        found = list(self.encoding.entries(source, self.version))
        self._newest.take(found)
        before, self.version = self.version, found[-1][1].version if found else self.version
        self.received[source.partition] = self.received.get(source.partition, 0) + self.version - before

    def cut(self, partition: int, offset: int) -> None:
        """Handles a truncation: drops records from behind it; the previous records of their keys are unknown."""
        for entries in self._newest.maps:
            entries.cut(partition, offset)
        if offset < self.filled_from.get(partition, 0):
            self.filled_from[partition] = offset  # later records are applied at offsets that existed before

    def lacks(self, since: Mapping[int, CursorPosition] | None) -> bool:
        """Whether records written since are missing; None: of the whole log."""
        if self.whole or since is None:
            return not self.whole
        return any(position.offset < self.filled_from.get(index, 0) for index, position in since.items())

    def filling(self, begin: Mapping[int, int]) -> Filling:
        """An empty filling from `begin` on in each partition."""
        return Filling(self.encoding, begin, self._keys_max, self._bytes_max)

    def filled(self, filling: Filling) -> None:
        """Adds records read from the log before the applied ones. They are no change for subscribers."""
        for entries, older in zip(self._newest.maps, filling.newest.maps, strict=True):
            entries.filled(older)
        self.filled_from.update(filling.begin)
        self._newest.latest.lossy = self._newest.latest.lossy or filling.short

    # ---- queries

    def since(self, version: int, partitions: frozenset[int] | None) -> list[TableEntry]:
        """Matching entries after a version, the oldest first."""
        return self._unexpired(self._newest.matching.since(version, partitions))

    def all(self) -> list[TableEntry]:
        """The newest record of each key; some are dead."""
        return self._unexpired(self._newest.latest.all())

    def matching(self) -> list[TableEntry]:
        """The newest record of each key that matches."""
        return self._unexpired(self._newest.matching.all())

    def _unexpired(self, found: list[TableEntry]) -> list[TableEntry]:
        now_us = self._clock_us()
        return [entry for entry in found if not has_expired(entry.expires_us, now_us)]


def received_of(received: Mapping[int, int], partitions: frozenset[int] | None) -> int:
    """The records of some partitions."""
    return sum(received.values()) if partitions is None else sum(received.get(index, 0) for index in partitions)


class Filling:
    """Records read from the log to fill a table, from `begin` on in each partition."""

    def __init__(self, encoding: Encoding, begin: Mapping[int, int], keys_max: int, bytes_max: int) -> None:
        self.begin = dict(begin)
        self.short = False  # not all records are read
        self._encoding = encoding
        self.newest = NewestRecords(encoding, keys_max, bytes_max)

    def apply(self, source: Source, end: int) -> None:
        """Applies records before an offset: later ones are in the table."""
        entries = self._encoding.entries(source, 0, counted=False)
        self.newest.take(takewhile(lambda one: one[1].offset < end, entries))
