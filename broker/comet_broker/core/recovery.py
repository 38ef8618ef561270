"""The recovery of a metadata store that went back in time or was emptied: `comet cluster recover`.

    inventories of all folders ─┐
    listing of the store ───────┴─► planned ─► Plan (shown, then accepted by its digest) ─► changes to the store

For each partition one copy is chosen: the one that loses the fewest records known to be committed, then the one with
the highest (last epoch, end), then one that the store names. All others follow it. The epoch is above every epoch that
any folder or the store knows, so none is given twice from then on.

Earlier epochs may have been given twice, by a controller that knew only the restored store. Two copies may then hold
different records in the same epoch, so the first batch of each epoch is compared as well. A copy that differs there is
truncated before it follows.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from comet.errors import InvalidArgument
from comet_broker.core.cluster import (
    ID,
    LINEAGE,
    NO_BROKER,
    ClusterState,
    CoordinatorRecord,
    GivenUp,
    LineageEntry,
    PartitionId,
    PartitionState,
    Stored,
    TopicSpec,
    coordinator_key,
    partition_key,
    topic_key,
)
from comet_broker.core.controller import LOSSY
from comet_broker.core.epochs import EpochHistory
from comet_broker.core.lineage import Floor, extended, with_revisions
from comet_broker.core.slots import SLOTS
from comet_broker.metadata.store import Compare, KeyValue, Put

CHANGE_OPERATIONS_MAX: Final = 100
NO_BROKER_EPOCH: Final = -1


class CopyInventory(msgspec.Struct, frozen=True):
    """The description of one log in a folder."""

    topic: str  # id
    partition: int
    log_start: int
    log_end: int
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    damaged: bool = False
    begins: dict[int, int] = {}  # start of an epoch's records -> checksum of the batch there; of the last epochs


class NamedSpec(Stored, frozen=True):
    """A topic's name and specification, as a folder remembers them."""

    name: str
    spec: TopicSpec


class Inventory(Stored, frozen=True):
    """The contents of one data folder."""

    broker: int
    folder: str
    cluster_id: str
    reason: str  # why its broker does not trust the store; empty: it does
    running: bool  # with the state of the earlier store: it has to be restarted
    floor: Floor
    copies: tuple[CopyInventory, ...]
    topics: tuple[NamedSpec, ...]
    address: str = ""  # where its broker takes calls of other brokers


class Choice(msgspec.Struct, frozen=True):
    """A copy of one partition, and the loss if it is chosen."""

    broker: int
    log_start: int
    log_end: int
    last_epoch: int
    high_watermark: int
    loses: int  # records that are known to be committed
    named: bool  # the store names it as a replica
    damaged: bool


class PartitionPlan(msgspec.Struct, frozen=True):
    topic: str  # its name
    topic_id: str
    partition: int
    chosen: int  # broker; 0: no folder holds a copy
    epoch: int
    loses: int
    choices: tuple[Choice, ...]  # the best first
    given_up: dict[int, GivenUp] = {}


class Plan(Stored, frozen=True):
    cluster_id: str
    emptied: bool  # the store has no cluster id
    revision: int  # the highest that any folder knows
    store_revision: int
    partitions: tuple[PartitionPlan, ...]
    put_back: tuple[str, ...]  # topics that a folder knows and the store does not
    unknown: tuple[str, ...]  # ids of topics of which only records are left
    answered: tuple[int, ...]  # brokers
    missing: tuple[int, ...]  # brokers that the store names, and that did not answer
    restart: tuple[int, ...]  # brokers that have to be restarted afterwards

    @property
    def digest(self) -> str:
        """A checksum of all that an operator accepts, without revisions, which move on."""
        return f"{crc32c(msgspec.json.encode(replace(self, store_revision=0, revision=0))):08x}"


def planned(inventories: Sequence[Inventory], state: ClusterState) -> Plan:
    """The plan of a recovery. Raises InvalidArgument if none is possible or needed."""
    clusters = sorted({one.cluster_id for one in inventories})
    if len(clusters) != 1:
        raise InvalidArgument(f"the data folders belong to different clusters: {', '.join(clusters)}")
    if state.cluster_id not in ("", clusters[0]):
        raise InvalidArgument(
            f"the metadata store belongs to cluster {state.cluster_id}, and the data folders to {clusters[0]}: connect"
            " the brokers to the store of their cluster, or to an empty one"
        )
    if not any(one.reason for one in inventories):
        raise InvalidArgument("every broker that answered trusts the metadata store: there is nothing to recover")
    specs = {found.value.id: (name, found.value) for name, found in state.topics.items()}
    names, put_back, unknown = _topics(inventories, state)
    copies = _copies(inventories)
    known = {partition for partition in copies if partition[0] in names} | {
        partition for partition in state.partitions if partition[0] in specs
    }
    partitions = [
        _partition(partition, names[partition[0]], copies.get(partition, {}), inventories, state) for partition in known
    ]
    answered = {one.broker for one in inventories}
    named = set(state.brokers).union(*(found.value.holders for found in state.partitions.values()), ())
    return Plan(
        cluster_id=clusters[0],
        emptied=not state.cluster_id,
        revision=max(one.floor.revision for one in inventories),
        store_revision=state.revision,
        partitions=tuple(sorted(partitions, key=lambda one: (one.topic, one.partition))),
        put_back=put_back,
        unknown=unknown,
        answered=tuple(sorted(answered)),
        missing=tuple(sorted(named - answered)),
        restart=tuple(sorted(one.broker for one in inventories if one.running and one.reason)),
    )


def _topics(
    inventories: Sequence[Inventory], state: ClusterState
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Names by topic id; the names that only folders know; the ids without a known name."""
    names = {found.value.id: name for name, found in state.topics.items()}
    back = []
    for named in remembered(inventories).values():
        known = named.spec.id in names or named.spec.id in state.deleted
        if not known and named.name not in state.topics and named.name not in back:
            names[named.spec.id] = named.name
            back.append(named.name)
    held = {copy.topic for one in inventories for copy in one.copies}
    unknown = held - names.keys() - state.deleted.keys()
    return names, tuple(sorted(back)), tuple(sorted(unknown))


def remembered(inventories: Sequence[Inventory]) -> dict[str, NamedSpec]:
    """The topics that folders know, by id: the copy with the most partitions, since those only grow."""
    found: dict[str, NamedSpec] = {}
    for one in sorted(inventories, key=lambda one: (one.floor.revision, one.broker)):
        for named in one.topics:
            known = found.get(named.spec.id)
            if known is None or named.spec.partitions >= known.spec.partitions:
                found[named.spec.id] = named
    return found


def _copies(inventories: Sequence[Inventory]) -> dict[PartitionId, dict[int, CopyInventory]]:
    copies: dict[PartitionId, dict[int, CopyInventory]] = defaultdict(dict)
    for one in inventories:
        for copy in one.copies:
            copies[copy.topic, copy.partition][one.broker] = copy
    return copies


def _partition(
    partition: PartitionId,
    name: str,
    copies: Mapping[int, CopyInventory],
    inventories: Sequence[Inventory],
    state: ClusterState,
) -> PartitionPlan:
    found = state.partitions.get(partition)
    named = () if found is None else found.value.holders
    choices = sorted((_choice(broker, copy, copies, named) for broker, copy in copies.items()), key=_rank)
    key = f"{partition[0]}/{partition[1]}"
    known = [
        0 if found is None else found.value.epoch,
        *(choice.last_epoch for choice in choices),
        *(one.floor.epochs.get(key, 0) for one in inventories),
    ]
    best = choices[0] if choices else None
    chosen = NO_BROKER if best is None else best.broker
    return PartitionPlan(
        topic=name,
        topic_id=partition[0],
        partition=partition[1],
        chosen=chosen,
        epoch=max(known) + 1,
        loses=0 if best is None else best.loses,
        choices=tuple(choices),
        given_up={
            broker: parts
            for broker in sorted(copies)
            if (parts := _given_up(copies[chosen], copies[broker])) is not None
        },
    )


def parting(one: CopyInventory, other: CopyInventory) -> int:
    """The offset up to which two logs are the same. They differ from an epoch's start if its first batches differ."""
    agreed = _divergence(one, other)
    for _, start in one.epochs:
        mine, theirs = one.begins.get(start), other.begins.get(start)
        if start < agreed and mine is not None and theirs is not None and mine != theirs:
            return start
    return agreed


def _divergence(one: CopyInventory, other: CopyInventory) -> int:
    history = EpochHistory(one.epochs)
    return history.divergence(one.log_start, one.log_end, other.epochs, other.log_start, other.log_end)


def _given_up(chosen: CopyInventory, other: CopyInventory) -> GivenUp | None:
    """The part of the other copy to truncate, if the epochs do not show it."""
    at = parting(chosen, other)
    return GivenUp(at, chosen.begins[at]) if at < _divergence(chosen, other) else None


def _choice(broker: int, copy: CopyInventory, copies: Mapping[int, CopyInventory], named: Sequence[int]) -> Choice:
    """A choice and its loss. The records below the highest watermark of all copies count as committed."""
    surest = max(copies.values(), key=lambda one: one.high_watermark)
    agreed = min(parting(surest, copy), copy.log_end)
    return Choice(
        broker=broker,
        log_start=copy.log_start,
        log_end=copy.log_end,
        last_epoch=copy.epochs[-1][0] if copy.epochs else 0,
        high_watermark=copy.high_watermark,
        loses=max(0, surest.high_watermark - max(agreed, surest.log_start)),
        named=broker in named,
        damaged=copy.damaged,
    )


def _rank(choice: Choice) -> tuple[int, bool, int, int, bool, int]:
    return choice.loses, choice.damaged, -choice.last_epoch, -choice.log_end, not choice.named, choice.broker


# ---- the changes to the store


class Batch(msgspec.Struct, frozen=True):
    """One transaction."""

    compares: tuple[Compare, ...]
    operations: tuple[Put, ...]


def batches(
    plan: Plan,
    inventories: Sequence[Inventory],
    state: ClusterState,
    heads: Mapping[int, KeyValue],
    slot_head: Mapping[int, tuple[str, bytes]],
    entry: LineageEntry,
) -> list[Batch]:
    """The changes that carry out a plan. After the last one, brokers accept the store; until then all can be repeated.

    heads       the present heads of slots in the store
    slot_head   their new keys and values
    entry       broker and mark of the lineage's new entry
    """
    changes: list[tuple[Compare, Put]] = []
    folders = {one.broker: one.folder for one in inventories}
    specs = {found.value.id: found.value for found in state.topics.values()}
    for named in remembered(inventories).values():
        if named.name in plan.put_back and named.spec.id not in specs:
            specs[named.spec.id] = named.spec
            changes.append((Compare(topic_key(named.name), 0), Put(topic_key(named.name), named.spec.encode())))
    for one in plan.partitions:
        partition = (one.topic_id, one.partition)
        found = state.partitions.get(partition)
        now = None if found is None else found.value
        if now is None and one.chosen == NO_BROKER:
            continue
        new = _state(one, now, specs[one.topic_id], folders)
        key = partition_key(partition)
        changes.append((Compare(key, 0 if found is None else found.mod_revision), Put(key, new.encode())))
    for slot in range(SLOTS):
        known, head, (head_key, head_value) = state.coordinators.get(slot), heads.get(slot), slot_head[slot]
        record = CoordinatorRecord(entry.broker, NO_BROKER_EPOCH, slot_epoch(plan, state, slot))
        key = coordinator_key(slot)
        changes.append((Compare(key, 0 if known is None else known.mod_revision), Put(key, record.encode())))
        changes.append((Compare(head_key, 0 if head is None else head.mod_revision), Put(head_key, head_value)))
    lineage = state.lineage
    unchanged = Compare(LINEAGE, 0 if lineage is None else lineage.mod_revision)
    done = []
    for start in range(0, len(changes), CHANGE_OPERATIONS_MAX):
        some = changes[start : start + CHANGE_OPERATIONS_MAX]
        done.append(Batch((*(compare for compare, _ in some), unchanged), tuple(put for _, put in some)))
    entries = () if lineage is None else with_revisions(lineage.value, lineage.mod_revision)
    number = max([*(each.recovery for each in entries), *(one.floor.recoveries for one in inventories)], default=0) + 1
    new_entry = replace(entry, recovery=number, below=max(plan.revision, plan.store_revision))
    operations = [Put(LINEAGE, extended(entries, new_entry).encode())]
    if plan.emptied:
        operations.append(Put(ID, plan.cluster_id.encode()))
        done.append(Batch((unchanged, Compare(ID, 0)), tuple(operations)))
    else:
        done.append(Batch((unchanged,), tuple(operations)))
    return done


def slot_epoch(plan: Plan, state: ClusterState, slot: int) -> int:
    """An epoch above all earlier ones: each coordinator of the slot took a revision of the earlier store."""
    known = state.coordinators.get(slot)
    return max(plan.revision, 0 if known is None else known.value.epoch) + 1


def _state(
    plan: PartitionPlan, now: PartitionState | None, spec: TopicSpec, folders: Mapping[int, str]
) -> PartitionState:
    """The new state: no leader; the chosen copy alone counts, and leads when its broker is registered."""
    holding = [choice.broker for choice in plan.choices]
    if plan.chosen == NO_BROKER:
        assert now is not None
        return replace(now, leader=NO_BROKER, epoch=plan.epoch, handover=NO_BROKER)
    if now is None:
        now = PartitionState(NO_BROKER, 0, tuple(holding[: max(spec.replicas, 1)]), {})
    replicas = list(now.replicas)
    if plan.chosen not in replicas:
        empty = [broker for broker in replicas if broker not in holding]
        replicas[replicas.index((empty or replicas)[-1])] = plan.chosen
    return replace(
        now,
        leader=NO_BROKER,
        epoch=plan.epoch,
        replicas=tuple(replicas),
        in_sync={plan.chosen: LOSSY},
        eligible={},
        target=(),
        handover=NO_BROKER,
        folders={broker: folders[broker] for broker in holding if broker in replicas},
        loss_accepted=plan.epoch,
        loss_settled=(),
        given_up=plan.given_up,
    )
