"""The follower's side of a replica: appends what its leader sends, and truncates its log to agree with the leader's.

    replicate(batches) ─► verify ─► Log.append_stamped ─► progress to the leader
    learn              ─► the high watermark follows the leader's
    truncate           ─► the log ends where it agrees with the leader's, or begins elsewhere; readers behind are ended

Frames from another epoch than that of the partition are ignored. It never truncates because of a watermark.

Owned by a Partition for its life; it does nothing while this broker leads.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import Protocol

from comet import records
from comet.errors import CometError, Unavailable
from comet_broker.core.cluster import Conflict, GivenUp
from comet_broker.core.watermarks import APPENDED, Watermarks
from comet_broker.partitions.context import Gap, PartitionContext
from comet_broker.partitions.counts import RecordCounts
from comet_broker.partitions.flushing import Flushing
from comet_broker.partitions.housekeeping import Housekeeping
from comet_broker.partitions.readers import Readers
from comet_broker.storage.log import Log

log = logging.getLogger(__name__)


class FollowedPartition(Protocol):
    """The partition."""

    closed: CometError | None
    leader_epoch: int
    log: Log
    context: PartitionContext
    watermarks: Watermarks
    readers: Readers
    counts: RecordCounts
    flushing: Flushing
    housekeeping: Housekeeping

    @property
    def leads(self) -> bool: ...
    def moved(self) -> None: ...
    def reconsider(self) -> None: ...


class FollowerState:
    def __init__(self, partition: FollowedPartition) -> None:
        self.truncating = False  # a worker is truncating the log: nothing else may touch it
        self.gave_up: GivenUp | None = None  # records that an operator has given up; they are truncated
        self.conflict: Conflict | None = None  # the reason for which it does not follow its leader
        # The leader's epoch, the rewrites of its log, and the offset from which this one has all of that.
        self.copied = (0, 0, 0)
        self.whole_from = 0  # the leader's clean end: a log that ends below it is not whole
        self._partition = partition

    # ---- appending

    def replicate(self, batches: memoryview, epoch: int, high_watermark: int) -> None:
        """Appends batches from the leader of `epoch`. Raises Gap when they do not continue the log, or a CometError."""
        partition = self._partition
        if epoch != partition.leader_epoch or partition.leads or partition.closed is not None or self.truncating:
            return  # from another epoch
        storage, at = partition.log, 0
        while at < len(batches):
            header = records.verify(batches, at, stamped=True)
            if header.base_offset > storage.log_end:
                raise Gap(f"{partition} ends at {storage.log_end} and was sent a batch at {header.base_offset}")
            batch = batches[at : at + header.length]
            at += header.length
            if header.next_offset <= storage.log_end:
                continue  # sent again after a reconnect
            if header.base_offset < storage.log_end and storage.log_start < storage.log_end and not header.producer_id:
                # The leader has compacted what this replica has read in other batches.
                batch = _part_from(batch, storage.log_end)
                header = records.read_header(batch)
            storage.append_stamped(header, batch)
            partition.readers.push(header.base_offset, header.next_offset, batch)
            partition.counts.followed(header)
        self.learn(epoch, high_watermark)
        partition.flushing.appended()
        partition.readers.wake(APPENDED)

    def learn(self, epoch: int, high_watermark: int) -> None:
        """Takes the high watermark from the leader of `epoch`."""
        partition = self._partition
        committed = min(high_watermark, partition.log.log_end)
        if epoch == partition.leader_epoch and not partition.leads and partition.watermarks.commit(committed):
            partition.log.durability.note_high_watermark(committed)
            partition.moved()

    # ---- truncating

    async def truncate(self, offset: int, epoch: int, *, restart: bool, aside: bool = False) -> None:
        """Truncates a follower's log where it agrees with that of the leader of `epoch`, or restarts it there. `aside`:
        the truncated records are set aside in a file. Raises NotSetAside."""
        partition = self._partition
        async with partition.housekeeping.lock:
            # A later leader may have been told about these records, and count on them.
            if partition.closed is None and not partition.leads and epoch == partition.leader_epoch:
                await self._truncate(offset, restart=restart, aside=epoch if aside else 0)
        if partition.closed is None and partition.log.failed is None:
            partition.flushing.catch_up()  # what remains is still to be synced
        partition.reconsider()

    async def _truncate(self, offset: int, *, restart: bool, aside: int) -> None:
        partition, marks = self._partition, self._partition.watermarks
        storage, worker = partition.log, partition.context.worker
        self.truncating = True
        try:
            await partition.flushing.stop()
            if aside:
                await worker.run(lambda: storage.deletion.set_aside(offset, restart=restart, epoch=aside))
            # Those that have read beyond resume with an epoch check, which tells them about truncated records.
            ended = Unavailable(f"{partition} was truncated on this broker, to follow its leader", retry_after_ms=50)
            partition.readers.end_beyond(-1 if restart else offset, ended)
            partition.readers.tail.clear()
            log.info(
                "truncates %s from %d to %d%s",
                partition,
                storage.log_end,
                offset,
                ", restarting the log" if restart else "",
            )
            if restart:
                await worker.run(lambda: storage.deletion.reset(offset))
            else:
                await worker.run(lambda: storage.deletion.truncate(offset))
            marks.truncate(
                committed=offset if restart else min(marks.committed, storage.log_end), log_end=storage.log_end
            )
        finally:
            marks.replace_isolation(storage.producers.isolation)  # a new object: it was truncated too
            self.truncating = False
            partition.moved()
            partition.readers.wake(marks.stabilize(storage.log_start))
            if partition.closed is None:
                partition.flushing.resume()

    # ---- decisions about it

    @property
    def whole(self) -> bool:
        return self._partition.log.log_end >= self.whole_from

    def outdated(self, start: int, epoch: int, clean_end: int, rewrites: int) -> bool:
        """Whether this log, if it is copied on from `start`, may keep records that are deleted or have expired: the log
        of the leader of `epoch` may hold no more what superseded them. A copy of that log as it is now, after as many
        `rewrites`, goes on after an interruption."""
        goes_on = self.copied[:2] == (epoch, rewrites) and self.copied[2] <= start
        return self._partition.log.log_start < start < clean_end and not goes_on

    def begin(self, epoch: int, clean_end: int, rewrites: int) -> None:
        """Notes from which form of its leader's log this log is copied."""
        log_end = self._partition.log.log_end
        first = min(self.copied[2], log_end) if self.copied[:2] == (epoch, rewrites) else log_end
        self.copied = (epoch, rewrites, first)
        self.whole_from = clean_end

    def finish_giving_up(self, given_up: GivenUp) -> None:
        """The records that an operator has given up are truncated, or need not be any more."""
        self.gave_up = given_up

    def note_conflict(self, conflict: Conflict | None) -> None:
        """Notes the reason for which it does not follow its leader; None: it may follow."""
        self.conflict = conflict


def _part_from(batch: memoryview, first: int) -> memoryview:
    """The records of a batch from an offset on, and all offsets that it covers from there."""
    decoded = records.decode(batch, check=False)
    rows = range(bisect_left(decoded.offsets, first), len(decoded))
    return memoryview(records.take(decoded, rows, first=first))
