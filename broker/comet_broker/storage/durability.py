"""The part of a log that is on disk: syncs, the notes of the high watermark, and the files of a clean end.

    start_sync ─► SyncTicket.run on a worker ─► finish_sync      flushed_end moves, or the log is poisoned
    note_high_watermark ─► the next sync, or write_mark on a worker
    close                                                        the last sync, and the files for a quick opening

An fsync that failed is never tried again: the log takes no more writes, and its records can still be read.

Owned by a Log; all methods run on the loop's thread unless they say otherwise.
"""

from __future__ import annotations

import contextlib

import msgspec

from comet_broker.storage.checkpoint import append_checkpoint, raise_checkpoint, write_clean_marker
from comet_broker.storage.segment_list import SegmentList
from comet_broker.storage.state import LogFolder, LogState
from comet_broker.storage.sync import SyncState, SyncTicket, note_plan, write_snapshot


class Durability:
    def __init__(self, folder: LogFolder, state: LogState, segments: SegmentList, snapshots: list[int]) -> None:
        self.sync_state = SyncState(snapshots)
        self.closed_clean = False  # the clean marker proves where the log ended
        self._folder = folder
        self._state = state
        self._segments = segments

    @property
    def unfinished(self) -> bool:
        """Whether sealed segments wait for a sync: they are not indexed on disk yet."""
        return bool(self._segments.unsynced)

    def start_sync(self) -> SyncTicket | None:
        """A ticket for a sync; None if all is synced, or the log has failed."""
        state = self._state
        if state.failed is not None or state.closed:
            return None
        if state.flushed_end == state.log_end and not self._segments.unsynced:
            return None
        return self._ticket()

    def _ticket(self) -> SyncTicket:
        state, segments = self._state, self._segments
        return SyncTicket(
            self._folder.files,
            self._folder.path,
            self.sync_state,
            sealed=tuple(segments.unsynced),
            active=segments.active,
            folder_version=segments.folder_version,
            snapshots=tuple(state.snapshots),
            checkpoint=state.checkpoint(state.log_end),
            notes=msgspec.structs.replace(state.compaction),
        )

    def finish_sync(self, ticket: SyncTicket, error: OSError | None) -> None:
        """Takes the result of the ticket's run: `error` is the one that it raised."""
        state = self._state
        ticket.release()
        if error is not None:
            state.poison(error, "syncing")
            return
        if state.failed is not None or ticket.outdated:
            return  # the result of a sync after a failed one cannot be trusted
        state.flushed_end = max(state.flushed_end, ticket.log_end)
        state.marked = max(state.marked, ticket.high_watermark)
        state.snapshots = [snapshot for snapshot in state.snapshots if snapshot not in ticket.snapshots]
        self._segments.synced(ticket.sealed)
        assert state.flushed_end <= state.log_end

    # ---- the high watermark

    def note_high_watermark(self, high_watermark: int) -> None:
        """Notes the high watermark; a restart finds that of a recent sync. It falls only with the log end offset."""
        if self._state.high_watermark < high_watermark <= self._state.log_end:
            self._state.high_watermark = high_watermark

    @property
    def mark_due(self) -> bool:
        """Whether the high watermark is higher than the one noted on disk."""
        state = self._state
        return state.high_watermark > state.marked and not state.closed and state.failed is None

    def write_mark(self) -> None:
        """Notes the high watermark on disk without a sync, so that it survives a kill of the process. Blocks, for a
        worker; may run beside other uses of the log."""
        with self.sync_state.lock:
            if self.mark_due:
                checkpoint = self._state.checkpoint(self._state.flushed_end)
                with contextlib.suppress(OSError):  # the next time, then
                    append_checkpoint(self._folder.files, self._folder.path, checkpoint)
                    self._state.marked = checkpoint.high_watermark

    # ---- closing

    def close(self) -> None:
        """Syncs the rest, and writes the files that make the next opening quick. Blocks. Raises LogFailed."""
        state = self._state
        if state.flushed_end < state.log_end or self.unfinished:
            ticket = self._ticket()
            error: OSError | None = None
            try:
                ticket.run()
            except OSError as caught:
                error = caught
            self.finish_sync(ticket, error)
            if state.failed is not None:
                raise state.failed
        # From here on all files are derived: a missing one only makes the next opening slower.
        with contextlib.suppress(OSError), self.sync_state.lock:
            self._write_clean_end()
            self.closed_clean = True

    def _write_clean_end(self) -> None:
        (files, folder, _, _), state, active = self._folder, self._state, self._segments.active
        write_snapshot(files, folder, self.sync_state, state.producers.snapshot(state.log_end))
        active.pin()
        try:
            file, _ = active.warm_up()
            file.truncate(active.size)  # frees the reserved space
            file.sync()
        finally:
            active.unpin()
        note_plan(files, folder, self.sync_state, state.compaction)
        active.write_index()
        raise_checkpoint(files, folder, state.checkpoint(state.log_end))
        write_clean_marker(files, folder, state.log_end, active.size)
