"""Syncing a log on a worker thread, in the order in which it was written.

    loop     ticket = durability.start_sync()          the unsynced parts
    worker   ticket.run()                              sealed segments, the last one, the folder; then derived files
    loop     durability.finish_sync(ticket, error)     moves flushed_end, or poisons the log

A failed fsync is final. The kernel reports it once, marks the pages clean and lets the next fsync succeed, so
nothing may be synced after it: syncs of one log take turns, and all after a failed one fail with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence
from typing import Final

from comet_broker.core.producers import ProducerSnapshot
from comet_broker.ports import Files
from comet_broker.storage.checkpoint import Checkpoint, append_checkpoint
from comet_broker.storage.compaction_notes import CompactionNotes, PlanInLog, write_notes
from comet_broker.storage.layout import producers_name
from comet_broker.storage.segment import Segment

SNAPSHOTS_MAX: Final = 2


class SyncState:
    """The state that the syncs of one log, and all other writers of its derived files, share. Guarded by its lock."""

    def __init__(self, snapshots: Sequence[int]) -> None:
        self.lock = threading.Lock()
        self.failed: OSError | None = None
        self.folder_version = 0
        self.snapshots = sorted(snapshots)  # offsets of those that are written
        self.derived_failures = 0  # files that could not be written and will be rebuilt
        self.plan: PlanInLog | None = None  # of the notes on disk
        self.truncations = 0  # truncations of the log; tickets from before the last one are outdated


class SyncTicket:
    """One sync, of the log's contents at its start."""

    def __init__(
        self,
        files: Files,
        folder: str,
        state: SyncState,
        *,
        sealed: Sequence[Segment],
        active: Segment,
        folder_version: int,
        snapshots: Sequence[ProducerSnapshot],
        checkpoint: Checkpoint,
        notes: CompactionNotes,
    ) -> None:
        self.log_end = checkpoint.synced_end
        self.high_watermark = checkpoint.high_watermark
        self.sealed = sealed
        self.active = active
        self.folder_version = folder_version
        self.snapshots = snapshots
        self._checkpoint = checkpoint
        self._notes = notes
        self._files = files
        self._folder = folder
        self._state = state
        self._truncations = state.truncations
        for segment in (*sealed, active):
            segment.pin()

    def run(self) -> None:
        """Syncs. Blocks. Raises OSError once a sync of this log has failed, now or earlier."""
        with self._state.lock:
            if self._state.failed is not None:
                raise OSError(self._state.failed.errno, "an earlier sync failed")
            if self.outdated:
                return
            try:
                self._sync()
            except OSError as error:
                self._state.failed = error
                raise
            self._write_derived()

    @property
    def outdated(self) -> bool:
        """Whether the log was truncated since."""
        return self._truncations != self._state.truncations

    def release(self) -> None:
        for segment in (*self.sealed, self.active):
            segment.unpin()

    def _sync(self) -> None:
        for segment in self.sealed:
            if not segment.synced:
                segment.sync_sealed()
        # It may have been sealed and synced meanwhile, or be at rest, and is on disk then.
        if not self.active.synced and self.active.file is not None:
            self.active.file.sync()
        if self._state.folder_version < self.folder_version:
            self._files.sync_folder(self._folder)
            self._state.folder_version = self.folder_version

    def _write_derived(self) -> None:
        """Writes the files that only make the next opening quicker, so that their failures are only counted."""
        for segment in self.sealed:
            if not segment.indexed:
                with self._counting():
                    note_plan(self._files, self._folder, self._state, self._notes)
                    segment.write_index()
        for snapshot in self.snapshots:
            if snapshot.offset not in self._state.snapshots:
                with self._counting():
                    write_snapshot(self._files, self._folder, self._state, snapshot)
        with self._counting():
            append_checkpoint(self._files, self._folder, self._checkpoint)

    @contextlib.contextmanager
    def _counting(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError:
            self._state.derived_failures += 1


def note_plan(files: Files, folder: str, state: SyncState, notes: CompactionNotes) -> None:
    """Writes the notes if the disk has another plan. It is done before the index of a segment: a segment with an index
    is not read for its plans."""
    if notes.planned != state.plan:
        write_notes(files, folder, notes)
        state.plan = notes.planned


def write_snapshot(files: Files, folder: str, state: SyncState, snapshot: ProducerSnapshot) -> None:
    """Writes a producer snapshot, and deletes those older than the one before it."""
    files.write_atomic(f"{folder}/{producers_name(snapshot.offset)}", snapshot.encode())
    state.snapshots = sorted({*state.snapshots, snapshot.offset})
    while len(state.snapshots) > SNAPSHOTS_MAX:
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{producers_name(state.snapshots[0])}")
        del state.snapshots[0]
