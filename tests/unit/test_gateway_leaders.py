"""Who is to lead what: plans that spread leaders, and the job that carries one out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as some

import comet
from comet.entities import PartitionInfo, TopicInfo
from comet.settings.topic import TopicConfig
from comet_gateway.brokers import leader_transfer
from comet_gateway.http.problems import Problem


def topic(name: str, *partitions: tuple[int, tuple[int, ...], tuple[int, ...]]) -> TopicInfo:
    """Of each partition its leader, replicas and those in sync."""
    found = tuple(
        PartitionInfo(index, leader or None, 1, replicas, in_sync)
        for index, (leader, replicas, in_sync) in enumerate(partitions)
    )
    return TopicInfo(name, bytes(16), found, TopicConfig(), 0)


ALL = (1, 2, 3)


def test_leaders_are_spread_with_as_few_changes_as_that_takes() -> None:
    plan = leader_transfer.spread([topic("a", *[(1, ALL, ALL)] * 6)], {1, 2, 3})
    assert plan.before == {1: 6, 2: 0, 3: 0}
    assert plan.after == {1: 2, 2: 2, 3: 2}
    assert len(plan.steps) == 4
    assert all(step.replicas[0] == step.to and sorted(step.replicas) == [1, 2, 3] for step in plan.steps)


def test_what_is_even_is_left_alone() -> None:
    assert not leader_transfer.spread([topic("a", (1, (1, 2), ALL), (2, (2, 1), ALL), (1, (1, 2), ALL))], {1, 2}).steps


def test_nobody_is_asked_who_cannot_lead() -> None:
    away = topic("a", *[(1, ALL, (1, 3))] * 4)
    assert {step.to for step in leader_transfer.spread([away], {1, 2, 3}).steps} == {3}, "2 is not in sync"
    assert not leader_transfer.spread([away], {1, 2}).steps, "3 drains"


def test_a_leader_that_goes_back_by_itself_needs_no_change() -> None:
    plan = leader_transfer.spread([topic("a", (1, (2, 1), (1, 2)), (1, (1, 2), (1, 2)))], {1, 2})
    assert not plan.steps
    assert plan.after == {1: 1, 2: 1}


@each(
    some.lists(some.tuples(some.permutations([1, 2, 3, 4]), some.integers(1, 4), some.sets(some.integers(1, 4)))),
    some.sets(some.integers(1, 4), min_size=1),
)
def test_spreading_only_ever_makes_it_more_even(found: list[tuple[list[int], int, set[int]]], calm: set[int]) -> None:
    partitions = [
        (replicas[0], tuple(replicas[:count]), tuple(in_sync | {replicas[0]})) for replicas, count, in_sync in found
    ]
    info = topic("a", *partitions)
    plan = leader_transfer.spread([info], calm)
    assert sum(plan.before.values()) == sum(plan.after.values()) == len(found)
    steps = {step.partition: step for step in plan.steps}
    for one in info.partitions:
        step = steps.get(one.partition)
        leader = step.to if step else one.leader
        for other in leader_transfer.able(one, calm):
            if leader in calm and other != leader:
                assert plan.after[leader] - plan.after[other] <= 1, "one could take another over"
    again = Counter(step.to for step in plan.steps)
    assert again.keys() <= calm


def test_partitions_are_given_to_whom_somebody_says() -> None:
    info = topic("a", (1, ALL, ALL), (1, ALL, (1, 2)), (2, (2, 3), (2, 3)))
    plan = leader_transfer.given([info], [("a", 0, 3), ("a", 1, None)], {1, 2, 3})
    assert [(step.partition, step.to, step.replicas) for step in plan.steps] == [(0, 3, (3, 1, 2)), (1, 2, (2, 1, 3))]
    assert (plan.before, plan.after) == ({1: 2, 2: 1, 3: 0}, {1: 0, 2: 2, 3: 1})


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ([("b", 0, 1)], comet.TopicNotFound),
        ([("a", 3, 1)], comet.PartitionNotFound),
        ([("a", 1, 3)], comet.InvalidArgument),
        ([("a", 0, 2), ("a", 0, 3)], comet.InvalidArgument),
    ],
)
def test_what_cannot_be_is_refused(wanted: list[tuple[str, int, int | None]], error: type[comet.CometError]) -> None:
    info = topic("a", (1, ALL, ALL), (1, ALL, (1, 2)), (2, (2, 3), (2, 3)))
    with pytest.raises(error):
        leader_transfer.given([info], wanted, {1, 2, 3})


# ---- the job


class Cluster:
    """An admin whose leaders change when the test says so."""

    def __init__(self, *partitions: tuple[int, tuple[int, ...], tuple[int, ...]]) -> None:
        self.leaders = [leader for leader, _, _ in partitions]
        self.given: list[tuple[int, tuple[int, ...]]] = []
        self.looked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: Exception | None = None

    async def move_partition(self, _topic: str, partition: int, replicas: tuple[int, ...]) -> None:
        if self.error is not None:
            raise self.error
        self.given.append((partition, replicas))
        self.leaders[partition] = replicas[0]

    async def list_topics(self) -> list[TopicInfo]:
        self.looked.set()
        await self.answers.wait()
        return [topic("a", *((leader, ALL, ALL) for leader in self.leaders))]


def state(job: leader_transfer.LeaderJob) -> str:
    return job.progress.state


def job(cluster: Any) -> leader_transfer.LeaderJob:
    return leader_transfer.LeaderJob(cluster, clock_us=lambda: 7)


async def test_a_job_gives_all_of_them_their_new_leaders() -> None:
    partitions = [(1, ALL, ALL)] * 120
    cluster = Cluster(*partitions)
    running = job(cluster)
    running.start(leader_transfer.spread([topic("a", *partitions)], {1, 2, 3}))
    assert state(running) == "running"
    await running._task  # type: ignore[misc]
    assert state(running) == "done"
    assert (running.progress.decided, running.progress.led) == (80, 80)
    assert Counter(cluster.leaders) == {1: 40, 2: 40, 3: 40}
    await running.close()


async def test_a_job_that_is_stopped_leaves_the_others_where_they_are() -> None:
    partitions = [(1, ALL, ALL)] * 120
    cluster = Cluster(*partitions)
    cluster.answers.clear()
    running = job(cluster)
    running.start(leader_transfer.spread([topic("a", *partitions)], {1, 2, 3}))
    await cluster.looked.wait()  # the first of them are on their way
    with pytest.raises(Problem):
        running.start(leader_transfer.Plan((), {}, {}))
    running.stop()
    assert state(running) == "stopping"
    cluster.answers.set()
    await running._task  # type: ignore[misc]
    assert state(running) == "stopped"
    assert running.progress.decided == leader_transfer.AT_ONCE == len(cluster.given)
    await running.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (comet.Unavailable("nobody is there"), "nobody is there"),
        (RuntimeError("an unexpected error"), "unexpected error; see the gateway's log"),
    ],
)
async def test_a_job_that_fails_says_why_and_the_next_one_may_begin(error: Exception, said: str) -> None:
    partitions = [(1, ALL, ALL)] * 3
    cluster = Cluster(*partitions)
    cluster.error = error
    running = job(cluster)
    plan = leader_transfer.spread([topic("a", *partitions)], {1, 2, 3})
    running.start(plan)
    await running._task  # type: ignore[misc]
    assert (state(running), running.progress.error) == ("failed", said)
    cluster.error = None
    running.start(plan)
    await running._task  # type: ignore[misc]
    assert state(running) == "done"
    await running.close()
