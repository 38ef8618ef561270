"""Assignments against a dumb oracle: all of them tried out, or the least number of moves counted by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from comet_broker.core.assignment import STRATEGIES, AssignmentInput, Subscriber, assign, strategy_of
from comet_broker.core.rack_assignment import STEPS_MAX, Exchanges
from comet_broker.core.sticky_assignment import Partition, sticky

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
    found = sticky(members, partitions, before)
    check(members, partitions, found)
    load = loads(members, found)
    for one, other in product(members, members):
        if members[one] & set(partitions) == members[other] & set(partitions):
            assert abs(load[one] - load[other]) <= 1


@given(subscriptions, counts, owners)
def test_the_same_arguments_in_another_order_give_the_same_answer(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    turned = sticky(dict(reversed(members.items())), dict(reversed(partitions.items())), dict(reversed(before.items())))
    assert turned == sticky(members, partitions, before)


@given(subscriptions, counts, owners)
def test_an_assignment_that_is_balanced_stays_as_it_is(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    found = sticky(members, partitions, before)
    assert sticky(members, partitions, found) == found


@given(
    st.dictionaries(st.sampled_from(MEMBERS[:3]), st.sets(st.sampled_from(TOPICS)), min_size=1),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 2), min_size=1),
    owners,
)
def test_no_assignment_is_better_balanced(
    members: dict[str, set[str]], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    found = sticky(members, partitions, before)
    tps = sorted(found)
    choices = [[member for member in members if topic in members[member]] for topic, _ in tps]
    least = min(sum(n * n for n in Counter(all_of).values()) for all_of in product(*choices))
    assert sum(n * n for n in Counter(found.values()).values()) == least


@given(st.sets(st.sampled_from(MEMBERS), min_size=1), counts, owners)
def test_with_equal_subscriptions_nobody_loses_more_than_balance_needs(
    names: set[str], partitions: dict[str, int], before: dict[Partition, str]
) -> None:
    members = {name: set(TOPICS) for name in names}
    found = sticky(members, partitions, before)
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
    before = sticky(members, {"a": partitions}, {})
    gone = MEMBERS[leaver % count]
    del members[gone]
    after = sticky(members, {"a": partitions}, before)
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
            found = sticky(members, partitions, before)
            print(f"{len(found)} partitions, {len(before)} had: {(time.perf_counter() - began) * 1000:.1f} ms")
            check(members, partitions, found)
            assert sticky(members, partitions, found) == found


# ---- the other strategies

RACKS = ("", "a", "b", "c")
homes = st.fixed_dictionaries({member: st.sampled_from(RACKS) for member in MEMBERS})
replicas = st.fixed_dictionaries({
    (topic, index): st.sets(st.sampled_from(RACKS[1:]), min_size=index % 2, max_size=2)
    for topic in TOPICS
    for index in range(8)
})  # fmt: skip


def given_of(
    members: Mapping[str, set[str]],
    partitions: dict[str, int],
    before: dict[Partition, str],
    at: Mapping[str, str] | None = None,
    racks: Mapping[Partition, set[str]] | None = None,
) -> AssignmentInput:
    subscribers = {name: Subscriber(topics, (at or {}).get(name, "")) for name, topics in members.items()}
    return AssignmentInput(subscribers, partitions, before, lambda one: (racks or {}).get(one, set()))


def locals_of(found: Mapping[Partition, str], at: Mapping[str, str], racks: Mapping[Partition, set[str]]) -> int:
    return sum(at[member] in racks.get(partition, ()) for partition, member in found.items())


@given(st.sampled_from(sorted(STRATEGIES)), subscriptions, counts, owners, homes, replicas)
def test_by_every_strategy_each_partition_has_one_owner_who_reads_it(
    strategy: str,
    members: dict[str, set[str]],
    partitions: dict[str, int],
    before: dict[Partition, str],
    at: dict[str, str],
    racks: dict[Partition, set[str]],
) -> None:
    given_ = given_of(members, partitions, before, at, racks)
    found = assign(strategy, given_)
    check(members, partitions, found)
    turned = given_of(
        dict(reversed(members.items())), dict(reversed(partitions.items())), dict(reversed(before.items())), at, racks
    )
    assert assign(strategy, turned) == found, "the order of the arguments counts for nothing"
    assert assign(strategy, given_._replace(before=found)) == found, "what is assigned stays"


@given(subscriptions, counts)
def test_a_range_is_without_gaps_and_the_same_in_topics_of_the_same_readers(
    members: dict[str, set[str]], partitions: dict[str, int]
) -> None:
    found = assign("range", given_of(members, partitions, {}))
    for topic, count in partitions.items():
        order = [found[topic, index] for index in range(count) if (topic, index) in found]
        assert order == sorted(order), "ranges, in the order of the members"
        if order:
            sizes = [order.count(member) for member in members if topic in members[member]]
            assert max(sizes) - min(sizes) <= 1
        for other, size in partitions.items():
            readers = [{member for member in members if name in members[member]} for name in (topic, other)]
            if size == count and readers[0] == readers[1]:
                assert [found.get((other, index)) for index in range(count)] == [
                    found.get((topic, index)) for index in range(count)
                ]


def test_a_static_member_has_the_same_range_after_a_restart() -> None:
    def owners_of(restarted: str) -> list[str]:
        members = {restarted: Subscriber(["a"], instance="i1"), "m5": Subscriber(["a"], instance="i2")}
        found = assign("range", AssignmentInput(members, {"a": 4}, {}, lambda _: ()))
        return [members[found["a", index]].instance for index in range(4)]

    assert owners_of("m1") == owners_of("m9") == ["i1", "i1", "i2", "i2"]


@given(subscriptions, counts, owners, homes, replicas)
def test_racks_cost_no_balance(
    members: dict[str, set[str]],
    partitions: dict[str, int],
    before: dict[Partition, str],
    at: dict[str, str],
    racks: dict[Partition, set[str]],
) -> None:
    alike = assign("sticky", given_of(members, partitions, before))
    found = assign("rack", given_of(members, partitions, before, at, racks))
    assert sorted(loads(members, found).values()) == sorted(loads(members, alike).values())
    assert locals_of(found, at, racks) >= locals_of(alike, at, racks)


@given(
    st.dictionaries(st.sampled_from(MEMBERS[:3]), st.sampled_from(RACKS), min_size=2),
    st.fixed_dictionaries({topic: st.integers(0, 4) for topic in TOPICS[:2]}),
    owners,
    replicas,
)
def test_no_assignment_of_equal_loads_has_more_partitions_in_their_racks(
    at: dict[str, str], partitions: dict[str, int], before: dict[Partition, str], racks: dict[Partition, set[str]]
) -> None:
    members = {name: set(TOPICS) for name in at}
    found = assign("rack", given_of(members, partitions, before, at, racks))
    tps = sorted(found)
    most = max(
        locals_of(dict(zip(tps, all_of, strict=True)), at, racks)
        for all_of in product(sorted(members), repeat=len(tps))
        if max(loads(members, dict(zip(tps, all_of, strict=True))).values())
        - min(loads(members, dict(zip(tps, all_of, strict=True))).values()) <= 1
    )  # fmt: skip
    assert locals_of(found, at, racks) == most


def test_three_racks_and_three_hundred_partitions_are_all_local() -> None:
    members = {f"m{number:02}": {"a"} for number in range(30)}
    at = {name: "abc"[number % 3] for number, name in enumerate(members)}
    racks = {("a", index): {"abc"[index // 100]} for index in range(300)}
    found = assign("rack", given_of(members, {"a": 300}, {}, at, racks))
    assert locals_of(found, at, racks) == 300
    assert set(loads(members, found).values()) == {10}


def test_a_search_for_racks_ends_after_a_bounded_number_of_steps() -> None:
    """64 members with subscriptions of their own, 500 topics, 16 racks: minutes, if it were searched to the end."""
    topics = [f"t{number:03}" for number in range(500)]
    members = {f"m{n:02}": {topics[(7 * n + at) % len(topics)] for at in range(250)} for n in range(64)}
    at = {name: f"r{n % 16}" for n, name in enumerate(members)}
    partitions = dict.fromkeys(topics, 8)
    racks = {
        (topic, index): {f"r{(31 * n + 17 * index + more) % 16}" for more in (0, 3)}
        for n, topic in enumerate(topics)
        for index in range(8)
    }
    search = Exchanges(members, at, partitions, {}, racks.__getitem__)
    search.run()
    largest = len(racks) + len(members) ** 2  # one exchange, or one look at all edges, may go beyond the limit
    assert STEPS_MAX <= search.steps <= STEPS_MAX + largest
    alike = sticky(members, partitions, {})
    assert sorted(loads(members, search.owner).values()) == sorted(loads(members, alike).values())
    assert locals_of(search.owner, at, racks) > 2 * locals_of(alike, at, racks)


def test_most_members_choose_the_strategy_and_a_tie_changes_nothing() -> None:
    assert strategy_of([], "range") == "range"
    assert strategy_of(["rack", "sticky"], "sticky") == "sticky"
    assert strategy_of(["rack", "range"], "sticky") == "rack", "the first by name, on every broker"
    assert strategy_of(["rack", "rack", "sticky"], "sticky") == "rack"
    assert strategy_of(["newer", "newer", "range"], "sticky") == "range", "a strategy of a later version"
