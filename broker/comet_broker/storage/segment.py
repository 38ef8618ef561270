"""One segment: a file of batches, its properties, and the pins of its readers.

    written ──seal──► sealed ──sync──► synced, index written ──► warm or cold ──drop──► gone once it has no readers
       ▲                                                             │
       └───────────────────────────truncate──────────────────────────┘

The last segment of a log is written; all others are sealed. A sealed one is *cold* until it is read: its file is closed
and its index not in memory, so that a log of a thousand segments costs a thousand small objects.

Owned by one Log. Its properties change on the loop's thread only. Readers on other threads pin it first: a pinned
segment keeps its file open and on disk, also after a deletion or truncation.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Final

from comet.records import BatchHeader
from comet_broker.core.epochs import Entry
from comet_broker.core.retention import SegmentFacts
from comet_broker.ports import Buffer, File, Files
from comet_broker.storage.index import STRETCH_BYTES, Index, IndexHeader, read_index
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, index_name, segment_name
from comet_broker.storage.scan import Found, walk

HINTS_MAX: Final = 64
_LOWEST: Final = -(1 << 63)


class Segment:
    def __init__(self, files: Files, folder: str, base_offset: int, created_us: int) -> None:
        self.base_offset = base_offset
        self.created_us = created_us
        self.path = f"{folder}/{segment_name(base_offset)}"
        self.index_path = f"{folder}/{index_name(base_offset)}"
        self.next_offset = base_offset
        self.size = SEGMENT_HEADER_BYTES
        self.max_timestamp_us = _LOWEST
        self.last_append_us = created_us
        self.file: File | None = None
        self.index: Index | None = None
        self.sealed = False
        self.synced = False  # all of it, as a sealed segment
        self.indexed = False  # its index file is written
        self.hints: dict[int, int] = {}  # offset -> position at which readers stopped and will go on
        self.truncations = 0  # truncations of the log within it
        self._files = files
        self._pins = 0
        self.gone = False  # its files are removed
        self._dropped = False
        self._retired = False
        self._lock = threading.Lock()  # of the pins; held for a moment only, because the loop takes it, too
        self._warming = threading.Lock()

    # ---- writing

    def append(
        self, parts: Sequence[Buffer], header: BatchHeader, base_offset: int, append_time_us: int, epoch: int
    ) -> None:
        """Writes one batch, stamped with this offset, time and epoch; on failure nothing has changed."""
        assert not self.sealed
        assert self.file is not None
        self.file.append(parts)
        self.note(header, self.size, base_offset, append_time_us, epoch)
        assert self.file.size == self.size, "offsets and positions go together"

    def note(self, header: BatchHeader, position: int, base_offset: int, append_time_us: int, epoch: int) -> None:
        """Adds the batch at `position` to the properties and the index."""
        index = self.index
        assert index is not None
        assert position >= self.size
        if not index.positions or position - index.positions[-1] >= STRETCH_BYTES or base_offset != self.next_offset:
            index.begin(base_offset, position)
        if epoch != index.last_epoch:
            index.begin_epoch(epoch, base_offset)
        latest = header.max_timestamp_us
        index.cover(latest)
        if latest > self.max_timestamp_us:  # noqa: PLR1730 - max() costs 60 ns, and this is every append
            self.max_timestamp_us = latest
        self.last_append_us = append_time_us
        self.next_offset = base_offset + header.last_offset_delta + 1
        self.size = position + header.length

    def seal(self) -> None:
        assert not self.sealed
        self.sealed = True

    def sync_sealed(self) -> None:
        """Frees the reserved space, and syncs the file. On a worker."""
        assert self.sealed
        assert self.file is not None
        self.file.truncate(self.size)
        self.file.sync()
        self.synced = True

    def write_index(self) -> None:
        """Writes the index file, only after the segment's sync: the file is the proof of it."""
        assert self.index is not None
        self._files.write_atomic(self.index_path, self.index.encode(self.index_header()))
        self.indexed = True

    def index_header(self) -> IndexHeader:
        assert self.index is not None
        return IndexHeader(
            entries=len(self.index),
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            segment_bytes=self.size,
            max_timestamp_us=self.max_timestamp_us,
            last_append_us=self.last_append_us,
            epochs=tuple(self.index.epochs),
        )

    def truncate(self, position: int, next_offset: int, epochs: list[Entry]) -> None:
        """Truncates a pinned segment without index file, on disk too, to be written again. On a worker."""
        _, index = self.warm_up()
        self.truncations += 1  # first of all: readers beyond the cut check it when they fail
        self.hints = {}
        self.index = index.up_to(position, epochs)
        self.next_offset, self.size = next_offset, position
        if next_offset == self.base_offset:
            self.max_timestamp_us, self.last_append_us = _LOWEST, self.created_us
        assert self.file is not None
        self.file.truncate(position)
        self.file.sync()
        self.sealed = self.synced = self.indexed = False

    def facts(self) -> SegmentFacts:
        return SegmentFacts(self.base_offset, self.next_offset, self.size, self.last_append_us)

    # ---- reading

    def warm_up(self) -> tuple[File, Index]:
        """Opens the file and reads the index, for a caller that has pinned the segment and may block."""
        assert self._pins > 0
        with self._warming:
            if self.file is None:
                self.file = self._files.open(self.path)
            if self.index is None:
                self.index = self._read_index() or self._rebuild_index(self.file)
            return self.file, self.index

    def _read_index(self) -> Index | None:
        try:
            loaded = read_index(self._files.read_all(self.index_path))
        except OSError:
            return None
        if loaded is None or loaded[0].segment_bytes != self.size or loaded[0].base_offset != self.base_offset:
            return None
        return loaded[1]

    def _rebuild_index(self, file: File) -> Index:
        copy = Segment(self._files, "", self.base_offset, self.created_us)
        copy.index = Index()
        for item in walk(file, SEGMENT_HEADER_BYTES, self.size, self.base_offset):
            if isinstance(item, Found):
                found = item.header
                copy.note(found, item.position, found.base_offset, found.append_time_us, found.leader_epoch)
        return copy.index

    def remember(self, offset: int, position: int) -> None:
        """Notes the position at which a reader stopped: it will read this offset next."""
        hints = self.hints
        hints[offset] = position
        if len(hints) > HINTS_MAX:
            del hints[next(iter(hints))]

    # ---- pins and removal

    def pin(self) -> None:
        with self._lock:
            assert not self._dropped
            self._pins += 1

    def try_pin(self) -> bool:
        """Pins the segment from another thread; False if it is deleted or closed."""
        with self._lock:
            if self._dropped or self._retired:
                return False
            self._pins += 1
            return True

    def unpin(self) -> None:
        with self._lock:
            self._pins -= 1
            assert self._pins >= 0
            last = self._pins == 0
        if last:
            self.settle()

    @property
    def dropped(self) -> bool:
        return self._dropped

    def drop(self) -> None:
        """The log no longer has it: its files go at the next `settle` without readers."""
        with self._lock:
            self._dropped = True

    def supersede(self) -> None:
        """Another segment has its file's name now: it is read to the end by those who have begun."""
        with self._lock:
            assert self._pins > 0 and self.file is not None
            self._dropped = self.gone = True

    def unlink(self) -> None:
        """Removes its files at once, also under readers, because others may soon have their names. On a worker,
        durable with the folder's next sync. Raises OSError."""
        with self._lock:
            self._dropped = True
            gone, self.gone = self.gone, True
        if not gone:
            for path in (self.index_path, self.path):
                if self._files.exists(path):
                    self._files.remove(path)
        self.settle()

    def retire(self) -> None:
        """The log is closed: the file is closed once it has no readers."""
        with self._lock:
            self._retired = True
        self.settle()

    def cool(self) -> None:
        """Closes the file and drops the index of a sealed segment without readers; the active one stays open."""
        with self._lock:
            if self._pins == 0 and self.synced and self.indexed:
                self._close()
                self.index = None

    def rest(self) -> bool:
        """Closes the file of the active segment, all of which its caller knows to be on disk; the index stays. False
        while it has readers, or is synced."""
        assert not self.sealed
        with self._lock:
            if self._pins == 0:
                self._close()
            return self.file is None

    def settle(self) -> None:
        """Closes a retired or dropped segment, and removes the files of a dropped one, once it has no readers."""
        with self._lock:
            if self._pins or not (self._dropped or self._retired):
                return
            self._close()
            remove, self.gone = self._dropped and not self.gone, self.gone or self._dropped
        if remove:
            # A file that cannot be removed now is below the log start offset, and goes when the log is opened next.
            for path in (self.path, self.index_path):
                with contextlib.suppress(OSError):
                    self._files.remove(path)

    def _close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
