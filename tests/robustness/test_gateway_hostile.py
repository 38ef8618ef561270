"""Clients of the gateway that send garbage, stop reading, or vanish: a typed answer, and no harm to anyone else."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest
import websockets

import comet
from tests.robustness.gateway_process import GatewayProcess
from tests.robustness.hostile_sockets import ABUSES, BINARY, CLOSE, PING, TEXT, Sockets, frame, handshake
from tests.robustness.process import broker
from tests.waiting import pace, until

HARM_BYTES_MAX = 150 << 20  # what all the abuse of all tests may add to the gateway's memory
PONG_BYTES_MAX = 20 << 20  # of 60 MB of pongs
PATIENCE_S = 10.0
ROUNDS_MIN = 20


@contextmanager
def serving(folder: Path) -> Iterator[GatewayProcess]:
    with broker(folder / "data") as running:
        one = GatewayProcess(folder / "gateway", [running.address])
        one.launch()

        async def prepare() -> None:
            async with comet.Admin(running.address) as admin:
                await admin.create_topic("good", flush="os")
                await admin.create_topic("big", flush="os")
            await one.ready()

        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(prepare())
            yield one
        finally:
            one.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with serving(tmp_path_factory.mktemp("shared")) as one:
        yield one


@pytest.fixture
def gateway(shared: GatewayProcess) -> Iterator[GatewayProcess]:
    """One for all tests, with its broker."""
    yield shared
    assert not shared.complaints(), shared.said()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[GatewayProcess]:
    """For a test that measures little memory: what others have freed would hide it."""
    with serving(tmp_path) as one:
        yield one
        assert not one.complaints(), one.said()


@pytest.fixture
async def sockets(gateway: GatewayProcess) -> AsyncIterator[Sockets]:
    opened = Sockets(gateway.port)
    yield opened
    await opened.close()


def connections(gateway: GatewayProcess) -> int:
    """TCP connections that the gateway holds open to clients."""
    return sum(
        one.status == psutil.CONN_ESTABLISHED and one.laddr.port == gateway.port
        for one in psutil.Process(gateway.pid).net_connections("tcp")
    )


@asynccontextmanager
async def bystander(gateway: GatewayProcess) -> AsyncIterator[None]:
    """A producer and a subscriber that must not notice anything; and a gateway that must neither grow nor leak."""
    stop = asyncio.Event()
    address = gateway.url.replace("http", "ws", 1) + "/v1/ws"
    async with comet.Producer(gateway.broker) as producer, websockets.connect(address) as subscriber:
        await subscriber.send(json.dumps({"type": "subscribe", "id": "mine", "topic": "good"}))
        while json.loads(await subscriber.recv())["type"] != "subscribed":
            pass

        async def work() -> int:
            sent = 0
            while not stop.is_set() or sent < ROUNDS_MIN:
                async with asyncio.timeout(PATIENCE_S):
                    receipt = await producer.publish("good", f"number {sent}")
                    heard = json.loads(await subscriber.recv())
                    while heard["type"] == "pong":
                        heard = json.loads(await subscriber.recv())
                assert heard["type"] == "records" and heard["id"] == "mine", heard
                assert [(one["offset"], one["text"]) for one in heard["records"]] == [
                    (str(receipt.offset), f"number {sent}")
                ]
                sent += 1
                await pace(0.002)
            return sent

        working = asyncio.create_task(work())
        try:
            yield
        finally:
            stop.set()
        assert await working >= ROUNDS_MIN
        assert await until(lambda: connections(gateway) <= 1, within_s=30), (
            f"{connections(gateway)} are still connected"
        )
    assert gateway.memory() - gateway.ready_bytes < HARM_BYTES_MAX


@pytest.mark.parametrize("name", ABUSES)
async def test_abuse_of_a_websocket_disturbs_nobody(gateway: GatewayProcess, sockets: Sockets, name: str) -> None:
    random = Random(name)
    async with bystander(gateway):
        for _ in range(20):
            one = await sockets.opened()
            for _ in range(random.randrange(1, 4)):
                await one.write(ABUSES[name](random))
            match random.randrange(3):
                case 0:
                    one.abort()
                case 1:
                    one.writer.close()
                case _:
                    one.end()
                    await one.closed()
                    one.writer.close()


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        (frame(b"x" * 100, opcode=BINARY), {1003}),
        (frame(b"x", length=(1 << 63) - 1), {1009}),
        (frame(b"x" * (3 << 20)), {1009, 1006}),  # what is not read may reset the connection before its code is
        (frame(b"\xff\xfe"), {1007}),
        (frame(b"{}", masked=False), {1002}),
        (frame(b"x", opcode=3), {1002}),
        (frame(b"x", opcode=0), {1002}),
    ],
    ids=["binary", "endless", "huge", "not UTF-8", "not masked", "reserved", "continuation"],
)  # fmt: skip
async def test_what_ends_a_connection_has_its_close_code(sockets: Sockets, sent: bytes, codes: set[int]) -> None:
    one = await sockets.opened()
    await one.write(sent)
    assert await one.closed() in codes


@pytest.mark.parametrize(
    "sent",
    [b"no JSON", b"{", b"[]", b"1", b'{"type":"odd"}', b'{"type":"permit","id":"none","count":1}', b"[" * 100_000],
    ids=["text", "cut", "list", "number", "type", "nobody's", "deep"],
)
async def test_a_frame_that_makes_no_sense_is_answered_and_the_next_one_is_served(
    sockets: Sockets, sent: bytes
) -> None:
    one = await sockets.opened()
    await one.write(frame(sent))
    await one.say(type="ping", id="after")
    heard: list[dict[str, object]] = []
    while not heard or heard[-1]["type"] not in {"pong", "closed"}:
        opcode, payload = await one.hear()
        heard.append(json.loads(payload) if opcode == TEXT else {"type": "closed", "payload": payload})
    kinds = [told["type"] for told in heard if told["type"] != "welcome"]
    assert kinds == ["error", "pong"], heard


async def test_half_a_handshake_and_half_a_frame_are_given_up(gateway: GatewayProcess, sockets: Sockets) -> None:
    async with bystander(gateway):
        halves = []
        for size in (1, 20, 100):
            one = await sockets.connect()
            await one.write(handshake(gateway.port)[:size])
            halves.append(one)
        for size in (1, 3, 6):
            one = await sockets.opened()
            await one.write(frame(b'{"type":"ping","id":"x"}')[:size])
            halves.append(one)
        for one in halves:
            one.abort()


async def test_a_frame_that_comes_a_byte_at_a_time_is_understood(sockets: Sockets) -> None:
    one = await sockets.opened()
    for byte in frame(b'{"type":"ping","id":"slow"}'):
        await one.write(bytes([byte]))
        await asyncio.sleep(0)
    told = {"type": ""}
    while told["type"] != "pong":
        opcode, payload = await one.hear()
        assert opcode == TEXT
        told = json.loads(payload)


async def test_subscribers_that_stop_reading_cost_their_cursor_and_no_more(
    gateway: GatewayProcess, sockets: Sockets
) -> None:
    async with bystander(gateway), comet.Producer(gateway.broker) as producer:
        stuck = []
        for number in range(40):
            one = await sockets.connect()
            one.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if number % 3:
                one.writer.write(handshake(gateway.port))
                await one.reader.readuntil(b"\r\n\r\n")
                if number % 3 == 1:
                    await one.say(type="subscribe", id="x", topic="big", start="earliest")
                else:
                    await one.say(type="subscribe", id="x", page="/topics/big")
                    await one.say(type="subscribe", id="y", channel="tail", params={"topic": "big"})
            else:
                path = "/v1/topics/big/stream?start=earliest"
                one.writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n\r\n".encode())
            one.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stuck.append(one)
        for _ in range(60):
            await (await producer.send_many("big", [b"x" * 1_000] * 2_000))
        for one in stuck:
            one.abort()


async def test_pongs_that_are_not_read_do_not_pile_up(fresh: GatewayProcess) -> None:
    sockets = Sockets(fresh.port)
    one = await sockets.connect()
    one.writer.write(handshake(fresh.port))
    await one.reader.readuntil(b"\r\n\r\n")
    await one.say(type="ping")  # a connection without a frame is closed
    one.writer.transport.pause_reading()  # type: ignore[attr-defined]
    before = fresh.memory()
    pings = frame(b"x" * 125, opcode=PING) * 8_000  # 1 MB
    for _ in range(60):
        await one.write(pings)
    assert fresh.memory() - before < PONG_BYTES_MAX
    await one.write(frame(b"the last", opcode=PING))
    one.writer.transport.resume_reading()  # type: ignore[attr-defined]
    heard = b""
    while heard != b"the last":
        opcode, heard = await one.hear(PATIENCE_S)
        assert opcode != CLOSE
    await sockets.close()


async def test_connections_that_vanish_leave_nothing_behind(gateway: GatewayProcess, sockets: Sockets) -> None:
    async with bystander(gateway):
        for _ in range(100):
            one = await sockets.opened()
            await one.say(type="subscribe", id="x", topic="good", start="earliest")
            await one.say(type="subscribe", id="y", page="/topics")
            await one.say(type="subscribe", id="z", channel="tail", params={"topic": "good"})
            reset = struct.pack("ii", 1, 0)
            one.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            one.abort()
