"""Deletes records for good: deleted records stay deleted under another leader.

    DeleteRecords ─► the partition's state in the metadata store records it ─► the leader deletes, and answers
                 follower ─► learns it from its leader, a moment later
               new leader ─► deletes what it has missed, then leads

A deletion is an offset and an epoch: all records below the offset that were written up to that epoch. So where the end
of a log was lost and its offsets were given out again, new records are not taken for the old ones.

Owned by its Partition.
"""

from __future__ import annotations

import logging
from typing import Protocol

from comet.errors import CometError
from comet_broker.core.cluster import PartitionState
from comet_broker.partitions.context import PartitionContext
from comet_broker.partitions.housekeeping import Housekeeping
from comet_broker.storage.log import Log

log = logging.getLogger(__name__)


def deleted_end(storage: Log, state: PartitionState) -> int:
    """The offset below which the records of this log are deleted for good."""
    epoch, before = state.deleted
    return min(before, storage.epochs.end_of(epoch, storage.log_end))


class DeletedFrom(Protocol):
    """The partition."""

    log: Log
    context: PartitionContext
    housekeeping: Housekeeping

    def reconsider(self) -> None: ...


class RecordDeletion:
    def __init__(self, partition: DeletedFrom) -> None:
        self._partition = partition
        self._under_way = False
        self._tried = 0  # up to here a deletion was tried; a failure is no reason to have no leader

    def done(self, state: PartitionState) -> bool:
        """True if no record is left that was deleted for good. Else starts the deletion; the partition checks again
        then."""
        due = deleted_end(self._partition.log, state)
        if due <= max(self._partition.log.log_start, self._tried):
            return True
        if not self._under_way:
            self._under_way = True
            self._partition.context.tasks.spawn(self._delete(due), f"delete records of {self._partition}")
        return False

    async def _delete(self, due: int) -> None:
        partition = self._partition
        try:
            await partition.housekeeping.delete_before(due)
        except (CometError, OSError) as error:
            log.error("%s still starts at %d instead of %d: %s", partition, partition.log.log_start, due, error)
        finally:
            self._tried = due
            self._under_way = False
        partition.reconsider()
