"""Truncation of a log: a follower removes records that its leader lacks, or damaged ones that it fetches again.

    plan       reads: finds the batch boundary, the segment that is cut there, and the segments that go
    producers  reads: restores the producer table at the boundary
    carry_out  changes the disk, in an order in which a crash at any point leaves a log without gaps:

        the checkpoint, so that no record behind the cut counts as synced      (the caller)
        the index files of all segments that are cut or go, for the same reason, and producer snapshots behind the cut
        the folder; then segments from the last one backwards, and the end of the one that is cut; the folder again

Until it has finished, recovery finds the old log, or a part of it that reaches at least to the cut. Blocks; runs on a
worker while nothing is appended, synced or deleted.
"""

from __future__ import annotations

import contextlib
import errno
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from comet.errors import CometError
from comet_broker.core.epochs import EpochHistory
from comet_broker.core.producers import ProducerSnapshot, ProducerTable
from comet_broker.ports import Files
from comet_broker.storage.layout import SEGMENT_HEADER_BYTES, producers_name
from comet_broker.storage.scan import Damage, Found, walk
from comet_broker.storage.segment import Segment
from comet_broker.storage.sync import SyncState


class Truncation(NamedTuple):
    """A planned truncation: the segments that stay, those that go, and the position of the cut."""

    end: int  # the log end offset afterwards
    stay: tuple[Segment, ...]
    go: tuple[Segment, ...]
    position: int | None  # where the last one that stays is cut; None: it stays whole
    forget_producers: bool = False

    def outlived_by(self, snapshot_offset: int) -> bool:
        """Whether a producer snapshot of that offset stays valid."""
        return snapshot_offset <= self.end and not self.forget_producers


def plan(segments: Sequence[Segment], offset: int, log_start: int) -> Truncation:
    """The truncation at the last batch boundary up to `offset`, or at the log start offset if that lies above it."""
    stay = bisect_right(segments, offset, key=_base_offset)
    if not stay:
        return everything(segments, log_start)
    last = segments[stay - 1]
    if last.next_offset == last.base_offset:
        position, end = SEGMENT_HEADER_BYTES, last.base_offset
    elif offset >= last.next_offset:
        return Truncation(last.next_offset, tuple(segments[:stay]), tuple(segments[stay:]), None)
    else:
        position, end = _boundary(last, offset)
    if end < log_start:
        return everything(segments, log_start)
    return Truncation(end, tuple(segments[:stay]), tuple(segments[stay:]), position)


def everything(segments: Sequence[Segment], log_start: int) -> Truncation:
    return Truncation(log_start, (), tuple(segments), None)


def _boundary(segment: Segment, offset: int) -> tuple[int, int]:
    """Position and offset of the batch, or the damage, that holds the offset."""
    segment.pin()
    try:
        file, index = segment.warm_up()
        stretch = index.find(offset)
        position, first = SEGMENT_HEADER_BYTES, segment.base_offset
        if stretch >= 0:
            position, first = index.positions[stretch], index.offsets[stretch]
        try:
            for item in walk(file, position, segment.size, first):
                if isinstance(item, Damage):
                    if item.end is None or item.end > offset:
                        return item.position, item.first
                elif item.header.next_offset > offset:
                    return item.position, item.header.base_offset
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return position, first  # a boundary, too: the unreadable part is removed
        return segment.size, segment.next_offset
    finally:
        segment.unpin()


def producers(
    files: Files,
    folder: str,
    state: SyncState,
    snapshots: Sequence[ProducerSnapshot],
    planned: Truncation,
) -> ProducerTable:
    """The producer table at the end of the cut: from the last snapshot before it, and the batches in between."""
    begin, table = -1, ProducerTable()
    for snapshot in snapshots:
        if begin < snapshot.offset <= planned.end:
            begin, table = ProducerTable.restore(snapshot.encode())
    for offset in state.snapshots:
        if begin < offset <= planned.end:
            with contextlib.suppress(CometError, FileNotFoundError):
                begin, table = ProducerTable.restore(files.read_all(f"{folder}/{producers_name(offset)}"))
    for segment in planned.stay:
        if segment.next_offset > begin:
            _record(segment, begin, planned, table)
    return table


def _record(segment: Segment, begin: int, planned: Truncation, table: ProducerTable) -> None:
    segment.pin()
    try:
        file, index = segment.warm_up()
        stretch = max(index.find(begin), 0)
        position, first = SEGMENT_HEADER_BYTES, segment.base_offset
        if len(index) and stretch:
            position, first = index.positions[stretch], index.offsets[stretch]
        last = segment is planned.stay[-1] and planned.position is not None
        limit = planned.position if last and planned.position is not None else segment.size
        for item in walk(file, position, limit, first):
            if isinstance(item, Found) and item.header.base_offset >= begin:
                table.record(item.header, item.header.base_offset, item.header.append_time_us, item.control)
    finally:
        segment.unpin()


def carry_out(files: Files, folder: str, state: SyncState, planned: Truncation, epochs: EpochHistory) -> None:
    """Carries out a truncation, except for the checkpoint, which the caller writes before. Raises OSError halfway."""
    last = planned.stay[-1] if planned.position is not None else None
    for segment in (*planned.go, *((last,) if last is not None else ())):
        if files.exists(segment.index_path):
            files.remove(segment.index_path)
    for offset in [offset for offset in state.snapshots if not planned.outlived_by(offset)]:
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{producers_name(offset)}")
        state.snapshots.remove(offset)
    files.sync_folder(folder)
    for segment in reversed(planned.go):
        segment.unlink()
    if last is not None:
        assert planned.position is not None
        last.pin()
        try:
            last.truncate(planned.position, planned.end, epochs.within(last.base_offset, planned.end))
        finally:
            last.unpin()
    files.sync_folder(folder)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
