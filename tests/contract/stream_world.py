"""A broker with scripted streams, behind each transport that a Stream may be over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, Final, Protocol

import grpc.aio

from comet.errors import CometError
from comet.v1 import wire_pb2
from comet.wire import framing
from comet.wire.frames import Frame
from comet.wire.grpc_channel import GrpcChannel, GrpcStream
from comet.wire.transport import Stream
from comet.wire.wire_stream import STREAM_CALL, WireStream
from comet_broker.memory.in_flight import InFlight
from comet_broker.rpc.audience import Audience
from comet_broker.rpc.service import handlers
from comet_broker.rpc.wire_listener import WireListener
from comet_broker.server import CHANNEL_OPTIONS
from comet_broker.streams.answers import AnswerQueue
from comet_broker.streams.stream_writer import StreamWriter
from comet_testing.simulation.loop import Node, SimLoop
from comet_testing.simulation.network import Network, SimStream
from comet_testing.simulation.wire import SimWireStream
from tests.link import Link

MESSAGE_BYTES_MAX: Final = 1 << 20  # of the broker
SOCKETS_BYTES_MAX: Final = 48 << 20  # there is a proxy between them, with two buffers of sockets on each side
ADDRESS: Final = "10.0.0.1:9092"


class ScriptedSession:
    """streams.stream_writer.ServedStream: keeps what comes, and sends what a test says."""

    def __init__(self, in_flight: InFlight) -> None:
        self.writer = StreamWriter(self._poll, over=self._is_over, close=self.close)
        self.answers = AnswerQueue(self.writer.rouse, in_flight)
        self.received: list[bytes] = []
        self.refuses: CometError | None = None  # the next frame
        self.closed = False
        self.pause: Callable[[], Awaitable[None]] | None = None
        self.source: deque[bytes] = deque()  # sent when the transport has room
        self._input_over = False

    def send(self, *frames: bytes) -> None:
        self.source.extend(frames)
        self.writer.rouse()

    def hold(self) -> asyncio.Event:
        """Nothing more is read until the event is set."""
        event = asyncio.Event()

        async def released() -> None:
            await event.wait()
            self.pause = None

        self.pause = released
        return event

    def receive(self, frame: Frame) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.received.append(bytes(frame))

    def heard(self) -> None:
        return

    def input_over(self) -> None:
        self._input_over = True
        self.writer.rouse()

    def close(self) -> None:
        self.closed = True
        self.answers.close()
        self.writer.rouse()

    def _is_over(self) -> bool:
        return self.closed or (self._input_over and not self.source)

    def _poll(self) -> bytes | None:
        return self.source.popleft() if self.source else None


class ScriptedBroker:
    """rpc.methods.Endpoint."""

    broker_id = 1
    cluster_id = "c"
    message_bytes_max = MESSAGE_BYTES_MAX

    def __init__(self) -> None:
        self.in_flight = InFlight(1 << 30)
        self.quotas: Any = None
        self.methods: list[Any] = []
        self.calls: list[Any] = []
        self.sessions: list[ScriptedSession] = []
        self.refuses: CometError | None = None  # the next stream

    def look_at_memory(self) -> None:
        return

    def open_session(self, *_: Any) -> ScriptedSession:
        if self.refuses is not None:
            raise self.refuses
        self.sessions.append(ScriptedSession(self.in_flight))
        return self.sessions[-1]

    open_replica_session = open_session


class World(Protocol):
    broker: ScriptedBroker
    held_bytes_max: int  # of one direction, what both sides and the system between them may hold

    async def open(self) -> Stream:
        """Raises the error that refuses it, where the transport knows by then."""

    def finish(self, stream: Any) -> Awaitable[None]:
        """The client sends nothing more, and still reads."""

    def cut(self) -> None:
        """The connection is gone."""


class WireWorld:
    held_bytes_max = SOCKETS_BYTES_MAX

    def __init__(self, broker: ScriptedBroker, link: Link) -> None:
        self.broker = broker
        self._link = link

    async def open(self) -> Stream:
        hello = wire_pb2.WireHello(version=framing.VERSION, call=STREAM_CALL)
        return await WireStream.open(self._link.address, hello, None, 10.0)

    async def finish(self, stream: Any) -> None:
        stream.transport.write(framing.end())

    def cut(self) -> None:
        self._link.cut()


class GrpcWorld:
    held_bytes_max = SOCKETS_BYTES_MAX

    def __init__(self, broker: ScriptedBroker, link: Link) -> None:
        self.broker = broker
        self.channel = GrpcChannel(link.address)
        self._link = link

    async def open(self) -> Stream:
        return self.channel.stream()

    async def finish(self, stream: Any) -> None:
        assert isinstance(stream, GrpcStream)
        await stream._call.done_writing()

    def cut(self) -> None:
        self._link.cut()


class SimWorld:
    """The simulated network, frame by frame, or with the wire's own code on bytes."""

    held_bytes_max = 8 << 20

    def __init__(self, broker: ScriptedBroker, *, wire: bool) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.broker = broker
        self.network = Network(loop, Random(1))
        self.network.wires = 1.0 if wire else 0.0
        self.network.listen(ADDRESS, Node(loop, "broker"), broker)

    async def open(self) -> Stream:
        return self.network.connect("client")(ADDRESS).stream()

    async def finish(self, stream: Any) -> None:
        if isinstance(stream, SimWireStream):
            await stream._opened()
            stream._link.up.write(framing.end())
        else:
            assert isinstance(stream, SimStream)
            stream._open()
            stream._link.up.end()

    def cut(self) -> None:
        for link in self.network.links():
            link.cut("the test says so")


@asynccontextmanager
async def wire_world() -> AsyncIterator[World]:
    broker = ScriptedBroker()
    listener = WireListener(broker, Audience(), connections_max=100, memory_bytes=1 << 30)
    port = listener.listen("127.0.0.1", 0, None)
    listener.start()
    try:
        async with Link("127.0.0.1", port) as link:
            yield WireWorld(broker, link)
    finally:
        await listener.close(None)


@asynccontextmanager
async def grpc_world() -> AsyncIterator[World]:
    broker = ScriptedBroker()
    options = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(tuple(handlers(broker, Audience())))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0)
        link = await stack.enter_async_context(Link("127.0.0.1", port))
        world = GrpcWorld(broker, link)
        stack.push_async_callback(world.channel.close)
        yield world


@asynccontextmanager
async def sim_world(*, wire: bool) -> AsyncIterator[World]:
    yield SimWorld(ScriptedBroker(), wire=wire)
