"""A readable part of a log, created on the loop's thread and read there or on a worker.

    extent = log.extent(offset, high_watermark)
    try:
        result = extent.read(buffer, wait=False)      # on the loop: only what is in memory
        if result is None:
            result = await worker.run(lambda: extent.read(buffer, wait=True))
    finally:
        extent.release()

It reads whole batches, each verified, from the one that holds the offset. An extent sees the log as it was at its
creation: batches appended later are not read, and segments deleted later still are.

If a checksum is wrong, or the disk cannot read, DataLoss names the damaged offsets, and `release` notes them in the
log. If the log was truncated meanwhile, a failed read raises Truncated, and nothing is noted.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from typing import Final, NamedTuple

from comet.errors import Truncated
from comet_broker.ports import File
from comet_broker.storage.index import Index
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES
from comet_broker.storage.lost import data_loss
from comet_broker.storage.scan import ENDED, resync, whole_batches
from comet_broker.storage.segment_list import SegmentList
from comet_broker.storage.state import LogState

_PAGE_BYTES: Final = 4096


class ReadResult(NamedTuple):
    """`size` bytes of whole batches, and the offset that follows them. With a size of 0, the first batch needs a
    buffer of `needed` bytes."""

    size: int
    next_offset: int
    needed: int = 0


class Extent:
    """A readable part of one segment. Used by one thread at a time, released once, on the loop's thread."""

    def __init__(self, state: LogState, segments: SegmentList, offset: int, end: int) -> None:
        segment = segments.at(offset)
        assert offset < end, "there is nothing to read below the end"
        self._state = state
        self._segments = segments
        self._segment = segment
        self._offset = offset
        self._end = min(end, segment.next_offset)
        self._limit = segment.size
        self._limit_offset = segment.next_offset
        self._truncations = segment.truncations
        self._damage: list[tuple[int, int]] = []
        self._released = False
        # The progress of the walk towards the offset; a position of -1: not begun.
        self._position = segment.hints.get(offset, -1)
        self._expected = offset
        self._arrived = self._position >= 0
        self._stopped_at: tuple[int, int] | None = None
        segment.pin()

    def read(self, into: memoryview, *, wait: bool) -> ReadResult | None:
        """Fills `into` with the batches from the one that holds the offset. Without `wait`, None if that would block.

        Raises DataLoss for a damaged or unreadable batch, OSError if the file cannot be opened, Truncated.
        """
        assert not self._released
        segment = self._segment
        if wait:
            try:
                segment.warm_up()
            except FileNotFoundError:
                self._refuse_if_truncated()
                raise
        file, index = segment.file, segment.index
        if file is None or index is None:
            return None
        if self._position < 0:
            stretch = index.find(self._offset)
            if stretch >= 0:
                self._position, self._expected = index.positions[stretch], index.offsets[stretch]
            else:  # the segment begins with damage, so that no entry of a rebuilt index lies before the offset
                self._position, self._expected = SEGMENT_HEADER_BYTES, segment.base_offset
            self._arrived = self._expected == self._offset
        return self._read(file, index, into, wait=wait)

    def _read(self, file: File, index: Index, into: memoryview, *, wait: bool) -> ReadResult | None:
        while True:
            view = into[: self._limit - self._position]
            view = view[: self._fill(file, view) if wait else file.read_cached(self._position, view)]
            goal = self._end if self._arrived else self._offset
            size, expected, stopped = whole_batches(view, self._expected, goal)
            if self._arrived and (size or stopped == ENDED):
                self._stopped_at = (expected, self._position + size)
                return ReadResult(size, expected)
            self._position += size
            self._expected = expected
            if stopped == ENDED:
                self._arrived = True
            elif size:
                continue  # stepped over earlier batches; read on from there
            elif len(into) < stopped <= self._limit - self._position:
                return ReadResult(0, self._offset, needed=stopped)
            elif wait:
                self._step_over_damage(file, index)
            else:
                return None  # not in memory, or damaged: a read with `wait` finds out

    def _fill(self, file: File, into: memoryview) -> int:
        """Reads at the walk's position, up to the first page that the disk cannot read."""
        try:
            return file.read_into(self._position, into)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        filled = 0
        while filled < len(into):
            page = into[filled : filled + _PAGE_BYTES]
            try:
                got = file.read_into(self._position + filled, page)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                break
            filled += got
            if got < len(page):
                break
        return filled

    def _step_over_damage(self, file: File, index: Index) -> None:
        """Skips the damage at the walk's position; raises DataLoss if the offset lies in it."""
        first = self._expected
        known = bisect_right(index.positions, self._position)
        at, offset = self._limit, self._limit_offset
        if known < len(index.offsets) and index.positions[known] < self._limit:
            at, offset = index.positions[known], index.offsets[known]
        try:
            found = resync(file, self._position, self._limit, first, at=at, offset=offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # An unreadable stretch cannot be searched: it is skipped up to the next one that the index knows.
            position, end = at, offset
        else:
            position = self._limit if found is None else found.position
            end = self._limit_offset if found is None else found.header.base_offset
        self._refuse_if_truncated()
        self._damage.append((first, end))
        if self._offset < end:
            raise data_loss(first, end)
        self._position, self._expected = position, end
        self._arrived = end == self._offset

    @property
    def _truncated(self) -> bool:
        """Whether the log was truncated in this segment or before it since the extent was created."""
        return self._segment.truncations != self._truncations or self._segment.gone

    def _refuse_if_truncated(self) -> None:
        if self._truncated:
            end = self._state.log_end
            raise Truncated(f"the log was truncated to offset {end} while it was read", details={"log_end": str(end)})

    def release(self) -> None:
        """Releases the segment. On the loop's thread, once, also after a failed read."""
        assert not self._released
        self._released = True
        if not self._truncated:
            if self._stopped_at is not None:
                self._segment.remember(*self._stopped_at)
            for first, end in self._damage:
                self._state.quarantine(first, end)
        self._segment.unpin()
        self._segments.was_read(self._segment)
