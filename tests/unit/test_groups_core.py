"""A group step by step: what the random schedules do not look at closely."""

from __future__ import annotations

from itertools import count

import pytest

from comet.errors import InvalidArgument, LimitExceeded, MemberFenced, MemberUnknown
from comet_broker import limits
from comet_broker.core.group_members import CONSUMER, SHARED, Claim
from comet_broker.core.group_record import GroupRecord, Shape
from comet_broker.core.groups import FENCED_MAX, PLAN_INTERVAL_S, Group
from comet_broker.metadata.store import TRANSACTION_BYTES_MAX

A, B = Shape("ida", 4), Shape("idb", 2)


class World:
    """A group whose store answers at once."""

    def __init__(self, kind: int = CONSUMER) -> None:
        self.now = 100.0
        self.group = Group(kind)
        self.kind = kind
        self.group.topics({"a": A, "b": B})
        self._ids = map("m{}".format, count(1))

    def join(self, *topics: str, **claim: object) -> str:
        names = topics or ("a",)
        entry = self.group.join(Claim(topics=names, kind=self.kind, **claim), self.now, lambda: next(self._ids))  # type: ignore[arg-type]
        return entry.member

    def store(self) -> dict[str, set[int]]:
        """Who is told something: the partitions of topic a that it has."""
        self.now += PLAN_INTERVAL_S
        self.group.plan(self.now)
        self.group.dirty = False
        self.group.record()
        return {member: {index for _, index in view.owned} for member, view in self.group.news().items()}

    def owned(self, member: str) -> set[int]:
        return {index for (topic, index), owner in self.group.owners.items() if owner.member == member}


def test_members_whose_partitions_stay_hear_nothing() -> None:
    world = World()
    first, second = world.join(), world.join()
    assert set(world.store()) == {first, second}
    third = world.join()
    news = world.store()
    assert third in news and len(news) == 2  # and the one that is to give one up
    other = ({first, second} - set(news)).pop()
    assert world.owned(other) and not world.group.members[other].releasing


def test_most_members_decide_on_the_strategy_and_the_store_keeps_it() -> None:
    world = World()
    first, _, third = (world.join(assignment=name) for name in ("range", "sticky", "range"))
    world.store()
    assert world.group.strategy == "range"
    world.group.leave(third)
    world.store()
    assert world.group.strategy == "range", "one of each: it stays as it is"
    restored = Group.restore(world.group.record(), world.now)
    assert restored.strategy == "range"
    assert [member.assignment for member in restored.members.values()] == ["range", "sticky"]
    generation = world.group.generation
    world.group.join(Claim(member=first, topics=("a",), assignment="sticky", rack="a"), world.now, lambda: "")
    world.store()
    assert (world.group.strategy, world.group.members[first].rack) == ("sticky", "a")
    assert world.group.generation >= generation
    record = world.group.record()
    strange = GroupRecord(record.kind, record.generation, record.members, record.topics, strategy="of a later version")
    assert Group.restore(strange, world.now).strategy == "sticky"


def test_racks_are_looked_at_when_a_plan_is_made() -> None:
    world = World()
    one, other = world.join(assignment="rack", rack="x"), world.join(assignment="rack", rack="y")
    world.group.plan(world.now, lambda partition: {"x" if partition[1] % 2 else "y"})
    assert (world.owned(one), world.owned(other)) == ({1, 3}, {0, 2})
    world.group.plan(world.now + 1, lambda partition: {"y" if partition[1] % 2 else "x"})
    assert (world.owned(one), world.owned(other)) == ({1, 3}, {0, 2}), "a change of replicas alone moves nothing"


def test_a_commit_is_fenced_by_owner_and_by_the_generation_it_got_the_partition_in() -> None:
    world = World()
    first = world.join()
    world.store()
    tp = ("ida", 3)
    assert world.group.owns(first, tp, 1) and not world.group.owns(first, tp, 0)
    second = world.join()
    world.store()
    moving = next(iter(world.group.members[first].releasing))
    assert world.group.owns(first, moving, 1)  # until it says that it has released it
    world.group.release(first, [moving], 2, world.now)
    assert not world.group.owns(first, moving, 2) and not world.group.owns(second, moving, 2)
    world.store()
    assert world.group.owns(second, moving, 3) and not world.group.owns(second, moving, 2)


def test_a_static_member_that_comes_back_to_release_had_the_partition_in_a_generation_of_its_own() -> None:
    world = World()
    first = world.join(instance="one")
    world.store()
    second = world.join()
    world.store()
    again = world.join(instance="one")
    world.store()
    moving = next(iter(world.group.members[again].releasing))
    since = world.group.owners[moving].since
    world.group.release(again, [moving], world.group.generation, world.now)
    world.store()
    assert world.group.owners[moving] > (second, since)
    assert world.group.owners[moving].member == second and first not in world.group.members


def test_a_release_that_comes_late_or_twice_takes_nothing_from_anybody() -> None:
    world = World()
    first, second = world.join(), world.join()
    world.store()
    mine, theirs = ("ida", min(world.owned(first))), ("ida", min(world.owned(second)))
    world.group.release(first, [theirs], 9, world.now)
    assert world.group.owns(second, theirs, 1)
    world.group.leave(second)
    world.store()
    world.group.release(first, [theirs], 1, world.now)  # it has got it in generation 2
    assert world.group.owns(first, theirs, 2)
    world.group.release(first, [mine], 1, world.now)
    assert not world.group.owns(first, mine, 2)


def test_a_static_member_keeps_its_place_and_the_one_before_is_fenced() -> None:
    world = World()
    other, before = world.join(), world.join(instance="i")
    world.store()
    had = world.owned(before)
    after = world.join(instance="i")
    news = world.store()
    assert world.owned(after) == had and set(news) == {after} and other not in news
    tp = ("ida", min(had))
    assert world.group.owns(after, tp, world.group.generation)
    assert not world.group.owns(after, tp, world.group.generation - 1)
    with pytest.raises(MemberFenced):
        world.group.heard_from(before, world.now)
    with pytest.raises(MemberUnknown):
        world.group.heard_from("stranger", world.now)
    restored = Group.restore(world.group.record(), world.now)
    with pytest.raises(MemberFenced):
        restored.heard_from(before, world.now)


def test_sessions_and_releases_run_out() -> None:
    world = World()
    first, second = world.join(session_ms=1_000, release_ms=60_000), world.join(session_ms=9_000, release_ms=2_000)
    world.store()
    world.now += 1.5
    assert [member for member, _ in world.group.tick(world.now)] == [first]
    world.store()
    assert world.owned(second) == {0, 1, 2, 3}
    third = world.join(session_ms=60_000)
    world.store()
    world.now += 1.9
    assert not world.group.tick(world.now)
    world.group.forgive(world.now)  # the broker was away: everybody has all the time again
    world.now += 1.9
    assert not world.group.tick(world.now)
    world.now += 0.2
    assert [member for member, _ in world.group.tick(world.now)] == [second]
    world.store()
    assert world.owned(third) == {0, 1, 2, 3}


def test_members_that_come_at_about_the_same_time_are_planned_for_together() -> None:
    world = World()
    world.join()
    assert world.group.plan_due(world.now) == 0
    world.group.plan(world.now)
    world.join()
    assert world.group.plan_due(world.now) == pytest.approx(PLAN_INTERVAL_S)
    assert world.group.plan_due(world.now + 1) == 0


def test_what_nobody_reads_any_more_is_released_and_what_is_deleted_is_gone() -> None:
    world = World()
    member = world.join("a", "b")
    world.store()
    world.join("a", member=member)
    world.store()
    assert set(world.group.members[member].releasing) == {("idb", 0), ("idb", 1)}
    world.group.topics({"a": A})
    assert ("idb", 0) not in world.group.owners and world.group.dirty
    world.store()
    assert set(world.group.owners) == {("ida", index) for index in range(4)}


def test_internal_topics_match_only_a_pattern_that_begins_as_they_do() -> None:
    world = World()
    world.group.topics({"a": A, "__audit": B})
    everything, internal = (world.join(pattern=pattern) for pattern in (".*", "__.*"))
    assert world.group._names(world.group.members[everything]) == {"a"}
    assert world.group._names(world.group.members[internal]) == {"a", "__audit"}, "and its topic by name"


def test_a_stored_pattern_that_is_not_allowed_any_more_matches_nothing() -> None:
    world = World()
    world.group.members[world.join("a")].pattern = ".*.*.*x"
    world.group.topics({"a": A, "x": B})
    assert world.group.shapes.keys() == {"a"}


def test_before_the_cluster_is_known_nothing_counts_as_deleted() -> None:
    world = World()
    member = world.join("a", "b")
    world.store()
    restored = Group.restore(world.group.record(), world.now)
    restored.join(Claim(member=member, topics=("a", "b")), world.now, lambda: "")
    restored.plan(world.now + 1)
    assert restored.owners == world.group.owners and restored.generation == world.group.generation


def test_members_of_a_shared_group_all_have_everything() -> None:
    world = World(SHARED)
    first, second = world.join(), world.join("b")
    assert world.store() == {first: {0, 1, 2, 3}, second: {0, 1}}
    assert world.store() == {}
    restored = Group.restore(world.group.record(), world.now)
    assert restored.kind == SHARED and restored.views() == world.group.views()
    with pytest.raises(InvalidArgument):
        world.group.join(Claim(topics=("a",), kind=CONSUMER), world.now, lambda: "x")


@pytest.mark.parametrize(
    "claim",
    [
        Claim(),
        Claim(topics=("a",), session_ms=limits.SESSION_MS_MIN - 1),
        Claim(topics=("a",), session_ms=limits.SESSION_MS_MAX + 1),
        Claim(topics=("a",), release_ms=limits.RELEASE_MS_MAX + 1),
        Claim(topics=("a",), instance="i" * (limits.INSTANCE_BYTES_MAX + 1)),
        Claim(pattern="("),
        Claim(topics=("a",), kind=7),
        Claim(topics=("a",), assignment="round-robin"),
        Claim(topics=("a",), rack="r" * (limits.RACK_CHARS_MAX + 1)),
    ],
)
def test_claims_that_make_no_sense_are_refused(claim: Claim) -> None:
    group = Group(CONSUMER)
    with pytest.raises(InvalidArgument):
        group.join(claim, 0.0, lambda: "m")
    assert not group.members and not group.dirty


def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 2)
    world.join(instance="i")
    world.join()
    with pytest.raises(LimitExceeded):
        world.join()
    world.join(instance="i")  # takes a place that is there
    monkeypatch.setattr(limits, "GROUP_SUBSCRIPTION_BYTES_MAX", 10)
    with pytest.raises(LimitExceeded):
        world.join("a" * 20, instance="i")


def test_the_largest_group_fits_into_one_transaction() -> None:
    group = Group(CONSUMER)
    names = tuple(f"{index:03}{'t' * 246}" for index in range(20))
    group.topics({name: Shape(f"{index:032x}", 1_000) for index, name in enumerate(names)})
    numbers = count(1)
    for index in range(limits.GROUP_MEMBERS_MAX):
        claim = Claim(
            topics=names[index::1000] or ("t",),
            pattern="\\d" * 20,
            client="c" * limits.CLIENT_NAME_BYTES_MAX,
            instance=f"{index:0100}",
        )
        entry = group.join(claim, 0.0, lambda: f"{next(numbers):024x}")
        group.members[entry.member].fenced = tuple(f"{number:024x}" for number in range(FENCED_MAX))
    with pytest.raises(LimitExceeded):
        group.join(Claim(topics=("t",)), 0.0, lambda: "")
    group.generation = (1 << 32) - 3
    group.plan(1.0)
    assert len(group.owners) == limits.GROUP_PARTITIONS_MAX
    size = len(group.record().encode())
    print(size)
    assert size < TRANSACTION_BYTES_MAX
    assert GroupRecord.decode(group.record().encode()) == group.record()
