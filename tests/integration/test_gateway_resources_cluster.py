"""Topics, groups and brokers over HTTP where there are three brokers: replicas, drains, moves, and brokers that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import comet
from tests.integration.local_cluster import LocalCluster, until
from tests.integration.resources_client import Api, cluster_api

PARTITIONS = 6


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def http(cluster: LocalCluster) -> AsyncIterator[Api]:
    async with cluster_api(cluster) as one:
        await one.admin.create_topic("t", partitions=PARTITIONS, min_insync=1)
        async with comet.Producer(cluster.addresses, acks="all", connect=cluster.network.connect) as producer:
            for index in range(PARTITIONS):
                await (await producer.send_many("t", [b"x"] * 10, partition=index))
        yield one


def led_by(cluster: LocalCluster, broker: int) -> list[int]:
    return [index for index in range(PARTITIONS) if cluster.leader("t", index) == broker]


async def test_every_copy_is_told_of_and_one_that_is_gone_is_not_known(cluster: LocalCluster, http: Api) -> None:
    found = await http.get("/topics/t/partitions/0")
    assert {copy["broker"] for copy in found["copies"]} == {1, 2, 3}
    assert {copy["log_end"] for copy in found["copies"]} == {"10"}
    assert [copy["broker"] for copy in found["copies"] if copy["leader"]] == [found["leader"]]
    gone = next(broker for broker in (1, 2, 3) if broker != found["leader"])
    await cluster.stop(gone)
    await until(
        lambda: all(gone not in cluster.state("t", index).in_sync for index in range(PARTITIONS)), "it is missed"
    )
    found = await http.get("/topics/t/partitions/0")
    assert [(copy["log_end"], copy["in_sync"]) for copy in found["copies"] if copy["broker"] == gone] == [(None, False)]
    topic = (await http.get("/topics"))["items"][0]
    assert (topic["replicas"], topic["in_sync"], topic["under_replicated"]) == (3, 2, PARTITIONS)


async def test_a_broker_is_drained_as_the_dry_run_says(cluster: LocalCluster, http: Api) -> None:
    def leads(broker: int, index: int) -> bool:
        return cluster.leader("t", index) == broker

    before = led_by(cluster, 1)
    assert before
    effect = await http.post("/brokers/1/drain", dry_run=True)
    assert (effect["dry_run"], effect["leading"], effect["staying"], effect["draining"]) == (
        True,
        len(before),
        0,
        False,
    )
    assert [one["partition"] for one in effect["partitions"]] == before
    assert led_by(cluster, 1) == before
    done = await http.post("/brokers/1/drain")
    assert done["partitions"] == effect["partitions"] and done["draining"]
    await until(lambda: not led_by(cluster, 1), "it has passed on what it led")
    for one in effect["partitions"]:
        await until(partial(leads, one["to"], one["partition"]), "who was named leads")
    assert (await http.get("/brokers/1"))["draining"]
    assert (await http.post("/brokers/1/drain"))["leading"] == 0
    assert not (await http.post("/brokers/1/drain/undo"))["draining"]
    await until(lambda: led_by(cluster, 1) == before, "it leads again what it is preferred for")


async def test_a_partition_moves_as_the_dry_run_says(cluster: LocalCluster, http: Api) -> None:
    await http.admin.create_topic("one", partitions=1, replicas=1)
    await until(lambda: cluster.leader("one") != 0, "it is led")
    at = (await http.get("/topics/one/partitions/0"))["replicas"]
    to = [broker for broker in (1, 2, 3) if broker not in at]
    effect = await http.post("/topics/one/partitions/0/move", {"replicas": to}, dry_run=True)
    assert (effect["before"], effect["after"], effect["added"], effect["removed"]) == (at, to, to, at)
    assert cluster.state("one").target == ()  # nothing is to be moved
    assert {**effect, "dry_run": False} == await http.post("/topics/one/partitions/0/move", {"replicas": to})
    await until(lambda: cluster.state("one").replicas == tuple(to), "it is there")
    assert (await http.get("/topics/one/partitions/0"))["replicas"] == to
    body: Any
    for body, status in (
        ({"replicas": [1, 1]}, 400), ({"replicas": [9]}, 404), ({"replicas": []}, 422), ({"replicas": [0]}, 422)
    ):  # fmt: skip
        for dry_run in (True, False):
            await http.post("/topics/one/partitions/0/move", body, dry_run=dry_run, status=status)
    for path in ("/topics/one/partitions/7", "/topics/none/partitions/0"):
        await http.post(f"{path}/move", {"replicas": [1]}, status=404)


async def test_a_leader_is_elected_at_the_cost_that_the_dry_run_tells(tmp_path: Path) -> None:
    path = "/topics/t/partitions/0/elect-leader"
    async with LocalCluster(tmp_path, brokers=2) as cluster:
        async with cluster_api(cluster) as http:
            await http.admin.create_topic("t", replicas=2, min_insync=1)
            await until(lambda: cluster.leader("t") != 0, "it is led")
            leader = cluster.leader("t")
            (other,) = cluster.brokers.keys() - {leader}
            for dry_run in (True, False):
                body = {"broker": other, "accept_loss": True}
                problem = await http.post(path, body, dry_run=dry_run, status=400)
                assert (problem["code"], "leads" in problem["detail"]) == ("INVALID_ARGUMENT", True)
                await http.post(path, {"broker": 9, "accept_loss": True}, dry_run=dry_run, status=404)
        await cluster.stop(other)
        await until(lambda: len(cluster.state("t").in_sync) == 1, "the leader is alone in sync")
        async with comet.Producer(cluster.addresses, connect=cluster.network.connect) as producer:
            await (await producer.send_many("t", [b"x"] * 5))
        await cluster.stop(leader)
        await cluster.start(other)
        await until(lambda: other in cluster.replicas("t"), "the partition is open")
        await until(lambda: cluster.state("t").leader == 0, "nobody leads, for want of everything")
        async with cluster_api(cluster) as http:
            effect = await http.post(path, {"broker": other}, dry_run=True)
            assert (effect["lost"], effect["broker"]) == ("0", other)  # of the other one nothing is known
            assert {copy["broker"]: copy["log_end"] for copy in effect["copies"]} == {leader: None, other: "0"}
            problem = await http.post(path, {"broker": other}, status=400)
            assert "accept the loss" in problem["detail"]
            assert not (await http.post(path, {"broker": other, "accept_loss": True}))["dry_run"]
        await until(lambda: cluster.leader("t") == other, "it leads")


async def test_what_a_dead_leader_would_have_to_say_is_null(cluster: LocalCluster, http: Api) -> None:
    """Partitions with one replica each, of which one is away."""
    await http.admin.create_topic("alone", partitions=3, replicas=1)
    async with comet.Producer(cluster.addresses, connect=cluster.network.connect) as producer:
        for index in range(3):
            await (await producer.send_many("alone", [b"x"] * 10, partition=index))
    gone = cluster.leader("alone", 0)
    await cluster.stop(gone)
    await until(lambda: cluster.state("alone", 0).leader == 0, "nobody leads it")
    found = await http.get("/topics/alone")
    assert [one["log_end"] for one in found["partitions"]] == [None, "10", "10"]
    assert (found["totals"]["records"], found["totals"]["complete"], found["leaderless"]) == ("20", False, 1)
    effect = await http.delete("/topics/alone", dry_run=True)
    assert (effect["records"], effect["complete"]) == ("20", False)
    body = {"offsets": [{"partition": index, "before": 4} for index in range(3)]}
    for dry_run in (True, False):
        mixed = await http.post("/topics/alone/records/delete", body, dry_run=dry_run, status=207)
        assert mixed["records"] == "8"
        assert [one["error"] and one["error"]["code"] for one in mixed["partitions"]] == ["NOT_LEADER", None, None]
    async with cluster_api(cluster, timeout_ms=500) as hasty:
        answer = await hasty.client.post("/v1/topics/alone/records/delete", json={"before": "-1h"})
        # Nobody leads it; or on a busy machine, nobody has said so in time.
        assert answer.status_code == 504 or (answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1)


async def test_groups_are_read_and_set_while_their_coordinator_changes(cluster: LocalCluster, http: Api) -> None:
    body = {"offsets": [{"topic": "t", "partition": 0, "offset": "4"}]}
    names = [f"engine-{number}" for number in range(6)]
    for name in names:
        await http.ask("PUT", f"/groups/{name}/offsets", body)
    coordinator = {one["name"]: one["coordinator"] for one in (await http.get("/groups"))["items"]}
    assert sorted(coordinator) == names
    gone = next(iter(coordinator.values()))
    await cluster.stop(gone)
    found = await asyncio.gather(*(http.get(f"/groups/{name}/offsets") for name in names))
    assert [one["offsets"][0]["offset"] for one in found] == ["4"] * len(names)
    for name in names:
        await http.ask("PUT", f"/groups/{name}/offsets", body)
        assert (await http.get(f"/groups/{name}"))["coordinator"] != gone
