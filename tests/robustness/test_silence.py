"""Silence between clients and brokers, over both transports: paused processes, links that swallow, and cuts."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import comet
from comet.client.connection import Connection
from comet.v1 import wire_pb2
from comet.wire.framing import VERSION
from comet.wire.grpc_channel import GrpcChannel
from comet.wire.liveness import OF_BROKERS, OF_CLIENTS
from comet.wire.wire_stream import STREAM_CALL, WireStream
from comet_broker.config import BrokerConfig
from comet_broker.server import Server
from tests.link import Link
from tests.pausing import stand_still
from tests.robustness.process import broker
from tests.robustness.raw_wire import wire_port
from tests.waiting import pace, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TRANSPORTS: Final = ("wire", "grpc")
BUSY_S: Final = 6.0  # that a machine which does other things may take on top
CLIENT_NOTICES_S: Final = OF_BROKERS.silence_s + 2 * OF_BROKERS.check_s + BUSY_S
BROKER_NOTICES_S: Final = OF_CLIENTS.silence_s + 2 * OF_CLIENTS.check_s + BUSY_S


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(BrokerConfig(data=tmp_path / "data", port=0, drain_grace_ms=100)) as found:
        yield found


async def connected(transport: str, address: str) -> Connection:
    """A client of the SDK, by the port of gRPC or of the wire."""
    if transport == "grpc":
        connection = Connection(GrpcChannel(address).stream(), address, client_name=transport)
    else:
        hello = wire_pb2.WireHello(version=VERSION, call=STREAM_CALL)
        connection = Connection(await WireStream.open(address, hello, None, 5.0), address, client_name=transport)
    await connection.open()
    return connection


def clients(server: Server) -> list[str]:
    return sorted(session["client"] for session in server.broker.statistics()["sessions"])


def ports(server: Server) -> dict[str, int]:
    return {"grpc": int(server.address.rpartition(":")[2]), "wire": server.broker.registration.wire_port}


async def all_lost(connections: Iterable[Connection], within_s: float) -> bool:
    return await until(lambda: all(one.lost is not None for one in connections), within_s=within_s)


async def test_both_sides_notice_links_that_swallow(server: Server) -> None:
    """Up, down, or both ways. The connections stand. One through a good link, as idle, stays."""
    async with AsyncExitStack() as stack:
        broker_answers, broker_is_silent = list[Connection](), list[Connection]()
        for transport, port in ports(server).items():
            for up, down in ((True, False), (False, True), (True, True)):
                link = await stack.enter_async_context(Link("127.0.0.1", port))
                (broker_is_silent if down else broker_answers).append(await connected(transport, link.address))
                link.hold(up=up, down=down)
        kept = [await connected(transport, f"127.0.0.1:{port}") for transport, port in ports(server).items()]
        assert await all_lost(broker_is_silent, CLIENT_NOTICES_S)
        assert await all_lost(broker_answers, BROKER_NOTICES_S)
        lost = [*broker_is_silent, *broker_answers]
        assert all(isinstance(one.lost, comet.Unavailable) for one in lost), [one.lost for one in lost]
        assert await until(lambda: clients(server) == sorted(TRANSPORTS), within_s=BROKER_NOTICES_S)
        assert [one.lost for one in kept] == [None, None]
        for one in (*lost, *kept):
            await one.close()


async def test_both_sides_notice_a_cut_at_once(server: Server) -> None:
    for transport, port in ports(server).items():
        async with Link("127.0.0.1", port) as link:
            connection = await connected(transport, link.address)
            link.cut()
            assert await all_lost([connection], BUSY_S) and isinstance(connection.lost, comet.Unavailable)
            assert await until(lambda: not clients(server), within_s=BUSY_S)
            await connection.close()


async def test_a_client_notices_a_paused_broker_which_then_goes_on(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as process:
        addresses = {"grpc": process.address, "wire": f"127.0.0.1:{await wire_port(process)}"}
        lost = [await connected(transport, address) for transport, address in addresses.items()]
        process.signal(signal.SIGSTOP)
        try:
            assert await all_lost(lost, CLIENT_NOTICES_S)
        finally:
            process.signal(signal.SIGCONT)
        assert ["was silent for 6 s" in str(one.lost) for one in lost] == [True, True]
        for transport, address in addresses.items():
            await (await connected(transport, address)).close()
        assert process.complaints() == []


CONSUMER: Final = """
import sys, comet
async def main():
    bootstrap = comet.Bootstrap({address!r}, transport={transport!r})
    async with comet.Consumer(bootstrap, "quotes", start="earliest") as consumer:
        async for record in consumer:
            print(record.value.decode(), flush=True)
            if {computes}:
                sys.stdin.readline()
comet.run(main())
"""
Child = asyncio.subprocess.Process


@asynccontextmanager
async def consumers(server: Server, *, computes: bool = False) -> AsyncIterator[list[Child]]:
    """A process for each transport, which has read the first record; if it `computes`, its loop stands still after
    each, until it reads a line."""
    async with comet.Admin(server.address) as admin:
        await admin.create_topic("quotes")
    await published(server, b"one")
    found = list[Child]()
    try:
        for transport in TRANSPORTS:
            script = CONSUMER.format(address=server.address, transport=transport, computes=computes)
            pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
            found.append(await asyncio.create_subprocess_exec(sys.executable, "-c", script, **pipes))
            assert await line(found[-1]) == b"one"
        assert await until(lambda: len(clients(server)) == len(found), within_s=BUSY_S), clients(server)
        yield found
    finally:
        for child in found:
            child.kill()
            await child.wait()


async def line(child: Child) -> bytes:
    assert child.stdout is not None
    return (await child.stdout.readline()).strip()


async def published(server: Server, value: bytes) -> None:
    async with comet.Producer(server.address) as producer:
        await producer.publish("quotes", value)


async def test_a_broker_notices_a_paused_client_which_then_goes_on(server: Server) -> None:
    async with consumers(server) as found:
        for child in found:
            stand_still(child.pid)
        assert await until(lambda: not clients(server), within_s=BROKER_NOTICES_S)
        await published(server, b"two")
        for child in found:
            child.send_signal(signal.SIGCONT)
            assert await line(child) == b"two"


async def test_a_client_that_computes_for_seconds_stays(server: Server) -> None:
    async with consumers(server, computes=True) as found:
        streams = {session["stream"] for session in server.broker.statistics()["sessions"]}
        await pace(8.0)
        await published(server, b"two")
        for child in found:
            assert child.stdin is not None
            child.stdin.write(b"\n")
            assert await line(child) == b"two"
        assert streams == {session["stream"] for session in server.broker.statistics()["sessions"]}
