"""A group under random schedules, with members that hear late, a store that answers late, and coordinators that die.

The dumb oracle is what the members believe: from the moment they are told that a partition is theirs until they say
that they have released it, or hear that it is gone. No two members that the group has not put out may ever believe in
one partition at the same time.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from comet.errors import CometError
from comet_broker.core.cluster import PartitionId
from comet_broker.core.group_members import CONSUMER, Claim, View
from comet_broker.core.group_record import GroupRecord, Shape
from comet_broker.core.groups import Group

SESSION_S = 10.0


@dataclass
class Believer:
    """A member as it sees itself."""

    id: str
    instance: str
    topics: tuple[str, ...]
    mail: list[tuple[int, View]] = field(default_factory=list)  # told, and not heard of yet
    owned: set[PartitionId] = field(default_factory=set)
    release: set[PartitionId] = field(default_factory=set)
    given: tuple[int, set[PartitionId]] = field(default_factory=lambda: (0, set()))
    generation: int = 0
    silent: bool = False

    def told(self) -> set[PartitionId]:
        """What it reads, or will as soon as it reads its mail."""
        return self.owned.union(*(view.owned for _, view in self.mail))


class GroupWorld(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 6), members=st.integers(0, 3))
    def begin(self, partitions: int, members: int) -> None:
        self.now = 0.0
        self.catalog = {"a": Shape("ida", partitions), "b": Shape("idb", 3)}
        self.group = Group(CONSUMER)
        self.group.topics(self.catalog)
        self.stored: GroupRecord | None = None
        self.writing: GroupRecord | None = None
        self.believers: dict[str, Believer] = {}
        self.number = 0
        self.seen_generation = 0
        self.entering: set[str] = set()  # told nothing before the store knows of them
        self.entered: set[str] = set()
        self.owner_in: dict[tuple[PartitionId, int], str] = {}  # who was told that it owns it since a generation
        for number in range(members):  # so that there is something to hand over
            self.join(("a",), "i1" if number == 1 else "")
            self.write()
            self.written()
            for index in range(number + 1):
                self.hear_mail(index)

    def new_id(self) -> str:
        self.number += 1
        return f"m{self.number}"

    # ---- members

    @rule(topics=st.sampled_from([("a",), ("a", "b"), ("b",)]), instance=st.sampled_from(["", "", "i1", "i2"]))
    def join(self, topics: tuple[str, ...], instance: str) -> None:
        if len(self.group.members) >= 6:
            return
        entry = self.group.join(Claim(topics=topics, instance=instance), self.now, self.new_id)
        self.believers[entry.member] = Believer(entry.member, instance, topics)
        self.entering.add(entry.member)

    def pick(self, index: int) -> Believer | None:
        known = sorted(self.believers)
        return self.believers[known[index % len(known)]] if known else None

    @rule(index=st.integers(0, 20))
    def hear_mail(self, index: int) -> None:
        member = self.pick(index)
        if member is not None and member.mail:
            generation, view = member.mail.pop(0)
            assert generation >= member.generation
            member.generation = generation
            member.owned, member.release = set(view.owned), set(view.release)

    def hear_all(self, index: int) -> None:
        while (member := self.pick(index)) is not None and member.mail:
            self.hear_mail(index)

    @rule(index=st.integers(0, 20))
    def release(self, index: int) -> None:
        member = self.pick(index)
        if member is not None and member.release and not member.mail:
            given, member.release = member.release, set()
            member.owned -= given
            member.given = (member.generation, given)
            try:
                self.group.release(member.id, given, member.generation, self.now)
            except CometError:
                del self.believers[member.id]

    @rule(index=st.integers(0, 20))
    def release_again(self, index: int) -> None:
        """The answer was lost. It may have got back what it names, without having heard of it."""
        member = self.pick(index)
        if member is not None and member.id in self.group.members:
            generation, given = member.given
            self.group.release(member.id, given, generation, self.now)

    @rule(index=st.integers(0, 20))
    def leave(self, index: int) -> None:
        member = self.pick(index)
        if member is not None:
            with suppress(CometError):
                self.group.leave(member.id)
            del self.believers[member.id]

    @rule(index=st.integers(0, 20))
    def come_back(self, index: int) -> None:
        """On another stream: what was on its way to it is lost."""
        member = self.pick(index)
        if member is None:
            return
        member.mail.clear()
        try:
            claim = Claim(member=member.id, instance=member.instance, topics=member.topics)
            self.group.join(claim, self.now, self.new_id)
        except CometError:
            del self.believers[member.id]

    @rule(index=st.integers(0, 20))
    def go_silent(self, index: int) -> None:
        member = self.pick(index)
        if member is not None:
            member.silent = True

    @rule(seconds=st.sampled_from([0.01, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for member in self.believers.values():
            if not member.silent and member.id in self.group.members:
                self.group.heard_from(member.id, self.now)
        self.group.tick(self.now)

    # ---- topics

    @rule()
    def more_partitions(self) -> None:
        shape = self.catalog["a"]
        if shape.partitions < 9:
            self.catalog = {**self.catalog, "a": Shape(shape.topic_id, shape.partitions + 1)}
            self.group.topics(self.catalog)

    @rule()
    def delete_and_make_again(self) -> None:
        shape = self.catalog["b"]
        self.catalog = {**self.catalog, "b": Shape(shape.topic_id + "x", shape.partitions)}
        self.group.topics(self.catalog)

    # ---- the driver

    @precondition(lambda self: self.writing is None)
    @rule()
    def write(self) -> None:
        self.group.plan(self.now)
        self.entered = set(self.entering)
        if self.group.dirty:
            self.group.dirty = False
            self.writing = self.group.record()
        else:
            self.tell()

    @precondition(lambda self: self.writing is not None)
    @rule()
    def written(self) -> None:
        self.stored, self.writing = self.writing, None
        self.tell()

    def step(self) -> None:
        if self.writing is None:
            self.write()
        else:
            self.written()

    def tell(self) -> None:
        self.entering -= self.entered
        for member_id, view in self.group.news(self.entering).items():
            for tp, since in view.owned.items():
                assert self.owner_in.setdefault((tp, since), member_id) == member_id, "two owners in one generation"
            believer = self.believers.get(member_id)
            if believer is not None:
                believer.mail.append((self.group.generation, view))

    @rule(took_effect=st.booleans())
    def coordinator_dies(self, took_effect: bool) -> None:
        if took_effect and self.writing is not None:
            self.stored = self.writing
        self.writing = None
        if self.stored is None:
            self.group = Group(CONSUMER)
        else:
            assert GroupRecord.decode(self.stored.encode()) == self.stored
            self.group = Group.restore(self.stored, self.now)
            assert self.group.record().members == self.stored.members
        self.seen_generation = self.group.generation
        self.group.topics(self.catalog)

    # ---- what must hold

    @invariant()
    def one_owner_each(self) -> None:
        if not hasattr(self, "group"):
            return
        holders = Counter(
            tp
            for member in self.believers.values()
            if member.id in self.group.members
            for tp in member.told()
            if tp[0] in {shape.topic_id for shape in self.catalog.values()}
        )
        twice = [tp for tp, count in holders.items() if count > 1]
        assert not twice, twice
        assert self.group.generation >= self.seen_generation
        self.seen_generation = self.group.generation

    def teardown(self) -> None:
        """Left alone, it comes to rest: everything is owned, and the loads are equal where the subscriptions are."""
        if not hasattr(self, "group"):
            return
        for _ in range(20):
            for member in list(self.believers.values()):
                member.silent = False
                if member.id not in self.group.members:
                    del self.believers[member.id]
            self.step()
            for index in range(len(self.believers)):
                self.hear_all(index)
                self.release(index)
            self.one_owner_each()
        for member_id in [member for member in self.group.members if member not in self.believers]:
            self.group.leave(member_id)  # those whose place was taken, and who never heard of it
        for _ in range(20):
            self.step()
            for index in range(len(self.believers)):
                self.hear_all(index)
                self.release(index)
        self.one_owner_each()
        assert not self.group.dirty and not self.group.stale and not self.group.rebalancing
        read = {topic for member in self.believers.values() for topic in member.topics}
        wanted = {(self.catalog[t].topic_id, index) for t in read for index in range(self.catalog[t].partitions)}
        assert set(self.group.owners) == wanted
        for believer in self.believers.values():
            assert believer.owned == {p for p, owner in self.group.owners.items() if owner.member == believer.id}
            for other in self.believers.values():
                if other.topics == believer.topics:
                    assert abs(len(other.owned) - len(believer.owned)) <= 1


TestGroup = GroupWorld.TestCase
TestGroup.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
