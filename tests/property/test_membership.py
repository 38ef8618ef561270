"""The member's own picture of what it owns, held against a coordinator that is drawn at random, message by message.

The oracle is a list of what the coordinator has said and the member has heard: nothing else may be owned, nothing is
gained or lost twice, and a member that was put out owns nothing.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import (
    CometError,
    InvalidArgument,
    MemberFenced,
    MemberUnknown,
    NotCoordinator,
    StaleGeneration,
    Timeout,
    Unavailable,
)
from comet.groups.membership import AssignedPartition, Changes, Membership, Phase
from comet.types import TopicPartition

TPS = [TopicPartition("t", n) for n in range(4)]
PASSING: list[CometError] = [NotCoordinator("moved"), Unavailable("gone"), Timeout("late")]
FINAL: list[CometError] = [MemberFenced("another"), InvalidArgument("no")]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.sets(st.sampled_from(TPS)), st.sets(st.sampled_from(TPS))),
        st.tuples(st.just("old"), st.integers(1, 5)),
        st.tuples(st.just("stranger"), st.sets(st.sampled_from(TPS))),
        st.tuples(st.just("disconnect")),
        st.tuples(st.just("join")),
        st.tuples(st.just("evict"), st.sampled_from([*PASSING, MemberUnknown("who?"), *FINAL])),
        st.tuples(st.just("release"), st.sampled_from(TPS)),
        st.tuples(st.just("stale"), st.sampled_from(TPS)),
        st.tuples(st.just("take"), st.sampled_from(TPS)),
    ),
    max_size=40,
)


class World:
    """A coordinator, and what a consumer made of what the machine told it."""

    def __init__(self) -> None:
        self.state = Membership()
        self.generation = 1
        self.members = 1
        self.granted: dict[TopicPartition, int] = {}  # since when, as the coordinator has it
        self.heard: dict[TopicPartition, int] = {}  # as the member should have it
        self.held: dict[TopicPartition, int] = {}  # as a consumer has it that did as it was told
        self.asked: set[TopicPartition] = set()

    def act(self, changes: Changes) -> None:
        for tp in changes.lost:
            del self.held[tp]  # fails where it was not held: nothing is lost twice
        for one in changes.gained:
            assert one.tp not in self.held, "nothing is gained twice"
            self.held[one.tp] = one.since
        assert set(changes.release) <= set(self.held)
        assert not set(changes.release) & self.asked & set(self.held), "nothing is asked for twice"
        assert not (changes.over and changes.join)

    def check(self) -> None:
        owned = {tp: one.partition.since for tp, one in self.state.owned.items()}
        assert owned == self.heard == self.held
        if self.state.phase in {Phase.OUT, Phase.OVER}:
            assert not owned

    def join(self) -> None:
        if not self.state.must_join:
            return
        if not self.state.member:
            self.members += 1
            self.granted = {}
        self.act(self.state.joined(f"m{self.members}", self.generation))
        assert self.state.phase is Phase.IN

    def assign(self, tps: set[TopicPartition], release: set[TopicPartition]) -> None:
        self.generation += 1
        self.granted = {tp: self.granted.get(tp, self.generation) for tp in tps}
        given = [AssignedPartition(tp, b"t", since) for tp, since in self.granted.items()]
        heard = self.state.phase in {Phase.IN, Phase.AWAY} and self.state.member == f"m{self.members}"
        before = dict(self.heard)
        changes = self.state.assigned(f"m{self.members}", self.generation, given, release & tps)
        if heard:
            self.heard = dict(self.granted)
            kept = {tp for tp, since in before.items() if self.granted.get(tp) == since}
            self.asked &= kept
            self.act(changes)
            assert {one.tp for one in changes.gained} == self.granted.keys() - kept
            self.asked = release & tps
        else:
            assert not changes

    def evict(self, error: CometError) -> None:
        over = self.state.phase is Phase.OVER
        changes = self.state.evicted(f"m{self.members}", error)
        if over or (not self.state.member and not changes):
            assert not changes
            return
        if error not in PASSING:
            self.heard, self.granted, self.asked = {}, {}, set()
        self.act(changes)
        if error in FINAL:
            assert changes.over is error
            assert self.state.phase is Phase.OVER
        else:
            assert changes.join


@given(steps)
@settings(deadline=None)
def test_what_it_owns_is_what_it_was_told_last(script: list[tuple[object, ...]]) -> None:
    world = World()
    world.join()
    for step in script:
        match step:
            case ("assign", set() as tps, set() as release):
                world.assign(tps, release)
            case ("old", int() as age):
                stale = [AssignedPartition(tp, b"t", 1) for tp in TPS]
                assert not world.state.assigned(f"m{world.members}", world.state.generation - age, stale, [])
            case ("stranger", set() as tps):
                assert not world.state.assigned("m0", 1000, [AssignedPartition(tp, b"t", 1) for tp in tps], [])
                assert not world.state.evicted("m0", MemberUnknown("who?"))
            case ("disconnect",):
                world.act(world.state.disconnected())
            case ("join",):
                world.join()
            case ("evict", CometError() as error):
                world.evict(error)
            case ("release", TopicPartition() as tp):
                since = world.heard.get(tp)
                assert world.state.released(tp, -1 if since is None else since) == (since is not None)
                for known in (world.heard, world.held, world.granted):
                    known.pop(tp, None)
                world.asked.discard(tp)
            case ("stale", TopicPartition() as tp):
                since = world.heard.pop(tp, -1)
                world.granted.pop(tp, None)
                world.asked.discard(tp)
                world.act(world.state.refused_offset(tp, since, StaleGeneration("another's")))
            case ("take", TopicPartition() as tp):  # to another member and back, unheard
                world.granted.pop(tp, None)
        world.check()


def test_a_join_that_is_refused_is_tried_again_only_where_that_can_help() -> None:
    for error in PASSING:
        assert Membership().refused(error).join
    for error in FINAL:
        assert Membership().refused(error).over is error
    member = Membership(Phase.AWAY, "m1", 3)
    assert member.refused(MemberUnknown("who?")).join
    assert member.member == "", "as a new one"


def test_what_it_still_reads_is_said_by_topic() -> None:
    state = Membership()
    state.joined("m1", 1)
    tps = [TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("b", 0)]
    state.assigned("m1", 2, [AssignedPartition(tp, tp.topic.encode(), 2) for tp in tps], [])
    assert list(state.still_read()) == [("a", b"a", [1]), ("b", b"b", [0, 2])]
    state.left()
    assert not list(state.still_read())
    assert not state.disconnected().join


@pytest.mark.parametrize("again", [False, True])
def test_an_assignment_that_crosses_a_release_gives_nothing_back(again: bool) -> None:
    """The coordinator has planned anew, for somebody who joined, before it heard of the release."""
    state = Membership()
    state.joined("m", 1)
    tp, given = TPS[0], AssignedPartition(TPS[0], b"t", 1)
    assert state.assigned("m", 1, [given], []).gained == (given,)
    assert state.assigned("m", 2, [given], [tp]).release == (tp,)
    assert state.released(tp, 1)
    assert not state.assigned("m", 3, [given], [tp])
    if again:  # the Release is sent again on the new stream, behind the Join
        state.disconnected()
        state.joined("m", 3)
        assert not state.assigned("m", 3, [given], [tp])
    assert not state.assigned("m", 4, [], [])
    later = AssignedPartition(tp, b"t", 5)
    assert state.assigned("m", 5, [later], []).gained == (later,), "given anew, it is its own again"
