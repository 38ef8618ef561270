"""The moves that take all replicas away from a broker. Pure.

A partition keeps its number of replicas, and its order: the new broker gets the position of the one that is emptied. It
is one on a rack that the other replicas of the partition do not use, if there is one; among those the one with the
fewest replicas, of the topic and then of the cluster. Brokers that drain get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from comet.units import count

if TYPE_CHECKING:
    from comet.entities import BrokerInfo, PartitionInfo, TopicInfo

MOVES_MAX: Final = 50  # at once: each copies a partition


class Move(NamedTuple):
    """A partition, and its replicas before and after."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]


class Emptying(NamedTuple):
    """What is to be done for a broker to hold nothing."""

    holds: int  # partitions with a replica on it
    moving: tuple[Move, ...]  # away from it, under way
    moves: tuple[Move, ...]  # to start
    problems: tuple[str, ...]  # why a partition cannot leave it

    @property
    def due(self) -> tuple[Move, ...]:
        """The moves to start now."""
        return self.moves[: max(0, MOVES_MAX - len(self.moving))]


def plan_emptying(broker: int, brokers: Sequence[BrokerInfo], topics: Sequence[TopicInfo]) -> Emptying:
    """The moves away from a broker, to those of `brokers` that do not drain."""
    racks = {one.id: one.rack or f"\0{one.id}" for one in brokers}
    open_to = [one.id for one in brokers if one.id != broker and not one.draining]
    all_held = Counter(held for topic in topics for one in topic.partitions for held in _next(one))
    holds, moving, moves, problems = 0, [], [], []
    for topic in topics:
        held = Counter(held for one in topic.partitions for held in _next(one))
        for one in topic.partitions:
            if broker not in one.replicas and broker not in one.target:
                continue
            holds += 1
            if broker not in _next(one):
                moving.append(Move(topic.name, one.partition, one.replicas, one.target))
                continue
            others = [each for each in _next(one) if each != broker]
            chosen = _choose(open_to, others, racks, held, all_held)
            if chosen is None:
                replicas = count(len(_next(one)), "replica")
                problems.append(f"{topic.name}/{one.partition} has {replicas}, and {len(open_to)} other brokers stay")
                continue
            after = tuple(chosen if each == broker else each for each in _next(one))
            for load in (held, all_held):
                load[chosen] += 1
            moves.append(Move(topic.name, one.partition, one.replicas, after))
    return Emptying(holds, tuple(moving), tuple(moves), tuple(problems))


def _next(one: PartitionInfo) -> tuple[int, ...]:
    """The replicas after the move under way, if there is one."""
    return one.target or one.replicas


def _choose(
    open_to: Sequence[int],
    others: Sequence[int],
    racks: Mapping[int, str],
    held: Counter[int],
    all_held: Counter[int],
) -> int | None:
    """The broker that gets the replica; None: each one has a replica already."""
    used = Counter(racks.get(one) for one in others)
    able = [one for one in open_to if one not in others]
    return min(able, key=lambda one: (used[racks[one]], held[one], all_held[one], one), default=None)
