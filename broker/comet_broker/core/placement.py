"""Where the replicas of new partitions go: spread over brokers by count, over racks where they are named.

Each replica goes to the broker that has the fewest, first counted in the topic, then in the whole cluster, so that the
counts of brokers in one rack stay within one of each other. A partition's replicas are on as many racks as there are;
a broker without a rack counts as one of its own. Who has the fewest preferred leaders comes first.

Pure and deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Load:
    """How many replicas, and preferred leaders, each broker has."""

    replicas: Counter[int] = field(default_factory=Counter)
    leaders: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, placed: Iterable[Sequence[int]]) -> Load:
        load = cls()
        for replicas in placed:
            load.add(replicas)
        return load

    def add(self, replicas: Sequence[int]) -> None:
        assert replicas
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1


def place(racks: Mapping[int, str], replicas: int, topic: Load, cluster: Load) -> tuple[int, ...]:
    """The brokers of one new partition, the preferred leader first, and counts them in both loads.

    `racks` are the brokers to choose from; () if they are too few.
    """
    assert replicas > 0
    if len(racks) < replicas:
        return ()
    chosen: list[int] = []
    used: Counter[str] = Counter()
    for _ in range(replicas):
        best = min(
            (broker for broker in racks if broker not in chosen),
            key=lambda broker: (
                used[_rack(racks, broker)],
                topic.replicas[broker],
                cluster.replicas[broker],
                topic.leaders[broker],
                broker,
            ),
        )
        chosen.append(best)
        used[_rack(racks, best)] += 1
    chosen.sort(key=lambda broker: (topic.leaders[broker], cluster.leaders[broker], broker))
    # The others follow in the order in which they are to take over: who leads least first, for the same reason.
    placed = tuple(chosen)
    topic.add(placed)
    cluster.add(placed)
    assert len(set(placed)) == replicas
    return placed


def _rack(racks: Mapping[int, str], broker: int) -> str:
    return racks[broker] or f"\0{broker}"
