"""Assignments against a dumb oracle: all of them tried out, or the least number of moves counted by hand."""

from __future__ import annotations

import time
from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.assignment import Partition, assign

TOPICS = ("a", "b", "c")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), min_size=1)
subscriptions = st.dictionaries(st.sampled_from(MEMBERS), st.sets(st.sampled_from(TOPICS)))
owners = st.dictionaries(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 8)), st.sampled_from((*MEMBERS, "gone")), max_size=20
)


def check(members: dict[str, set[str]], partitions: dict[str, int], found: dict[Partition, str]) -> None:
    """One owner for each partition that has a reader, and every owner reads what it has."""
    read = set().union(*members.values()) if members else set()
    assert set(found) == {(topic, index) for topic in partitions if topic in read for index in range(partitions[topic])}
    assert all(topic in members[member] for (topic, _), member in found.items())


def loads(members: dict[str, set[str]], found: dict[Partition, str]) -> dict[str, int]:
    return {member: Counter(found.values())[member] for member in members}


@given(subscriptions, counts, owners)
def test_whatever_comes_every_partition_has_one_owner_who_reads_it(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    found = assign(members, partitions, before)
    check(members, partitions, found)
    load = loads(members, found)
    for one, other in product(members, members):
        if members[one] & set(partitions) == members[other] & set(partitions):
            assert abs(load[one] - load[other]) <= 1


@given(subscriptions, counts, owners)
def test_the_same_arguments_in_another_order_give_the_same_answer(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    turned = assign(dict(reversed(members.items())), dict(reversed(partitions.items())), dict(reversed(before.items())))
    assert turned == assign(members, partitions, before)


@given(subscriptions, counts, owners)
def test_an_assignment_that_is_balanced_stays_as_it_is(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    found = assign(members, partitions, before)
    assert assign(members, partitions, found) == found


@given(
    st.dictionaries(st.sampled_from(MEMBERS[:3]), st.sets(st.sampled_from(TOPICS)), min_size=1),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 2), min_size=1),
    owners,
)
def test_no_assignment_is_better_balanced(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    found = assign(members, partitions, before)
    tps = sorted(found)
    choices = [[member for member in members if topic in members[member]] for topic, _ in tps]
    least = min(sum(n * n for n in Counter(all_of).values()) for all_of in product(*choices))
    assert sum(n * n for n in Counter(found.values()).values()) == least


@given(st.sets(st.sampled_from(MEMBERS), min_size=1), counts, owners)
def test_with_equal_subscriptions_nobody_loses_more_than_balance_needs(
    names: set[str], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    members = {name: set(TOPICS) for name in names}
    found = assign(members, partitions, before)
    check(members, partitions, found)
    had = Counter(before[tp] for tp in found if before.get(tp) in names)
    moved = sum(before.get(tp) in names and before[tp] != owner for tp, owner in found.items())
    share, more = divmod(len(found), len(names))
    # The least that must move: everything above the fair share, of which the fullest may keep one more.
    quotas = [share + (rank < more) for rank in range(len(names))]
    fullest = sorted((had[name] for name in names), reverse=True)
    assert moved == sum(max(0, has - quota) for has, quota in zip(fullest, quotas, strict=True))


@given(st.integers(2, 5), st.integers(1, 30), st.integers(0, 4))
def test_what_a_leaving_member_had_goes_to_the_others_and_nothing_else_moves(
    count: int, partitions: int, leaver: int
) -> None:
    members = {name: {"a"} for name in MEMBERS[:count]}
    before = assign(members, {"a": partitions}, {})
    gone = MEMBERS[leaver % count]
    del members[gone]
    after = assign(members, {"a": partitions}, before)
    assert all(after[tp] == owner for tp, owner in before.items() if owner != gone)


def test_a_hundred_members_and_a_thousand_partitions_take_no_time() -> None:
    """No bound is asserted, only that it ends; the figures are printed for who looks."""
    everybody = {f"m{number:03}": {"a", "b"} for number in range(100)}
    half = {name: ({"a", "b"} if number % 2 else {"a"}) for number, name in enumerate(everybody)}
    many = {f"m{number:03}": {f"t{topic}" for topic in range(number, number + 20)} for number in range(100)}
    for members, partitions in (
        (everybody, {"a": 900, "b": 100}),
        (half, {"a": 100, "b": 900}),
        (many, {f"t{topic}": 10 for topic in range(119)}),
    ):
        first = next(iter(members))
        alone = {(topic, index): first for topic in partitions for index in range(partitions[topic])}
        for before in ({}, alone):
            began = time.perf_counter()
            found = assign(members, partitions, before)
            print(f"{len(found)} partitions, {len(before)} had: {(time.perf_counter() - began) * 1000:.1f} ms")
            check(members, partitions, found)
            assert assign(members, partitions, found) == found
