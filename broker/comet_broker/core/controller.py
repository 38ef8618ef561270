"""What the controller decides: from the picture of the cluster to the changes that it wants made.

For each partition, in this order:

    mark        a member that came back with less than it had is written down as such
    elect       a leader that is gone, or came back, or must not lead, is followed by the best there is, in a new epoch
    trim        those that are gone leave in_sync
    move        replicas that are to be elsewhere, and are there in sync, are the replicas from now on
    hand over   a leader that drains, or is not the preferred one, is asked to pass on

New partitions are placed, those of deleted topics buried. Nothing is ever removed because the metadata does not
mention it: a partition of which no topic and no tombstone knows is an orphan, left alone and reported.

Who may lead a `consistent` partition, the best first. All but the last two kinds have everything below the high
watermark, if it was not lost with a machine, which makes the others the last resort:

    in sync, and still the one that was taken in
    in sync when it stopped, back, and nothing of what it wrote can be lost
    eligible: left while too few were in sync for the high watermark to move; running, or back with nothing lost
    in sync, then eligible, when its machine went down
    any other copy, once each of those above is back with a folder that began anew: their data will not come back
    one that is only being made, then one that began anew, once there is no other

The last two must not lead while any other copy may come back: all would follow them to where they have nothing. That
holds for `available` partitions, too; of those, any other copy may lead at any time.

Where none of a `consistent` partition's members has been running since it was written down, the logs decide, whatever
brokers say of their disks: of the members that are here, or if each of them may have lost something of all copies, the
one with the greatest (epoch of the last record, end) leads. It has all that any other one of them has left: a log that
holds records of an epoch holds all that was committed in the epochs before. Brokers put these numbers under
`cluster/ends/` while there is no leader. Those that have not, and members that are away, are waited for.

Pure: the same picture gives the same changes, and once they are made, none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from comet.types import Consistency
from comet_broker.core.cluster import (
    DELETED,
    NOBODY,
    ClusterState,
    PartitionState,
    Place,
    TopicSpec,
    Versioned,
    partition_key,
    topic_key,
)
from comet_broker.core.placement import Load, place
from comet_broker.metadata.store import OPERATIONS_MAX, Compare, Delete, Put

CHANGE_OPERATIONS_MAX: Final = 100
LOSSY: Final = 0  # in place of a broker epoch: a member that came back with less than it may have had

assert CHANGE_OPERATIONS_MAX + 2 <= OPERATIONS_MAX  # with the topic's compare and the controller's own

Specs = dict[str, tuple[str, Versioned[TopicSpec]]]  # by topic id, with the topic's name


@dataclass(frozen=True, slots=True)
class Change:
    """One transaction. `parts` of it can be made alone, when something else has changed one of its keys meanwhile."""

    compares: tuple[Compare, ...]
    operations: tuple[Put | Delete, ...]
    reason: str
    parts: tuple[Change, ...] = ()


def decide(
    state: ClusterState,
    *,
    rebalance: bool = False,
    last_resort: bool = True,
    only: Collection[Place] | None = None,
    waited: Collection[Place] | None = None,
    undecided: dict[Place, Exception] | None = None,
) -> list[Change]:
    """All changes that the picture calls for, the most urgent first.

    rebalance    all has been well for long enough for leadership to go back to the preferred replicas
    last_resort  those in sync have had the time to come back: one that may have lost something can lead if need be
    only         nothing but these partitions has changed since all were looked at
    undecided    takes the partitions whose decision raises an unexpected error, instead of the error being raised
    waited       nobody leads these for so long that brokers had the time to say how far their logs go; None: any
    """
    specs: Specs = {found.value.id: (name, found) for name, found in state.topics.items()}
    alive = {broker: record.create_revision for broker, record in state.brokers.items() if not draining(state, broker)}
    folders = {broker: record.value.folder for broker, record in state.brokers.items()}
    marked = {(topic_id, index) for _, topic_id, index in state.unfit}
    elections: list[Change] = []
    others: list[Change] = []
    for where in (
        sorted(state.partitions) if only is None else sorted(each for each in set(only) if each in state.partitions)
    ):
        if where[0] not in specs:
            continue
        name, spec = specs[where[0]]
        found = state.partitions[where]
        try:
            if where not in marked and _is_calm(found.value, alive, folders, rebalance=rebalance):
                continue
            case = _Case(state, where, found.value, spec.value)
            in_time = waited is not None and where not in waited
            wanted = case.settle(rebalance=rebalance, last_resort=last_resort, in_time=in_time)
        except Exception as error:
            if undecided is None:
                raise
            undecided[where] = error
            continue
        if wanted != found.value:
            urgent = wanted.epoch != found.value.epoch
            (elections if urgent else others).append(_change(f"{name}/{where[1]}", where, found, wanted))
    changes = _gather(elections) + _gather(others)
    if only is None:
        changes += _placements(state, specs)
        changes += _burials(state, specs)
    return changes


def orphans(state: ClusterState) -> list[Place]:
    """Partitions of which neither a topic nor a tombstone knows."""
    known = {found.value.id for found in state.topics.values()} | state.deleted.keys()
    return sorted(where for where in state.partitions if where[0] not in known)


def draining(state: ClusterState, broker: int) -> bool:
    found = state.brokers.get(broker)
    return broker in state.drains or (found is not None and found.value.draining)


# ---- one partition


def _is_calm(now: PartitionState, alive: dict[int, int], folders: dict[int, str], *, rebalance: bool) -> bool:
    """Seen at a glance: all in sync are alive as they were and drain not, and nothing is under way. Of many
    partitions nearly all are, and what is decided for the others must not wait for them."""
    return (
        now.leader in now.in_sync
        and not now.target
        and not now.handover
        and not now.eligible
        and now.in_sync.items() <= alive.items()
        and now.in_sync.keys() <= set(now.replicas)
        and (not rebalance or now.leader == now.replicas[0])
        and all(now.folders.get(broker) == folders[broker] for broker in now.in_sync)
    )


class _Case:
    """One partition, with what the cluster says of its members."""

    def __init__(self, cluster: ClusterState, where: Place, now: PartitionState, spec: TopicSpec) -> None:
        self._cluster = cluster
        self._where = where
        self._now = now
        self._min_insync = spec.config.min_insync
        self._available = spec.config.consistency is Consistency.AVAILABLE

    def settle(self, *, rebalance: bool, last_resort: bool, in_time: bool) -> PartitionState:
        now = self._mark(self._now)
        if not self._leads(now, now.leader):
            now = self._elect(now, last_resort=last_resort, in_time=in_time)
        if now.leader == NOBODY:
            return now
        now = self._move(self._trim(now))
        now = replace(now, handover=self._handover(now, rebalance=rebalance), folders=self._folders(now))
        assert self._leads(now, now.leader)
        assert now.epoch in {self._now.epoch, self._now.epoch + 1}
        return now

    # What the cluster says of a broker

    def _unfit(self, broker: int) -> bool:
        """Must not lead. The only copy there is leads all the same: no other could repair it, and the rest of it is
        worth reading."""
        return (broker, *self._where) in self._cluster.unfit and self._now.replicas != (broker,)

    def _stops(self, broker: int) -> bool:
        found = self._cluster.brokers.get(broker)
        return found is not None and found.value.draining

    def _current(self, table: dict[int, int], broker: int) -> bool:
        """Alive, and still the one that is written down."""
        return table.get(broker, LOSSY) != LOSSY and self._cluster.broker_epoch(broker) == table[broker]

    def _whole(self, table: dict[int, int], broker: int) -> bool:
        """Alive, and of what it had when it was written down nothing can have been lost."""
        found = self._cluster.brokers.get(broker)
        if found is None or table.get(broker, LOSSY) == LOSSY or self._anew(broker):
            return False
        return found.create_revision == table[broker] or found.value.clean

    def _anew(self, broker: int) -> bool:
        """Alive, and without what it had when it was in sync last. Who is away is not known to have lost anything."""
        found = self._cluster.brokers.get(broker)
        if found is None or self._current(self._now.in_sync, broker):
            return False
        return self._now.anew(broker, found.value)

    def _unmade(self, broker: int) -> bool:
        """It is to become a replica, and has never had all there was."""
        return broker not in self._now.replicas and broker not in self._now.folders

    def _leads(self, now: PartitionState, broker: int) -> bool:
        return self._current(now.in_sync, broker) and not self._unfit(broker)

    # The steps

    def _mark(self, now: PartitionState) -> PartitionState:
        """The next start of a broker need not know what an earlier one has lost, so it is written down here. Not so of
        one that began anew: that shows in its folder, and nothing is lost yet of what lies in the old one."""

        def lost(table: dict[int, int], broker: int) -> bool:
            here = self._cluster.broker_epoch(broker) != 0 and not self._anew(broker)
            return here and not self._whole(table, broker)

        def marked(table: dict[int, int]) -> dict[int, int]:
            return {broker: LOSSY if lost(table, broker) else broker_epoch for broker, broker_epoch in table.items()}

        return replace(now, in_sync=marked(now.in_sync), eligible=marked(now.eligible))

    def _elect(self, now: PartitionState, *, last_resort: bool, in_time: bool) -> PartitionState:
        """A new leader in a new epoch; nobody, if nobody may. Then those in sync stay written down as they were."""
        leader = self._best(now, last_resort=last_resort, in_time=in_time)
        if leader == NOBODY:
            return now if now.leader == NOBODY else replace(now, leader=NOBODY, epoch=now.epoch + 1, handover=NOBODY)
        if not self._current(now.in_sync, leader):
            members = {**now.eligible, **now.in_sync}
            now = self._with_members(now, {leader: self._cluster.broker_epoch(leader)}, members)
        return replace(now, leader=leader, epoch=now.epoch + 1, handover=NOBODY)

    def _best(self, now: PartitionState, *, last_resort: bool, in_time: bool) -> int:
        """Who is to lead, as the table at the top has it; among equals, who does not drain, then who is preferred."""
        patient = not last_resort and not all(self._cluster.broker_epoch(b) for b in (*now.in_sync, *now.eligible))
        ranked: list[tuple[int, bool, int, int]] = []
        for order, broker in enumerate(now.holders):
            if not self._cluster.broker_epoch(broker) or self._unfit(broker):
                continue
            rank = self._rank(now, broker)
            sure = self._current(now.in_sync, broker) or self._current(now.eligible, broker)
            if rank != _Rank.NONE and (sure or not patient or self._available):
                ranked.append((rank, draining(self._cluster, broker), order, broker))
        if not ranked:
            return NOBODY
        rank, *_, leader = min(ranked)
        sure = self._current(now.in_sync, leader) or self._current(now.eligible, leader)
        if sure or rank > _Rank.ANY or self._available:
            return leader
        members = {*now.in_sync, *now.eligible} if rank < _Rank.LOSSY_IN_SYNC else set(now.holders)
        return self._longest(now, members, wait=in_time or not last_resort)

    def _longest(self, now: PartitionState, members: set[int], *, wait: bool) -> int:
        """Of these, the copy that is here with the greatest (epoch of the last record, end); nobody, while one has not
        said how far its log goes and is waited for. Last come those that never say it, and those that have not followed
        since an operator gave up what they hold."""
        out = {broker for broker in now.holders if self._unfit(broker) or self._anew(broker) or self._unmade(broker)}
        here = [b for b in now.holders if b in members - out and self._cluster.broker_epoch(b)]
        ends = {broker: end for broker in here if (end := self._log_end(now, broker)) is not None}
        if len(here) > 1 and len(ends) < len(here) and wait:
            return NOBODY

        def goodness(broker: int) -> tuple[int, int, int, bool, int]:
            last_epoch, log_end = ends.get(broker, (0, 0))
            if last_epoch < now.loss_accepted and broker not in now.in_sync and broker not in now.eligible:
                last_epoch, log_end = 0, 0
            drains = draining(self._cluster, broker)
            return (-last_epoch, -log_end, self._rank(now, broker), drains, now.holders.index(broker))

        return min(here, key=goodness)

    def _log_end(self, now: PartitionState, broker: int) -> tuple[int, int] | None:
        """What the broker has said of its log since nobody leads, and since it was started."""
        found = self._cluster.ends.get((broker, *self._where))
        if found is None or now.leader != NOBODY:
            return None
        end = found.value
        if end.broker_epoch != self._cluster.broker_epoch(broker) or end.epoch != now.epoch:
            return None
        return end.last_epoch, end.log_end

    def _rank(self, now: PartitionState, broker: int) -> int:
        if self._current(now.in_sync, broker):
            return _Rank.IN_SYNC
        if self._anew(broker) or self._unmade(broker):
            alone = all(self._anew(other) or self._unmade(other) for other in now.holders)
            return (_Rank.ANEW if self._anew(broker) else _Rank.UNMADE) if alone else _Rank.NONE
        if self._whole(now.in_sync, broker):
            return _Rank.BACK
        if self._whole(now.eligible, broker):
            return _Rank.ELIGIBLE
        if broker in now.in_sync:
            return _Rank.LOSSY_IN_SYNC
        if broker in now.eligible:
            return _Rank.LOSSY_ELIGIBLE
        gone = all(self._anew(member) for member in (*now.in_sync, *now.eligible))
        # An operator has chosen the copy that is to lead next, whatever others there are.
        chosen = now.leader == NOBODY and now.loss_accepted == now.epoch > 0
        return _Rank.ANY if (self._available and not chosen) or gone else _Rank.NONE

    def _trim(self, now: PartitionState) -> PartitionState:
        """Without those that are gone, came back as others, must not lead, or hold no copy any more."""
        in_sync = {
            broker: broker_epoch
            for broker, broker_epoch in now.in_sync.items()
            if broker == now.leader or (self._leads(now, broker) and broker in now.holders)
        }
        return self._with_members(now, in_sync, {**now.eligible, **now.in_sync})

    def _with_members(self, now: PartitionState, in_sync: dict[int, int], members: dict[int, int]) -> PartitionState:
        """While too few are in sync, the high watermark stands still and the other members have all below it."""
        eligible = {
            broker: broker_epoch
            for broker, broker_epoch in members.items()
            if broker not in in_sync and broker in now.holders and not self._unfit(broker)
        }
        return replace(
            now,
            in_sync=in_sync,
            eligible=eligible if len(in_sync) < self._min_insync else {},
            given_up={broker: found for broker, found in now.given_up.items() if broker not in in_sync},
        )

    def _folders(self, now: PartitionState) -> dict[int, str]:
        """Where the copies lie that are in sync, or were last."""
        kept = {*now.holders, *now.in_sync, *now.eligible}
        found = {broker: self._cluster.brokers[broker].value.folder for broker in now.in_sync}
        return {**{broker: folder for broker, folder in now.folders.items() if broker in kept}, **found}

    def _arrived(self, now: PartitionState) -> bool:
        """All that are to be the replicas are in sync, and to leave the others out makes in_sync no smaller than
        acknowledgements need it."""
        return (
            bool(now.target)
            and all(self._leads(now, broker) for broker in now.target)
            and len(now.target) >= min(self._min_insync, len(now.replicas))
        )

    def _move(self, now: PartitionState) -> PartitionState:
        if not self._arrived(now) or now.leader not in now.target:
            return now
        in_sync = {broker: now.in_sync[broker] for broker in now.target}
        return replace(now, replicas=now.target, target=(), in_sync=in_sync, eligible={})

    def _handover(self, now: PartitionState, *, rebalance: bool) -> int:
        """Whom the leader is to pass on to; NOBODY: it may stay."""
        places = now.target if self._arrived(now) else now.holders
        able = [broker for broker in places if broker != now.leader and self._leads(now, broker)]
        calm = [broker for broker in able if not draining(self._cluster, broker)]
        if now.leader not in places:
            calm = calm or able
        elif not draining(self._cluster, now.leader):
            preferred = (now.target if self._arrived(now) else now.replicas)[0]
            wanted = preferred in calm and (rebalance or now.handover == preferred)
            return preferred if wanted else NOBODY
        if not calm and self._stops(now.leader):
            calm = [broker for broker in able if not self._stops(broker)]  # drained, but it stays
        if now.handover in calm:
            return now.handover
        return calm[0] if calm else NOBODY


class _Rank:
    """How good a leader a broker would be; the lower the better."""

    IN_SYNC: Final = 0
    BACK: Final = 1
    ELIGIBLE: Final = 2
    LOSSY_IN_SYNC: Final = 3
    LOSSY_ELIGIBLE: Final = 4
    ANY: Final = 5  # of an `available` topic, or when those above are gone for good
    UNMADE: Final = 6
    ANEW: Final = 7
    NONE: Final = 8


def _change(name: str, where: Place, found: Versioned[PartitionState], wanted: PartitionState) -> Change:
    key = partition_key(where)
    return Change((Compare(key, found.mod_revision),), (Put(key, wanted.encode()),), _reason(name, found.value, wanted))


def _reason(name: str, before: PartitionState, after: PartitionState) -> str:
    words: list[str] = []
    if after.epoch != before.epoch:
        words.append(f"leader {before.leader} -> {after.leader}, epoch {after.epoch}")
    if after.replicas != before.replicas:
        words.append(f"replicas {list(before.replicas)} -> {list(after.replicas)}")
    if after.in_sync != before.in_sync:
        words.append(f"in sync {sorted(before.in_sync)} -> {sorted(after.in_sync)}")
    if after.eligible != before.eligible:
        words.append(f"eligible {sorted(before.eligible)} -> {sorted(after.eligible)}")
    if after.handover != before.handover:
        words.append(f"hand over to {after.handover}" if after.handover else "no handover")
    return f"{name}: {'; '.join(words)}"


def _gather(changes: Sequence[Change]) -> list[Change]:
    """Few transactions for many partitions."""
    gathered: list[Change] = []
    for start in range(0, len(changes), CHANGE_OPERATIONS_MAX):
        parts = tuple(changes[start : start + CHANGE_OPERATIONS_MAX])
        if len(parts) == 1:
            gathered.append(parts[0])
            continue
        compares = tuple(compare for part in parts for compare in part.compares)
        operations = tuple(operation for part in parts for operation in part.operations)
        gathered.append(Change(compares, operations, "; ".join(part.reason for part in parts), parts))
    return gathered


# ---- new topics, deleted topics


def _placements(state: ClusterState, specs: Specs) -> list[Change]:
    """New partitions. One that wants more replicas than there are brokers waits for them."""
    missing = {
        topic_id: [index for index in range(found.value.partitions) if (topic_id, index) not in state.partitions]
        for topic_id, (_, found) in specs.items()
        if topic_id not in state.deleted
    }
    if not any(missing.values()):
        return []
    cluster = Load.of(found.value.target or found.value.replicas for found in state.partitions.values())
    # A topic may have had partitions in a history that an operator has given up: each of their epochs took a revision.
    entries = () if state.lineage is None else state.lineage.value.entries
    first = 1 + max((entry.below for entry in entries), default=0)
    changes: list[Change] = []
    for topic_id in sorted(missing, key=lambda topic_id: specs[topic_id][0]):
        name, found = specs[topic_id]
        topic = Load.of(
            known.value.target or known.value.replicas
            for where, known in state.partitions.items()
            if where[0] == topic_id
        )
        indexes = missing[topic_id]
        racks = _choice(state, found.value.replicas)
        placed = place(racks, len(indexes), found.value.replicas, topic, cluster) if indexes else []
        states = {
            (topic_id, index): PartitionState(
                leader=replicas[0],
                epoch=first,
                replicas=replicas,
                in_sync={broker: state.broker_epoch(broker) for broker in replicas},
                folders={broker: state.brokers[broker].value.folder for broker in replicas},
            )
            for index, replicas in zip(indexes, placed, strict=False)
        }
        for start in range(0, len(states), CHANGE_OPERATIONS_MAX):
            some = list(states.items())[start : start + CHANGE_OPERATIONS_MAX]
            changes.append(
                Change(
                    (Compare(topic_key(name), found.mod_revision), *(Compare(partition_key(at), 0) for at, _ in some)),
                    tuple(Put(partition_key(at), new.encode()) for at, new in some),
                    f"{name}: {len(some)} new partitions placed",
                )
            )
    return changes


def _choice(state: ClusterState, replicas: int) -> dict[int, str]:
    """The brokers to place on, and their racks: not on those that drain, if it can be helped."""
    alive = {broker: state.brokers[broker].value.rack for broker in sorted(state.brokers)}
    calm = {broker: rack for broker, rack in alive.items() if not draining(state, broker)}
    return calm if len(calm) >= replicas else alive


def _burials(state: ClusterState, specs: Specs) -> list[Change]:
    """The keys of deleted topics, the marks of replicas that are not there any more, and tombstones that all brokers
    have acted on."""
    buried = state.deleted.keys() - specs.keys()
    doomed = [
        Compare(partition_key(where), found.mod_revision)
        for where, found in sorted(state.partitions.items())
        if where[0] in buried
    ]
    marks = [(copy, Compare(key, mod_revision)) for copy, key, mod_revision in state.marks()]
    doomed += [compare for (_, topic_id, _), compare in marks if topic_id in buried]
    changes = [
        _delete(doomed[start : start + CHANGE_OPERATIONS_MAX], (), "keys of deleted topics removed")
        for start in range(0, len(doomed), CHANGE_OPERATIONS_MAX)
    ]
    for (broker, topic_id, index), mark in marks:
        held = state.partitions.get((topic_id, index))
        if topic_id in specs and held is not None and broker not in held.value.holders:
            unchanged = Compare(partition_key((topic_id, index)), held.mod_revision)
            changes.append(_delete([mark], (unchanged,), f"broker {broker} holds {topic_id}/{index} no more"))
    with_keys = {where[0] for where in state.partitions} | {copy[1] for copy, _ in marks}
    done = [
        Compare(DELETED + topic_id, state.deleted[topic_id].mod_revision)
        for topic_id in sorted(buried - with_keys)
        if not state.deleted[topic_id].value.brokers
    ]
    return changes + [
        _delete(done[start : start + CHANGE_OPERATIONS_MAX], (), "tombstones removed")
        for start in range(0, len(done), CHANGE_OPERATIONS_MAX)
    ]


def _delete(keys: Sequence[Compare], unchanged: tuple[Compare, ...], reason: str) -> Change:
    parts = tuple(Change((key, *unchanged), (Delete(key.key),), reason) for key in keys)
    if len(parts) == 1:
        return parts[0]
    return Change((*keys, *unchanged), tuple(Delete(key.key) for key in keys), reason, parts)
