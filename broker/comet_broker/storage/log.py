"""The log of one partition: segments on disk, appended to at one end, deleted from the other.

    append, append_stamped   one write, no await     start_sync   ─► SyncTicket.run on a worker   ─► finish_sync
    extent                   a part to read          start_delete ─► DeleteTicket.run on a worker ─► finish_delete
    truncate, reset          truncation.py             start_retention: the same

Offsets are dense, rise for ever and are never given twice, also after a failure of the disk. A log that fails a sync is
poisoned: `failed` says why, nothing is appended any more, and its records can still be read. Only a follower gives
offsets again: it truncates its log to where the leader's log and its own agree.

Owned by its Partition; all methods run on the loop's thread unless they say otherwise. Opening and closing block.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from comet.errors import Closed, CometError, DiskFull, LimitExceeded, OffsetOutOfRange
from comet.types import TopicConfig
from comet_broker.core.producers import ProducerTable
from comet_broker.core.retention import Expired, SegmentFacts, expired_segments
from comet_broker.ports import Clock, Files
from comet_broker.storage import truncation
from comet_broker.storage.appending import Appended, Appending
from comet_broker.storage.aside import NotSetAside, set_aside
from comet_broker.storage.checkpoint import (
    Checkpoint,
    append_checkpoint,
    raise_checkpoint,
    replace_checkpoint,
    write_clean_marker,
)
from comet_broker.storage.delete import DeleteTicket
from comet_broker.storage.extent import Extent, ReadResult
from comet_broker.storage.layout import LogIdentity
from comet_broker.storage.limits import (
    WARM_SEGMENTS_MAX,
)
from comet_broker.storage.recovery import NO_SPACE, create_segment, recover
from comet_broker.storage.segment import Segment
from comet_broker.storage.sync import SyncTicket, write_snapshot
from comet_broker.storage.times import find_time

__all__ = ["Appended", "DeleteTicket", "Extent", "Log", "LogIdentity", "ReadResult", "SyncTicket"]


class Log(Appending):
    """The log of one partition. Created by `open`."""

    @classmethod
    def open(cls, files: Files, folder: str, identity: LogIdentity, config: TopicConfig, clock: Clock) -> Log:
        """Creates the log, or recovers an existing one. Blocks; raises OSError if the disk fails."""
        return cls(files, folder, identity, config, clock, recover(files, folder, identity, clock))

    # ---- syncing

    @property
    def unfinished(self) -> bool:
        """Whether sealed segments wait for a sync: they are not indexed on disk yet."""
        return bool(self._unsynced)

    def start_sync(self) -> SyncTicket | None:
        """A ticket for a sync; None if there is nothing to sync, or the log has failed."""
        if self.failed is not None or self._closed:
            return None
        if self.flushed_end == self.log_end and not self._unsynced:
            return None
        return self._ticket()

    def _ticket(self) -> SyncTicket:
        return SyncTicket(
            self._files,
            self._folder,
            self._state,
            sealed=tuple(self._unsynced),
            active=self._active,
            folder_version=self._folder_version,
            snapshots=tuple(self._snapshots),
            checkpoint=self._checkpoint(self.log_end),
        )

    def finish_sync(self, ticket: SyncTicket, error: OSError | None) -> None:
        """Takes the result of the ticket's run: `error` is the one that it raised."""
        ticket.release()
        if error is not None:
            self._poison(error, "syncing")
            return
        if self.failed is not None or ticket.outdated:
            return  # the result of a sync after a failed one cannot be trusted
        self.flushed_end = max(self.flushed_end, ticket.log_end)
        self._marked = max(self._marked, ticket.high_watermark)
        self._unsynced = [segment for segment in self._unsynced if segment not in ticket.sealed or not segment.indexed]
        self._snapshots = [snapshot for snapshot in self._snapshots if snapshot not in ticket.snapshots]
        for segment in ticket.sealed:
            self.was_read(segment)
        assert self.flushed_end <= self.log_end

    def note_high_watermark(self, high_watermark: int) -> None:
        """Notes the high watermark; a restart finds that of a recent sync. It falls only with the log end offset."""
        if self.high_watermark < high_watermark <= self.log_end:
            self.high_watermark = high_watermark

    @property
    def mark_due(self) -> bool:
        """Whether the high watermark is higher than the one noted on disk."""
        return self.high_watermark > self._marked and not self._closed and self.failed is None

    def write_mark(self) -> None:
        """Notes the high watermark on disk without a sync, so that it survives a kill of the process. Blocks, for a
        worker; may run beside other uses of the log."""
        with self._state.lock:
            if self.mark_due:
                checkpoint = self._checkpoint(self.flushed_end)
                with contextlib.suppress(OSError):  # the next time, then
                    append_checkpoint(self._files, self._folder, checkpoint)
                    self._marked = checkpoint.high_watermark

    # ---- reading

    def extent(self, offset: int, end: int | None = None) -> Extent:
        """An extent from `offset` to `end`, to be read and then released.

        Raises OffsetOutOfRange, or DataLoss for an offset that is known to be damaged.
        """
        if not self.log_start <= offset < self.log_end:
            raise OffsetOutOfRange(
                f"offset {offset} is out of range: the log holds {self.log_start} up to {self.log_end}",
                details={"log_start": str(self.log_start), "log_end": str(self.log_end)},
            )
        if self._closed:
            raise Closed("the log is closed")
        self._lost.refuse(offset)
        segment = self._active
        if offset < segment.base_offset:
            segment = self._segments[bisect_right(self._segments, offset, key=_base_offset) - 1]
        assert segment.base_offset <= offset < segment.next_offset
        return Extent(self, segment, offset, self.log_end if end is None else end)

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """The ranges of offsets that are known to be damaged."""
        return self._lost.ranges

    def quarantine(self, first: int, end: int) -> None:
        """Notes that these offsets are damaged, unless they are deleted or truncated."""
        first, end = max(first, self.log_start), min(end, self.log_end)
        if first < end:
            self._lost.add(first, end)

    def was_read(self, segment: Segment) -> None:
        """Keeps the last read sealed segments warm, up to WARM_SEGMENTS_MAX."""
        if not segment.sealed or segment.dropped:
            return
        self._warm[segment] = None
        self._warm.move_to_end(segment)
        while len(self._warm) > WARM_SEGMENTS_MAX:
            oldest, _ = self._warm.popitem(last=False)
            oldest.cool()

    def find_time(self, timestamp_us: int) -> int:
        """The first offset with a timestamp at or after the given one; the log end offset if there is none.

        Runs on a worker; may be called on any thread.
        """
        log_start, log_end = self.log_start, self.log_end
        found = find_time(self._segments, timestamp_us, log_start)
        # A truncation may have failed halfway.
        return log_end if found is None else min(max(found, log_start), log_end)

    # ---- deleting

    def start_retention(self, now_us: int, upto: int | None = None) -> DeleteTicket | None:
        """A ticket for the expired records below `upto`; None if there is nothing to delete."""
        if self._closed or self.failed is not None:
            return None
        count = self._count_expired([segment.facts() for segment in self._segments], self.config, now_us, upto)
        if not count:
            return None
        return self._delete_ticket(max(self.log_start, self._segments[count].base_offset))

    def expired(self, config: TopicConfig, now_us: int, upto: int) -> Expired:
        """The records that `maybe_roll` and `start_retention` would delete now with this configuration."""
        if self._closed or self.failed is not None:
            return Expired()
        facts = [segment.facts() for segment in self._segments]
        if self._is_due(config):  # then a new segment is written, and this one can expire
            facts.append(SegmentFacts(self.log_end, self.log_end, 0, now_us))
        count = self._count_expired(facts, config, now_us, upto)
        end = facts[count].base_offset
        return Expired(max(0, end - self.log_start), sum(one.bytes for one in facts[:count])) if count else Expired()

    def _count_expired(self, facts: Sequence[SegmentFacts], config: TopicConfig, now_us: int, upto: int | None) -> int:
        """The number of leading segments to delete, none with records at or above `upto`."""
        count = expired_segments(facts, config, now_us, self.log_start)
        while count and upto is not None and facts[count].base_offset > upto:
            count -= 1
        return count

    def start_delete(self, before: int) -> DeleteTicket | None:
        """A ticket to delete all records below `before`; None if they are deleted. See delete.py for its use."""
        if self._closed:
            raise Closed("the log is closed")
        if self.failed is not None:
            raise self.failed.with_traceback(None)
        if not 0 <= before <= self.log_end:
            raise OffsetOutOfRange(
                f"offset {before} is out of range: the log ends at {self.log_end}",
                details={"log_start": str(self.log_start), "log_end": str(self.log_end)},
            )
        if before <= self.log_start:
            return None
        if before == self.log_end and self._active.next_offset > self._active.base_offset:
            with contextlib.suppress(DiskFull, LimitExceeded):
                self._roll()  # so that all deleted records free their space
        return self._delete_ticket(before)

    def _delete_ticket(self, offset: int) -> DeleteTicket:
        assert self.log_start <= offset <= self.log_end
        return DeleteTicket(
            self._files,
            self._folder,
            self._state,
            offset=offset,
            outlived=[one for one, after in pairwise(self._segments) if after.base_offset <= offset],
            snapshots=[one for one in self._snapshots if one.offset <= max(offset, self.flushed_end)],
            checkpoint=self._checkpoint(self.flushed_end, offset),
        )

    def finish_delete(self, ticket: DeleteTicket, error: OSError | None) -> int:
        """Takes the result of the ticket's run: `error` is the one that it raised. Returns the log start offset.

        Raises DiskFull or LimitExceeded, with nothing changed, or LogFailed.
        """
        if ticket.outdated:
            return self.log_start
        if error is not None and not (error.errno in NO_SPACE and ticket.outlived):
            raise self._unchanged(error, "the new log start offset could not be written") from error
        self.log_start = max(self.log_start, ticket.offset)
        self._leaving = [segment for segment in self._leaving if not segment.gone]
        for segment in ticket.outlived:
            if segment in self._segments:
                self._segments.remove(segment)
                self._warm.pop(segment, None)
                self._unsynced = [other for other in self._unsynced if other is not segment]
                segment.drop()
                self._leaving.append(segment)
        self._lost.forget_before(self.log_start)
        self.epochs.forget_before(self.log_start)
        self.producers.isolation.forget_before(self.log_start)
        assert self._segments[-1] is self._active
        return self.log_start

    def apply_retention(self, now_us: int) -> int:
        """Deletes expired segments. Blocks. Returns the log start offset."""
        return self._delete(self.start_retention(now_us))

    def delete_before(self, offset: int) -> int:
        """Deletes all records below `offset`, durable when it returns. Blocks. Returns the log start offset."""
        return self._delete(self.start_delete(offset))

    def _delete(self, ticket: DeleteTicket | None) -> int:
        if ticket is None:
            return self.log_start
        error: OSError | None = None
        try:
            ticket.run()
        except OSError as caught:
            error = caught
        self.finish_delete(ticket, error)
        ticket.remove()
        return self.log_start

    # ---- truncation

    def truncate(self, offset: int) -> int:
        """Truncates the log to the last batch boundary up to `offset`, durable when it returns. Returns the log end
        offset.

        Blocks: for a worker, while no append, sync, deletion or close runs. Reading below `offset` may go on.
        Raises DiskFull or LimitExceeded, with nothing changed, or LogFailed.
        """
        self._require_open()
        if offset < self.log_start:
            raise OffsetOutOfRange(
                f"the log cannot be truncated to offset {offset}: it begins at {self.log_start}",
                details={"log_start": str(self.log_start), "log_end": str(self.log_end)},
            )
        if offset >= self.log_end:
            return self.log_end
        with self._state.lock:
            try:
                planned = truncation.plan(self._segments, offset, self.log_start)
                producers = truncation.producers(self._files, self._folder, self._state, self._snapshots, planned)
            except OSError as error:
                raise self._unchanged(error, "the log could not be read") from error
            self._truncate(planned, producers, planned.end)
        return self.log_end

    def set_aside(self, offset: int, *, restart: bool, epoch: int) -> str:
        """Copies the records that `truncate`, or with `restart` `reset`, is about to remove into a file beside the
        log; returns its path. Blocks, for a worker as they do. Raises NotSetAside; the log stays as it was."""
        self._require_open()
        now_us = self._clock.wall_us()
        with self._state.lock:
            try:
                everything = truncation.everything(self._segments, self.log_start)
                planned = everything if restart else truncation.plan(self._segments, offset, self.log_start)
                return set_aside(self._files, self._folder, self._identity, planned, epoch, self.log_end, now_us)
            except (OSError, CometError) as error:
                raise NotSetAside(f"the records to truncate could not be set aside: {error}") from error

    def reset(self, offset: int) -> None:
        """Removes all records: the log is empty and begins and ends at `offset`, durable when it returns.

        Blocks and raises as `truncate` does.
        """
        assert offset >= 0
        self._require_open()
        with self._state.lock:
            planned = truncation.everything(self._segments, self.log_start)._replace(forget_producers=True)
            self._truncate(planned, ProducerTable(), offset)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the log is closed")
        if self.failed is not None:
            raise self.failed.with_traceback(None)

    def _truncate(self, planned: truncation.Truncation, producers: ProducerTable, start: int) -> None:
        """Carries out a truncation. If no segment stays, the log goes on at `start`."""
        end, known = planned.end, self.high_watermark
        high_watermark = min(known, end)
        checkpoint = Checkpoint(min(self.flushed_end, end), self.log_start, high_watermark)
        try:
            replace_checkpoint(self._files, self._folder, checkpoint)
        except OSError as error:
            raise self._unchanged(error, "the truncation could not be written") from error
        # From here on no new read begins in the part that goes.
        self._state.truncations += 1
        self.log_end, self.flushed_end, self.high_watermark = end, checkpoint.synced_end, high_watermark
        self._marked = high_watermark
        self.producers = producers
        producers.isolation.forget_before(self.log_start if planned.stay else start)
        self.epochs.truncate(end if planned.stay else 0)
        self._lost.forget_from(end)
        self._snapshots = [snapshot for snapshot in self._snapshots if planned.outlived_by(snapshot.offset)]
        for segment in (*planned.go, *planned.stay[-1:]):
            self._warm.pop(segment, None)
        try:
            for segment in self._leaving:
                segment.unlink()
            truncation.carry_out(self._files, self._folder, self._state, planned, self.epochs)
            if not planned.stay:
                self._restart(start, min(known, start))
            elif planned.position is None:
                self._go_on(planned.stay)
            else:
                self._take_segments(planned.stay)
        except OSError as error:
            raise self._poison(error, "truncating") from error

    def _go_on(self, stay: Sequence[Segment]) -> None:
        """Begins a segment after a truncation at the end of another one."""
        segment = create_segment(self._files, self._folder, self._identity, self.log_end, self._clock.wall_us())
        self._take_segments((*stay, segment))
        self._sync_new(segment)

    def _restart(self, start: int, high_watermark: int) -> None:
        """Begins and ends at `start`; at no moment does the log seem to hold records."""
        if start != self.log_start:
            self.high_watermark = high_watermark
            replace_checkpoint(self._files, self._folder, Checkpoint(start, start, self.high_watermark))
        self._restart_at(start)
        self._sync_new(self._active)
        self.log_start = max(self.log_start, start)
        self.log_end = self.flushed_end = start
        self.log_start = start

    def _sync_new(self, segment: Segment) -> None:
        assert segment.file is not None
        segment.file.sync()
        self._files.sync_folder(self._folder)

    # ---- closing

    def close(self) -> None:
        """Syncs, and writes the files that make the next opening quick. Blocks; to be called once, from a worker."""
        if self._closed:
            return
        try:
            if self.failed is None:
                self._close_clean()
        finally:
            self._closed = True
            self._room = 0
            for segment in self._segments:
                segment.retire()

    def _close_clean(self) -> None:
        if self.flushed_end < self.log_end or self._unsynced:
            ticket = self._ticket()
            error: OSError | None = None
            try:
                ticket.run()
            except OSError as caught:
                error = caught
            self.finish_sync(ticket, error)
            if self.failed is not None:
                raise self.failed
        # From here on all files are derived: a missing one only makes the next opening slower.
        with contextlib.suppress(OSError), self._state.lock:
            write_snapshot(self._files, self._folder, self._state, self.producers.snapshot(self.log_end))
            assert self._active.file is not None
            self._active.file.truncate(self._active.size)  # frees the reserved space
            self._active.file.sync()
            self._active.write_index()
            raise_checkpoint(self._files, self._folder, self._checkpoint(self.log_end))
            write_clean_marker(self._files, self._folder, self.log_end, self._active.size)

    @property
    def size_bytes(self) -> int:
        """The size on disk."""
        segments = self._segments
        return segments[0].size if len(segments) == 1 else sum(segment.size for segment in segments)

    @property
    def last_append_us(self) -> int | None:
        """The append time of the last batch, by its leader's clock; None if the log is empty."""
        for segment in reversed(self._segments):
            if segment.next_offset > segment.base_offset:
                return segment.last_append_us
        return None

    def statistics(self) -> dict[str, Any]:
        """A snapshot of the log's numbers."""
        return {
            "log_start": self.log_start,
            "log_end": self.log_end,
            "flushed_end": self.flushed_end,
            "bytes": self.size_bytes,
            "segments": len(self._segments),
            "rolls": self._rolls,
            **self.producers.statistics(),
            "requests": len(self.producers.requests),
            **self.producers.isolation.statistics(),
            "lost_ranges": len(self.lost),
            "failed": self.failed.message if self.failed is not None else "",
            "derived_failures": self._state.derived_failures,
            "recovered_clean": self.recovered.clean,
            "recovered_scanned_bytes": self.recovered.scanned_bytes,
            "recovered_cut_bytes": self.recovered.cut_bytes,
        }


def write_marks(logs: Sequence[Log]) -> None:
    for log in logs:
        log.write_mark()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
