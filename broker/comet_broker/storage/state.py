"""The offsets, tables and faults of one log, which its segments, its durability and its deletion share.

    log_start ─ ─ ─ ─ ─ flushed_end ─ ─ ─ ─ ─ log_end        rise; only a truncation moves the end back
    room                the active segment may grow to it without a check; 0 once the log has failed or is closed

A failure that has changed nothing may be retried: no space, no descriptor. Any other one poisons the log: `failed` says
why, and it takes no more writes.

Owned by a Log, changed on the loop's thread. A truncation changes it on a worker, while nothing else uses the log.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from comet.errors import Closed, CometError, DiskFull, LimitExceeded, LogFailed
from comet.settings.topic import TopicConfig
from comet_broker.core.producers import ProducerSnapshot, ProducerTable
from comet_broker.ports import Clock, Files
from comet_broker.storage.checkpoint import Checkpoint
from comet_broker.storage.layout import LogIdentity
from comet_broker.storage.lost import LostRanges
from comet_broker.storage.recovery import NO_SPACE, Recovered, create_segment
from comet_broker.storage.segment import Segment
from comet_broker.storage.truncation import Truncation

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class LogFolder(NamedTuple):
    """The files of one log, and the clock by which they are dated."""

    files: Files
    path: str
    identity: LogIdentity
    clock: Clock

    def create_segment(self, base_offset: int) -> Segment:
        """An empty segment, not synced. Raises OSError, with no file left behind."""
        return create_segment(self.files, self.path, self.identity, base_offset, self.clock.wall_us())


class LogState:
    def __init__(self, config: TopicConfig, recovered: Recovered) -> None:
        self.config = config
        self.log_start = recovered.log_start
        self.log_end = recovered.log_end
        self.flushed_end = recovered.log_end
        self.high_watermark = min(recovered.high_watermark, recovered.log_end)  # as last noted; 0: never
        self.marked = self.high_watermark  # as last noted on disk
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.lost = LostRanges(recovered.lost)
        self.compaction = recovered.compaction
        self.snapshots: list[ProducerSnapshot] = []  # to be written: that of the opening, one of each roll
        self.room = 0
        self.failed: LogFailed | None = None
        self.closed = False
        if recovered.log_end not in recovered.snapshots:
            self.snapshots.append(self.producers.snapshot(recovered.log_end))

    def require_open(self) -> None:
        """Raises if the log is closed, or takes no more writes."""
        if self.closed:
            raise Closed("the log is closed")
        if self.failed is not None:
            raise self.failed.with_traceback(None)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.room = 0

    def close(self) -> None:
        self.closed = True
        self.room = 0

    def checkpoint(self, synced_end: int, log_start: int = -1) -> Checkpoint:
        return Checkpoint(synced_end, max(log_start, self.log_start), self.high_watermark)

    # ---- what the log no longer holds

    def begin_at(self, log_start: int) -> None:
        """Forgets the records below the new log start offset; it never goes back."""
        self.log_start = max(self.log_start, log_start)
        self.lost.forget_before(self.log_start)
        self.epochs.forget_before(self.log_start)
        self.producers.isolation.forget_before(self.log_start)

    def truncate(self, planned: Truncation, producers: ProducerTable, start: int) -> None:
        """Forgets the records from the end of the truncation on. If no segment stays, the log goes on at `start`."""
        end = planned.end
        self.log_end = end
        self.flushed_end = min(self.flushed_end, end)
        self.high_watermark = self.marked = min(self.high_watermark, end)
        self.producers = producers
        producers.isolation.forget_before(self.log_start if planned.stay else start)
        self.epochs.truncate(end if planned.stay else 0)
        self.lost.forget_from(end)
        self.compaction.truncate(end)
        self.snapshots = [snapshot for snapshot in self.snapshots if planned.outlived_by(snapshot.offset)]

    def restart(self, offset: int) -> None:
        """Begins and ends at `offset`, and holds nothing."""
        self.log_start = max(self.log_start, offset)  # before the end: a reader on another thread sees no offset
        self.log_end = self.flushed_end = offset
        self.log_start = offset

    def quarantine(self, first: int, end: int) -> None:
        """Notes that these offsets are damaged, unless they are deleted or truncated."""
        first, end = max(first, self.log_start), min(end, self.log_end)
        if first < end:
            self.lost.add(first, end)

    # ---- failures

    def unchanged(self, error: OSError, what: str) -> CometError:
        """The error for a failure before any change: a retryable one, or the disk is broken."""
        if error.errno in NO_SPACE:
            return disk_full(what)
        if error.errno in _NO_DESCRIPTORS:
            return LimitExceeded(
                f"{what}: the broker has no file descriptors left; raise its limit", retry_after_ms=1000
            )
        return self.poison(error, "syncing")

    def poison(self, error: OSError, doing: str) -> LogFailed:
        """Ends all writing to the log; returns the error of the first failure."""
        if self.failed is not None:
            return self.failed
        return self.fail(
            LogFailed(
                f"{doing} the log on this broker's disk failed ({error.strerror or error}); it takes no more writes",
                details={"errno": errno.errorcode.get(error.errno or 0, str(error.errno))},
            )
        )

    def fail(self, error: LogFailed) -> LogFailed:
        self.failed = error
        self.room = 0
        return error


def disk_full(reason: str) -> DiskFull:
    return DiskFull(f"the broker's disk is full: {reason}; free some space, writes then resume", retry_after_ms=1000)
