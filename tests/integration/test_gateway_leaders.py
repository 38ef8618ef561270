"""Leaders given to other brokers over HTTP, where there are three brokers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.local_cluster import LocalCluster, until
from tests.integration.resources_client import Api, cluster_api

PARTITIONS = 7


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as one:
        yield one


@pytest.fixture
async def http(cluster: LocalCluster) -> AsyncIterator[Api]:
    """All of them led by the first broker."""
    async with cluster_api(cluster) as one:
        await one.admin.create_topic("t", partitions=PARTITIONS, min_insync=1)
        for index in range(PARTITIONS):
            await one.admin.move_partition("t", index, [1, 2, 3])
        await settled(cluster, {1: PARTITIONS})
        yield one


def led(cluster: LocalCluster) -> dict[int, int]:
    return Counter(cluster.leader("t", index) for index in range(PARTITIONS))


async def settled(cluster: LocalCluster, leaders: dict[int, int]) -> None:
    """They lead so many, and each broker has heard of it: the gateway asks any of them."""
    await until(lambda: led(cluster) == leaders, f"so many are led: {leaders}")
    await cluster.opened("t", partitions=PARTITIONS)


async def over(http: Api) -> dict[str, object]:
    """How the job ended."""
    while True:
        job: dict[str, object] = await http.get("/leaders")
        if job["state"] not in ("running", "stopping"):
            return job
        await asyncio.sleep(0)  # the gateway is on this loop, and has the job to do


async def test_leaders_are_spread_as_the_dry_run_says(cluster: LocalCluster, http: Api) -> None:
    assert (await http.get("/leaders"))["state"] == "idle"
    plan = await http.post("/leaders/move", {}, dry_run=True)
    assert (plan["dry_run"], plan["state"], plan["changes"], plan["decided"]) == (True, "planned", 4, 0)
    assert [(one["broker"], one["before"], one["after"]) for one in plan["brokers"]] == [
        (1, 7, 3),
        (2, 0, 2),
        (3, 0, 2),
    ]
    assert led(cluster) == {1: PARTITIONS}
    begun = await http.post("/leaders/move", {})
    assert (begun["dry_run"], begun["partitions"]) == (False, plan["partitions"])
    job = await over(http)
    assert (job["state"], job["led"], job["error"]) == ("done", 4, "")
    await settled(cluster, {1: 3, 2: 2, 3: 2})
    assert (await http.post("/leaders/move", {}, dry_run=True))["changes"] == 0


async def test_some_are_given_to_whom_somebody_says(cluster: LocalCluster, http: Api) -> None:
    wanted = {"partitions": [{"topic": "t", "partition": 4, "broker": 3}, {"topic": "t", "partition": 5}]}
    assert (await http.post("/leaders/move", wanted))["changes"] == 2
    assert (await over(http))["led"] == 2
    await until(lambda: cluster.leader("t", 4) == 3 and cluster.leader("t", 5) in (2, 3), "they have heard of it, too")


async def test_what_cannot_be_is_refused_at_once(http: Api) -> None:
    for body, status, code in (
        ({"partitions": [{"topic": "none", "partition": 0}]}, 404, "TOPIC_NOT_FOUND"),
        ({"partitions": [{"topic": "t", "partition": 99}]}, 404, "PARTITION_NOT_FOUND"),
        ({"partitions": [{"topic": "t", "partition": 0, "broker": 9}]}, 400, "INVALID_ARGUMENT"),
        ({"partitions": []}, 422, "VALIDATION"),
        ({"partitions": [{"topic": "t", "partition": "0"}]}, 422, "VALIDATION"),
        ({"brokers": [1]}, 422, "VALIDATION"),
    ):
        for dry_run in (True, False):
            problem = await http.post("/leaders/move", body, dry_run=dry_run, status=status)
            assert problem["code"] == code
    assert (await http.post("/leaders/stop"))["state"] == "idle"
