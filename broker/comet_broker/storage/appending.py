"""Appending to a log: writes batches, begins segments, and classifies failures.

    append            stamped here, by the leader      ─┐
    append_stamped    as the leader stamped it         ─┴─► room ─► one write ─► offsets, epochs, producers

A write that finds no space, or no descriptor, has changed nothing and may be retried. Any other failure poisons the
log: `failed` says why, and it takes no more writes.

The base of Log (log.py): owned by a Partition, on the loop's thread.
"""

from __future__ import annotations

import contextlib
import errno
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from comet.errors import Closed, CometError, DiskFull, LimitExceeded, LogFailed, OffsetOutOfRange
from comet.records import STAMP_BYTES, BatchHeader, Buffer, Flag, Marker, decode, make_stamp, marker_of
from comet.types import TopicConfig
from comet_broker.core.producers import ProducerSnapshot
from comet_broker.ports import Clock, Files
from comet_broker.storage.checkpoint import Checkpoint
from comet_broker.storage.layout import LogIdentity
from comet_broker.storage.limits import (
    FREE_BYTES_MIN,
    RESERVE_AHEAD_BYTES_MAX,
    RESERVE_FROM_BYTES,
    ROOM_STEP_BYTES,
)
from comet_broker.storage.lost import LostRanges
from comet_broker.storage.recovery import NO_SPACE, Recovered, create_segment
from comet_broker.storage.segment import Segment
from comet_broker.storage.sync import SyncState

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_OFFSET_MAX: Final = (1 << 63) - 1
_CONTROL: Final = int(Flag.CONTROL)


class Appended(NamedTuple):
    """The result of an append: the batch's offset, time and stamp."""

    base_offset: int
    append_time_us: int
    stamp: bytes


class Appending:
    def __init__(
        self,
        files: Files,
        folder: str,
        identity: LogIdentity,
        config: TopicConfig,
        clock: Clock,
        recovered: Recovered,
    ) -> None:
        self.config = config
        self.log_start = recovered.log_start
        self.log_end = recovered.log_end
        self.flushed_end = recovered.log_end
        self.failed: CometError | None = None
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.high_watermark = min(recovered.high_watermark, recovered.log_end)  # as last noted; 0: never
        self._marked = self.high_watermark  # as last noted on disk
        self.recovered = recovered
        self._files = files
        self._folder = folder
        self._identity = identity
        self._clock = clock
        self._segments = recovered.segments
        self._active = recovered.segments[-1]
        self._room = 0  # the active segment may grow to this size before free space is checked
        self._reserved = 0  # the size for which disk space is reserved
        self._unsynced: list[Segment] = []  # sealed, and not known to be on disk, or not yet indexed
        self._snapshots: list[ProducerSnapshot] = []  # to be written: that of the opening, one of each roll
        self._folder_version = 0
        self._state = SyncState(recovered.snapshots)
        self._warm: OrderedDict[Segment, None] = OrderedDict()
        self._leaving: list[Segment] = []  # deleted, but perhaps still read
        self._lost = LostRanges(recovered.lost)
        self._closed = False
        self._rolls = 0
        self._written_at = clock.monotonic()
        if recovered.log_end not in recovered.snapshots:
            self._snapshots.append(self.producers.snapshot(recovered.log_end))
        for segment in self._segments[:-1]:
            segment.cool()

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._room = 0

    def idle_us(self) -> int:
        """The time since the last write, or since the log was opened."""
        return round(1_000_000 * (self._clock.monotonic() - self._written_at))

    # ---- appending

    def append(self, header: BatchHeader, batch: Buffer, leader_epoch: int) -> Appended:
        """Stamps and writes one batch that its caller has verified and checked against `producers`.

        Raises DiskFull, with nothing changed, or LogFailed.
        """
        assert header.length == len(batch)
        base_offset = self.log_end
        now = self._clock.wall_us()
        if base_offset + header.last_offset_delta >= _OFFSET_MAX:
            raise LimitExceeded(f"the log ends at offset {base_offset}: no offsets are left; use another topic")
        stamp = make_stamp(base_offset, now, leader_epoch, header.length)
        marker = _marker(batch) if header.flags & _CONTROL else None
        self._write((stamp, memoryview(batch)[STAMP_BYTES:]), header, base_offset, now, leader_epoch, marker)
        return Appended(base_offset, now, stamp)

    def append_stamped(self, header: BatchHeader, batch: Buffer) -> None:
        """Writes one batch with the leader's stamp, which its caller has verified.

        It must begin where the log ends; in a log without records it may also hold that offset. Raises
        OffsetOutOfRange if not, DiskFull, with nothing changed, or LogFailed.
        """
        assert header.length == len(batch)
        base_offset = header.base_offset
        if base_offset != self.log_end:
            self._begin_within(header)
        marker = _marker(batch) if header.flags & _CONTROL else None
        self._write((batch,), header, base_offset, header.append_time_us, header.leader_epoch, marker)

    def _write(
        self,
        parts: Sequence[Buffer],
        header: BatchHeader,
        base_offset: int,
        append_time_us: int,
        epoch: int,
        marker: Marker | None,
    ) -> None:
        if self.failed is not None:
            raise self.failed.with_traceback(None)
        segment = self._active
        if segment.size + header.length > self._room:
            segment = self._make_room(header.length)
        before = segment.size
        try:
            segment.append(parts, header, base_offset, append_time_us, epoch)
        except OSError as error:
            raise self._write_failed(error, segment) from error
        assert segment.size == before + header.length
        self.log_end = base_offset + header.last_offset_delta + 1
        if epoch != self.epochs.last_epoch:
            self.epochs.begin(epoch, base_offset)
        self._written_at = self._clock.monotonic()
        if header.producer_id:
            self.producers.record(header, base_offset, append_time_us, marker)

    def _begin_within(self, header: BatchHeader) -> None:
        """Restarts an empty log for a batch that begins below the log start offset and reaches beyond it: the leader's
        log starts in the middle of it."""
        active = self._active
        if not (
            self.log_start == self.log_end
            and header.base_offset < self.log_end < header.next_offset
            and active.next_offset == active.base_offset
        ):
            raise OffsetOutOfRange(
                f"a batch at offset {header.base_offset} does not follow the log, which ends at {self.log_end}",
                details={"log_start": str(self.log_start), "log_end": str(self.log_end)},
            )
        if self._closed:
            raise Closed("the log is closed")
        if self.failed is not None:
            raise self.failed.with_traceback(None)
        try:
            # The empty segment goes first: beside the new one, it would mean that all records before it are deleted.
            for segment in self._segments:
                segment.unlink()
            self.epochs.truncate(0)
            self._restart_at(header.base_offset)
        except OSError as error:
            raise self._poison(error, "adding a file to") from error

    def _make_room(self, length: int) -> Segment:
        """Rolls to a new segment if this one is full, and reserves space ahead of the writes."""
        if self._closed:
            raise Closed("the log is closed")
        segment = self._active
        if segment.size + length > self.config.segment_bytes and segment.next_offset > segment.base_offset:
            self._roll()
            segment = self._active
        self._require_space()
        size = segment.size + length
        self._room = max(min(size + ROOM_STEP_BYTES, self.config.segment_bytes), size)
        if size >= RESERVE_FROM_BYTES and self._room > self._reserved:
            assert segment.file is not None
            ahead = min(size, RESERVE_AHEAD_BYTES_MAX)
            self._reserved = max(min(size + ahead, self.config.segment_bytes), size)
            # A write may find space although the reservation found none.
            with contextlib.suppress(OSError):
                segment.file.reserve(self._reserved)
        return segment

    def _require_space(self) -> None:
        try:
            free = self._files.free_bytes()
        except OSError:
            return
        if free < FREE_BYTES_MIN:
            self._room = 0  # check again at the next append
            raise _disk_full(
                f"only {free} bytes are left; the last {FREE_BYTES_MIN} are reserved for deleting and metadata"
            )

    def _write_failed(self, error: OSError, segment: Segment) -> CometError:
        self._room = 0
        torn = segment.file is not None and segment.file.torn
        if error.errno in NO_SPACE and not torn:
            return _disk_full("the batch did not fit")
        return self._poison(error, "writing to")

    def _unchanged(self, error: OSError, what: str) -> CometError:
        """The error for a failure before any change: a retryable one, or the disk is broken."""
        if error.errno in NO_SPACE:
            return _disk_full(what)
        if error.errno in _NO_DESCRIPTORS:
            return LimitExceeded(
                f"{what}: the broker has no file descriptors left; raise its limit", retry_after_ms=1000
            )
        return self._poison(error, "syncing")

    def _poison(self, error: OSError, doing: str) -> CometError:
        if self.failed is None:
            self.failed = LogFailed(
                f"{doing} the log on this broker's disk failed ({error.strerror or error}); it takes no more writes",
                details={"errno": errno.errorcode.get(error.errno or 0, str(error.errno))},
            )
            self._room = 0
        return self.failed

    def _roll(self) -> None:
        """Seals the active segment and begins the next; on failure nothing has changed."""
        try:
            segment = create_segment(self._files, self._folder, self._identity, self.log_end, self._clock.wall_us())
        except OSError as error:
            raise self._unchanged(error, "a new segment could not be made") from error
        self._active.seal()
        self._unsynced.append(self._active)
        self._snapshots.append(self.producers.snapshot(self.log_end))
        self._segments.append(segment)
        self._active = segment
        self._folder_version += 1
        self._room = self._reserved = 0
        self._rolls += 1
        assert self._segments[-2].next_offset <= segment.base_offset == self.log_end

    def maybe_roll(self) -> None:
        """Rolls if the active segment is older than segment_ms and not empty, so that retention can delete it."""
        if self.failed is None and not self._closed and self._is_due(self.config):
            self._roll()

    def _is_due(self, config: TopicConfig) -> bool:
        """Whether the active segment is older than segment_ms and not empty."""
        segment = self._active
        age_us = self._clock.wall_us() - segment.created_us
        return segment.next_offset > segment.base_offset and age_us >= config.segment_ms * 1000

    def _restart_at(self, base_offset: int) -> None:
        """Continues with one new segment only; the earlier ones are unlinked already."""
        segment = create_segment(self._files, self._folder, self._identity, base_offset, self._clock.wall_us())
        self._take_segments((segment,))

    def _take_segments(self, segments: Sequence[Segment]) -> None:
        self._unsynced = [segment for segment in self._unsynced if segment in segments and segment.sealed]
        self._segments, self._active = list(segments), segments[-1]
        self._folder_version += 1
        self._room = self._reserved = 0

    def _checkpoint(self, synced_end: int, log_start: int = -1) -> Checkpoint:
        return Checkpoint(synced_end, max(log_start, self.log_start), self.high_watermark)


def _marker(batch: Buffer) -> Marker:
    return marker_of(decode(batch, check=False))


def _disk_full(reason: str) -> DiskFull:
    return DiskFull(f"the broker's disk is full: {reason}; free some space, writes then resume", retry_after_ms=1000)
