"""The state machine of a group member: its id, generation and partitions. Pure: events go in, actions come out.

    out ──joined──► in ──disconnected, coordinator moved──► away ──joined (same id)──► in
                     │                                        │
                     └──────── evicted as unknown ────────────┴──► out: all it owned is lost, it joins as a new member
                     └──────── fenced, or refused for good ───────► over

A member that is away continues with its partitions: the coordinator waits for the session timeout, and records read
after that do no harm, since their offsets cannot be committed. An Assignment is always the complete list: an owned
partition that is not in it is lost; one that was lost and assigned again in the meantime has another `since`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from comet.errors import CometError, GroupError, MemberUnknown, StaleGeneration, Timeout, TopicNotFound
from comet.types import TopicPartition


class Phase(Enum):
    OUT = auto()  # no member: it has to join
    AWAY = auto()  # a member whose stream is over: it has to join again, as who it was
    IN = auto()
    OVER = auto()  # fenced, refused for good, or it has left


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition as an Assignment lists it."""

    place: TopicPartition
    topic_id: bytes
    since: int
    offset: int | None = None  # committed; None: nothing ever was
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
    why: CometError | None = None  # the reason of a loss, unless it is an ordinary rebalance
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
    # Since when it owned what it has given up, for as long as the coordinator may not have heard of that: an Assignment
    # that was on its way meanwhile does not give it back.
    given_up: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def must_join(self) -> bool:
        return self.phase in {Phase.OUT, Phase.AWAY}

    # ---- joining

    def joined(self, member: str, generation: int) -> Changes:
        """The coordinator took it, under that id. Another id than before: that member is gone, with what it owned."""
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
        """A Join was answered with an error. Where trying again can help, it is to be tried again."""
        if self.phase is Phase.OVER:
            return NOTHING
        if _passing(error):
            return Changes(join=True)
        return self._out(error)

    def disconnected(self) -> Changes:
        """The stream to the coordinator is over, or the coordinator is another broker by now."""
        if self.phase is Phase.IN:
            self.phase = Phase.AWAY
        return Changes(join=self.must_join)

    def evicted(self, member: str, error: CometError) -> Changes:
        """The coordinator says that it is no member, or that it is not its coordinator any more."""
        if self.phase is Phase.OVER or member != self.member:
            return NOTHING  # of an earlier life
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
        """It is none any more, by its own wish."""
        self.phase = Phase.OVER
        self.owned.clear()

    # ---- what it owns

    def assigned(
        self, member: str, generation: int, partitions: Iterable[AssignedPartition], release: Iterable[TopicPartition]
    ) -> Changes:
        """All it owns from now on, and what of that it is to release."""
        if self.phase is Phase.OVER or member != self.member or generation < self.generation:
            return NOTHING
        self.generation = generation
        listed = {one.place: one for one in partitions}
        self.given_up = {
            place: since for place, since in self.given_up.items() if place in listed and listed[place].since == since
        }
        now = {place: one for place, one in listed.items() if place not in self.given_up}
        gone = [
            place for place, had in self.owned.items() if place not in now or now[place].since != had.partition.since
        ]
        for place in gone:
            del self.owned[place]
        gained = tuple(one for place, one in now.items() if place not in self.owned)
        for one in gained:
            self.owned[one.place] = OwnedPartition(one)
        requested = set(release)
        fresh = tuple(sorted(place for place, had in self.owned.items() if place in requested and not had.releasing))
        for place, had in self.owned.items():
            had.releasing = place in requested
        return Changes(lost=tuple(sorted(gone)), release=fresh, gained=gained)

    def released(self, place: TopicPartition, since: int) -> bool:
        """Gives up a finished partition. Returns whether the member still owned it."""
        if not self.holds(place, since):
            return False
        del self.owned[place]
        self.given_up[place] = since
        return True

    def release_failed(self, places: Iterable[TopicPartition]) -> None:
        """The coordinator has not got the release: it still decides the owner."""
        for place in places:
            self.given_up.pop(place, None)

    def refused_offset(self, place: TopicPartition, since: int, error: CometError) -> Changes:
        """A commit was refused for one partition, which it owned since that generation."""
        belongs_to_others = isinstance(error, StaleGeneration | TopicNotFound)
        if not belongs_to_others or not self.holds(place, since):
            return NOTHING
        del self.owned[place]
        return Changes(lost=(place,), why=error)

    def holds(self, place: TopicPartition, since: int) -> bool:
        had = self.owned.get(place)
        return had is not None and had.partition.since == since

    def _lose_all(self) -> tuple[TopicPartition, ...]:
        lost = tuple(sorted(self.owned))
        self.owned.clear()
        return lost

    def still_read(self) -> Iterator[tuple[str, bytes, list[int]]]:
        """Per topic what it owns, to be said when it joins again."""
        topics: dict[tuple[str, bytes], list[int]] = {}
        for (topic, partition), had in sorted(self.owned.items()):
            topics.setdefault((topic, had.partition.topic_id), []).append(partition)
        for (topic, topic_id), partitions in topics.items():
            yield topic, topic_id, partitions


def _passing(error: CometError) -> bool:
    """It says nothing about the member: the coordinator moved, is loading, or could not be reached."""
    return (error.retriable or isinstance(error, Timeout)) and not isinstance(error, GroupError)
