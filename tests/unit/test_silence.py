"""Silence on a client's stream: both sides send heartbeats, and each ends the stream when the other is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from comet.client.connection import Connection
from comet.client.liveness import SUSPECT_S
from comet.errors import CometError, Unavailable
from comet.v1 import records_pb2 as pb
from comet.v1 import wire_pb2
from comet.wire import framing
from comet.wire.frames import BROKER_HEARTBEAT, CLIENT_HEARTBEAT
from comet.wire.framing import Kind
from comet.wire.liveness import OF_BROKERS, OF_CLIENTS
from comet.wire.wire_stream import WireStream
from comet_broker.access.client_access import EVERYTHING
from comet_broker.streams.session import Session
from comet_testing.simulation.loop import SimLoop
from comet_testing.simulation.loop import run as run_virtual
from tests.unit.sdk_fake import ADDRESS, FakeBroker
from tests.unit.test_quotas import World
from tests.unit.test_sdk_producer import now, scenario
from tests.waiting import pace, until

LATE_S = 2 * OF_CLIENTS.check_s  # that silence is noticed at most after its bound


def test_heartbeats_are_a_ping_and_a_pong_without_a_number() -> None:
    assert pb.ClientFrame(ping=pb.Ping()).SerializeToString() == CLIENT_HEARTBEAT
    assert pb.ServerFrame(pong=pb.Pong()).SerializeToString() == BROKER_HEARTBEAT


# ---- the client's side


async def connected(broker: FakeBroker) -> Connection:
    connection = Connection(broker.connect(ADDRESS).stream(), ADDRESS, client_name="")
    await connection.open()
    return connection


def heartbeats(broker: FakeBroker) -> int:
    return sum(frame == CLIENT_HEARTBEAT for frame in broker.frames)


@scenario()
async def test_an_idle_client_sends_heartbeats_and_no_more(broker: FakeBroker) -> None:
    connection = await connected(broker)
    await pace(100)
    assert connection.lost is None
    most = 100 / OF_BROKERS.heartbeat_s
    assert 0.75 * most <= heartbeats(broker) <= most
    await connection.close()


@scenario()
async def test_a_client_that_sends_anything_sends_no_heartbeats(broker: FakeBroker) -> None:
    connection = await connected(broker)
    for _ in range(100):
        await connection.call(pb.ClientFrame(ping=pb.Ping()))
        await pace(1.0)
    assert heartbeats(broker) == 0
    await connection.close()


@scenario()
async def test_a_client_gives_a_silent_broker_up(broker: FakeBroker) -> None:
    connection = await connected(broker)
    began, asked_at = now(), list[float]()
    connection.on_silent = lambda _: asked_at.append(now() - began)
    broker.frozen = True
    assert await until(lambda: connection.lost is not None, within_s=60)
    assert isinstance(connection.lost, Unavailable) and "was silent for 6 s" in connection.lost.message
    assert OF_BROKERS.silence_s <= now() - began <= OF_BROKERS.silence_s + LATE_S
    assert asked_at[0] == pytest.approx(SUSPECT_S, abs=OF_BROKERS.check_s)
    await connection.close()


@scenario()
async def test_a_client_whose_loop_stood_still_does_not_blame_the_broker(broker: FakeBroker) -> None:
    """The answers lie unread in its socket."""
    connection = await connected(broker)
    loop: Any = asyncio.get_running_loop()
    for _ in range(10):
        broker.frozen = True
        loop._now += 30.0
        await asyncio.sleep(0)
        broker.frozen = False
        await pace(OF_BROKERS.heartbeat_s + OF_BROKERS.check_s)
    assert connection.lost is None
    await connection.close()


@scenario()
async def test_a_client_that_cannot_write_queues_one_heartbeat(broker: FakeBroker) -> None:
    connection = await connected(broker)

    async def never(_: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    stream: Any = connection._stream
    stream.write = never
    connection._tasks.append(asyncio.get_running_loop().create_task(connection._write()))
    for _ in range(60):
        await pace(1)
        connection.watch.liveness.received += 1  # the broker is there
    assert connection.lost is None and len(connection.queue._control) == 1
    await connection.close()


@scenario()
async def test_parts_of_a_frame_of_the_wire_count(broker: FakeBroker) -> None:
    connection = await connected(broker)
    wire = WireStream(ADDRESS, wire_pb2.WireHello())
    connection.watch._wire = wire
    broker.frozen = True
    for byte in framing.control(Kind.WELCOME, bytes(100))[:60]:
        await pace(1)
        wire.get_buffer(-1)[0] = byte
        wire.buffer_updated(1)
    assert connection.lost is None
    assert await until(lambda: connection.lost is not None, within_s=10)
    await connection.close()


# ---- the broker's side


HELLO = pb.ClientFrame(request=1, hello=pb.Hello(heartbeats=True)).SerializeToString()


@asynccontextmanager
async def watched(world: World) -> AsyncIterator[World]:
    watching = asyncio.get_running_loop().create_task(world.sessions.watch())
    try:
        yield world
    finally:
        watching.cancel()
        world.sessions.close()


def on_virtual_time(body: Callable[[World], Any]) -> None:
    async def main(loop: SimLoop) -> None:
        async with watched(World(loop)) as world:
            await body(world)

    run_virtual(main)


def opened(world: World, first: bytes = HELLO, transport: str = "grpc") -> Session:
    session = world.sessions.open("peer", EVERYTHING, transport)
    if first:
        session.receive(first)
        assert session.poll() is not None
    return session


async def ended_after(session: Session) -> tuple[float, CometError]:
    began = now()
    assert await until(lambda: session.writer.failure is not None, within_s=100)
    assert session.writer.failure is not None
    return now() - began, session.writer.failure


@pytest.mark.parametrize(("first", "transport"), [(HELLO, "grpc"), (HELLO, "wire"), (b"", "wire")])
def test_a_broker_ends_the_stream_of_a_silent_client(first: bytes, transport: str) -> None:
    async def body(world: World) -> None:
        after_s, error = await ended_after(opened(world, first, transport))
        assert OF_CLIENTS.silence_s <= after_s <= OF_CLIENTS.silence_s + LATE_S
        assert isinstance(error, Unavailable) and "nothing came from this client for 12 s" in error.message

    on_virtual_time(body)


def test_a_client_that_promises_no_heartbeats_is_left_to_grpc() -> None:
    async def body(world: World) -> None:
        session = opened(world, pb.ClientFrame(request=1, hello=pb.Hello()).SerializeToString())
        await pace(600)
        assert session.writer.failure is None and session.poll() is None

    on_virtual_time(body)


def test_a_client_may_compute_for_ten_seconds_between_two_frames() -> None:
    async def body(world: World) -> None:
        session = opened(world)
        for _ in range(20):
            await pace(10 + OF_CLIENTS.heartbeat_s - OF_CLIENTS.check_s)
            session.receive(CLIENT_HEARTBEAT)
        assert session.writer.failure is None

    on_virtual_time(body)


def test_a_part_of_a_frame_counts() -> None:
    async def body(world: World) -> None:
        session = opened(world)
        for _ in range(60):
            await pace(1)
            session.heard()
        assert session.writer.failure is None

    on_virtual_time(body)


@pytest.mark.parametrize("why", ["answers", "in flight", "quota"])
def test_a_client_that_is_not_read_is_not_silent(why: str) -> None:
    async def body(world: World) -> None:
        session = opened(world)
        if why == "answers":
            session.answers._bytes = 1 << 40
        elif why == "in flight":
            world.in_flight.full = True
        else:
            session._pacing.pause = lambda: asyncio.sleep(0)
        await pace(60)
        session.answers._bytes, world.in_flight.full, session._pacing.pause = 0, False, None
        session.answers.frames.clear()
        after_s, _ = await ended_after(session)
        assert after_s >= OF_CLIENTS.silence_s

    on_virtual_time(body)


def test_a_broker_sends_heartbeats_when_it_has_sent_nothing_else() -> None:
    async def body(world: World) -> None:
        session = opened(world)
        came = list[float]()
        for _ in range(400):
            await pace(0.1)
            session.receive(CLIENT_HEARTBEAT)
            if session.answers.frames:
                assert session.answers.take() == BROKER_HEARTBEAT
                session.writer.sent += 1
                came.append(now())
        between = [later - earlier for earlier, later in pairwise(came)]
        most_s = OF_CLIENTS.heartbeat_s + OF_CLIENTS.check_s + 0.2
        assert len(between) > 10 and all(OF_CLIENTS.heartbeat_s - 0.2 <= one <= most_s for one in between)
        for _ in range(40):
            await pace(0.5)
            session.receive(pb.ClientFrame(request=2, ping=pb.Ping()).SerializeToString())
            assert session.answers.take() != BROKER_HEARTBEAT
            session.writer.sent += 1
        assert not session.answers.frames

    on_virtual_time(body)


def test_one_heartbeat_waits_for_a_client_that_does_not_read() -> None:
    async def body(world: World) -> None:
        session = opened(world)
        for _ in range(100):
            await pace(1)
            session.receive(CLIENT_HEARTBEAT)
        assert list(session.answers.frames) == [BROKER_HEARTBEAT]
        session.answers.take()

    on_virtual_time(body)
