"""Deleting from the start of a log, with what blocks on a worker.

    loop     ticket = log.start_delete(before), log.start_retention(now)     None: there is nothing to delete
    worker   ticket.run()                        notes the new start for good
    loop     log.finish_delete(ticket, error)    moves log_start; nobody begins to read below it any more
    worker   ticket.remove()                     deletes the files that nobody reads

First on disk, then in memory, then the files: whatever is cut short, the start does not go back. Only where the
disk is too full to note the start do the files go first.
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
    """One deletion. `outlived` is for the log."""

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
        self._cuts = state.cuts
        self._noted = False

    @property
    def outdated(self) -> bool:
        """The log was cut back since."""
        return self._cuts != self._state.cuts

    def run(self) -> None:
        """Blocks. Raises OSError with nothing changed but what can be derived."""
        with self._state.lock:
            if not self.outdated:
                self._note()

    def _note(self) -> None:
        # What the producers wrote into the segments that go must be remembered elsewhere before they do.
        for snapshot in self._snapshots:
            if snapshot.offset not in self._state.snapshots:
                write_snapshot(self._files, self._folder, self._state, snapshot)
        raise_checkpoint(self._files, self._folder, self._checkpoint)
        self._noted = True

    def remove(self) -> None:
        """Blocks. What cannot be removed now goes when the log is opened next."""
        for segment in self.outlived:
            if segment.dropped:
                segment.settle()
        with self._state.lock, contextlib.suppress(OSError):
            if not self._noted and not self.outdated:
                self._note()
