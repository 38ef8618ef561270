"""Publishes the log ends of this broker where an election has to compare them (`core.controller`).

        no leader, and this replica is not known to be complete ─► put cluster/ends/<broker>/<topic id>/<index>
        a leader, or no longer needed                           ─► delete it

The keys stand under the broker's lease. One task writes all changes, up to a hundred keys a transaction. Owned by the
broker.
"""

from __future__ import annotations

import asyncio
from typing import Final

from comet.errors import Closed
from comet_broker.cluster.membership import Membership
from comet_broker.core.cluster import NO_BROKER, LogEnd, PartitionId, end_key
from comet_broker.metadata.store import Delete, LeaseLost, MetadataStore, Put, StoreUnavailable
from comet_broker.partitions.partition import Partition
from comet_broker.tasks import Tasks

RETRY_S: Final = 0.1
KEYS_MAX: Final = 100  # of one transaction


class LogEnds:
    def __init__(self, store: MetadataStore, membership: Membership, tasks: Tasks) -> None:
        self._store = store
        self._membership = membership
        self._tasks = tasks
        self._published: dict[PartitionId, LogEnd] = {}  # the ends that the store has, or may have, of this broker
        self._due: dict[PartitionId, Partition] = {}
        self._telling = False

    def update(self, partition: Partition) -> None:
        """Checks again after the partition's state, its log or this broker's registration has changed."""
        if self._wanted(partition) == self._published.get(partition.tp):
            return
        self._due[partition.tp] = partition
        if not self._telling:
            self._telling = True
            self._tasks.spawn(self._publish(), "publish log ends")

    def _wanted(self, partition: Partition) -> LogEnd | None:
        state, broker_epoch = partition.state, self._membership.broker_epoch
        if state is None or state.leader != NO_BROKER or not broker_epoch or partition.closed is not None:
            return None
        me = self._membership.broker_id
        alone = state.holders == (me,)
        whole = broker_epoch in (state.in_sync.get(me), state.eligible.get(me))
        if (
            alone
            or whole
            or partition.available
            or partition.follower.truncating
            or state.epoch != partition.leader_epoch
        ):
            return None
        end = whole_end(partition)
        last_epoch = partition.log.epochs.epoch_at(end - 1) if end > partition.log.log_start else 0
        return LogEnd(broker_epoch, state.epoch, last_epoch, end, min(partition.committed, end))

    async def _publish(self) -> None:
        try:
            while self._due:
                some = [self._due.pop(tp) for tp in list(self._due)[:KEYS_MAX]]
                wanted = {partition.tp: self._wanted(partition) for partition in some}
                changed = {tp: end for tp, end in wanted.items() if end != self._published.get(tp)}
                if not changed:
                    continue
                lease, me = self._membership.lease, self._membership.broker_id
                operations = [
                    Delete(end_key(me, tp)) if end is None else Put(end_key(me, tp), end.encode(), lease)
                    for tp, end in changed.items()
                ]
                try:
                    await self._store.transact([], operations)
                except StoreUnavailable:
                    self._due = {**{partition.tp: partition for partition in some}, **self._due}
                    await asyncio.sleep(RETRY_S)
                except LeaseLost:
                    continue  # the keys are gone with the lease; the next registration calls update
                else:
                    for tp, end in changed.items():
                        if end is None:
                            self._published.pop(tp, None)
                        else:
                            self._published[tp] = end
        except Closed:
            return
        finally:
            self._telling = False


def whole_end(partition: Partition) -> int:
    """The offset below which the log is complete."""
    return min([partition.log.log_end, *(first for first, _ in partition.log.lost)])
