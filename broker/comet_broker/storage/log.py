"""The log of one partition: segments on disk, appended to at one end, deleted from the other.

    append            stamped here, by the leader      ─┐
    append_stamped    as the leader stamped it         ─┴─► room ─► one write ─► offsets, epochs, producers

    extent       a part to read                                 extent.py
    segments     which one holds an offset, the next one        segment_list.py
    durability   start_sync ─► on a worker ─► finish_sync        durability.py
    deletion     retention, deletion, truncation                deletion.py
    compaction   superseded records, by key                     compaction.py
    state        what they have in common                       state.py

Each offset is covered by one batch. Offsets rise for ever and are never given twice, also after a failure of the disk.
A log that fails a sync is poisoned: `failed` says why, nothing is appended any more, and its records can still be read.
Only a follower gives offsets again: it truncates its log to where the leader's log and its own agree.

Owned by its Partition; all methods run on the loop's thread unless they say otherwise. Opening and closing block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from comet.errors import Closed, CometError, LimitExceeded, LogFailed, OffsetOutOfRange
from comet.records import (
    STAMP_BYTES,
    BatchHeader,
    Buffer,
    CompactionPlan,
    Flag,
    Marker,
    control_of,
    decode,
    make_stamp,
)
from comet.settings.topic import TopicConfig
from comet_broker.core.epochs import EpochHistory
from comet_broker.core.producers import ProducerTable
from comet_broker.ports import Clock, Files
from comet_broker.storage.compaction import Compaction
from comet_broker.storage.deletion import DeleteTicket, Deletion
from comet_broker.storage.durability import Durability
from comet_broker.storage.extent import Extent, ReadResult
from comet_broker.storage.layout import LogIdentity
from comet_broker.storage.limits import REST_S
from comet_broker.storage.recovery import NO_SPACE, Recovered, recover
from comet_broker.storage.segment import Segment
from comet_broker.storage.segment_list import SegmentList
from comet_broker.storage.state import LogFolder, LogState, disk_full
from comet_broker.storage.sync import SyncTicket

__all__ = ["Appended", "DeleteTicket", "Extent", "Log", "LogIdentity", "ReadResult", "SyncTicket"]

_OFFSET_MAX: Final = (1 << 63) - 1
_CONTROL: Final = int(Flag.CONTROL)


class Appended(NamedTuple):
    """The result of an append: the batch's offset, time and stamp."""

    base_offset: int
    append_time_us: int
    stamp: bytes


class Log:
    """The log of one partition. Created by `open`."""

    def __init__(self, folder: LogFolder, config: TopicConfig, recovered: Recovered) -> None:
        self.recovered = recovered
        self.state = LogState(config, recovered)
        self.segments = SegmentList(folder, self.state, recovered.segments)
        self.durability = Durability(folder, self.state, self.segments, recovered.snapshots)
        self.deletion = Deletion(folder, self.state, self.segments, self.durability.sync_state)
        self.compaction = Compaction(folder, self.state, self.segments, self.deletion, self.durability.sync_state)
        self._clock = folder.clock
        self._written_at = self._clock.monotonic()

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        identity: LogIdentity,
        config: TopicConfig,
        clock: Clock,
        note_missing: Callable[[], None],
        *,
        closed_at: int = 0,
    ) -> Log:
        """Creates the log, or recovers an existing one; see `recover`. Blocks; raises OSError if the disk fails."""
        recovered = recover(files, folder, identity, clock, note_missing, closed_at)
        log = cls(LogFolder(files, folder, identity, clock), config, recovered)
        log.segments.rest(active=True)  # recovery has synced it; thousands of idle logs need no descriptors
        return log

    # ---- its state

    @property
    def config(self) -> TopicConfig:
        return self.state.config

    @property
    def log_start(self) -> int:
        return self.state.log_start

    @property
    def log_end(self) -> int:
        return self.state.log_end

    @property
    def flushed_end(self) -> int:
        return self.state.flushed_end

    @property
    def high_watermark(self) -> int:
        """The high watermark as last noted; 0: never."""
        return self.state.high_watermark

    @property
    def failed(self) -> LogFailed | None:
        """Why the log takes no more writes."""
        return self.state.failed

    @property
    def producers(self) -> ProducerTable:
        return self.state.producers

    @property
    def epochs(self) -> EpochHistory:
        return self.state.epochs

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """The ranges of offsets that are known to be damaged."""
        return self.state.lost.ranges

    def configure(self, config: TopicConfig) -> None:
        self.state.configure(config)

    def idle_us(self) -> int:
        """The time since the last write, or since the log was opened."""
        return round(1_000_000 * (self._clock.monotonic() - self._written_at))

    def rest(self) -> None:
        """Closes files that are not in use: those of sealed segments that were not read since the last call, and after
        REST_S without a write that of the active one. While nothing truncates or closes the log."""
        self.segments.rest(active=self.idle_us() >= REST_S * 1_000_000)

    # ---- appending

    def append(self, header: BatchHeader, batch: Buffer, leader_epoch: int) -> Appended:
        """Stamps and writes one batch that its caller has verified and checked against `producers`.

        Raises DiskFull, with nothing changed, or LogFailed.
        """
        assert header.length == len(batch)
        base_offset = self.state.log_end
        now = self._clock.wall_us()
        if base_offset + header.last_offset_delta >= _OFFSET_MAX:
            raise LimitExceeded(f"the log ends at offset {base_offset}: no offsets are left; use another topic")
        stamp = make_stamp(base_offset, now, leader_epoch, header.length)
        control = _control(batch) if header.flags & _CONTROL else None
        self._write((stamp, memoryview(batch)[STAMP_BYTES:]), header, base_offset, now, leader_epoch, control)
        return Appended(base_offset, now, stamp)

    def append_stamped(self, header: BatchHeader, batch: Buffer) -> None:
        """Writes one batch with the leader's stamp, which its caller has verified.

        It must begin where the log ends; in a log without records it may also hold that offset. Raises
        OffsetOutOfRange if not, DiskFull, with nothing changed, or LogFailed.
        """
        assert header.length == len(batch)
        base_offset = header.base_offset
        if base_offset != self.state.log_end:
            self._begin_within(header)
        control = _control(batch) if header.flags & _CONTROL else None
        self._write((batch,), header, base_offset, header.append_time_us, header.leader_epoch, control)

    def _write(
        self,
        parts: Sequence[Buffer],
        header: BatchHeader,
        base_offset: int,
        append_time_us: int,
        epoch: int,
        control: Marker | CompactionPlan | None,
    ) -> None:
        state, segment = self.state, self.segments.active
        if segment.size + header.length > state.room:
            segment = self._make_room(header.length)
        before = segment.size
        try:
            segment.append(parts, header, base_offset, append_time_us, epoch)
        except OSError as error:
            raise self._write_failed(error, segment) from error
        assert segment.size == before + header.length
        state.log_end = base_offset + header.last_offset_delta + 1
        if epoch != state.epochs.last_epoch:
            state.epochs.begin(epoch, base_offset)
        self._written_at = self._clock.monotonic()
        if header.producer_id:
            state.producers.record(header, base_offset, append_time_us, control)
        elif isinstance(control, CompactionPlan):
            state.compaction.note(base_offset, epoch, control)

    def _make_room(self, length: int) -> Segment:
        if self.state.failed is not None:
            raise self.state.failed.with_traceback(None)
        if self.state.closed:
            raise Closed("the log is closed")
        return self.segments.make_room(length)

    def _write_failed(self, error: OSError, segment: Segment) -> CometError:
        self.state.room = 0
        torn = segment.file is not None and segment.file.torn
        if error.errno in NO_SPACE and not torn:
            return disk_full("the batch did not fit")
        return self.state.poison(error, "writing to")

    def _begin_within(self, header: BatchHeader) -> None:
        """Restarts an empty log for a batch that begins below the log start offset and reaches beyond it: the leader's
        log starts in the middle of it."""
        state, active = self.state, self.segments.active
        if not (
            state.log_start == state.log_end
            and header.base_offset < state.log_end < header.next_offset
            and active.next_offset == active.base_offset
        ):
            raise OffsetOutOfRange(
                f"a batch at offset {header.base_offset} does not follow the log, which ends at {state.log_end}",
                details={"log_start": str(state.log_start), "log_end": str(state.log_end)},
            )
        state.require_open()
        try:
            # The empty segment goes first: beside the new one, it would mean that all records before it are deleted.
            for segment in self.segments.all:
                segment.unlink()
            state.epochs.truncate(0)
            self.segments.restart_at(header.base_offset)
        except OSError as error:
            raise state.poison(error, "adding a file to") from error

    # ---- reading

    def extent(self, offset: int, end: int | None = None) -> Extent:
        """An extent from `offset` to `end`, to be read and then released.

        Raises OffsetOutOfRange, or DataLoss for an offset that is known to be damaged.
        """
        state = self.state
        if not state.log_start <= offset < state.log_end:
            raise OffsetOutOfRange(
                f"offset {offset} is out of range: the log holds {state.log_start} up to {state.log_end}",
                details={"log_start": str(state.log_start), "log_end": str(state.log_end)},
            )
        if state.closed:
            raise Closed("the log is closed")
        state.lost.refuse(offset)
        return Extent(state, self.segments, offset, state.log_end if end is None else end)

    # ---- closing

    def close(self) -> None:
        """Syncs, and writes the files that make the next opening quick. Blocks; to be called once, from a worker."""
        if self.state.closed:
            return
        try:
            if self.state.failed is None:
                self.durability.close()
        finally:
            self.state.close()
            self.segments.retire()

    def statistics(self) -> dict[str, Any]:
        """A snapshot of the log's numbers."""
        state = self.state
        return {
            "log_start": state.log_start,
            "log_end": state.log_end,
            "flushed_end": state.flushed_end,
            "bytes": self.segments.size_bytes,
            "segments": len(self.segments),
            "rolls": self.segments.rolls,
            **state.producers.statistics(),
            "requests": len(state.producers.requests),
            **state.producers.isolation.statistics(),
            "lost_ranges": len(self.lost),
            "compactions": self.compaction.rounds,
            "compacted_records": self.compaction.removed_records,
            "compaction_read_bytes": self.compaction.read_bytes,
            "compaction_remaining_records": self.compaction.remaining_records,
            "failed": state.failed.message if state.failed is not None else "",
            "derived_failures": self.durability.sync_state.derived_failures,
            "recovered_clean": self.recovered.clean,
            "recovered_scanned_bytes": self.recovered.scanned_bytes,
            "recovered_cut_bytes": self.recovered.cut_bytes,
        }


def write_marks(logs: Sequence[Log]) -> None:
    for log in logs:
        log.durability.write_mark()


def _control(batch: Buffer) -> Marker | CompactionPlan:
    return control_of(decode(batch, check=False))
