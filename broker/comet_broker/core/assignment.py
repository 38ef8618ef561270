"""The assignment strategies: which member of a group owns each partition.

    "sticky"   equal loads, and a member keeps its partitions unless balance needs them
    "range"    of each topic a range of partitions per member, so that the same numbers of several topics meet
    "rack"     as "sticky", and as many partitions as possible at members in the rack of an in-sync replica

Members may ask for different strategies while a group is changed from one to another: the one that most of them ask for
counts. So a rolling restart changes it without an outage; with an error instead, the new members could not join.

A strategy is a function and a row of STRATEGIES. It is pure: the same arguments give the same assignment on every
broker. Every partition of a subscribed topic gets exactly one owner, a member that subscribes to the topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from comet_broker.core.rack_assignment import by_rack
from comet_broker.core.sticky_assignment import Partition, sticky


class Subscriber(NamedTuple):
    """A member as a strategy sees it."""

    topics: Collection[str]
    rack: str = ""
    instance: str = ""  # of a static member: its place in an order stays when it restarts


class AssignmentInput(NamedTuple):
    """The input of a strategy: `before` has the present owners, `racks` the racks of a partition's replicas."""

    members: Mapping[str, Subscriber]
    partitions: Mapping[str, int]
    before: Mapping[Partition, str]
    racks: Callable[[Partition], Collection[str]]


def _sticky(given: AssignmentInput) -> dict[Partition, str]:
    return sticky(_topics(given), given.partitions, given.before)


def _by_rack(given: AssignmentInput) -> dict[Partition, str]:
    homes = {member: one.rack for member, one in given.members.items()}
    return by_rack(_topics(given), homes, given.partitions, given.before, given.racks)


def _by_range(given: AssignmentInput) -> dict[Partition, str]:
    """The first members, by instance or id, get one partition more where they do not divide evenly."""
    found: dict[Partition, str] = {}
    order = sorted(given.members, key=lambda member: (given.members[member].instance or member, member))
    for topic, count in given.partitions.items():
        readers = [member for member in order if topic in given.members[member].topics]
        if not readers:
            continue
        share, more = divmod(count, len(readers))
        at = 0
        for number, member in enumerate(readers):
            end = at + share + (number < more)
            found.update(((topic, index), member) for index in range(at, end))
            at = end
    return found


def _topics(given: AssignmentInput) -> dict[str, Collection[str]]:
    return {member: one.topics for member, one in given.members.items()}


STICKY: Final = "sticky"
STRATEGIES: Final[Mapping[str, Callable[[AssignmentInput], dict[Partition, str]]]] = {
    STICKY: _sticky,
    "range": _by_range,
    "rack": _by_rack,
}


def strategy_of(wanted: Iterable[str], present: str) -> str:
    """The strategy that most members ask for; of several the present one, else the first by name."""
    counts = Counter(name for name in wanted if name in STRATEGIES)
    most = max(counts.values(), default=0)
    leading = sorted(name for name, count in counts.items() if count == most)
    return present if present in leading or not leading else leading[0]


def assign(strategy: str, given: AssignmentInput) -> dict[Partition, str]:
    """The owners of all partitions."""
    return STRATEGIES[strategy](given)
