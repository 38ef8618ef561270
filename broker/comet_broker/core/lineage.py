"""The history of a metadata store, by which a broker notices that the store went back in time.

    cluster/lineage    entry, entry, ..., entry        one more with every registration of a broker, as PostgreSQL's
                         │                             timeline history has one more with every promotion
                         └─ broker, a random mark, the revision at which it was written

A writer cannot know the revision of its own write. So each fills in the revision of the entry before its own, which is
the mod_revision that the key had; the newest entry's revision is the key's mod_revision now.

A *floor* is the knowledge of one data folder: the newest mark, and the highest revision at which that was the newest
one. In one history that stays true for ever. In a store that was restored from an earlier snapshot the mark is missing,
or the store's revision is lower, or another entry follows where the mark was still the newest.

An operator accepts a store that went back with a *recovery*: an entry with a number, one more than any before, and with
the highest revision of the earlier history that any folder knew. Folders that know no more than that go on from there.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import msgspec

from comet_broker.core.cluster import ID, LINEAGE, PARTITIONS, Lineage, LineageEntry, PartitionState, Stored
from comet_broker.metadata.store import KeyValue

ENTRIES_MAX: Final = 256
MARKS_MAX: Final = 32  # of its own that a folder remembers
MARK_BITS: Final = 64


class PartitionChange(Stored, frozen=True):
    """The value of a partition's key from one revision on."""

    partition: str = ""  # "topic id/partition"
    revision: int = 0
    leader: int = 0
    epoch: int = 0
    in_sync: tuple[int, ...] = ()

    @classmethod
    def of(cls, partition: str, revision: int, state: PartitionState) -> PartitionChange:
        return cls(partition, revision, state.leader, state.epoch, tuple(sorted(state.in_sync)))


class Floor(Stored, frozen=True):
    """The knowledge that a data folder has of the store, and that the store must have too.

    mark        of the newest entry
    revision    the highest revision seen while that was the newest
    recoveries  the number of the last recovery that is part of the history
    mine        the marks that this broker has chosen for its own registrations, the last ones
    epochs      "topic id/partition" -> the highest epoch seen
    changed     the last change of a partition that was seen. Leases that expire in a restored store may lift its
                revision above `revision` before anything else is written: this tells it apart
    """

    cluster_id: str = ""
    mark: str = ""
    revision: int = 0
    recoveries: int = 0
    mine: tuple[str, ...] = ()
    epochs: dict[str, int] = msgspec.field(default_factory=dict)
    changed: PartitionChange = PartitionChange()


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of the store at one revision."""

    cluster_id: str  # empty: it has none
    entries: tuple[LineageEntry, ...]  # each with its revision
    revision: int
    epochs: Mapping[str, int]  # of each of its partitions
    changes: Mapping[str, PartitionChange] = field(default_factory=dict)  # the last one of each
    then: PartitionChange | None = None  # by its history, the first since `Floor.changed`; None: unknown


class LineageFinding(Enum):
    SAME = auto()  # the history that the folder knows, and perhaps more of it
    RECOVERED = auto()  # an operator has accepted another one in its place
    EMPTIED = auto()
    EXCHANGED = auto()  # it belongs to another cluster
    WENT_BACK = auto()


@dataclass(frozen=True, slots=True)
class LineageVerdict:
    finding: LineageFinding
    why: str = ""

    @property
    def sound(self) -> bool:
        return self.finding in (LineageFinding.SAME, LineageFinding.RECOVERED)


def with_revisions(lineage: Lineage, mod_revision: int) -> tuple[LineageEntry, ...]:
    """All entries, the newest with its revision as well."""
    if not lineage.entries:
        return ()
    *before, newest = lineage.entries
    return (*before, msgspec.structs.replace(newest, revision=mod_revision))


def extended(entries: Sequence[LineageEntry], new: LineageEntry) -> Lineage:
    """The lineage with one more entry; `entries` are `with_revisions`."""
    assert all(entry.revision for entry in entries)
    assert not new.revision
    return Lineage((*entries[-(ENTRIES_MAX - 1) :], new))


def seen_in(items: Iterable[KeyValue], revision: int) -> Seen:
    """The contents of a listing of `cluster/`. Unreadable values count as missing."""
    cluster_id, changes = "", dict[str, PartitionChange]()
    entries: tuple[LineageEntry, ...] = ()
    for item in items:
        try:
            if item.key == ID:
                cluster_id = item.value.decode()
            elif item.key == LINEAGE:
                entries = with_revisions(Lineage.decode(item.value), item.mod_revision)
            elif item.key.startswith(PARTITIONS):
                partition = item.key.removeprefix(PARTITIONS)
                changes[partition] = PartitionChange.of(partition, item.mod_revision, PartitionState.decode(item.value))
        except (msgspec.DecodeError, ValueError):
            continue
    return Seen(cluster_id, entries, revision, {partition: one.epoch for partition, one in changes.items()}, changes)


def judge(floor: Floor, seen: Seen) -> LineageVerdict:
    """Whether the store goes on from what the folder knows."""
    if not floor.cluster_id:
        return LineageVerdict(LineageFinding.SAME)  # a folder that has never belonged to a cluster
    if not seen.cluster_id:
        return LineageVerdict(
            LineageFinding.EMPTIED, f"it is empty: it has no cluster id, and this folder's is {floor.cluster_id}"
        )
    if seen.cluster_id != floor.cluster_id:
        why = f"it belongs to cluster {seen.cluster_id}, and this folder to {floor.cluster_id}"
        return LineageVerdict(LineageFinding.EXCHANGED, why)
    why = _contradiction(floor, seen.entries, seen.revision) or _missing_change(floor, seen)
    if not why:
        return _judge_epochs(floor, seen)
    newer = [entry for entry in seen.entries if entry.recovery > floor.recoveries]
    if newer and floor.revision <= newer[-1].below:
        return LineageVerdict(LineageFinding.RECOVERED)
    return LineageVerdict(LineageFinding.WENT_BACK, why)


def _missing_change(floor: Floor, seen: Seen) -> str:
    known = floor.changed
    now = seen.changes.get(known.partition, known)
    found = seen.then if now.revision > known.revision else now
    if found is None or found == known:
        return ""
    return f"it does not have the change of partition {known.partition} at revision {known.revision}"


def overtaken(change: PartitionChange, seen: Seen) -> bool:
    """Whether the partition has changed again: then only the store's history shows whether it had this change."""
    return seen.changes.get(change.partition, change).revision > change.revision


def _judge_epochs(floor: Floor, seen: Seen) -> LineageVerdict:
    for partition, epoch in floor.epochs.items():
        now = seen.epochs.get(partition, epoch)
        if now < epoch:
            return LineageVerdict(
                LineageFinding.WENT_BACK, f"partition {partition} is in epoch {now} there, and was in {epoch} before"
            )
    return LineageVerdict(LineageFinding.SAME)


def _contradiction(floor: Floor, entries: Sequence[LineageEntry], revision: int) -> str:
    """The reason why the store's history cannot continue the folder's; empty if it can."""
    if revision < floor.revision:
        return f"it is at revision {revision}, and was at {floor.revision} before"
    if not floor.mark:
        return _branched(floor, entries[0]) if entries else ""
    for number, entry in enumerate(entries):
        if entry.mark != floor.mark:
            continue
        if entry.revision > floor.revision:
            return f"the registration {floor.mark} is at revision {entry.revision}, and was there at {floor.revision}"
        return _branched(floor, entries[number + 1]) if number + 1 < len(entries) else ""
    if len(entries) >= ENTRIES_MAX and floor.revision < entries[0].revision:
        return ""  # so long ago that the entry was dropped
    return f"it does not know of the registration {floor.mark}, which was the newest at revision {floor.revision}"


def _branched(floor: Floor, after: LineageEntry) -> str:
    """The reason if `after` proves a branch; it is the entry after the folder's newest one, or the first of all."""
    if after.revision > floor.revision:
        return ""
    return (
        f"broker {after.broker} registered at revision {after.revision}, and at revision {floor.revision}"
        " that had not happened: the history has branched"
    )


def is_older(floor: Floor, seen: Seen, broker: int) -> bool:
    """Whether the broker has registered since with a newer folder: this one was restored from a copy."""
    own = [entry.mark for entry in seen.entries if entry.broker == broker and not entry.recovery and not entry.tick]
    return bool(own) and own[-1] not in floor.mine


def raised(floor: Floor, seen: Seen) -> Floor:
    """The floor once the store is known to continue it; `epochs` and `changed` stay as they are."""
    newest = seen.entries[-1].mark if seen.entries else floor.mark
    recoveries = max([floor.recoveries, *(entry.recovery for entry in seen.entries)])
    return msgspec.structs.replace(
        floor,
        cluster_id=seen.cluster_id,
        mark=newest,
        revision=seen.revision,
        recoveries=recoveries,
    )


def intending(floor: Floor, mark: str) -> Floor:
    """The floor before an attempt to register under that mark."""
    return msgspec.structs.replace(floor, mine=(*floor.mine[-(MARKS_MAX - 1) :], mark))
