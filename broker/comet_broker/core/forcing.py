"""An operator's way out: has a replica lead that may lack something, because nobody comes back that has everything.

What the controller would never do, and nobody can take back: whatever the chosen replica lacks is cut from all others
when they follow it (`loss_accepted`). So it is refused while there is a leader, or anybody who may lead by the
controller's own rules, at once or when the time to wait for others is over; and made only if all of those are still
what they were.

Where a replica is in conflict with its leader (`core.conflicts`), a leader is chosen although there is one: the replica
in conflict, or the present leader once more, or any other one. Of what the others hold beyond it, nothing is cut before
it is set aside.

Pure.
"""

from __future__ import annotations

from msgspec.structs import replace

from comet.errors import InvalidArgument
from comet_broker.core.cluster import (
    NOBODY,
    ClusterState,
    PartitionState,
    Place,
    broker_key,
    conflict_key,
    partition_key,
    unfit_key,
)
from comet_broker.core.controller import Change, decide
from comet_broker.metadata.store import Compare, Delete, Put


def forced(state: ClusterState, where: Place, broker: int) -> Change:
    """What makes `broker` the leader; raises InvalidArgument if there is no need, or it holds no replica."""
    found = state.partitions[where]
    now = found.value
    contested = [
        Compare(conflict_key(holder, where), state.conflicts[holder, *where].mod_revision)
        for holder in now.holders
        if (holder, *where) in state.conflicts
    ]
    if now.leader != NOBODY and not contested:
        raise InvalidArgument(f"broker {now.leader} leads this partition: there is nothing to force")
    able = NOBODY if contested else _able(state, where)
    if able != NOBODY:
        raise InvalidArgument(f"broker {able} has what is needed and will lead in a moment: there is nothing to force")
    if broker not in now.holders or broker not in state.brokers:
        alive = sorted(state.brokers.keys() & set(now.holders))
        raise InvalidArgument(f"broker {broker} is no replica of this partition that is alive; those are {alive}")
    record = state.brokers[broker]
    wanted = replace(
        now,
        leader=broker,
        epoch=now.epoch + 1,
        in_sync={broker: record.create_revision},
        eligible={},  # what they have beyond the new leader's log is given up
        handover=NOBODY,
        folders={**now.folders, broker: record.value.folder},
        loss_accepted=now.epoch + 1,
    )
    involved = {broker, *now.holders, *now.in_sync, *now.eligible}
    compares = [Compare(partition_key(where), found.mod_revision), *contested]
    for other in sorted(involved):
        registered = state.brokers.get(other)
        compares.append(Compare(broker_key(other), 0 if registered is None else registered.mod_revision))
    operations: list[Put | Delete] = [Put(partition_key(where), wanted.encode())]
    mark = state.unfit.get((broker, *where))
    if mark is not None:  # damaged or not, it is to lead
        compares.append(Compare(unfit_key(broker, where), mark.mod_revision))
        operations.append(Delete(unfit_key(broker, where)))
    return Change(tuple(compares), tuple(operations), f"an operator has broker {broker} lead, whatever it lacks")


def _able(state: ClusterState, where: Place) -> int:
    """Who is about to lead by the controller's own rules."""
    for change in decide(state, last_resort=True, only=[where]):
        for operation in change.operations:
            if isinstance(operation, Put) and operation.key == partition_key(where):
                return PartitionState.decode(operation.value).leader
    return NOBODY
