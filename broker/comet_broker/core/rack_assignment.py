"""Assignment strategy "rack": a sticky assignment, then exchanges that bring partitions to members in their racks.

A partition is local to a member whose rack has a replica of it. Members that read the same topics in the same rack are
of one kind. A cycle of kinds, each of which gives a partition to the next, leaves all loads as they are; so does one in
which a kind gives none, and a member with one partition more and a member with one less change places. The exchanges
follow cycles that make partitions local, until all are used up: with equal subscriptions the assignment then has as
many local partitions as equal loads allow.

The search runs on the coordinator's loop, so it counts its elementary steps: looks at a class of partitions, an edge
or a partition. It ends after STEPS_MAX of them, well below a second; then fewer partitions may be local, and loads are
equal all the same.

Pure: the same arguments give the same assignment on every broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from comet_broker.core.sticky_assignment import Partition, sticky

STEPS_MAX: Final = 2_000_000


# Members that read the same topics in the same rack, and partitions of one topic in the same racks, by number: a
# tuple of a thousand topics is slow to look up.
_Kind = int
_Class = int


class _Edge(NamedTuple):
    """A kind gives a partition of a class to another one; without a class, only their loads change places."""

    lost: int  # local partitions
    what: _Class | None


_SWAP: Final = _Edge(0, None)


def by_rack(
    members: Mapping[str, Collection[str]],
    homes: Mapping[str, str],
    partitions: Mapping[str, int],
    before: Mapping[Partition, str],
    racks: Callable[[Partition], Collection[str]],
) -> dict[Partition, str]:
    """Owners of all partitions. `homes` are the racks of the members, `racks` those of a partition's replicas."""
    exchanges = Exchanges(members, homes, partitions, before, racks)
    exchanges.run()
    return exchanges.owner


class Exchanges:
    """An assignment, and the exchanges of partitions between kinds of members. The arguments are those of `by_rack`."""

    def __init__(
        self,
        members: Mapping[str, Collection[str]],
        homes: Mapping[str, str],
        partitions: Mapping[str, int],
        before: Mapping[Partition, str],
        racks: Callable[[Partition], Collection[str]],
    ) -> None:
        self.steps = 0
        self.owner: dict[Partition, str] = {}
        self._before = before
        self._kinds: dict[str, _Kind] = {}
        self._racks: list[str] = []  # of each kind
        self._readers: dict[str, set[_Kind]] = {topic: set() for topic in partitions}
        numbers: dict[tuple[frozenset[str], str], _Kind] = {}
        for member, topics in sorted(members.items()):
            read = frozenset(topics).intersection(partitions)
            kind = self._kinds[member] = numbers.setdefault((read, homes[member]), len(numbers))
            if kind == len(self._racks):
                self._racks.append(homes[member])
                for topic in read:
                    self._readers[topic].add(kind)
        self._loads: list[dict[str, int]] = [{} for _ in self._racks]
        for member, kind in self._kinds.items():
            self._loads[kind][member] = 0
        known = set(self._racks) - {""}
        found = sticky(members, partitions, before)
        described = {one: (one[0], tuple(sorted(known.intersection(racks(one))))) for one in found}
        self._described = sorted(set(described.values()))  # topic and racks of each class
        classes = {description: number for number, description in enumerate(self._described)}
        self._classes = {partition: classes[description] for partition, description in described.items()}
        self._held: list[dict[_Class, set[Partition]]] = [{} for _ in self._racks]
        # Of each kind, for each kind that may take: the class whose gift loses the fewest local partitions.
        self._gifts: list[dict[_Kind, _Edge]] = [{} for _ in self._racks]
        for partition, member in sorted(found.items()):
            self._take(member, partition)

    @property
    def _exhausted(self) -> bool:
        return self.steps >= STEPS_MAX

    def run(self) -> None:
        """Exchanges until no cycle makes partitions local, or the steps are used up."""
        while not self._exhausted:
            self._run_pairs()
            cycle = self._cycle(self._edges())
            if not cycle:
                return
            self._exchange(cycle)

    def _run_pairs(self) -> None:
        """Follows the cycles of two kinds, which are nearly all and found at once."""
        for giver, gifts in enumerate(self._gifts):
            for taker in list(gifts):
                while not self._exhausted:
                    self.steps += 1
                    edges = self._edge(giver, taker), self._edge(taker, giver)
                    if edges[0] is None or edges[1] is None or edges[0].lost + edges[1].lost >= 0:
                        break
                    self._exchange([giver, taker])

    # ---- edges

    def _edge(self, giver: _Kind, taker: _Kind) -> _Edge | None:
        """The exchange that loses the fewest local partitions."""
        gift = self._gifts[giver].get(taker)
        if gift is not None and gift.lost < 0:
            return gift
        loads = self._loads[taker].values()
        self.steps += len(loads) + len(self._loads[giver])
        unequal = not {load + 1 for load in self._loads[giver].values()}.isdisjoint(loads)
        return _SWAP if unequal else gift

    def _edges(self) -> dict[tuple[_Kind, _Kind], _Edge]:
        found: dict[tuple[_Kind, _Kind], _Edge] = {}
        for giver in range(len(self._racks)):
            for taker in range(len(self._racks)):
                if self._exhausted:
                    return {}
                self.steps += 1
                edge = self._edge(giver, taker) if giver != taker else None
                if edge is not None:
                    found[giver, taker] = edge
        return found

    def _offer(self, giver: _Kind, what: _Class, takers: Iterable[_Kind]) -> None:
        """Notes a class that the giver holds with the takers for which it is the best gift."""
        if self._exhausted:
            return  # no gift is looked at any more
        gifts, racks = self._gifts[giver], self._described[what][1]
        at_home = self._racks[giver] in racks
        for taker in takers:
            self.steps += 1
            lost = at_home - (self._racks[taker] in racks)
            best = gifts.get(taker)
            if taker != giver and (best is None or (lost, what) < best):
                gifts[taker] = _Edge(lost, what)

    def _withdraw(self, giver: _Kind, what: _Class) -> None:
        """Forgets a class of which the giver holds no more partition."""
        gifts = self._gifts[giver]
        takers = {taker for taker, edge in gifts.items() if edge.what == what}
        self.steps += len(gifts)
        for taker in takers:
            del gifts[taker]
        if takers:
            for other in self._held[giver]:
                self.steps += len(takers)
                self._offer(giver, other, takers & self._readers[self._described[other][0]])

    # ---- exchanges

    def _exchange(self, cycle: list[_Kind]) -> None:
        """Gives a partition from each kind of the cycle to the next."""
        steps = [
            (giver, taker, self._edge(giver, taker)) for giver, taker in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        ]
        givers: dict[_Kind, str] = {}
        takers: dict[_Kind, str] = {}
        for giver, taker, edge in steps:
            assert edge is not None
            if edge.what is None:  # the giver's side gets one more, the taker's one less
                takers[giver], givers[taker] = self._unequal(giver, taker)
        moved: list[tuple[Partition, _Kind]] = []
        for giver, taker, edge in steps:
            if edge is not None and edge.what is not None:
                partition = self._pick(giver, edge.what, givers.get(giver))
                takers.setdefault(giver, self.owner[partition])
                self._give(partition)
                moved.append((partition, taker))
        for partition, taker in moved:
            self._take(takers[taker], partition)

    def _unequal(self, less: _Kind, more: _Kind) -> tuple[str, str]:
        """A member of the one kind, and one of the other that has one partition more."""
        firsts: dict[int, str] = {}
        for other, load in self._loads[more].items():
            firsts.setdefault(load, other)
        self.steps += len(self._loads[more]) + len(self._loads[less])
        return next((one, firsts[load + 1]) for one, load in self._loads[less].items() if load + 1 in firsts)

    def _pick(self, kind: _Kind, what: _Class, giver: str | None) -> Partition:
        """A partition of the class, if possible a new one at its owner; of `giver`, which gets it if it has none."""
        choice = self._held[kind][what]
        self.steps += len(choice)
        own = choice if giver is None else [partition for partition in choice if self.owner[partition] == giver]
        if own:
            return min(own, key=self._settled)
        wanted = min(choice, key=self._settled)
        assert giver is not None
        holder = self.owner[wanted]
        self.steps += len(self.owner)
        other = min(partition for partition, owner in self.owner.items() if owner == giver)
        for partition in (wanted, other):
            self._give(partition)
        self._take(giver, wanted)
        self._take(holder, other)
        return wanted

    def _settled(self, partition: Partition) -> tuple[bool, Partition]:
        return self._before.get(partition) == self.owner[partition], partition

    def _give(self, partition: Partition) -> None:
        member = self.owner.pop(partition)
        kind, what = self._kinds[member], self._classes[partition]
        self._loads[kind][member] -= 1
        held = self._held[kind]
        held[what].remove(partition)
        if not held[what]:
            del held[what]
            self._withdraw(kind, what)

    def _take(self, member: str, partition: Partition) -> None:
        self.owner[partition] = member
        kind, what = self._kinds[member], self._classes[partition]
        self._loads[kind][member] += 1
        held = self._held[kind]
        if what in held:
            held[what].add(partition)
        else:
            held[what] = {partition}
            self._offer(kind, what, self._readers[self._described[what][0]])

    # ---- cycles

    def _cycle(self, edges: Mapping[tuple[_Kind, _Kind], _Edge]) -> list[_Kind]:
        """A cycle that makes partitions local, found as Bellman and Ford do; empty without one, or without steps."""
        distance = dict.fromkeys((kind for pair in edges for kind in pair), 0)
        previous: dict[_Kind, _Kind] = {}
        for _ in distance:
            last: _Kind | None = None
            self.steps += len(edges)
            if self._exhausted:
                return []
            for (giver, taker), edge in edges.items():
                if distance[giver] + edge.lost < distance[taker]:
                    distance[taker] = distance[giver] + edge.lost
                    previous[taker], last = giver, taker
            if last is None:
                return []
            cycle = self._closed(previous, last)
            if cycle:
                return cycle
        assert not distance, "a node that is improved in each round is behind a cycle"
        return []

    def _closed(self, previous: Mapping[_Kind, _Kind], last: _Kind) -> list[_Kind]:
        """The cycle at the end of the way back from a node; empty if the way ends without one."""
        way: dict[_Kind, int] = {}
        at: _Kind | None = last
        while at is not None and at not in way:
            way[at] = len(way)
            at = previous.get(at)
        self.steps += len(way)
        return [] if at is None else list(way)[way[at] :][::-1]
