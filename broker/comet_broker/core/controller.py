"""The controller's decisions: the changes that the state of the cluster calls for.

For each partition, in this order:

    mark        a member that came back with fewer records is marked as lossy
    elect       a leader that is gone, restarted, or must not lead, is replaced by the best replica, in a new epoch
    trim        members that are gone leave in_sync
    move        a reassignment whose new replicas are in sync is completed
    hand over   a leader that drains, or is not the preferred one, is requested to hand over leadership

New partitions are placed; the keys of deleted topics are removed. Nothing is ever removed because the metadata does not
mention it: a partition without a topic and without a tombstone is an orphan, left alone and reported.

Candidates to lead a `consistent` partition, the best first. All but the last two kinds have everything below the high
watermark, if it was not lost with a machine, which makes the others the last resort:

    in sync, and running without interruption since it joined
    in sync when it stopped, back, and nothing of its log can be lost
    eligible: left while too few were in sync for the high watermark to move; running, or back with nothing lost
    in sync, then eligible, when its machine went down
    any other copy, once each of those above is back with a new, empty folder: their data will not come back
    a copy that is still being made, then one with a new, empty folder, once there is no other

The last two must not lead while any other copy may come back: all others would truncate their logs to follow them. That
holds for `available` partitions, too; of those, any other copy may lead at any time.

Where no member of a `consistent` partition has been running since it was recorded, the logs decide, independent of the
brokers' reports on their disks: of the members that are alive, or if each of them may have lost records, of all copies,
the one with the greatest (epoch of the last record, end) leads. It has all that any other one of them still has: a log
that holds records of an epoch holds all that was committed in the epochs before. Without a leader, brokers put these
numbers under `cluster/ends/`. The controller waits for those of all members, at most for one lease. The lease
begins when the leader is lost, and again whenever a broker registers or leaves.

A last resort is decided by who is away, and a view that lags shows a broker as away that is back. So its transaction
compares the registrations and log ends of all members, too, and is made only if the view has the latest ones.

Pure: the same state gives the same changes, and once they are made, none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from comet.settings.topic import Consistency
from comet_broker.core.cluster import (
    DELETED,
    NO_BROKER,
    ClusterState,
    PartitionId,
    PartitionState,
    TopicSpec,
    Versioned,
    broker_key,
    end_key,
    partition_key,
    topic_key,
)
from comet_broker.core.placement import Load, choose_replicas
from comet_broker.metadata.store import OPERATIONS_MAX, Compare, Delete, Put

CHANGE_OPERATIONS_MAX: Final = 100
LOSSY: Final = 0  # in place of a broker epoch: a member that may have lost records when it came back

assert CHANGE_OPERATIONS_MAX + 2 <= OPERATIONS_MAX  # with the topic's compare and the controller's own

Specs = dict[str, tuple[str, Versioned[TopicSpec]]]  # by topic id, with the topic's name


@dataclass(frozen=True, slots=True)
class Change:
    """One transaction. Its `parts` can be made one by one, if another writer has changed one of its keys meanwhile."""

    compares: tuple[Compare, ...]
    operations: tuple[Put | Delete, ...]
    reason: str
    parts: tuple[Change, ...] = ()


def decide(
    state: ClusterState,
    *,
    rebalance: bool = False,
    last_resort: bool = True,
    only: Collection[PartitionId] | None = None,
    waited: Collection[PartitionId] | None = None,
    undecided: dict[PartitionId, Exception] | None = None,
) -> list[Change]:
    """All changes that the state calls for, the most urgent first.

    rebalance    the cluster has been healthy for long enough to return leadership to the preferred replicas
    last_resort  for a lease no broker has registered or left: a replica that may have lost records may lead
    only         no partitions but these have changed since all were checked
    undecided    takes the partitions whose decision raises an unexpected error, instead of the error being raised
    waited       the partitions for which `last_resort` holds: those without a leader for a lease; None: all
    """
    specs: Specs = {found.value.id: (name, found) for name, found in state.topics.items()}
    alive = {broker: record.create_revision for broker, record in state.brokers.items() if not draining(state, broker)}
    folders = {broker: record.value.folder for broker, record in state.brokers.items()}
    marked = {(topic_id, index) for _, topic_id, index in state.defective}
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
            due = last_resort and (waited is None or where in waited)
            wanted = case.settle(rebalance=rebalance, last_resort=due)
        except Exception as error:
            if undecided is None:
                raise
            undecided[where] = error
            continue
        if wanted != found.value:
            urgent = wanted.epoch != found.value.epoch
            change = _change(f"{name}/{where[1]}", where, found, wanted, case.evidence)
            (elections if urgent else others).append(change)
    changes = _gather(elections) + _gather(others)
    if only is None:
        changes += _placements(state, specs)
        changes += _burials(state, specs)
    return changes


def orphans(state: ClusterState) -> list[PartitionId]:
    """Partitions without a topic and without a tombstone."""
    known = {found.value.id for found in state.topics.values()} | state.deleted.keys()
    return sorted(where for where in state.partitions if where[0] not in known)


def draining(state: ClusterState, broker: int) -> bool:
    found = state.brokers.get(broker)
    return broker in state.drains or (found is not None and found.value.draining)


def handovers(state: ClusterState, broker: int) -> dict[PartitionId, int]:
    """The partitions that a broker leads, and to which broker it hands over each once it drains; NO_BROKER: none."""
    drained = copy(state)
    drained.drains = {**state.drains, broker: state.drains.get(broker, Versioned(b"", 0, 0))}
    specs = {found.value.id: found.value for found in state.topics.values()}
    return {
        where: _Case(drained, where, found.value, specs[where[0]]).next_leader()
        for where, found in state.partitions.items()
        if found.value.leader == broker and where[0] in specs
    }


# ---- one partition


def _is_calm(now: PartitionState, alive: dict[int, int], folders: dict[int, str], *, rebalance: bool) -> bool:
    """Whether nothing is to decide: all in-sync replicas are alive and not draining, and nothing is under way. A cheap
    check, since nearly all of many partitions are calm, and decisions on the others must not wait for them."""
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
    """One partition, with the cluster's state of its members."""

    def __init__(self, cluster: ClusterState, where: PartitionId, now: PartitionState, spec: TopicSpec) -> None:
        self._cluster = cluster
        self._where = where
        self._now = now
        self.evidence: tuple[Compare, ...] = ()  # what a last resort was decided by
        self._min_insync = spec.config.min_insync
        self._available = spec.config.consistency is Consistency.AVAILABLE

    def settle(self, *, rebalance: bool, last_resort: bool) -> PartitionState:
        now = self._mark(self._now)
        if not self._leads(now, now.leader):
            now = self._elect(now, last_resort=last_resort)
        if now.leader == NO_BROKER:
            return now
        now = self._move(self._trim(now))
        now = replace(now, handover=self._handover(now, rebalance=rebalance), folders=self._folders(now))
        assert self._leads(now, now.leader)
        assert now.epoch in {self._now.epoch, self._now.epoch + 1}
        return now

    def next_leader(self) -> int:
        """The broker that the leader hands over to; NO_BROKER if it stays."""
        return self._handover(self._trim(self._mark(self._now)), rebalance=False)

    # The state of a broker

    def _must_not_lead(self, broker: int) -> bool:
        """Whether it must not lead. A damaged only copy leads all the same: no other could repair it, and its other
        records can still be read."""
        return (broker, *self._where) in self._cluster.defective and self._now.replicas != (broker,)

    def _stops(self, broker: int) -> bool:
        found = self._cluster.brokers.get(broker)
        return found is not None and found.value.draining

    def _current(self, table: dict[int, int], broker: int) -> bool:
        """Whether it is alive, in the broker epoch that is recorded."""
        return table.get(broker, LOSSY) != LOSSY and self._cluster.broker_epoch(broker) == table[broker]

    def _whole(self, table: dict[int, int], broker: int) -> bool:
        """Whether it is alive and can have lost nothing since it was recorded."""
        found = self._cluster.brokers.get(broker)
        if found is None or table.get(broker, LOSSY) == LOSSY or self._folder_replaced(broker):
            return False
        return found.create_revision == table[broker] or found.value.clean

    def _folder_replaced(self, broker: int) -> bool:
        """Whether it is alive without the folder in which it was in sync last. A broker that is away may still have
        it."""
        found = self._cluster.brokers.get(broker)
        if found is None or self._current(self._now.in_sync, broker):
            return False
        return self._now.folder_replaced(broker, found.value)

    def _unmade(self, broker: int) -> bool:
        """Whether it is to become a replica and has never been complete."""
        return broker not in self._now.replicas and broker not in self._now.folders

    def _leads(self, now: PartitionState, broker: int) -> bool:
        return self._current(now.in_sync, broker) and not self._must_not_lead(broker)

    # The steps

    def _mark(self, now: PartitionState) -> PartitionState:
        """Records the members that may have lost records: their next start may not know it. Members with a new folder
        are left out: the folder's id shows it, and the old folder may still have everything."""

        def lost(table: dict[int, int], broker: int) -> bool:
            here = self._cluster.broker_epoch(broker) != 0 and not self._folder_replaced(broker)
            return here and not self._whole(table, broker)

        def marked(table: dict[int, int]) -> dict[int, int]:
            return {broker: LOSSY if lost(table, broker) else broker_epoch for broker, broker_epoch in table.items()}

        return replace(now, in_sync=marked(now.in_sync), eligible=marked(now.eligible))

    def _elect(self, now: PartitionState, *, last_resort: bool) -> PartitionState:
        """A new leader in a new epoch; no leader if there is no candidate, and then in_sync stays as it was."""
        leader = self._best(now, last_resort=last_resort)
        if leader == NO_BROKER:
            return (
                now
                if now.leader == NO_BROKER
                else replace(now, leader=NO_BROKER, epoch=now.epoch + 1, handover=NO_BROKER)
            )
        if self._is_last_resort(now, leader):
            self.evidence = tuple(self._presence(now))
        if not self._current(now.in_sync, leader):
            members = {**now.eligible, **now.in_sync}
            now = self._with_members(now, {leader: self._cluster.broker_epoch(leader)}, members)
        return replace(now, leader=leader, epoch=now.epoch + 1, handover=NO_BROKER)

    def _is_last_resort(self, now: PartitionState, leader: int) -> bool:
        sure = self._current(now.in_sync, leader) or self._current(now.eligible, leader)
        return not sure and (not self._available or self._rank(now, leader) > _Rank.ANY)

    def _presence(self, now: PartitionState) -> Iterator[Compare]:
        """The registration and the log end of each member, as they are known; 0: none."""
        for broker in sorted({*now.holders, *now.in_sync, *now.eligible}):
            registration = self._cluster.brokers.get(broker)
            end = self._cluster.ends.get((broker, *self._where))
            yield Compare(broker_key(broker), 0 if registration is None else registration.mod_revision)
            yield Compare(end_key(broker, self._where), 0 if end is None else end.mod_revision)

    def _best(self, now: PartitionState, *, last_resort: bool) -> int:
        """The best candidate by the table at the top; among equals, one that does not drain, then the preferred one."""
        patient = not last_resort and not all(self._cluster.broker_epoch(b) for b in (*now.in_sync, *now.eligible))
        ranked: list[tuple[int, bool, int, int]] = []
        for order, broker in enumerate(now.holders):
            if not self._cluster.broker_epoch(broker) or self._must_not_lead(broker):
                continue
            rank = self._rank(now, broker)
            sure = self._current(now.in_sync, broker) or self._current(now.eligible, broker)
            if rank != _Rank.NONE and (sure or not patient or self._available):
                ranked.append((rank, draining(self._cluster, broker), order, broker))
        if not ranked:
            return NO_BROKER
        rank, *_, leader = min(ranked)
        sure = self._current(now.in_sync, leader) or self._current(now.eligible, leader)
        if sure or rank > _Rank.ANY or self._available:
            return leader
        members = {*now.in_sync, *now.eligible} if rank < _Rank.LOSSY_IN_SYNC else set(now.holders)
        return self._longest(now, members, wait=not last_resort)

    def _longest(self, now: PartitionState, members: set[int], *, wait: bool) -> int:
        """Of these members, the one alive with the greatest (epoch of the last record, end); NO_BROKER while `wait` and
        a log end is missing. Last come members without a reported log end, and those that have not followed since an
        operator gave up their records."""
        out = {b for b in now.holders if self._must_not_lead(b) or self._folder_replaced(b) or self._unmade(b)}
        here = [b for b in now.holders if b in members - out and self._cluster.broker_epoch(b)]
        ends = {broker: end for broker in here if (end := self._log_end(now, broker)) is not None}
        if len(here) > 1 and len(ends) < len(here) and wait:
            return NO_BROKER

        def goodness(broker: int) -> tuple[int, int, int, bool, int]:
            last_epoch, log_end = ends.get(broker, (0, 0))
            if last_epoch < now.loss_accepted_of(broker):
                last_epoch, log_end = 0, 0
            drains = draining(self._cluster, broker)
            return (-last_epoch, -log_end, self._rank(now, broker), drains, now.holders.index(broker))

        return min(here, key=goodness)

    def _log_end(self, now: PartitionState, broker: int) -> tuple[int, int] | None:
        """The log end that the broker has reported since its start and since the partition lost its leader."""
        found = self._cluster.ends.get((broker, *self._where))
        if found is None or now.leader != NO_BROKER:
            return None
        end = found.value
        if end.broker_epoch != self._cluster.broker_epoch(broker) or end.epoch != now.epoch:
            return None
        return end.last_epoch, end.log_end

    def _rank(self, now: PartitionState, broker: int) -> int:
        if self._current(now.in_sync, broker):
            return _Rank.IN_SYNC
        if self._folder_replaced(broker) or self._unmade(broker):
            alone = all(self._folder_replaced(other) or self._unmade(other) for other in now.holders)
            return (_Rank.FOLDER_REPLACED if self._folder_replaced(broker) else _Rank.UNMADE) if alone else _Rank.NONE
        if self._whole(now.in_sync, broker):
            return _Rank.BACK
        if self._whole(now.eligible, broker):
            return _Rank.ELIGIBLE
        if broker in now.in_sync:
            return _Rank.LOSSY_IN_SYNC
        if broker in now.eligible:
            return _Rank.LOSSY_ELIGIBLE
        gone = all(self._folder_replaced(member) for member in (*now.in_sync, *now.eligible))
        # An operator has chosen the copy that is to lead next, over all others.
        chosen = now.leader == NO_BROKER and now.loss_accepted == now.epoch > 0
        return _Rank.ANY if (self._available and not chosen) or gone else _Rank.NONE

    def _trim(self, now: PartitionState) -> PartitionState:
        """Removes members from in_sync that are gone, restarted, must not lead, or no longer hold a copy."""
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
            if broker not in in_sync and broker in now.holders and not self._must_not_lead(broker)
        }
        return replace(
            now,
            in_sync=in_sync,
            eligible=eligible if len(in_sync) < self._min_insync else {},
            given_up={broker: found for broker, found in now.given_up.items() if broker not in in_sync},
        )

    def _folders(self, now: PartitionState) -> dict[int, str]:
        """The folder of each copy in which it is, or was last, in sync."""
        members = {*now.holders, *now.in_sync, *now.eligible}
        found = {broker: self._cluster.brokers[broker].value.folder for broker in now.in_sync}
        return {**{broker: folder for broker, folder in now.folders.items() if broker in members}, **found}

    def _arrived(self, now: PartitionState) -> bool:
        """Whether all replicas of the target are in sync, and are enough for acknowledgements without the others."""
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
        """The broker that the leader is to hand over to; NO_BROKER if it may stay."""
        replicas = now.target if self._arrived(now) else now.holders
        able = [broker for broker in replicas if broker != now.leader and self._leads(now, broker)]
        calm = [broker for broker in able if not draining(self._cluster, broker)]
        if now.leader not in replicas:
            calm = calm or able
        elif not draining(self._cluster, now.leader):
            preferred = (now.target if self._arrived(now) else now.replicas)[0]
            wanted = preferred in calm and (rebalance or now.handover == preferred)
            return preferred if wanted else NO_BROKER
        if not calm and self._stops(now.leader):
            calm = [broker for broker in able if not self._stops(broker)]  # drained, but it stays
        if now.handover in calm:
            return now.handover
        return calm[0] if calm else NO_BROKER


class _Rank:
    """How well a broker is suited to lead; lower is better."""

    IN_SYNC: Final = 0
    BACK: Final = 1
    ELIGIBLE: Final = 2
    LOSSY_IN_SYNC: Final = 3
    LOSSY_ELIGIBLE: Final = 4
    ANY: Final = 5  # of an `available` topic, or when those above are gone for good
    UNMADE: Final = 6
    FOLDER_REPLACED: Final = 7
    NONE: Final = 8


def _change(
    name: str,
    where: PartitionId,
    found: Versioned[PartitionState],
    wanted: PartitionState,
    evidence: tuple[Compare, ...],
) -> Change:
    key = partition_key(where)
    compares = (Compare(key, found.mod_revision), *evidence)
    return Change(compares, (Put(key, wanted.encode()),), _reason(name, found.value, wanted))


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
    """Combines the changes of many partitions into few transactions."""
    gathered: list[Change] = []
    for parts in _batches(changes):
        if len(parts) == 1:
            gathered.append(parts[0])
            continue
        compares = tuple(dict.fromkeys(compare for part in parts for compare in part.compares))
        operations = tuple(operation for part in parts for operation in part.operations)
        gathered.append(Change(compares, operations, "; ".join(part.reason for part in parts), parts))
    return gathered


def _batches(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """In order, as many as one transaction has room for; each change has more compares than operations, or as many."""
    parts: list[Change] = []
    compares: set[Compare] = set()
    for change in changes:
        if parts and len(compares.union(change.compares)) > CHANGE_OPERATIONS_MAX:
            yield tuple(parts)
            parts, compares = [], set()
        parts.append(change)
        compares.update(change.compares)
    if parts:
        yield tuple(parts)


# ---- new topics, deleted topics


def _placements(state: ClusterState, specs: Specs) -> list[Change]:
    """Placements of new partitions. One with more replicas than there are brokers waits for more brokers."""
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
        placed = choose_replicas(racks, len(indexes), found.value.replicas, topic, cluster) if indexes else []
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
    """The brokers to place on, and their racks: without those that drain, if the others are enough."""
    alive = {broker: state.brokers[broker].value.rack for broker in sorted(state.brokers)}
    calm = {broker: rack for broker, rack in alive.items() if not draining(state, broker)}
    return calm if len(calm) >= replicas else alive


def _burials(state: ClusterState, specs: Specs) -> list[Change]:
    """Deletions: of keys of deleted topics, of marks of removed replicas, and of tombstones that all brokers have
    acted on."""
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
            changes.append(_delete([mark], (unchanged,), f"broker {broker} no longer holds {topic_id}/{index}"))
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
