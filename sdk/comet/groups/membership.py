"""The state machine of a group member: its id, generation and partitions. Pure: events go in, actions come out.

    out ──joined──► in ──disconnected, coordinator moved──► away ──joined (same id)──► in
                     │                                        │
                     └──────── evicted as unknown ────────────┴──► out: partitions lost, it joins as a new member
                     └──────── fenced, or refused for good ───────► over

A member that is away continues with its partitions: the coordinator waits for the session timeout, and records read
after that do no harm, since their offsets cannot be committed. An Assignment is always the complete list: an assigned
partition that is not in it is lost; one that was lost and assigned again in the meantime has another `since`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from comet.errors import CometError, GroupError, MemberUnknown, StaleGeneration, Timeout, TopicNotFound
from comet.types import TopicPartition


class Phase(Enum):
    OUT = auto()  # not a member: it has to join
    AWAY = auto()  # a member whose stream ended: it has to rejoin with its member id
    IN = auto()
    OVER = auto()  # fenced, permanently refused, or left


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition as an Assignment lists it."""

    tp: TopicPartition
    topic_id: bytes
    since: int
    offset: int | None = None  # committed offset; None: no commit yet
    epoch: int | None = None


@dataclass(slots=True)
class OwnedPartition:
    partition: AssignedPartition
    releasing: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """The actions of a member, in this order."""

    lost: tuple[TopicPartition, ...] = ()  # assigned to others: their offsets can no longer be committed
    gained: tuple[AssignedPartition, ...] = ()
    release: tuple[TopicPartition, ...] = ()  # to finish, commit and release; possibly gained just now
    why: CometError | None = None  # the reason for a loss, unless it is an ordinary rebalance
    over: CometError | None = None  # the error that ended the membership for good
    join: bool = False

    def __bool__(self) -> bool:
        return bool(self.lost or self.release or self.gained or self.over or self.join)


NOTHING = Changes()


@dataclass(slots=True)
class Membership:
    """Owned by the member."""

    phase: Phase = Phase.OUT
    member: str = ""
    generation: int = 0
    owned: dict[TopicPartition, OwnedPartition] = field(default_factory=dict)
    # Generations of released partitions, until the coordinator must know of the release: an Assignment that was in
    # flight meanwhile does not assign them again.
    given_up: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def must_join(self) -> bool:
        return self.phase in {Phase.OUT, Phase.AWAY}

    # ---- joining

    def joined(self, member: str, generation: int) -> Changes:
        """Handles a successful join. With another id than before, the old member and its partitions are lost."""
        if self.phase is Phase.OVER:
            return NOTHING
        lost = self._lose_all() if self.member not in {"", member} else ()
        if member != self.member:
            self.given_up.clear()
        self.member = member
        self.generation = generation if lost else max(generation, self.generation)
        self.phase = Phase.IN
        return Changes(lost=lost)

    def refused(self, error: CometError) -> Changes:
        """Handles a failed join; after a retriable error the member joins again."""
        if self.phase is Phase.OVER:
            return NOTHING
        if _passing(error):
            return Changes(join=True)
        return self._out(error)

    def disconnected(self) -> Changes:
        """Handles the end of the stream to the coordinator, or a change of coordinator."""
        if self.phase is Phase.IN:
            self.phase = Phase.AWAY
        return Changes(join=self.must_join)

    def evicted(self, member: str, error: CometError) -> Changes:
        """Handles an eviction: the member is unknown or fenced, or the coordinator changed."""
        if self.phase is Phase.OVER or member != self.member:
            return NOTHING  # for an earlier member id
        if _passing(error):
            return self.disconnected()
        return self._out(error)

    def _out(self, error: CometError) -> Changes:
        lost = self._lose_all()
        self.member = ""
        if isinstance(error, MemberUnknown):
            self.phase = Phase.OUT
            return Changes(lost=lost, why=error, join=True)
        self.phase = Phase.OVER
        return Changes(lost=lost, why=error, over=error)

    def left(self) -> None:
        """Ends the membership after Leave."""
        self.phase = Phase.OVER
        self.owned.clear()

    # ---- assigned partitions

    def assigned(
        self, member: str, generation: int, partitions: Iterable[AssignedPartition], release: Iterable[TopicPartition]
    ) -> Changes:
        """Handles an assignment: all partitions, and those of them to release."""
        if self.phase is Phase.OVER or member != self.member or generation < self.generation:
            return NOTHING
        self.generation = generation
        listed = {one.tp: one for one in partitions}
        self.given_up = {tp: since for tp, since in self.given_up.items() if tp in listed and listed[tp].since == since}
        now = {tp: one for tp, one in listed.items() if tp not in self.given_up}
        gone = [tp for tp, had in self.owned.items() if tp not in now or now[tp].since != had.partition.since]
        for tp in gone:
            del self.owned[tp]
        gained = tuple(one for tp, one in now.items() if tp not in self.owned)
        for one in gained:
            self.owned[one.tp] = OwnedPartition(one)
        requested = set(release)
        fresh = tuple(sorted(tp for tp, had in self.owned.items() if tp in requested and not had.releasing))
        for tp, had in self.owned.items():
            had.releasing = tp in requested
        return Changes(lost=tuple(sorted(gone)), release=fresh, gained=gained)

    def released(self, tp: TopicPartition, since: int) -> bool:
        """Releases a finished partition. Returns whether it was still assigned."""
        if not self.holds(tp, since):
            return False
        del self.owned[tp]
        self.given_up[tp] = since
        return True

    def release_failed(self, tps: Iterable[TopicPartition]) -> None:
        """Undoes a release that did not reach the coordinator, which still decides about the partition."""
        for tp in tps:
            self.given_up.pop(tp, None)

    def refused_offset(self, tp: TopicPartition, since: int, error: CometError) -> Changes:
        """Handles a refused commit of one partition that was assigned in that generation."""
        belongs_to_others = isinstance(error, StaleGeneration | TopicNotFound)
        if not belongs_to_others or not self.holds(tp, since):
            return NOTHING
        del self.owned[tp]
        return Changes(lost=(tp,), why=error)

    def holds(self, tp: TopicPartition, since: int) -> bool:
        had = self.owned.get(tp)
        return had is not None and had.partition.since == since

    def _lose_all(self) -> tuple[TopicPartition, ...]:
        lost = tuple(sorted(self.owned))
        self.owned.clear()
        return lost

    def still_read(self) -> Iterator[tuple[str, bytes, list[int]]]:
        """The assigned partitions by topic, for a rejoin."""
        topics: dict[tuple[str, bytes], list[int]] = {}
        for (topic, partition), had in sorted(self.owned.items()):
            topics.setdefault((topic, had.partition.topic_id), []).append(partition)
        for (topic, topic_id), partitions in topics.items():
            yield topic, topic_id, partitions


def _passing(error: CometError) -> bool:
    """Whether the error is about the coordinator only: it moved, is loading, or could not be reached."""
    return (error.retriable or isinstance(error, Timeout)) and not isinstance(error, GroupError)
