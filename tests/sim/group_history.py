"""What happened to groups and transactions, as their members saw it: the only thing that `group_checks` looks at.

Values are written once each, by `history.make_value`, so a value says where it came from. Times are seconds of the
simulation's one clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from tests.sim.history import Outcome, PartitionName

NONE = -1  # nothing is committed

# How a member's ownership of a partition ended: it gave it up as it was asked to, left in good order, was told that
# it is not (any more) the owner, or died.
End = Literal["", "released", "left", "taken", "evicted", "died"]


@dataclass(slots=True)
class Ownership:
    """A member believed that a partition was its own."""

    group: str
    process: str
    member: str  # the id that the coordinator gave it
    tp: PartitionName
    since: int  # the generation
    began: float
    ended: float = -1.0
    how: End = ""


@dataclass(slots=True)
class Handled:
    """A member took up an event, and perhaps was done with it."""

    group: str
    process: str
    tp: PartitionName
    offset: int
    value: bytes
    began: float
    finished: float = -1.0


@dataclass(slots=True)
class Commitment:
    """A member or observer asked for a position to be committed."""

    group: str
    process: str
    tp: PartitionName
    offset: int
    invoked: float
    completed: float = -1.0
    outcome: Outcome = Outcome.PENDING
    code: str = ""


@dataclass(slots=True)
class Look:
    """What was said to be committed; NONE: nothing."""

    group: str
    tp: PartitionName
    offset: int
    invoked: float
    completed: float


@dataclass(slots=True)
class Tx:
    """One transaction: what it sent, and what became of it. `inputs` are the positions that it was to commit, and
    `found` is the note that its producer had when it began."""

    process: str
    number: int
    outputs: list[tuple[str, bytes]] = field(default_factory=list)  # topic, value
    inputs: dict[PartitionName, int] = field(default_factory=dict)
    invoked: float = 0.0
    ending: float = -1.0  # when the commit was asked for; never, where it was aborted on purpose
    completed: float = -1.0
    outcome: Outcome = Outcome.PENDING  # OK: committed; FAIL: aborted
    code: str = ""
    id: str = ""  # all transactions under one transactional id come one after the other
    note: bytes = b""  # unlike all others; empty: it set none
    found: bytes | None = None  # None: it never began


@dataclass(slots=True)
class Seen:
    """A reader of committed records was given a value."""

    process: str
    tp: PartitionName
    offset: int
    value: bytes
    at: float


@dataclass(slots=True)
class Lent:
    """A record of a share group was given to a member."""

    group: str
    process: str
    tp: PartitionName
    offset: int
    value: bytes
    attempt: int
    at: float
    settled: str = ""  # what the member said: accept, release, reject
    invoked: float = -1.0
    completed: float = -1.0
    outcome: Outcome = Outcome.PENDING
    code: str = ""


@dataclass(slots=True)
class Lock:
    """The leader of a partition acquired records, as its broker did it; [first, end)."""

    group: str
    tp: PartitionName
    first: int
    end: int
    at: float


@dataclass(slots=True)
class GroupHistory:
    owned: list[Ownership] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    commits: list[Commitment] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    transactions: list[Tx] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    acquired: list[Lent] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    evicted: dict[tuple[str, str], float] = field(default_factory=dict)  # group and member id: when it was put out
    # ---- after all was mended and every group had caught up
    inputs: dict[PartitionName, dict[int, bytes]] = field(default_factory=dict)  # committed records of the topics read
    outputs: dict[PartitionName, dict[int, bytes]] = field(default_factory=dict)  # and of those written in transactions
    ends: dict[PartitionName, int] = field(default_factory=dict)  # high watermarks
    committed: dict[tuple[str, PartitionName], int] = field(default_factory=dict)
    dead: dict[str, Counter[bytes]] = field(default_factory=dict)  # per group what is in its dead-letter topic

    def counts(self) -> dict[str, int]:
        outcomes = Counter(f"transaction {one.outcome.value}" for one in self.transactions)
        return {
            "owned": len(self.owned),
            "handled": len(self.handled),
            "commits": len(self.commits),
            "looks": len(self.looks),
            **dict(sorted(outcomes.items())),
            "seen": len(self.seen),
            "acquired": len(self.acquired),
        }
