"""Compaction of a log: superseded records go from its sealed segments, as a plan in the log says.

    a plan comes into the log ─► notes.planned
    begin ─► Round.step on a worker, again and again      one new segment for some old ones, under a temporary name
          ─► prepare on a worker ─► swap_in ─► settle on a worker
    end   ─► write_notes on a worker

The rename of the new segment's file is the moment at which it counts: it replaces the first of the old ones. Until then
recovery finds the old segments; from then on it removes those that the new one covers. The others go after the rename
is on disk, and once they have no readers: a reader that has begun reads the old form, which is right as well.

A plan is carried out once it is committed and everything below its end is on this disk. It is noted in a file before
the index of its segment is written. If the file is lost, the plan may be left out: the next one covers it.

Owned by a Log; on the loop's thread, except for what blocks. Truncations, deletions and `close` run at other moments
than `prepare` up to `settle`: their callers hold the same lock.
"""

from __future__ import annotations

import contextlib

from comet_broker.storage.checkpoint import raise_checkpoint
from comet_broker.storage.compaction_notes import AppliedPlan, CompactionNotes, write_notes
from comet_broker.storage.deletion import Deletion
from comet_broker.storage.layout import index_name
from comet_broker.storage.rewrite import CannotCompact, DamagedSource, Rewriting, Rewritten, Work
from comet_broker.storage.segment_list import SegmentList
from comet_broker.storage.state import LogFolder, LogState
from comet_broker.storage.sync import SyncState

__all__ = ["CannotCompact", "Compaction", "DamagedSource", "Rewritten", "Round"]


class Round:
    """One compaction of a log, which keeps its place from step to step."""

    def __init__(self, work: Work, offset: int) -> None:
        self._work = work
        self._offset = offset
        self._rewriting = Rewriting(work)

    def step(self) -> Rewritten | bool:
        """Works on; on a worker. True: done; False: not yet; or a new segment, to be put in place before the next
        step. Raises CannotCompact, CometError, OSError."""
        return self._rewriting.step()

    @property
    def read_bytes(self) -> int:
        """In all steps."""
        return self._rewriting.read_bytes

    @property
    def clean_end(self) -> int:
        return self._work.plan.clean_end

    def applied(self) -> AppliedPlan:
        result, work = self._rewriting.result, self._work
        removed = result.records_before - result.records_after
        return AppliedPlan(
            self._offset,
            work.plan.clean_end,
            work.log_start,
            result.digest,
            result.tombstones,
            removed,
            result.records_after,
        )

    def release(self) -> None:
        """Ends the round; on a worker."""
        self._rewriting.release()


class Compaction:
    def __init__(
        self,
        folder: LogFolder,
        state: LogState,
        segments: SegmentList,
        deletion: Deletion,
        sync_state: SyncState,
    ) -> None:
        self.rounds = 0
        self.read_bytes = 0
        self.removed_records = 0
        self.rewrites = 0  # of segments: each changes what a follower of this log copies
        self._noted = False  # what is committed, for the round under way
        self._folder = folder
        self._state = state
        self._segments = segments
        self._deletion = deletion
        self._sync_state = sync_state

    @property
    def notes(self) -> CompactionNotes:
        return self._state.compaction

    @property
    def remaining_records(self) -> int:
        """The records that the last round has left: about one for each key."""
        applied = self.notes.applied
        return 0 if applied is None else applied.remaining

    def begin(self, committed: int, memory_bytes: int) -> Round | None:
        """A round for the plan that is due; None if there is none, or not yet. Raises DiskFull, LimitExceeded or
        LogFailed if a segment has to be begun and cannot be."""
        state, due = self._state, self.notes.due
        if due is None or due.offset >= committed or state.closed or state.failed is not None:
            return None
        plan, applied = due.plan, self.notes.applied
        if plan.clean_end <= state.log_start or (applied is not None and plan.clean_end < applied.clean_end):
            return None  # a later plan was carried out here already
        if self._segments.active.base_offset < plan.clean_end:
            self._segments.roll()
        sources = tuple(one for one in self._segments.all if one.base_offset < plan.clean_end)
        if not sources or not all(one.synced and one.indexed for one in sources):
            return None  # the next sync
        if not any(offset >= plan.clean_end for offset in self._sync_state.snapshots):
            return None  # what producers wrote could not be told from the log alone any more
        if state.lost.ranges:
            return None  # it is repaired from another replica first
        # A batch that joins several must not reach beyond what a restart knows to be committed: see prepare.
        self._noted = False
        state.high_watermark = max(state.high_watermark, min(committed, state.log_end))
        aborted = state.producers.isolation.aborted(state.log_start, plan.clean_end)
        work = Work(self._folder, sources, state.log_start, plan, aborted, state.config.segment_bytes, memory_bytes)
        return Round(work, due.offset)

    # ---- putting a new segment in place

    def holds(self, rewritten: Rewritten) -> bool:
        """Whether the log still has the old segments, one after the other."""
        state, everything = self._state, self._segments.all
        if state.closed or state.failed is not None or rewritten.sources[0] not in everything:
            return False
        at = everything.index(rewritten.sources[0])
        return tuple(everything[at : at + len(rewritten.sources)]) == rewritten.sources

    def prepare(self, rewritten: Rewritten) -> None:
        """Notes durably what is committed, and removes the index that has the new segment's name: it describes the old
        one. On a worker. Raises OSError."""
        files, folder, state = self._folder.files, self._folder.path, self._state
        with self._sync_state.lock:
            if not self._noted:
                raise_checkpoint(files, folder, state.checkpoint(state.flushed_end))
                self._noted = True
        path = f"{folder}/{index_name(rewritten.segment.base_offset)}"
        if files.exists(path):
            files.remove(path)
        files.sync_folder(folder)

    def swap_in(self, rewritten: Rewritten) -> None:
        """From here on the log reads the new segment. Raises OSError: the rename may have been done."""
        first = rewritten.sources[0]
        self.rewrites += 1
        self._folder.files.rename(rewritten.segment.path, first.path)
        rewritten.segment.path = first.path
        first.supersede()
        self._segments.swap_in(rewritten.segment, rewritten.sources)
        self._deletion.leave(rewritten.sources[1:])

    def settle(self, rewritten: Rewritten) -> None:
        """Makes the rename durable, then removes the old segments. On a worker. Raises OSError."""
        self._folder.files.sync_folder(self._folder.path)
        with contextlib.suppress(OSError):  # it is written with the next sync
            rewritten.segment.write_index()
        for segment in rewritten.sources[1:]:
            segment.drop()
            segment.settle()

    def poison(self, error: OSError) -> None:
        """The rename may or may not be on disk: the log takes no more writes."""
        self._state.poison(error, "compacting")

    # ---- the end of a round

    def end(self, applied: AppliedPlan) -> None:
        """Notes that the plan was carried out. Readers may still have the aborted records of this round in hand; those
        of the round before it are forgotten."""
        before, self.notes.applied = self.notes.applied, applied
        self.rounds += 1
        self.removed_records += applied.removed
        if before is not None:
            self._state.producers.isolation.forget_before(before.clean_end)

    def write_notes(self) -> None:
        """On a worker. Raises OSError."""
        with self._sync_state.lock:
            write_notes(self._folder.files, self._folder.path, self.notes)
