"""Who is served next: credit, turns, and cursors that come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from comet.errors import InvalidArgument, LimitExceeded
from comet_broker.core.push import DeliveryState, PushQueue


def queue(**limits: int) -> PushQueue[str]:
    return PushQueue(**{"subscriptions_max": 8, "cursors_max": 16, "credit_bytes_max": 1000} | limits)


def test_nothing_is_served_without_credit() -> None:
    push = queue()
    cursor = push.add(1, 7, "p", 0)
    assert cursor.state is DeliveryState.STARVED
    assert push.take() is None
    assert push.grant(1, 10)
    assert push.take() is cursor


def test_a_delivery_may_take_credit_below_zero_once() -> None:
    push = queue()
    push.open(1)
    push.grant(1, 10)
    cursor = push.add(1, 7, "p", 0)
    assert push.take() is cursor
    push.served(cursor, 50, 3)
    assert cursor.subscription.credit == -40
    assert push.take() is None
    assert not push.grant(1, 40), "forty only pays the debt"
    assert push.grant(1, 1)
    assert push.take() is cursor


def test_ready_cursors_take_turns() -> None:
    push = queue()
    push.open(1)
    push.grant(1, 1000)
    for handle in range(3):
        push.add(1, handle, "p", 0)
    turns: Counter[int] = Counter()
    for step in range(9):
        cursor = push.take()
        assert cursor is not None
        turns[cursor.handle] += 1
        push.served(cursor, 1, step + 1)
    assert turns == {0: 3, 1: 3, 2: 3}


def test_a_cursor_that_has_all_is_idle_until_it_is_woken_and_starves_on_debt() -> None:
    push = queue()
    push.open(1)
    push.grant(1, 10)
    cursor = push.add(1, 7, "p", 0)
    assert push.take() is cursor
    push.served(cursor, 50, 3, more=False)
    assert cursor.state is DeliveryState.IDLE and push.take() is None
    assert not push.grant(1, 30), "it has nothing to get"
    assert not push.wake(cursor) and list(cursor.subscription.starved) == [cursor]
    assert push.grant(1, 11) and push.take() is cursor


def test_credit_is_cut_to_its_limit() -> None:
    push = queue(credit_bytes_max=100)
    push.open(1)
    push.grant(1, 70)
    push.grant(1, 70)
    assert push.subscriptions[1].credit == 100


def test_a_partition_is_in_one_subscription_of_a_stream() -> None:
    push = queue()
    push.add(1, 7, "p", 0)
    with pytest.raises(InvalidArgument, match="already in subscription 1"):
        push.add(2, 7, "p", 0)


def test_limits_are_kept() -> None:
    push = queue(subscriptions_max=1, cursors_max=2)
    push.add(1, 1, "p", 0)
    with pytest.raises(LimitExceeded, match="at most 1 subscriptions"):
        push.open(2)
    push.add(1, 2, "p", 0)
    with pytest.raises(LimitExceeded, match="at most 2 partitions"):
        push.add(1, 3, "p", 0)


def test_an_ended_cursor_leaves_nothing_behind_wherever_it_was() -> None:
    push = queue()
    push.open(1)
    starved = push.add(1, 1, "p", 0)
    push.grant(1, 5)
    ready = push.add(1, 2, "p", 0)
    idle = push.add(1, 3, "p", 0)
    for _ in range(3):
        cursor = push.take()
        assert cursor is not None
        if cursor is idle:
            push.idle(cursor)
        else:
            push.served(cursor, 0, cursor.next_offset + 1)
    assert {starved.state, ready.state} == {DeliveryState.READY}
    assert push.close(1) == [starved, ready, idle]
    assert push.take() is None
    assert not push.subscriptions
    assert not push.cursors


class PushMachine(RuleBasedStateMachine):
    """The queue against a plain account of every cursor and every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.push = queue(credit_bytes_max=1 << 40)
        self.credit: dict[int, int] = {}
        self.where: dict[int, int] = {}  # handle -> subscription
        self.taken = 0

    @rule(number=st.integers(0, 3), handle=st.integers(0, 7))
    def add(self, number: int, handle: int) -> None:
        if handle in self.where:
            return
        self.push.add(number, handle, "p", 0)
        self.where[handle] = number
        self.credit.setdefault(number, 0)

    @rule(number=st.integers(0, 3), credit=st.integers(0, 100))
    def grant(self, number: int, credit: int) -> None:
        self.push.grant(number, credit)
        if number in self.credit:
            self.credit[number] += credit

    @rule(size=st.integers(1, 50), outcome=st.sampled_from(["served", "served all", "idle", "loading"]))
    def take(self, size: int, outcome: str) -> None:
        cursor = self.push.take()
        if cursor is None:
            starved = [h for h, c in self.push.cursors.items() if c.state is DeliveryState.STARVED]
            assert all(self.credit[self.where[h]] <= 0 for h in starved), "starved although there is credit"
            assert not any(c.state is DeliveryState.READY for c in self.push.cursors.values())
            return
        assert self.credit[self.where[cursor.handle]] > 0, "served without credit"
        if outcome in ("served", "served all"):
            self.push.served(cursor, size, cursor.next_offset + 1, more=outcome == "served")
            self.credit[self.where[cursor.handle]] -= size
        elif outcome == "idle":
            self.push.idle(cursor)
        else:
            self.push.loading(cursor)

    @rule(handle=st.integers(0, 7))
    def wake_or_load(self, handle: int) -> None:
        cursor = self.push.cursors.get(handle)
        if cursor is None:
            return
        if cursor.state is DeliveryState.LOADING:
            self.push.loaded(cursor, 1, cursor.next_offset + 1)
            self.credit[self.where[handle]] -= 1
        else:
            self.push.wake(cursor)

    @rule(number=st.integers(0, 3), handles=st.lists(st.integers(0, 7), max_size=3))
    def close(self, number: int, handles: list[int]) -> None:
        if number not in self.credit:
            return
        self.push.close(number, handles)
        gone = [h for h, n in self.where.items() if n == number and (not handles or h in handles)]
        for handle in gone:
            del self.where[handle]
        if not handles:
            del self.credit[number]

    @invariant()
    def accounts_agree(self) -> None:
        assert {h: c.subscription.number for h, c in self.push.cursors.items()} == self.where
        assert {n: s.credit for n, s in self.push.subscriptions.items()} == self.credit

    @precondition(lambda self: self.push.cursors)
    @invariant()
    def nothing_dangles(self) -> None:
        held = [*self.push._ready, *(c for s in self.push.subscriptions.values() for c in s.starved)]
        assert len(held) == len(set(map(id, held)))
        assert all(c.handle in self.push.cursors for c in held)


TestPushMachine = PushMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=60))
def test_no_ready_cursor_waits_longer_than_one_round(events: list[tuple[int, int]]) -> None:
    push = queue()
    push.open(1)
    push.grant(1, 1000)
    for handle in range(6):
        push.add(1, handle, "p", 0)
    since = dict.fromkeys(range(6), 0)
    for _, size in events:
        push.grant(1, size)
        cursor = push.take()
        assert cursor is not None
        since = {handle: waited + 1 for handle, waited in since.items()}
        since[cursor.handle] = 0
        push.served(cursor, size, cursor.next_offset + 1)
        assert max(since.values()) <= 6
