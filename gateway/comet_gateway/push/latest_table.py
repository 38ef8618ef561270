"""A table of latest values: the newest record of each key of a topic, in the order of their numbered updates.

The newest is the last received of the same partition; between partitions, the one with the later timestamp. Records
without a key count as one key. `latest_fanout` serves tables to subscribers.

An entry that has expired is neither in a snapshot nor among changes.

Pure: no I/O; the clock is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Final, NamedTuple

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
    dead: bool  # a tombstone
    expires_us: int = 0  # 0: never

    def beats(self, other: TableEntry) -> bool:
        """Whether it is newer; both may have been read from the log."""
        if self.partition == other.partition:
            return self.offset >= other.offset
        return self.timestamp_us >= other.timestamp_us


class LatestTable:
    """The table. Owned by a feed; lives while it has subscribers, and for a while after."""

    def __init__(
        self, ring: Ring, values: Values, keys_max: int, bytes_max: int, clock_us: Callable[[], int] = wall_clock_us
    ) -> None:
        self.ring = ring
        self.values = values
        self.version = 0
        self.bytes = 0
        self.lossy = False  # it does not hold all keys, or could not read all records
        self.forgot_dead = False  # tombstones of some deleted keys were dropped
        self.filled_from = {index: position.offset for index, position in ring.positions.items()}
        self.whole = False  # filled from the log start offset
        self._clock_us = clock_us
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._entries: OrderedDict[bytes | None, TableEntry] = OrderedDict()
        self._dead: OrderedDict[bytes | None, None] = OrderedDict()  # keys whose entry is a tombstone

    def __len__(self) -> int:
        return len(self._entries)

    # ---- arriving records

    def apply(self, source: Source) -> None:
        """Applies the next records."""
        entries, partition, version = self._entries, source.partition, self.version
        batch = source.batch
        for key, value, offset, timestamp_us, fragment, expires_us in zip(
            batch.keys,
            batch.values,
            source.offsets,
            batch.timestamps,
            source.fragments(self.values),
            repeat(0, len(source)) if source.expiry is None else source.expiry,
            strict=True,
        ):
            version += 1
            old = entries.get(key)
            if old is not None and old.partition != partition and old.timestamp_us > timestamp_us:
                continue
            self._put(key, TableEntry(version, partition, offset, timestamp_us, fragment, value is None, expires_us))
        self.version = version
        self._shrink()

    def _put(self, key: bytes | None, entry: TableEntry) -> None:
        old = self._entries.get(key)
        if old is not None:
            self.bytes -= len(old.fragment)
            self._entries.move_to_end(key)
        else:
            self.bytes += ENTRY_OVERHEAD + len(key or b"")
        self._entries[key] = entry
        self.bytes += len(entry.fragment)
        if entry.dead:
            self._dead[key] = None
            self._dead.move_to_end(key)
        elif old is not None and old.dead:
            del self._dead[key]

    def _remove(self, key: bytes | None) -> TableEntry:
        entry = self._entries.pop(key)
        self._dead.pop(key, None)
        self.bytes -= ENTRY_OVERHEAD + len(key or b"") + len(entry.fragment)
        return entry

    def _shrink(self) -> None:
        """Evicts deleted keys first, then the least recently written ones."""
        while len(self._entries) > self._keys_max or (self.bytes > self._bytes_max and len(self._entries) > 1):
            if self._dead:
                self._remove(next(iter(self._dead)))
                self.forgot_dead = True
            else:
                self._remove(next(iter(self._entries)))
                self.lossy = True

    def cut(self, partition: int, offset: int) -> None:
        """Handles a truncation: drops records from behind it; the previous records of their keys are unknown."""
        for key in [
            key for key, entry in self._entries.items() if entry.partition == partition and entry.offset >= offset
        ]:
            self._remove(key)
            self.lossy = True
        if offset < self.filled_from.get(partition, 0):
            self.filled_from[partition] = offset  # later records are applied at offsets that existed before

    def lacks(self, since: Mapping[int, CursorPosition] | None) -> bool:
        """Whether records written since are missing; None: of the whole log."""
        if self.whole or since is None:
            return not self.whole
        return any(position.offset < self.filled_from.get(index, 0) for index, position in since.items())

    def filled(self, filling: Filling) -> None:
        """Adds records read from the log before the applied ones. They are no change for subscribers."""
        before = self._entries
        self._entries, self._dead, self.bytes = OrderedDict(), OrderedDict(), 0
        for key, entry in filling.entries.items():
            self._put(key, entry)
        for key, entry in before.items():
            old = self._entries.get(key)
            if old is None or entry.beats(old):
                self._put(key, entry)
        self.filled_from.update(filling.begin)
        self.lossy = self.lossy or filling.lossy
        self._shrink()

    # ---- queries

    def since(self, version: int, partitions: frozenset[int] | None) -> list[TableEntry]:
        """Entries after a version, the oldest first."""
        found: list[TableEntry] = []
        for entry in reversed(self._entries.values()):
            if entry.version <= version:
                break
            if partitions is None or entry.partition in partitions:
                found.append(entry)
        found.reverse()
        return self._unexpired(found)

    def all(self) -> list[TableEntry]:
        return self._unexpired(list(self._entries.values()))

    def _unexpired(self, found: list[TableEntry]) -> list[TableEntry]:
        now_us = self._clock_us()
        return [entry for entry in found if not has_expired(entry.expires_us, now_us)]


class Filling:
    """Records read from the log to fill a table, from `begin` on in each partition."""

    def __init__(self, table: LatestTable, begin: Mapping[int, int]) -> None:
        self.begin = dict(begin)
        self.entries: OrderedDict[bytes | None, TableEntry] = OrderedDict()
        self.lossy = False
        self._values = table.values
        self._keys_max = table._keys_max
        self._bytes_max = table._bytes_max
        self._bytes = 0

    def apply(self, source: Source, end: int) -> None:
        """Applies records before an offset: later ones are in the table."""
        batch, partition = source.batch, source.partition
        for key, value, offset, timestamp_us, fragment, expires_us in zip(
            batch.keys,
            batch.values,
            source.offsets,
            batch.timestamps,
            source.fragments(self._values),
            repeat(0, len(source)) if source.expiry is None else source.expiry,
            strict=True,
        ):
            if offset >= end:
                break
            entry = TableEntry(0, partition, offset, timestamp_us, fragment, value is None, expires_us)
            old = self.entries.get(key)
            if old is None:
                self._bytes += ENTRY_OVERHEAD + len(key or b"") + len(fragment)
            elif entry.beats(old):
                self._bytes += len(fragment) - len(old.fragment)
                self.entries.move_to_end(key)
            else:
                continue
            self.entries[key] = entry
        while len(self.entries) > self._keys_max or (self._bytes > self._bytes_max and len(self.entries) > 1):
            key, old = self.entries.popitem(last=False)
            self._bytes -= ENTRY_OVERHEAD + len(key or b"") + len(old.fragment)
            self.lossy = self.lossy or not old.dead
