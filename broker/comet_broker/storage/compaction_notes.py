"""What a log knows of its compactions: the last plan in it, and the last one that was carried out on this disk."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from comet.records import CompactionPlan
from comet_broker.core.epochs import EpochHistory
from comet_broker.ports import Files

NOTES: Final = "compaction"


class AppliedPlan(msgspec.Struct, frozen=True):
    """A plan that was carried out. `digest` is that of the offsets which stayed from `log_start` on."""

    offset: int
    clean_end: int
    log_start: int
    digest: int
    tombstones: int  # that stayed
    removed: int  # records
    remaining: int = 0  # records


class PlanInLog(msgspec.Struct, frozen=True):
    """The last plan, its offset and leader epoch."""

    offset: int
    epoch: int
    plan: CompactionPlan


class CompactionNotes(msgspec.Struct):
    """Part of a log's state; changed on the loop's thread."""

    planned: PlanInLog | None = None
    applied: AppliedPlan | None = None
    forgotten_end: int = 0  # the clean end of plans that are forgotten

    def note(self, offset: int, epoch: int, plan: CompactionPlan) -> None:
        """Takes a plan that is in the log now."""
        self.forgotten_end = self.clean_end
        self.planned = PlanInLog(offset, epoch, plan)

    def truncate(self, end: int) -> None:
        """Forgets what lies behind the new end of the log."""
        self.forgotten_end = min(self.clean_end, end)
        if self.planned is not None and self.planned.offset >= end:
            self.planned = None
        if self.applied is not None and self.applied.clean_end > end:
            self.applied = None

    @property
    def clean_end(self) -> int:
        """Superseded records below it are gone, or go at any moment; 0: none."""
        planned = 0 if self.planned is None else self.planned.plan.clean_end
        return max(planned, 0 if self.applied is None else self.applied.clean_end, self.forgotten_end)

    @property
    def due(self) -> PlanInLog | None:
        """The plan that is still to be carried out."""
        planned, applied = self.planned, self.applied
        return None if planned is None or (applied is not None and applied.offset >= planned.offset) else planned

    def differs(self, plan: CompactionPlan) -> bool:
        """Whether a later plan's digest of the one that was carried out here is another one."""
        applied = self.applied
        return applied is not None and plan.checked == applied.offset and plan.digest != applied.digest


def read_notes(files: Files, folder: str, log_end: int, epochs: EpochHistory) -> CompactionNotes:
    """The notes on disk; empty ones if they are missing or damaged. A plan that was truncated since is left out."""
    path = f"{folder}/{NOTES}"
    notes = CompactionNotes()
    if files.exists(path):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            notes = msgspec.json.decode(files.read_all(path), type=CompactionNotes)
    notes.truncate(log_end)
    if notes.planned is not None and epochs.epoch_at(notes.planned.offset) != notes.planned.epoch:
        notes.truncate(notes.planned.offset)
    return notes


def write_notes(files: Files, folder: str, notes: CompactionNotes) -> None:
    """Replaces the file. Blocks. Raises OSError."""
    files.write_atomic(f"{folder}/{NOTES}", msgspec.json.encode(notes))
