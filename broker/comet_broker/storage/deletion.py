"""Deletion from a log: from the start, by retention or request, and from the end, by truncation.

    loop     ticket = deletion.start_delete(before), deletion.start_retention(now)     None: all records stay
    worker   ticket.run()                             notes the new log start offset durably
    loop     deletion.finish_delete(ticket, error)    moves log_start; no new read begins below it
    worker   ticket.remove()                          deletes the files without readers

    worker   deletion.truncate(offset), deletion.reset(offset)      see truncation.py; nothing else uses the log

From the start: first on disk, then in memory, then the files, so that after an interruption at any point the log start
offset does not go back. Only if the disk is too full to note it do the files go first. A file that is still read goes
when its readers have left; a truncation, which may need its name again, unlinks it.

Owned by a Log; on the loop's thread, except for what blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

from comet.errors import CometError, DiskFull, LimitExceeded, OffsetOutOfRange
from comet.settings.topic import TopicConfig
from comet_broker.core.producers import ProducerSnapshot, ProducerTable
from comet_broker.core.retention import Expired, SegmentFacts, expired_segments
from comet_broker.ports import Files
from comet_broker.storage import truncation
from comet_broker.storage.aside import NotSetAside, set_aside
from comet_broker.storage.checkpoint import Checkpoint, raise_checkpoint, replace_checkpoint
from comet_broker.storage.recovery import NO_SPACE
from comet_broker.storage.segment import Segment
from comet_broker.storage.segment_list import SegmentList
from comet_broker.storage.state import LogFolder, LogState
from comet_broker.storage.sync import SyncState, write_snapshot


class DeleteTicket:
    """One deletion from the start. `outlived` are the segments that go."""

    def __init__(
        self,
        files: Files,
        folder: str,
        state: SyncState,
        *,
        offset: int,
        outlived: Sequence[Segment],
        snapshots: Sequence[ProducerSnapshot],
        checkpoint: Checkpoint,
    ) -> None:
        self.offset = offset
        self.outlived = outlived
        self._files = files
        self._folder = folder
        self._state = state
        self._snapshots = snapshots
        self._checkpoint = checkpoint
        self._truncations = state.truncations
        self._noted = False

    @property
    def outdated(self) -> bool:
        """Whether the log was truncated since."""
        return self._truncations != self._state.truncations

    def run(self) -> None:
        """Notes the new log start offset. Blocks. On OSError only derived files may have changed."""
        with self._state.lock:
            if not self.outdated:
                self._note()

    def _note(self) -> None:
        # The producers' state in the segments that go is put into a snapshot first.
        for snapshot in self._snapshots:
            if snapshot.offset not in self._state.snapshots:
                write_snapshot(self._files, self._folder, self._state, snapshot)
        raise_checkpoint(self._files, self._folder, self._checkpoint)
        self._noted = True

    def remove(self) -> None:
        """Removes the files. Blocks. Files that cannot be removed now go when the log is opened next."""
        for segment in self.outlived:
            if segment.dropped:
                segment.settle()
        with self._state.lock, contextlib.suppress(OSError):
            if not self._noted and not self.outdated:
                self._note()


class Deletion:
    """Owned by a Log."""

    def __init__(self, folder: LogFolder, state: LogState, segments: SegmentList, sync_state: SyncState) -> None:
        self._folder = folder
        self._state = state
        self._segments = segments
        self._sync_state = sync_state
        self._leaving: list[Segment] = []  # deleted, but perhaps still read

    # ---- from the start

    def start_retention(self, now_us: int, upto: int | None = None) -> DeleteTicket | None:
        """A ticket for the expired records below `upto`; None if all stay."""
        state, segments = self._state, self._segments.all
        if state.closed or state.failed is not None:
            return None
        count = self._count_expired(self._segments.facts(), state.config, now_us, upto)
        if not count:
            return None
        return self._ticket(max(state.log_start, segments[count].base_offset))

    def expired(self, config: TopicConfig, now_us: int, upto: int) -> Expired:
        """The records that `roll_by_age` and `start_retention` would delete now with this configuration."""
        state = self._state
        if state.closed or state.failed is not None:
            return Expired()
        facts = self._segments.facts()
        if self._segments.is_old(config):  # then a new segment is written, and this one can expire
            facts.append(SegmentFacts(state.log_end, state.log_end, 0, now_us))
        count = self._count_expired(facts, config, now_us, upto)
        if not count:
            return Expired()
        return Expired(max(0, facts[count].base_offset - state.log_start), sum(one.bytes for one in facts[:count]))

    def _count_expired(self, facts: Sequence[SegmentFacts], config: TopicConfig, now_us: int, upto: int | None) -> int:
        """The number of leading segments to delete, none with records at or above `upto`."""
        count = expired_segments(facts, config, now_us, self._state.log_start)
        while count and upto is not None and facts[count].base_offset > upto:
            count -= 1
        return count

    def start_delete(self, before: int) -> DeleteTicket | None:
        """A ticket to delete all records below `before`; None if they are deleted."""
        state = self._state
        state.require_open()
        if not 0 <= before <= state.log_end:
            raise OffsetOutOfRange(
                f"offset {before} is out of range: the log ends at {state.log_end}",
                details={"log_start": str(state.log_start), "log_end": str(state.log_end)},
            )
        if before <= state.log_start:
            return None
        active = self._segments.active
        if before == state.log_end and active.next_offset > active.base_offset:
            with contextlib.suppress(DiskFull, LimitExceeded):
                self._segments.roll()  # so that all deleted records free their space
        return self._ticket(before)

    def _ticket(self, offset: int) -> DeleteTicket:
        state = self._state
        assert state.log_start <= offset <= state.log_end
        return DeleteTicket(
            self._folder.files,
            self._folder.path,
            self._sync_state,
            offset=offset,
            outlived=[one for one, after in pairwise(self._segments.all) if after.base_offset <= offset],
            snapshots=[one for one in state.snapshots if one.offset <= max(offset, state.flushed_end)],
            checkpoint=state.checkpoint(state.flushed_end, offset),
        )

    def finish_delete(self, ticket: DeleteTicket, error: OSError | None) -> int:
        """Takes the result of the ticket's run: `error` is the one that it raised. Returns the log start offset.

        Raises DiskFull or LimitExceeded, with nothing changed, or LogFailed.
        """
        state = self._state
        if ticket.outdated:
            return state.log_start
        if error is not None and not (error.errno in NO_SPACE and ticket.outlived):
            raise state.unchanged(error, "the new log start offset could not be written") from error
        self._leaving = [segment for segment in self._leaving if not segment.gone]
        self._leaving += [segment for segment in ticket.outlived if self._segments.drop(segment)]
        state.begin_at(ticket.offset)
        return state.log_start

    def leave(self, segments: Sequence[Segment]) -> None:
        """Takes segments that the log no longer reads, and that go once they have no readers."""
        self._leaving = [*(segment for segment in self._leaving if not segment.gone), *segments]

    # ---- from the end

    def truncate(self, offset: int) -> int:
        """Truncates the log to the last batch boundary up to `offset`, durable when it returns. Returns the log end
        offset.

        Blocks: for a worker, while no append, sync, deletion or close runs. Reading below `offset` may go on.
        Raises DiskFull or LimitExceeded, with nothing changed, or LogFailed.
        """
        state = self._state
        state.require_open()
        if offset < state.log_start:
            raise OffsetOutOfRange(
                f"the log cannot be truncated to offset {offset}: it begins at {state.log_start}",
                details={"log_start": str(state.log_start), "log_end": str(state.log_end)},
            )
        if offset >= state.log_end:
            return state.log_end
        files, folder = self._folder.files, self._folder.path
        with self._sync_state.lock:
            try:
                planned = truncation.plan(self._segments.all, offset, state.log_start)
                producers = truncation.producers(files, folder, self._sync_state, state.snapshots, planned)
            except OSError as error:
                raise state.unchanged(error, "the log could not be read") from error
            self._truncate(planned, producers, planned.end)
        return state.log_end

    def reset(self, offset: int) -> None:
        """Removes all records: the log is empty and begins and ends at `offset`, durable when it returns.

        Blocks and raises as `truncate` does.
        """
        assert offset >= 0
        self._state.require_open()
        with self._sync_state.lock:
            planned = truncation.everything(self._segments.all, self._state.log_start)
            self._truncate(planned._replace(forget_producers=True), ProducerTable(), offset)

    def set_aside(self, offset: int, *, restart: bool, epoch: int) -> str:
        """Copies the records that `truncate`, or with `restart` `reset`, is about to remove into a file beside the
        log; returns its path. Blocks, for a worker as they do. Raises NotSetAside; the log stays as it was."""
        state, (files, folder, identity, clock) = self._state, self._folder
        state.require_open()
        now_us = clock.wall_us()
        with self._sync_state.lock:
            try:
                everything = truncation.everything(self._segments.all, state.log_start)
                planned = everything if restart else truncation.plan(self._segments.all, offset, state.log_start)
                return set_aside(files, folder, identity, planned, epoch, state.log_end, now_us)
            except (OSError, CometError) as error:
                raise NotSetAside(f"the records to truncate could not be set aside: {error}") from error

    def _truncate(self, planned: truncation.Truncation, producers: ProducerTable, start: int) -> None:
        """Carries out a truncation. If no segment stays, the log goes on at `start`."""
        (files, folder, _, _), state, segments = self._folder, self._state, self._segments
        end, known = planned.end, state.high_watermark
        try:
            replace_checkpoint(files, folder, Checkpoint(min(state.flushed_end, end), state.log_start, min(known, end)))
        except OSError as error:
            raise state.unchanged(error, "the truncation could not be written") from error
        # From here on no new read begins in the part that goes.
        self._sync_state.truncations += 1
        state.truncate(planned, producers, start)
        for segment in (*planned.go, *planned.stay[-1:]):
            segments.forget_warm(segment)
        try:
            for segment in self._leaving:
                segment.unlink()
            truncation.carry_out(files, folder, self._sync_state, planned, state.epochs)
            if not planned.stay:
                self._restart(start, min(known, start))
            elif planned.position is None:  # at the end of a segment: another one begins
                self._begin_segment(state.log_end, planned.stay)
            else:
                segments.replace(planned.stay)
        except OSError as error:
            raise state.poison(error, "truncating") from error

    def _restart(self, start: int, high_watermark: int) -> None:
        """Begins and ends at `start`; at no moment does the log seem to hold records."""
        state = self._state
        if start != state.log_start:
            state.high_watermark = high_watermark
            replace_checkpoint(self._folder.files, self._folder.path, Checkpoint(start, start, high_watermark))
        self._begin_segment(start, ())
        state.restart(start)

    def _begin_segment(self, base_offset: int, stay: Sequence[Segment]) -> None:
        segment = self._folder.create_segment(base_offset)
        self._segments.replace((*stay, segment))
        assert segment.file is not None
        segment.file.sync()
        self._folder.files.sync_folder(self._folder.path)
