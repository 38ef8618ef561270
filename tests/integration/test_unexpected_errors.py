"""Unexpected errors: each stops one thing and is counted; everything else goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from comet.v1 import admin_pb2 as admin
from comet.v1 import types_pb2 as types
from comet_broker.core.cluster import NO_BROKER
from comet_broker.metrics import statistics
from comet_broker.storage.files import RealFiles
from tests.integration.local_cluster import LocalCluster, until


class Bug(Exception):
    """Neither a CometError nor an OSError."""


class Files(RealFiles):
    """The logs of partition 1 cannot be opened until they are healed."""

    healed = False

    def list(self, path: str) -> Sequence[str]:
        if path.endswith("/1") and not self.healed:
            raise Bug("no log here")
        return super().list(path)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path, retention_check_ms=20) as one:
        yield one


async def make(cluster: LocalCluster, name: str) -> None:
    await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name=name, partitions=6, replicas=3))
    await until(lambda: all(cluster.leader(name, index) for index in range(6)), "all partitions have a leader")


def raiser(*_: object, **__: object) -> None:
    raise Bug("an unexpected error")


def bug(where: object, name: str) -> Callable[[], None]:
    """From now on the method raises; until what is returned is called."""
    setattr(where, name, raiser)
    return lambda: delattr(where, name)


def unfit(cluster: LocalCluster, broker: int, index: int) -> bool:
    view = next(iter(cluster.brokers.values())).view.state
    return (broker, view.topics["t"].value.id, index) in view.defective


async def test_what_is_wrong_with_one_leadership_ends_it_and_no_other(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    leader = cluster.leader("t", 0)
    broker = cluster.brokers[leader]
    mine = [index for index in range(1, 6) if cluster.leader("t", index) == leader]
    partition = cluster.replicas("t", 0)[leader]
    assert mine and partition.leadership is not None
    bug(partition.leadership.replicas, "shrunk")
    await until(lambda: cluster.leader("t", 0) not in (NO_BROKER, leader), "another leads the one")
    assert unfit(cluster, leader, 0)
    assert statistics.status(partition).failed
    assert all(cluster.leader("t", index) == leader for index in mine)
    assert broker.statistics()["failures"] == 1
    assert "an unexpected error" in broker.env.tasks.failed[0]
    (other,) = cluster.brokers.keys() - {leader, cluster.leader("t", 0)}
    await cluster.stop(other)
    for index in mine:
        await until(lambda index=index: other not in cluster.state("t", index).in_sync, "the others are looked after")  # type: ignore[misc]
    broker.env.tasks.failed.clear()
    await cluster.stop(leader)
    await cluster.start(leader)
    await until(lambda: not unfit(cluster, leader, 0), "a new start is as good as ever")


async def test_a_log_that_cannot_be_opened_keeps_no_other_from_being_opened(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    await cluster.stop(2)
    made: list[Files] = []

    def files(folder: Path) -> Files:
        made.append(Files(folder))
        return made[0]

    broker = await cluster.start(2, files)
    await until(lambda: unfit(cluster, 2, 1), "the cluster is told")
    await until(lambda: {1, 3} <= cluster.state("t", 1).in_sync.keys() and cluster.leader("t", 1) != 2, "others lead")
    assert broker.topics.by_name["t"].partitions.keys() == {0, 2, 3, 4, 5}
    assert "no log here" in broker.statistics()["problems"]["t"]
    listed = await cluster.call("comet.v1.Admin/ListTopics", admin.ListTopicsRequest(), on=2)
    assert [(topic.name, len(topic.partitions)) for topic in listed.topics] == [("t", 6)]  # type: ignore[attr-defined]
    await cluster.call("comet.v1.Admin/CreateTopic", admin.CreateTopicRequest(name="u", replicas=3))
    await until(lambda: 2 in cluster.replicas("u"), "topics are followed as before")
    made[0].healed = True
    await until(lambda: 1 in broker.topics.by_name["t"].partitions, "it was tried again")
    await until(lambda: not unfit(cluster, 2, 1), "the cluster is told that it is well")
    await until(lambda: len(cluster.state("t", 1).in_sync) == 3, "it has caught up")
    assert not broker.topics.problems
    assert broker.statistics()["failures"] >= 1
    broker.env.tasks.failed.clear()


async def test_a_log_that_cannot_be_opened_keeps_no_other_from_what_is_set(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    await cluster.stop(2)
    made: list[Files] = []

    def files(folder: Path) -> Files:
        made.append(Files(folder))
        return made[0]

    broker = await cluster.start(2, files)
    await until(lambda: unfit(cluster, 2, 1), "the cluster is told")
    config = types.TopicConfig(min_insync=3)
    await cluster.call("comet.v1.Admin/AlterTopic", admin.AlterTopicRequest(name="t", config=config), on=1)
    opened = broker.topics.by_name["t"].partitions
    await until(lambda: all(one.log.config.min_insync == 3 for one in opened.values()), "they are as the topic says")
    assert opened.keys() == {0, 2, 3, 4, 5}
    made[0].healed = True
    await until(lambda: 1 in opened and not broker.topics.problems, "it was tried again")
    assert opened[1].log.config.min_insync == 3
    broker.env.tasks.failed.clear()


async def test_housekeeping_goes_on_with_the_others(cluster: LocalCluster) -> None:
    await make(cluster, "t")
    broker = cluster.brokers[1]
    replicas = [cluster.replicas("t", index)[1] for index in range(6)]
    bug(replicas[0].log.deletion, "start_retention")
    rolls = [0] * 6

    def count(index: int) -> Callable[[], bool]:
        def roll() -> bool:
            rolls[index] += 1
            return False

        return roll

    for index, partition in enumerate(replicas):
        setattr(partition.log.segments, "roll_by_age", count(index))  # noqa: B010 - mypy lets no method be assigned
    await until(lambda: min(rolls) >= 3, "all have had their turn, again and again")
    assert "housekeeping of partition t/0" in broker.env.tasks.failed[0]
    assert broker.statistics()["failures"] >= 2
    assert all(cluster.leader("t", index) for index in range(6))
    delattr(replicas[0].log.deletion, "start_retention")
    broker.env.tasks.failed.clear()
