"""Says how far the logs of this broker go, where an election has to compare them (`core.controller`).

    nobody leads, and this replica is not known to be whole ─► put cluster/ends/<broker>/<topic id>/<index>
    somebody leads, or it is no longer needed               ─► delete it

The keys stand under the broker's lease. What changed is written together, up to a hundred keys a transaction, by one
task. Owned by the broker.
"""

from __future__ import annotations

import asyncio
from typing import Final

from comet.errors import Closed
from comet_broker.cluster.membership import Membership
from comet_broker.core.cluster import NO_BROKER, LogEnd, Place, end_key
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
        self._told: dict[Place, LogEnd] = {}  # what the store has, or may have, of this broker
        self._due: dict[Place, Partition] = {}
        self._telling = False

    def update(self, partition: Partition) -> None:
        """The state of the partition has changed, or its log, or this broker's registration."""
        if self._wanted(partition) == self._told.get(partition.place):
            return
        self._due[partition.place] = partition
        if not self._telling:
            self._telling = True
            self._tasks.spawn(self._tell(), "tell of log ends")

    def _wanted(self, partition: Partition) -> LogEnd | None:
        state, broker_epoch = partition.state, self._membership.broker_epoch
        if state is None or state.leader != NO_BROKER or not broker_epoch or partition.closed is not None:
            return None
        me = self._membership.broker_id
        alone = state.holders == (me,)
        whole = broker_epoch in (state.in_sync.get(me), state.eligible.get(me))
        if alone or whole or partition.available or partition.cutting or state.epoch != partition.leader_epoch:
            return None
        end = whole_end(partition)
        last_epoch = partition.log.epochs.epoch_at(end - 1) if end > partition.log.log_start else 0
        return LogEnd(broker_epoch, state.epoch, last_epoch, end, min(partition.committed, end))

    async def _tell(self) -> None:
        try:
            while self._due:
                some = [self._due.pop(place) for place in list(self._due)[:KEYS_MAX]]
                wanted = {partition.place: self._wanted(partition) for partition in some}
                changed = {place: end for place, end in wanted.items() if end != self._told.get(place)}
                if not changed:
                    continue
                lease, me = self._membership.lease, self._membership.broker_id
                operations = [
                    Delete(end_key(me, place)) if end is None else Put(end_key(me, place), end.encode(), lease)
                    for place, end in changed.items()
                ]
                try:
                    await self._store.transact([], operations)
                except StoreUnavailable:
                    self._due = {**{partition.place: partition for partition in some}, **self._due}
                    await asyncio.sleep(RETRY_S)
                except LeaseLost:
                    continue  # the keys are gone with it; the next registration asks again
                else:
                    for place, end in changed.items():
                        if end is None:
                            self._told.pop(place, None)
                        else:
                            self._told[place] = end
        except Closed:
            return
        finally:
            self._telling = False


def whole_end(partition: Partition) -> int:
    """Up to where nothing is missing in it."""
    return min([partition.log.log_end, *(first for first, _ in partition.log.lost)])
