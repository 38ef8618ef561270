"""Clients that abuse the wire: a typed error or a closed connection for them, bounded memory, and no harm to others."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

import pytest

import comet
from comet.errors import CometError, LimitExceeded
from comet.processes.descriptors import raise_descriptor_limit
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire import framing
from comet_broker import limits
from comet_broker.rpc import wire_connection
from tests.robustness.process import BrokerProcess, highest_resident_bytes
from tests.robustness.raw_wire import HELLO, RawWire, data, mutated, wire_port, wire_socket
from tests.robustness.test_hostile import ROUNDS, bystander, process
from tests.robustness.test_memory import FRAME_BYTES, publishing, small
from tests.waiting import until

__all__ = ["process", "small"]  # fixtures

SEEDS: Final = int(os.environ.get("COMET_WIRE_SEEDS", "300"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + SEEDS // 10)]
IDLE: Final = 2_000
SUBSCRIBERS: Final = 20
PRODUCED_BYTES: Final = 200 << 20
# Per subscriber the transport's buffer with one delivery more, and the sockets' on both sides.
GROWTH_BYTES_MAX: Final = SUBSCRIBERS * (3 << 20) + limits.TAIL_TOTAL_BYTES_MAX + (64 << 20)
# How a connection may end whose bytes were changed; "open" is one that still waits for the rest of a frame.
ENDS: Final = {
    *("MALFORMED_FRAME", "RECORD_TOO_LARGE", "UNSUPPORTED_VERSION", "INVALID_ARGUMENT", "UNAVAILABLE"),
    *("in good order", "closed", "open"),
}


def session() -> bytes:
    """What a good client sends."""
    subscribe = pb.Subscribe(subscription=1, starts=[pb.Start(partition=1)], credit=1 << 20)
    return b"".join([
        HELLO,
        data(pb.ClientFrame(request=1, hello=pb.Hello(client="fuzz"))),
        data(pb.ClientFrame(request=2, attach=pb.Attach(topic="bad"))),
        data(pb.ClientFrame(request=3, subscribe=subscribe)),
        data(pb.ClientFrame(request=4, produce=pb.Produce(partition=1, acks=types.ACKS_LEADER, batch=bytes(200)))),
        data(pb.ClientFrame(request=5, fetch_metadata=pb.FetchMetadataRequest(topics=["bad"]))),
        data(pb.ClientFrame(request=6, fetch=pb.FetchRequest(topic="bad", whole_batches=True, forwarded=True))),
        data(pb.ClientFrame(request=7, ping=pb.Ping())),
        data(pb.ClientFrame(ping=pb.Ping())),
        framing.end(),
    ])  # fmt: skip


@pytest.mark.parametrize("find", [wire_port, wire_socket], ids=["TCP", "Unix"])
async def test_changed_bytes_end_their_own_connection_only(
    process: BrokerProcess, find: Callable[[BrokerProcess], Awaitable[int | Path]]
) -> None:
    good, outcomes = session(), Counter[str]()

    async def attempt(at: int | Path, seed: int) -> None:
        wire = await RawWire.open(at)
        try:
            await wire.write(mutated(Random(seed), good))
            async with asyncio.timeout(0.5):
                found = await wire.end()
            outcome = found.code if isinstance(found, CometError) else found
        except TimeoutError:
            outcome = "open"
        finally:
            wire.close()
        outcomes[outcome] += 1
        assert outcome in ENDS, f"seed {seed}: {outcome}"

    async with bystander(process):
        at = await find(process)
        for first in range(0, SEEDS, 50):
            async with asyncio.TaskGroup() as attempts:
                for seed in range(first, min(first + 50, SEEDS)):
                    attempts.create_task(attempt(at, seed))
    print(dict(outcomes))
    assert outcomes["in good order"] > 0 and outcomes["MALFORMED_FRAME"] > 0


async def test_bytes_of_other_protocols_are_refused(process: BrokerProcess) -> None:
    random = Random(4)
    async with bystander(process):
        port = await wire_port(process)
        for first in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\xff" * 100_000,
        ):
            wire = await RawWire.open(port)
            await wire.write(first)
            found = await wire.end()
            assert isinstance(found, comet.RecordTooLarge | comet.MalformedFrame), (first[:20], found)
            wire.close()


async def test_connections_that_never_greet_are_closed(process: BrokerProcess) -> None:
    if raise_descriptor_limit() < 4 * IDLE:
        pytest.skip(f"{IDLE} connections need more file descriptors than there are")
    async with bystander(process) as rounds, AsyncExitStack() as stack:
        port = await wire_port(process)
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(IDLE)]
        for number, connection in enumerate(silent):
            connection.sendall(HELLO[: number % len(HELLO)])  # of each length, never whole
            connection.setblocking(False)
        known = rounds()
        assert await until(lambda: rounds() >= known + ROUNDS, within_s=30, every_s=0.005)

        def is_closed(connection: socket.socket) -> bool:
            try:
                assert not connection.recv(1, socket.MSG_PEEK), "a broker says nothing before the Hello"
                return not connection.recv(1)
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        assert await until(lambda: all(map(is_closed, silent)), within_s=wire_connection.HELLO_S + 20)


async def test_a_client_whose_answers_are_not_read_is_not_read_either(process: BrokerProcess) -> None:
    async with bystander(process):
        wire = await RawWire.open(await wire_port(process))
        await wire.write(HELLO)
        pings = data(pb.ClientFrame(request=5, ping=pb.Ping())) * 10_000

        async def flood() -> None:
            for _ in range(300):
                await wire.write(pings)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 5)
        wire.close()


async def test_subscribers_that_stop_reading_cost_bounded_memory(process: BrokerProcess) -> None:
    value = bytes(64 << 10)
    async with comet.Admin(process.address) as admin:
        await admin.create_topic("t", flush="os", segment_bytes=16 << 20, retention_bytes=64 << 20)
    port = await wire_port(process)
    wires = [await RawWire.open(port) for _ in range(SUBSCRIBERS)]
    for wire in wires:
        await wire.write(HELLO + data(pb.ClientFrame(request=1, attach=pb.Attach(topic="t"))))
        attached = None
        while attached is None:
            found = await wire.read()
            assert found is not None
            if found[0] == framing.DATA:
                attached = pb.ServerFrame.FromString(found[1]).attached.partition
        start = pb.Start(partition=attached, position=types.Position(latest=True))
        subscribe = pb.Subscribe(subscription=1, starts=[start], credit=limits.CREDIT_BYTES_MAX)
        await wire.write(data(pb.ClientFrame(request=2, subscribe=subscribe)))
    before, stop = process.resident_bytes(), asyncio.Event()
    watching = asyncio.create_task(highest_resident_bytes(process, stop))
    async with comet.Producer(process.address) as producer:
        for _ in range(PRODUCED_BYTES // len(value)):
            await producer.send("t", value)
        await producer.flush()
    async with comet.Admin(process.address) as admin:
        sessions = (await admin.statistics())["sessions"]
    assert max(one["sent_bytes"] for one in sessions) < PRODUCED_BYTES // 4
    stop.set()
    growth = await watching - before
    assert growth < GROWTH_BYTES_MAX, f"grew by {growth >> 20} MiB for {SUBSCRIBERS} subscribers that do not read"
    for wire in wires:
        wire.close()


async def test_unfinished_frames_are_shed(small: BrokerProcess) -> None:
    """The oldest first, so that those of clients that send on are not among them."""
    async with publishing(small):
        port = await wire_port(small)
        wires = [await RawWire.open(port) for _ in range(64)]
        for wire in wires:
            await wire.write(HELLO + framing.head(FRAME_BYTES) + bytes(FRAME_BYTES - 1))
        room = int(limits.UNFINISHED_SHARE * (256 << 20)) // FRAME_BYTES
        async with asyncio.timeout(30):
            ended = await asyncio.gather(*(wire.end() for wire in wires[:-room]))
        assert all(isinstance(one, LimitExceeded) and one.retriable for one in ended), Counter(map(str, ended))
        await wires[-1].write(b"\0")  # the last one is finished, and answered
        while (found := await wires[-1].read()) is not None and found[0] != framing.DATA:
            pass
        assert found is not None
        for wire in wires:
            wire.close()
