"""`comet cluster empty`: its moves, carried out in any order and with topics created meanwhile, end with a broker that
holds nothing, and change nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from comet.cli._empty_plan import MOVES_MAX, plan_emptying
from comet.entities import BrokerInfo, PartitionInfo, TopicInfo
from comet.settings.topic import TopicConfig

BROKER = 1


def cluster_of(number: int, racks: int, draining: frozenset[int]) -> list[BrokerInfo]:
    return [
        BrokerInfo(
            one,
            "h",
            9092,
            "0",
            rack=f"rack-{(one - 1) % racks}" if racks else "",
            draining=one in draining or one == BROKER,
        )
        for one in range(1, number + 1)
    ]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[BrokerInfo], list[TopicInfo]]:
    number = draw(st.integers(1, 6))
    ids = range(1, number + 1)
    draining = frozenset(draw(st.sets(st.sampled_from(ids), max_size=2)))
    brokers = cluster_of(number, draw(st.integers(0, 4)), draining)
    topics = []
    for name in range(draw(st.integers(0, 4))):
        partitions = []
        for index in range(draw(st.integers(1, 20))):
            held = tuple(draw(st.permutations(ids))[: draw(st.integers(1, min(3, number)))])
            other = tuple(draw(st.permutations(ids))[: len(held)])
            target = other if other != held and draw(st.integers(0, 4)) == 0 else ()
            partitions.append(PartitionInfo(index, held[0], 0, held, held, target=target))
        topics.append(TopicInfo(f"t{name}", bytes(16), tuple(partitions), TopicConfig(), 0))
    return brokers, topics


def settled(topics: list[TopicInfo], random: Random) -> list[TopicInfo]:
    """Some of the moves under way are done."""
    return [
        replace(
            topic,
            partitions=tuple(
                replace(one, replicas=one.target, in_sync=one.target, target=())
                if one.target and random.random() < 0.5
                else one
                for one in topic.partitions
            ),
        )
        for topic in topics
    ]


@given(worlds(), st.integers())
def test_the_moves_empty_the_broker_and_keep_everything_else(
    world: tuple[list[BrokerInfo], list[TopicInfo]], seed: int
) -> None:
    brokers, topics = world
    random = Random(seed)
    calm = {one.id for one in brokers if not one.draining}
    plan = plan_emptying(BROKER, brokers, topics)
    stuck = {
        f"{topic.name}/{one.partition}"
        for topic in topics
        for one in topic.partitions
        if BROKER in (held := one.target or one.replicas) and calm <= set(held)
    }
    assert {problem.partition(" ")[0] for problem in plan.problems} == stuck
    sizes = {(t.name, one.partition): len(one.target or one.replicas) for t in topics for one in t.partitions}
    for _ in range(1_000):
        plan = plan_emptying(BROKER, brokers, topics)
        if plan.holds == len(stuck) and not plan.moves and not plan.moving:
            break
        assert len(plan.moving) + len(plan.due) <= max(MOVES_MAX, len(plan.moving))
        moves = {(move.topic, move.partition): move for move in plan.due}
        for move in moves.values():
            (new,) = set(move.after) - (set(move.after) & set(_held(topics, move.topic, move.partition)))
            assert new in calm and len(set(move.after)) == len(move.after)
        topics = [
            replace(
                topic,
                partitions=tuple(
                    replace(one, target=moves[topic.name, one.partition].after)
                    if (topic.name, one.partition) in moves
                    else one
                    for one in topic.partitions
                ),
            )
            for topic in topics
        ]
        topics = settled(topics, random)
    assert plan.holds == len(stuck) and not plan.moves and not plan.moving
    assert sizes == {(t.name, one.partition): len(one.target or one.replicas) for t in topics for one in t.partitions}
    again = plan_emptying(BROKER, brokers, topics)
    assert again == plan


def _held(topics: list[TopicInfo], name: str, index: int) -> tuple[int, ...]:
    (topic,) = (one for one in topics if one.name == name)
    return topic.partitions[index].target or topic.partitions[index].replicas


def test_a_replica_goes_to_a_rack_that_the_partition_does_not_use_then_to_the_broker_with_the_fewest() -> None:
    brokers = [
        BrokerInfo(1, "h", 1, "0", rack="a"),
        BrokerInfo(2, "h", 1, "0", rack="b"),
        BrokerInfo(3, "h", 1, "0", rack="b"),
        BrokerInfo(4, "h", 1, "0", rack="a"),
        BrokerInfo(5, "h", 1, "0", rack="a"),
    ]
    parts = tuple(PartitionInfo(index, 1, 0, (1, 2), (1, 2)) for index in range(4))
    plan = plan_emptying(1, brokers, [TopicInfo("t", bytes(16), parts, TopicConfig(), 0)])
    assert [move.after for move in plan.moves] == [(4, 2), (5, 2), (4, 2), (5, 2)]


def test_a_broker_of_a_cluster_that_is_too_small_cannot_be_emptied() -> None:
    brokers = cluster_of(3, 0, frozenset())
    parts = (PartitionInfo(0, 1, 0, (1, 2, 3), (1, 2, 3)), PartitionInfo(1, 1, 0, (1, 2), (1, 2)))
    plan = plan_emptying(1, brokers, [TopicInfo("t", bytes(16), parts, TopicConfig(), 0)])
    assert plan.problems == ("t/0 has 3 replicas, and 2 other brokers stay",)
    assert [move.after for move in plan.moves] == [(3, 2)]
