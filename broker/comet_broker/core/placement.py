"""Placement of the replicas of new partitions: spread over brokers by count, and over racks if they are named.

First each replica goes to the broker that has the fewest, counted in the topic and then in the whole cluster. The
replicas of one partition are on as many racks as there are; a broker without a rack counts as one of its own. Then the
preferred leaders are spread: as long as one broker leads two more than another, leadership is passed along partitions
that they share, directly or through others.

Pure and deterministic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Load:
    """The numbers of replicas and preferred leaders of each broker."""

    replicas: Counter[int] = field(default_factory=Counter)
    leaders: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, placed: Iterable[Sequence[int]]) -> Load:
        load = cls()
        for replicas in placed:
            load.replicas.update(replicas)
            load.leaders[replicas[0]] += 1
        return load


def choose_replicas(
    racks: Mapping[int, str], partitions: int, replicas: int, topic: Load, cluster: Load
) -> list[tuple[int, ...]]:
    """The brokers of each of a topic's new partitions, the preferred leader first, and counts them in both loads.

    `racks` are the brokers to choose from, each with its rack; an empty list if they are too few.
    """
    assert partitions > 0 and replicas > 0
    if len(racks) < replicas:
        return []
    placed = [_choose(racks, replicas, topic, cluster) for _ in range(partitions)]
    for members in placed:
        members.sort(key=lambda broker: (topic.leaders[broker], cluster.leaders[broker], broker))
        topic.leaders[members[0]] += 1
        cluster.leaders[members[0]] += 1
    while _level(racks, placed, topic, cluster):
        pass
    # When a leader dies, the next in order takes over: a different one per partition spreads the load.
    return [_turned(members, number // len(racks)) for number, members in enumerate(placed)]


def _choose(racks: Mapping[int, str], replicas: int, topic: Load, cluster: Load) -> list[int]:
    chosen: list[int] = []
    used: Counter[str] = Counter()
    while len(chosen) < replicas:
        best = min(
            (broker for broker in racks if broker not in chosen),
            key=lambda broker: (
                used[_rack(racks, broker)],
                topic.replicas[broker],
                cluster.replicas[broker],
                broker,
            ),
        )
        chosen.append(best)
        used[_rack(racks, best)] += 1
    topic.replicas.update(chosen)
    cluster.replicas.update(chosen)
    return chosen


def _rack(racks: Mapping[int, str], broker: int) -> str:
    return racks[broker] or f"\0{broker}"


def _level(racks: Mapping[int, str], placed: Sequence[list[int]], topic: Load, cluster: Load) -> bool:
    """Passes one leadership from a broker that leads many to one that leads few; False if there is none to pass."""
    for most in sorted(racks, key=lambda broker: (-topic.leaders[broker], broker)):
        path = _path(most, placed, topic)
        if path:
            for members, leader in path:
                for load in (topic, cluster):
                    load.leaders[members[0]] -= 1
                    load.leaders[leader] += 1
                members.remove(leader)
                members.insert(0, leader)
            return True
    return False


def _path(most: int, placed: Sequence[list[int]], topic: Load) -> list[tuple[list[int], int]]:
    """The shortest path of partitions along which leadership moves from `most` to a broker that leads at least two
    fewer, each with its next leader; empty if there is none."""
    reached_from: dict[int, tuple[int, list[int]]] = {}
    seen = {most}
    waiting = deque([most])
    while waiting:
        leader = waiting.popleft()
        if topic.leaders[leader] <= topic.leaders[most] - 2:
            path: list[tuple[list[int], int]] = []
            while leader != most:
                previous, members = reached_from[leader]
                path.append((members, leader))
                leader = previous
            return path
        for members in placed:
            if members[0] == leader:
                for other in members[1:]:
                    if other not in seen:
                        seen.add(other)
                        reached_from[other] = (leader, members)
                        waiting.append(other)
    return []


def _turned(members: Sequence[int], by: int) -> tuple[int, ...]:
    leader, *others = members
    by = by % len(others) if others else 0
    return (leader, *others[by:], *others[:by])
