"""Deletion from the start of a log, with blocking steps on a worker.

    loop     ticket = log.start_delete(before), log.start_retention(now)     None: there is nothing to delete
    worker   ticket.run()                        notes the new log start offset durably
    loop     log.finish_delete(ticket, error)    moves log_start; no new read begins below it
    worker   ticket.remove()                     deletes the files without readers

First on disk, then in memory, then the files: after an interruption at any point, the log start offset does not go
back. Only if the disk is too full to note it do the files go first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from comet_broker.core.producers import ProducerSnapshot
from comet_broker.ports import Files
from comet_broker.storage.checkpoint import Checkpoint, raise_checkpoint
from comet_broker.storage.segment import Segment
from comet_broker.storage.sync import SyncState, write_snapshot


class DeleteTicket:
    """One deletion. `outlived` are the segments that go."""

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
