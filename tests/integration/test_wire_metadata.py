"""Metadata over a stream of the wire: for a client that is connected, gRPC has nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import comet
from comet.client.client import Client
from comet.v1 import records_pb2 as records
from comet.v1 import types_pb2 as types
from comet.wire.grpc_channel import GrpcChannel
from comet_broker.server import Server
from tests.integration.test_listeners import Secured
from tests.integration.test_wire import open_wires, secured, served
from tests.waiting import until

__all__ = ["secured"]  # fixtures


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with served(tmp_path) as found, comet.Admin(found.address) as admin:
        await admin.create_topic("quotes")
        yield found


def bootstrap(secured: Secured, name: str) -> comet.Bootstrap:
    issued = secured.authority.issue_client(name)
    return comet.Bootstrap(secured.clients, ca=secured.authority.ca, cert=issued.cert, key=issued.key)


def channels(client: Client) -> int:
    return sum(peer._channel is not None for peer in client._peers.values())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_connected_client_asks_over_its_stream(
    server: Server, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with comet.Consumer(f"{host}:{server.address.rpartition(':')[2]}", "quotes", start="earliest") as consumer:
        client = consumer._client
        assert open_wires(server) == 1 and channels(client) == 0

        async def unary(*_: object) -> None:
            raise AssertionError("over gRPC")

        monkeypatch.setattr(GrpcChannel, "unary", unary)
        found = await client.fetch(["quotes", "unknown"])
        assert list(found) == ["quotes"] and found["quotes"].partitions[0].leader == 1
        assert channels(client) == 0


async def test_over_grpc_nothing_is_different(server: Server) -> None:
    async with comet.Consumer(
        comet.Bootstrap(server.address, transport="grpc"), "quotes", start="earliest"
    ) as consumer:
        assert channels(consumer._client) == 1
        assert list(await consumer._client.fetch(["quotes"])) == ["quotes"]
        assert open_wires(server) == 0


async def test_a_call_under_way_keeps_its_channel_until_it_is_answered(server: Server) -> None:
    async with comet.Producer(server.address) as producer:
        client = producer._client
        request = records.FetchRequest(topic="quotes", wait_ms=10_000, start=types.Position(latest=True))
        waiting = asyncio.create_task(
            client.unary_at(server.address, "comet.v1.Comet/Fetch", request, records.FetchResponse, 10_000)
        )
        assert await until(lambda: any(peer.calls for peer in client._peers.values()), within_s=10)
        await producer.send("quotes", b"1")
        await producer.flush()
        assert open_wires(server) == 1
        assert (await waiting).records


async def test_only_what_the_caller_may_describe_is_told(secured: Secured) -> None:
    async with comet.Admin(bootstrap(secured, "app")) as superuser:
        await superuser.create_topic("orders")
        await superuser.create_topic("hidden")
        await superuser.access.add_rule("client:billing", ["read"], comet.ResourceKind.TOPIC, "orders")
    cluster = bootstrap(secured, "billing")
    async with comet.Consumer(cluster, "orders", start="earliest") as consumer:
        assert channels(consumer._client) == 0
        assert list(await consumer._client.fetch(["orders", "hidden"])) == ["orders"]
