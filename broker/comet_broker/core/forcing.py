"""Forced election by an operator: makes a replica the leader that may lack records, if no complete one comes back.

The controller would never do this, and it cannot be undone: records that the chosen replica lacks are truncated from
all others when they follow it (`loss_accepted`). So it is refused while there is a leader, or a candidate by the
controller's own rules, at once or when the time to wait for others is over. The change compares the registrations of
all brokers involved.

Where a replica is in conflict with its leader (`core.conflicts`), an operator may choose although there is a leader:
the replica in conflict, or the present leader once more, or any other one. Records that the others hold beyond it are
set aside before they are truncated.

Pure.
"""

from __future__ import annotations

from msgspec.structs import replace

from comet.errors import InvalidArgument
from comet_broker.core.cluster import (
    NO_BROKER,
    ClusterState,
    PartitionId,
    PartitionState,
    broker_key,
    conflict_key,
    defective_key,
    partition_key,
)
from comet_broker.core.controller import Change, decide
from comet_broker.metadata.store import Compare, Delete, Put


def forced(state: ClusterState, where: PartitionId, broker: int) -> Change:
    """The change that makes `broker` the leader; raises InvalidArgument if there is no need, or it is not a replica."""
    found = state.partitions[where]
    now = found.value
    contested = [
        Compare(conflict_key(holder, where), state.conflicts[holder, *where].mod_revision)
        for holder in now.holders
        if (holder, *where) in state.conflicts
    ]
    if now.leader != NO_BROKER and not contested:
        raise InvalidArgument(f"broker {now.leader} leads this partition already")
    able = NO_BROKER if contested else _able(state, where)
    if able != NO_BROKER:
        raise InvalidArgument(f"broker {able} will lead in a moment, by the controller's own choice")
    if broker not in now.holders or broker not in state.brokers:
        alive = sorted(state.brokers.keys() & set(now.holders))
        raise InvalidArgument(f"broker {broker} is not a live replica of this partition; choose one of {alive}")
    record = state.brokers[broker]
    wanted = replace(
        now,
        leader=broker,
        epoch=now.epoch + 1,
        in_sync={broker: record.create_revision},
        eligible={},  # their records beyond the new leader's log are given up
        handover=NO_BROKER,
        folders={**now.folders, broker: record.value.folder},
        loss_accepted=now.epoch + 1,
        loss_settled=(),
    )
    involved = {broker, *now.holders, *now.in_sync, *now.eligible}
    compares = [Compare(partition_key(where), found.mod_revision), *contested]
    for other in sorted(involved):
        registered = state.brokers.get(other)
        compares.append(Compare(broker_key(other), 0 if registered is None else registered.mod_revision))
    operations: list[Put | Delete] = [Put(partition_key(where), wanted.encode())]
    mark = state.defective.get((broker, *where))
    if mark is not None:  # damaged or not, it is to lead
        compares.append(Compare(defective_key(broker, where), mark.mod_revision))
        operations.append(Delete(defective_key(broker, where)))
    return Change(tuple(compares), tuple(operations), f"operator: broker {broker} leads, although it may lack records")


def _able(state: ClusterState, where: PartitionId) -> int:
    """The broker that is about to lead by the controller's own rules; NO_BROKER if none."""
    for change in decide(state, last_resort=True, only=[where]):
        for operation in change.operations:
            if isinstance(operation, Put) and operation.key == partition_key(where):
                return PartitionState.decode(operation.value).leader
    return NO_BROKER
