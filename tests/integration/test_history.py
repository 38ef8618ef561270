"""What the brokers of a cluster remember, each of its own part, and what each of them tells of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import comet
import comet.testing
from comet_broker.core import slots
from tests.integration.local_cluster import WAIT_S_MAX, LocalCluster, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[comet.Admin]:
    async with comet.Admin(cluster.addresses, connect=cluster.network.connect) as one:
        yield one


async def history_until(
    admin: comet.Admin, broker: int, holds: Callable[[comet.History], bool], groups: tuple[str, ...] = ()
) -> comet.History:
    """The broker looks once a second."""
    give_up = asyncio.get_running_loop().time() + WAIT_S_MAX
    while not holds(found := await admin.history(broker, topics=["t"], groups=groups)):
        assert asyncio.get_running_loop().time() < give_up, f"it never came to this: {found}"
    return found


def elections(texts: list[str], why: str) -> int:
    """How many leaders there were for that reason: many of one second are told together, a few one by one."""
    told = [text.removeprefix(why) for text in texts if text.startswith(why)]
    return sum(int(text.split()[0]) if text.endswith("partitions have a new leader") else 1 for text in told)


def total(history: comet.History, figure: str, topic: str = "") -> float:
    [track] = [one for one in history.tracks if (one.topic, one.group, one.figure) == (topic, "", figure)]
    return sum(value or 0 for value in track.values)


async def test_what_is_written_is_counted_once_in_the_cluster(cluster: LocalCluster, admin: comet.Admin) -> None:
    await admin.create_topic("t", partitions=3, replicas=3)
    async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
        for partition in range(3):
            await (await producer.send_many("t", [b"x" * 100] * 10 * (partition + 1), partition=partition))
    for number, broker in cluster.brokers.items():
        led = [one for one in broker.topics.by_handle.values() if one.leads]
        assert len(led) == 1, "leaders are spread"
        records = led[0].log.log_end
        found = await history_until(admin, number, lambda one: total(one, "records_in") > 0)
        assert total(found, "records_in") == pytest.approx(total(found, "records_in", "t"))  # kept in fewer bits
        late = round(records / total(found, "records_in"))  # the rate of a second that a look came after too late
        assert late >= 1 and total(found, "records_in") == pytest.approx(records / late)
        assert total(found, "leading") > 0
        statistics = await admin.statistics(number, brief=True, topics=True)
        assert (statistics["topics"]["t"]["leading"], statistics["topics"]["t"]["records"]) == (1, records)
        rows = (await admin.describe_topic("t", broker=number)).partitions
        assert [row.in_rate is not None for row in rows] == [row.leader == number for row in rows]
        assert all(row.last_us for row in rows)


async def test_any_broker_tells_of_groups_that_others_coordinate(cluster: LocalCluster, admin: comet.Admin) -> None:
    await admin.create_topic("t")
    names = [f"engine-{number}" for number in range(9)]
    for name in names:
        (done,) = await admin.commit_offsets(name, {("t", 0): 0})
        assert done.error is None
    owners = {cluster.brokers[1].coordinator.owner(slots.slot_of(name)) for name in names}
    assert len(owners) == 3
    wanted = {*names, ""}
    for number in cluster.brokers:
        found = await history_until(
            admin, number, lambda one: {track.group for track in one.tracks} == wanted, (*names, "unknown")
        )
        assert {track.values[-1] for track in found.tracks if track.group and track.figure == "lag"} == {0}
    told = [await admin.statistics(number, brief=True, groups=True) for number in cluster.brokers]
    assert sorted(group["group"] for one in told for group in one["groups"]) == names


async def test_all_brokers_tell_of_what_happened(cluster: LocalCluster, admin: comet.Admin) -> None:
    cluster.clock.hold()  # nobody is taken out of what is in sync because the machine had something else to do
    await admin.create_topic("t", partitions=12, replicas=3)
    await admin.alter_topic("t", retention_ms=60_000)
    await cluster.opened("t", partitions=12)
    await cluster.stop(3)
    await until(lambda: all(cluster.leader("t", index) in (1, 2) for index in range(12)), "others lead")
    cluster.clock.go_on()
    for number in cluster.brokers:
        found = await history_until(
            admin, number, lambda one: "broker 3 is gone" in {event.text for event in one.events}
        )
        texts = [event.text for event in found.events]
        assert "topic t was created: 12 partitions, 3 replicas each" in texts
        assert "topic t was changed: retention_ms 60000, before 604800000" in texts
        assert elections(texts, "broker 3 is drained: ") == 4
        times = [event.time_us for event in found.events]
        assert times == sorted(times)
        assert {event.kind for event in found.events} >= {"topic", "election", "broker"}


def test_the_synchronous_face_tells_the_same() -> None:
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Admin(broker.address) as admin:
        found = admin.history(1, topics=["quotes"], groups=["engine"], every_topic=False, step_s=15, since_us=0)
        assert {track.topic for track in found.tracks} == {"", "quotes"}
        assert {len(track.values) for track in found.tracks} == {60}
        told = admin.statistics(1, brief=True, topics=True, groups=True)
        assert (set(told["topics"]), told["groups"]) == ({"quotes"}, [])
