"""What the dashboard knows of three real brokers, one of which goes and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

import comet
from comet.errors import Unavailable
from comet_gateway.dashboard.sampler import Sampler
from comet_web import facts
from tests.integration.local_cluster import LocalCluster

PARTITIONS = 6
PATIENCE_S = 20.0


class Line:
    """A way to a broker that ends with it."""

    def __init__(self, cluster: LocalCluster, address: str) -> None:
        self._there = cluster.network.brokers
        self._address = address
        self._broker = self._there.get(address)
        self._channel = cluster.network.connect(address)

    async def unary(
        self, method: str, request: Message, response: type[Message], timeout_s: float, acting: Any = None
    ) -> Message:
        if self._broker is None or self._broker is not self._there.get(self._address):
            raise Unavailable("the broker is gone")
        return await self._channel.unary(method, request, response, timeout_s)

    def stream(self) -> Any:
        return self._channel.stream()

    async def close(self) -> None:
        await self._channel.close()


async def seen(sampler: Sampler, wanted: Callable[[facts.Cluster], bool]) -> facts.Cluster:
    """The cluster, once it is as wanted."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + PATIENCE_S
    while not wanted(found := await sampler.cluster()):
        assert loop.time() < give_up, (found.brokers, found.topics.get("t"), found.events[:8])
        sampler.renew()  # the next look waits for another round
    return found


def up(found: facts.Cluster) -> list[int]:
    return [one.id for one in found.brokers if one.up]


async def test_three_brokers_are_one_cluster_also_while_one_of_them_is_gone(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path) as cluster:
        connect = partial(Line, cluster)
        first = comet.Admin(cluster.addresses, connect=connect)
        sampler = Sampler("cluster", first, lambda address: comet.Admin(address, connect=connect))
        try:
            await first.create_topic("t", partitions=PARTITIONS, min_insync=1)
            async with comet.Producer(cluster.addresses, acks="all", connect=connect) as producer:
                for index in range(PARTITIONS):
                    await (await producer.send_many("t", [b"x"] * 10, partition=index))

            def whole(found: facts.Cluster) -> bool:
                topic = found.topics.get("t")
                records = 0 if topic is None or topic.in_sync < 3 else topic.records
                return up(found) == [1, 2, 3] and records == 10 * PARTITIONS

            def told(found: facts.Cluster) -> bool:
                """What brokers remember once the second is over."""
                written = sum(value or 0 for value in found.tracks["records_in"].values)
                return written >= 10 * PARTITIONS and any("topic t was created" in event.text for event in found.events)

            found = await seen(sampler, whole)
            assert found.reachable
            assert found.topics["t"].replicas == 3
            await seen(sampler, told)
            found = await seen(sampler, lambda found: sum(one.leading or 0 for one in found.brokers) >= PARTITIONS)
            assert found.controller in (1, 2, 3)

            await cluster.stop(3)
            found = await seen(sampler, lambda found: up(found) == [1, 2] and found.topics["t"].offline == 0)
            assert [one.id for one in found.brokers] == [1, 2, 3]
            assert found.brokers[2].in_rate is None
            found = await seen(sampler, lambda found: found.topics["t"].records == 10 * PARTITIONS)
            assert found.topics["t"].under_replicated == PARTITIONS

            await cluster.start(3)
            await seen(sampler, whole)
            await seen(sampler, lambda found: any(event.text.startswith("broker 3 is there") for event in found.events))
        finally:
            await sampler.close()
            await first.close()
