"""Assignment strategy "sticky": equal loads, and each member keeps its partitions if that is possible.

Every partition of a subscribed topic gets exactly one owner, a member that subscribes to the topic. With equal
subscriptions, loads differ by at most one. With different subscriptions, loads are as equal as moves of
partitions can make them, directly or through other members (every cost-reducing path is used up).

Movement is small: a member keeps its partitions unless balance needs them. With equal subscriptions movement is
minimal; with different ones each step towards balance moves as few partitions as possible.

Pure: the same arguments give the same assignment on every broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace
from typing import Final

Partition = tuple[str, int]  # topic, index

# The search for paths costs members times topics; beyond this limit a group stays slightly less balanced.
EDGES_MAX: Final = 3_000_000


def sticky(
    members: Mapping[str, Collection[str]], partitions: Mapping[str, int], before: Mapping[Partition, str]
) -> dict[Partition, str]:
    """Owners of all partitions. `members` are the subscribed topics of each member, `before` the present owners."""
    wanted = {member: frozenset(topics).intersection(partitions) for member, topics in sorted(members.items())}
    wanted = {member: topics for member, topics in wanted.items() if topics}
    if not wanted:
        return {}
    readers: dict[str, list[str]] = {}
    for member, topics in wanted.items():
        for topic in topics:
            readers.setdefault(topic, []).append(member)
    draft = _Draft(wanted, readers)
    free: list[Partition] = []
    for topic in sorted(readers):
        for index in range(partitions[topic]):
            owner = before.get((topic, index))
            if owner is not None and topic in wanted.get(owner, ()):
                draft.give(owner, topic, index, settled=True)
            else:
                free.append((topic, index))
    if len(set(wanted.values())) == 1:
        _level(draft, free)
    else:
        _distribute(draft, free)
        _balance(draft)
    return draft.owners()


class _Draft:
    """An assignment under construction. Each list, per member and topic, begins with the partitions that the member had
    before: those at its end move for free."""

    def __init__(self, wanted: Mapping[str, frozenset[str]], readers: Mapping[str, list[str]]) -> None:
        self.readers = readers
        self.wanted = wanted
        self.loads = dict.fromkeys(wanted, 0)
        self.held: dict[str, dict[str, list[int]]] = {member: defaultdict(list) for member in wanted}
        self.fresh: dict[tuple[str, str], int] = defaultdict(int)  # of the held ones, how many at the end are new

    def give(self, member: str, topic: str, index: int, *, settled: bool = False) -> None:
        assert topic in self.wanted[member]
        self.held[member][topic].append(index)
        self.loads[member] += 1
        if not settled:
            self.fresh[member, topic] += 1

    def take(self, member: str, topic: str) -> int:
        index = self.held[member][topic].pop()
        self.loads[member] -= 1
        if self.fresh[member, topic]:
            self.fresh[member, topic] -= 1
        return index

    def owners(self) -> dict[Partition, str]:
        return {
            (topic, index): member
            for member, topics in self.held.items()
            for topic, indexes in topics.items()
            for index in indexes
        }


def _level(draft: _Draft, free: list[Partition]) -> None:
    """Equal subscriptions: each member gets the same share; the members with the most now get the remainder."""
    total = sum(draft.loads.values()) + len(free)
    share, more = divmod(total, len(draft.loads))
    by_load = sorted(draft.loads, key=lambda member: (-draft.loads[member], member))
    quotas = {member: share + (number < more) for number, member in enumerate(by_load)}
    for member in by_load:
        topics = draft.held[member]
        while draft.loads[member] > quotas[member]:
            topic = max(topics, key=lambda topic: (len(topics[topic]), topic))
            free.append((topic, draft.take(member, topic)))
    short = [(draft.loads[member] - quotas[member], member) for member in by_load]
    heapify(short)
    for topic, index in sorted(free):
        missing, member = short[0]
        assert missing < 0
        draft.give(member, topic, index)
        heapreplace(short, (missing + 1, member))


def _distribute(draft: _Draft, free: list[Partition]) -> None:
    """Topics with few readers first: they have the least choice."""
    for topic, index in sorted(free, key=lambda partition: (len(draft.readers[partition[0]]), partition)):
        member = min(draft.readers[topic], key=lambda member: (draft.loads[member], member))
        draft.give(member, topic, index)


def _balance(draft: _Draft) -> None:
    """Moves partitions along paths from members with many to members with few, shortest paths first."""
    edges, loads = 0, draft.loads
    stuck: set[str] = set()  # no path begins at them, and none will while the loads near them only fall
    while edges < EDGES_MAX:
        least = min(loads.values())
        heavy = [member for member, load in loads.items() if load >= least + 2 and member not in stuck]
        if not heavy:
            return
        start = min(heavy, key=lambda member: (-loads[member], member))
        path, visited = _path(draft, start)
        edges += visited
        if not path:
            stuck.add(start)
        for giver, topic, taker in reversed(path):
            draft.give(taker, topic, draft.take(giver, topic))


def _path(draft: _Draft, start: str) -> tuple[list[tuple[str, str, str]], int]:
    """The path from a member to the least loaded of the nearest members that have at least two partitions less. Each
    step is giver, topic and taker. Empty without such a member."""
    loads = draft.loads
    enough = loads[start] - 2
    reached_from: dict[str, tuple[str, str]] = {}
    seen_topics: set[str] = set()
    layer, visited = [start], 0
    while layer:
        following: list[str] = []
        for member in layer:
            topics = [topic for topic, held in draft.held[member].items() if held and topic not in seen_topics]
            topics.sort(key=lambda topic: (-draft.fresh[member, topic], -len(draft.held[member][topic]), topic))
            for topic in topics:
                seen_topics.add(topic)
                visited += len(draft.readers[topic])
                for reader in draft.readers[topic]:
                    if reader != start and reader not in reached_from:
                        reached_from[reader] = (member, topic)
                        following.append(reader)
        best = min(following, key=lambda member: (loads[member], member), default=None)
        if best is not None and loads[best] <= enough:
            return _steps(reached_from, start, best), visited
        layer = following
    return [], visited


def _steps(reached_from: Mapping[str, tuple[str, str]], start: str, end: str) -> list[tuple[str, str, str]]:
    steps: list[tuple[str, str, str]] = []
    taker = end
    while taker != start:
        giver, topic = reached_from[taker]
        steps.append((giver, topic, taker))
        taker = giver
    return steps[::-1]
