"""Assignment strategy "rack": a sticky assignment, then exchanges that bring partitions to members in their racks.

A partition is local to a member whose rack has a replica of it. Members that read the same topics in the same rack are
of one kind. A cycle of kinds, each of which gives a partition to the next, leaves all loads as they are; so does one in
which a kind gives none, and a member with one partition more and a member with one less change places. The exchanges
follow cycles that make partitions local, until all are used up: with equal subscriptions the assignment then has as
many local partitions as equal loads allow.

Pure: the same arguments give the same assignment on every broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from comet_broker.core.sticky_assignment import Partition, sticky

# Of the search for cycles; beyond this limit fewer partitions may be local.
EDGES_MAX: Final = 3_000_000


class _Kind(NamedTuple):
    """Members that read the same topics in the same rack."""

    topics: tuple[str, ...]
    rack: str


class _Class(NamedTuple):
    """Partitions of one topic in the same racks."""

    topic: str
    racks: tuple[str, ...]


class _Edge(NamedTuple):
    """A kind gives a partition of a class to another one; without a class, only their loads change places."""

    lost: int  # local partitions
    what: _Class | None


def by_rack(
    members: Mapping[str, Collection[str]],
    homes: Mapping[str, str],
    partitions: Mapping[str, int],
    before: Mapping[Partition, str],
    racks: Callable[[Partition], Collection[str]],
) -> dict[Partition, str]:
    """Owners of all partitions. `homes` are the racks of the members, `racks` those of a partition's replicas."""
    found = sticky(members, partitions, before)
    kinds = {
        member: _Kind(tuple(sorted(set(topics) & partitions.keys())), homes[member])
        for member, topics in sorted(members.items())
    }
    draft = _Exchanges(kinds, found, before, racks)
    visited = 0
    while visited < EDGES_MAX:
        edges = draft.edges()
        visited += len(edges) * len(draft.loads)
        cycle = _cycle(edges)
        if not cycle:
            break
        draft.exchange(cycle, edges)
    return draft.owner


class _Exchanges:
    """An assignment, and the exchanges of partitions between kinds of members."""

    def __init__(
        self, kinds: Mapping[str, _Kind], owner: dict[Partition, str], before: Mapping[Partition, str],
        racks: Callable[[Partition], Collection[str]],
    ) -> None:  # fmt: skip
        self.owner = owner
        self.loads: dict[_Kind, dict[str, int]] = {}
        self._kinds = kinds
        self._before = before
        self._held: dict[_Kind, dict[_Class, set[Partition]]] = {}
        self._classes: dict[Partition, _Class] = {}
        for member, kind in kinds.items():
            self.loads.setdefault(kind, {})[member] = 0
            self._held.setdefault(kind, {})
        known = {kind.rack for kind in self._held} - {""}
        for partition, member in sorted(owner.items()):
            self._classes[partition] = _Class(partition[0], tuple(sorted(known.intersection(racks(partition)))))
            self._take(member, partition)

    def edges(self) -> dict[tuple[_Kind, _Kind], _Edge]:
        """From kind to kind the exchange that loses the fewest local partitions."""
        found: dict[tuple[_Kind, _Kind], _Edge] = {}
        for giver, classes in self._held.items():
            for taker in self._held:
                if giver == taker:
                    continue
                loads = set(self.loads[taker].values())
                best = _Edge(0, None) if any(load + 1 in loads for load in self.loads[giver].values()) else None
                for what in sorted(classes):
                    if classes[what] and what.topic in taker.topics:
                        lost = (giver.rack in what.racks) - (taker.rack in what.racks)
                        if best is None or lost < best.lost:
                            best = _Edge(lost, what)
                if best is not None:
                    found[giver, taker] = best
        return found

    def exchange(self, cycle: list[_Kind], edges: Mapping[tuple[_Kind, _Kind], _Edge]) -> None:
        """Gives a partition from each kind of the cycle to the next."""
        steps = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        givers: dict[_Kind, str] = {}
        takers: dict[_Kind, str] = {}
        for giver, taker in steps:
            if edges[giver, taker].what is None:  # the giver's side gets one more, the taker's one less
                takers[giver], givers[taker] = self._unequal(giver, taker)
        moved: list[tuple[Partition, _Kind]] = []
        for giver, taker in steps:
            what = edges[giver, taker].what
            if what is not None:
                partition = self._pick(giver, what, givers.get(giver))
                takers.setdefault(giver, self.owner[partition])
                self._give(partition)
                moved.append((partition, taker))
        for partition, taker in moved:
            self._take(takers[taker], partition)

    def _unequal(self, less: _Kind, more: _Kind) -> tuple[str, str]:
        """A member of the one kind, and one of the other that has one partition more."""
        return next(
            (one, other)
            for one, load in self.loads[less].items()
            for other, others in self.loads[more].items()
            if load + 1 == others
        )

    def _pick(self, kind: _Kind, what: _Class, giver: str | None) -> Partition:
        """A partition of the class, if possible a new one at its owner; of `giver`, which gets it if it has none."""
        choice = sorted(self._held[kind][what], key=lambda one: (self._before.get(one) == self.owner[one], one))
        if giver is None:
            return choice[0]
        for partition in choice:
            if self.owner[partition] == giver:
                return partition
        wanted, holder = choice[0], self.owner[choice[0]]
        other = min(partition for partition, owner in self.owner.items() if owner == giver)
        for partition in (wanted, other):
            self._give(partition)
        self._take(giver, wanted)
        self._take(holder, other)
        return wanted

    def _give(self, partition: Partition) -> None:
        member = self.owner.pop(partition)
        kind = self._kinds[member]
        self.loads[kind][member] -= 1
        self._held[kind][self._classes[partition]].remove(partition)

    def _take(self, member: str, partition: Partition) -> None:
        self.owner[partition] = member
        kind = self._kinds[member]
        self.loads[kind][member] += 1
        self._held[kind].setdefault(self._classes[partition], set()).add(partition)


def _cycle(edges: Mapping[tuple[_Kind, _Kind], _Edge]) -> list[_Kind]:
    """A cycle that makes partitions local, found as Bellman and Ford do; empty without one."""
    distance = dict.fromkeys((kind for pair in edges for kind in pair), 0)
    previous: dict[_Kind, _Kind] = {}
    last: _Kind | None = None
    if not distance:
        return []
    for _ in distance:
        last = None
        for (giver, taker), edge in edges.items():
            if distance[giver] + edge.lost < distance[taker]:
                distance[taker] = distance[giver] + edge.lost
                previous[taker], last = giver, taker
        if last is None:
            return []
    assert last is not None
    for _ in distance:  # from a node that is still improved, the way back ends in the cycle
        last = previous[last]
    cycle = [last]
    while (before := previous[cycle[-1]]) != cycle[0]:
        cycle.append(before)
    return cycle[::-1]
