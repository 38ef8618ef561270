"""Replicas of this broker that do not follow, because they would lose committed records: reports them to the cluster.

    found     ─► Partition.conflict, ERROR in the log, put cluster/conflicts/<broker>/<topic id>/<index>
    settled   ─► delete it: the replica follows again, or leads

Owned by the broker. One task per partition runs until the store agrees.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from comet.errors import CometError
from comet.v1 import replication_pb2 as pb
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import Conflict, GivenUp, PartitionId, conflict_key
from comet_broker.core.conflicts import Offer, Own, TruncationVerdict, judge
from comet_broker.metadata.store import Compare, Delete, MetadataStore, Put, StoreUnavailable
from comet_broker.partitions.inventory import checksums_at
from comet_broker.partitions.log_ends import whole_end
from comet_broker.partitions.partition import Partition
from comet_broker.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


def judged(partition: Partition, following: pb.Following) -> TruncationVerdict:
    """Whether the log may be truncated as the leader says. An `available` topic prefers to lose its end."""
    if partition.available:
        return TruncationVerdict.TRUNCATE
    storage, state = partition.log, partition.state
    own = Own(whole_end(partition), partition.committed, storage.epochs.last_epoch)
    leader_end = max(following.log_end, following.high_watermark)  # earlier versions do not send the former
    offer = Offer(following.leader_epoch, getattr(following, "from"), following.restart, leader_end)
    return judge(own, offer, 0 if state is None else state.loss_accepted_of(partition.context.me))


def given_up_from(partition: Partition) -> GivenUp | None:
    """The records to truncate before the comparison with the leader's log; see PartitionState.given_up."""
    state, storage = partition.state, partition.log
    if state is None or storage.epochs.last_epoch >= state.loss_accepted_of(partition.context.me):
        return None
    found = state.given_up.get(partition.context.me)
    if found is None or found.offset >= storage.log_end or partition.follower.gave_up == found:
        return None
    return found


async def is_given_up(partition: Partition, found: GivenUp) -> bool:
    """Whether they are still in the log: an earlier process may have truncated it, and followed since."""
    there = await checksums_at(partition.log, [found.offset], partition.context.worker)
    return there.get(found.offset) != found.checksum


def conflict_with(leader: int, partition: Partition, following: pb.Following, problem: str) -> Conflict:
    return Conflict(
        leader=leader,
        epoch=following.leader_epoch,
        offset=getattr(following, "from"),
        log_end=partition.log.log_end,
        high_watermark=partition.committed,
        last_epoch=partition.log.epochs.last_epoch,
        problem=problem,
    )


class Conflicts:
    def __init__(self, me: int, *, store: MetadataStore, view: ClusterView, tasks: Tasks) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._tasks = tasks
        self._telling: set[PartitionId] = set()

    def found(self, partition: Partition, conflict: Conflict) -> None:
        """Records that the replica does not follow."""
        if partition.follower.conflict != conflict:
            log.error(
                "%s does not follow: %s. Nothing was truncated, and it is not in sync. Choose the replica to keep:"
                " comet topic elect %s %d %d for this one, comet topic elect %s %d %d for its leader's;"
                " the records that only the other replica has are set aside in its folder",
                partition,
                conflict,
                *(partition.topic, partition.index, self._me),
                *(partition.topic, partition.index, conflict.leader),
            )
        partition.follower.note_conflict(conflict)
        self._report(partition)

    def settled(self, partition: Partition) -> None:
        """Records that the replica follows, or is chosen to lead."""
        if partition.follower.conflict is not None:
            log.warning("%s is no longer in conflict with its leader", partition)
            partition.follower.note_conflict(None)
        if (self._me, *partition.tp) in self._view.state.conflicts:
            self._report(partition)

    def _report(self, partition: Partition) -> None:
        if partition.tp in self._telling:
            return
        self._telling.add(partition.tp)
        self._tasks.spawn(self._agree(partition), f"report the conflict of {partition}")

    async def _agree(self, partition: Partition) -> None:
        key = conflict_key(self._me, partition.tp)
        try:
            while partition.closed is None:
                known, conflict = self._view.state.conflicts.get((self._me, *partition.tp)), partition.follower.conflict
                if conflict == (None if known is None else known.value):
                    return
                compare = Compare(key, 0 if known is None else known.mod_revision)
                try:
                    change = Delete(key) if conflict is None else Put(key, conflict.encode())
                    result = await self._store.transact([compare], [change])
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)
                else:
                    await self._view.applied.wait(result.revision)
        except CometError as error:
            log.info("the conflict of %s is not reported: %s", partition, error)  # this broker is stopping
        finally:
            self._telling.discard(partition.tp)
