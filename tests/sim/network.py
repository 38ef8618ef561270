"""A network in memory, between clients and brokers: seeded delay, stalls, half-open links, cuts.

    SimChannel.stream() ──► Link ── up   (client to broker) ──► Session.receive      in the broker's node
                                 └─ down (broker to client) ◄── Session.next_frame   in the broker's node

Frames of one direction keep their order, as in TCP. Each direction holds at most WINDOW_BYTES that the other side
has not taken, as HTTP/2 does; beyond that the sender waits. A link that is cut loses an arbitrary suffix of what
was under way, in each direction on its own. A link that hangs is noticed after KEEPALIVE_S by both sides.

The network belongs to no node: what was sent arrives even when the sender has died meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from google.protobuf.message import Message

from comet._wire import error_from_pb, error_to_pb
from comet.errors import CometError, Timeout, Unavailable
from comet_broker.api import Method, methods
from comet_broker.broker import Broker
from comet_broker.session import Session
from tests.sim.loop import Node, SimLoop

WINDOW_BYTES: Final = 256 << 10  # one direction of one stream; smaller than real, so that it fills
KEEPALIVE_S: Final = 30.0  # ping every 20 s, wait 10 s for the answer
REFUSED_S_MAX: Final = 2.0  # how long it takes to learn that a machine is not there


@dataclass(slots=True)
class Weather:
    """What links are like at the moment; faults change it."""

    delay_s_max: float = 0.002


class Pipe:
    """One direction of one link."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._under_way: deque[bytes] = deque()
        self._arrived: deque[bytes] = deque()
        self._held_bytes = 0
        self._ended = False  # the sender said that nothing more comes
        self._broken: CometError | None = None
        self._stalled_until = 0.0
        self._waiters: list[asyncio.Future[None]] = []

    async def put(self, frame: bytes) -> None:
        while self._broken is None and self._held_bytes >= WINDOW_BYTES:
            await self._change()
        if self._broken is not None:
            raise self._broken
        self._under_way.append(frame)
        self._held_bytes += len(frame)
        self._network.later(self._network.delay(), self._arrive)

    async def get(self) -> bytes | None:
        """The next frame; None at the end."""
        while not self._arrived:
            if self._broken is not None:
                raise self._broken
            if self._ended and not self._under_way:
                return None
            await self._change()
        frame = self._arrived.popleft()
        self._held_bytes -= len(frame)
        self._changed()
        return frame

    def end(self) -> None:
        self._ended = True
        self._network.later(self._network.delay(), self._changed)

    def stall(self, until: float) -> None:
        self._stalled_until = max(self._stalled_until, until)

    def sever(self, error: CometError, arriving: int) -> None:
        """The link is gone: the first `arriving` frames under way still got through, the rest did not."""
        if self._broken is not None:
            return
        for _ in range(min(arriving, len(self._under_way))):
            self._arrived.append(self._under_way.popleft())
        self._under_way.clear()
        self._broken = error
        self._changed()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def _arrive(self) -> None:
        if not self._under_way:
            return  # severed meanwhile
        wait = self._stalled_until - self._network.now()
        if wait > 0:
            self._network.later(wait, self._arrive)
            return
        self._arrived.append(self._under_way.popleft())
        self._changed()

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Link:
    """One StreamEvents call between a client and one incarnation of a broker."""

    def __init__(self, network: Network, client: str) -> None:
        self.client = client
        self.up = Pipe(network)
        self.down = Pipe(network)
        self.gone = False
        self.listener: Listener | None = None
        self.session: Session | None = None
        self._network = network

    def cut(self, why: str, *, downward_too: bool = True) -> None:
        """Ends the link abruptly. What was under way arrives up to a random point."""
        if self.gone:
            return
        self.gone = True
        error = Unavailable(f"the connection was lost: {why}")
        self.up.sever(error, self._network.random.randint(0, self.up.under_way))
        self.down.sever(error, self._network.random.randint(0, self.down.under_way) if downward_too else 0)
        if self.listener is not None:
            self.listener.links.pop(self, None)

    def refuse(self, error: CometError) -> None:
        """The broker ended the call with a status; all it said before arrives first."""
        if not self.gone:
            self.gone = True
            self.up.sever(error, 0)
            self.down.sever(error, self.down.under_way)
            if self.listener is not None:
                self.listener.links.pop(self, None)

    def stall(self, seconds: float, *, up: bool, down: bool) -> None:
        """Nothing gets through for a while; beyond the keepalive the link breaks."""
        until = self._network.now() + seconds
        if up:
            self.up.stall(until)
        if down:
            self.down.stall(until)
        if seconds > KEEPALIVE_S:
            self._network.later(KEEPALIVE_S, lambda: self.cut("no answer to a keepalive ping"))

    async def serve(self, broker: Broker) -> None:
        """The broker's side, as rpc.service does it; runs in the broker's node."""
        try:
            session = broker.open_session(self.client)
        except CometError as error:
            self.refuse(error)
            return
        self.session = session
        writer = asyncio.get_running_loop().create_task(self._write(session), name=f"writes to {self.client}")
        try:
            await self._read(session)
        except CometError:
            pass  # cut
        finally:
            session.close()
            writer.cancel()
            self.down.end()

    async def _read(self, session: Session) -> None:
        while not session.closed and (frame := await self.up.get()) is not None:
            session.receive(frame)
            if session.backlogged:
                await session.relieved()

    async def _write(self, session: Session) -> None:
        try:
            while (frame := await session.next_frame()) is not None:
                await self.down.put(frame)
        except CometError:
            session.close()


class Listener:
    """One incarnation of a broker on its address."""

    def __init__(self, node: Node, broker: Broker) -> None:
        self.node = node
        self.broker = broker
        self.methods: dict[str, Method] = {method.path: method for method in methods(broker)}
        self.links: dict[Link, None] = {}
        self.calls: dict[asyncio.Future[Message], None] = {}
        self.closed = False


class Network:
    """All addresses and links. `random` decides every delay."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.random = random
        self.weather = Weather()
        self._loop = loop
        self._context = copy_context()  # no node's
        self._listeners: dict[str, Listener] = {}

    # ---- for pipes and links

    def now(self) -> float:
        return self._loop.time()

    def delay(self) -> float:
        return self.random.random() ** 3 * self.weather.delay_s_max

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        self._loop.call_later(seconds, callback, context=self._context)

    # ---- for brokers

    def listen(self, address: str, node: Node, broker: Broker) -> Listener:
        assert address not in self._listeners, f"{address} is taken"
        listener = self._listeners[address] = Listener(node, broker)
        return listener

    def unlisten(self, address: str, *, silent: bool) -> None:
        """The process is gone. `silent`: its machine too, so that nobody tells the clients."""
        listener = self._listeners.pop(address, None)
        if listener is None:
            return
        listener.closed = True
        for link in list(listener.links):
            if silent:
                self.later(self.random.uniform(0.1, KEEPALIVE_S), lambda link=link: link.cut("silence"))  # type: ignore[misc]
                link.stall(KEEPALIVE_S * 2, up=True, down=False)
            else:
                link.cut("the broker's process is gone")
        for call in list(listener.calls):
            if not call.done():
                call.set_exception(Unavailable("the connection was lost while waiting for the answer"))
        listener.calls.clear()

    def listener(self, address: str) -> Listener | None:
        return self._listeners.get(address)

    def links(self) -> list[Link]:
        return [link for listener in self._listeners.values() for link in listener.links]

    # ---- for clients

    def connect(self, client: str) -> Callable[[str], SimChannel]:
        """comet._transport.Connect for one client."""
        return lambda address: SimChannel(self, client, address)

    async def reach(self, address: str) -> Listener:
        """Who listens there, after the time it takes to find out."""
        await asyncio.sleep(2 * self.delay())
        listener = self._listeners.get(address)
        if listener is None:
            await asyncio.sleep(self.random.random() ** 3 * REFUSED_S_MAX)
            raise Unavailable(f"nobody answers at {address}")
        return listener


class SimStream:
    """comet._transport.Stream."""

    def __init__(self, network: Network, client: str, address: str) -> None:
        self._link = Link(network, client)
        self._network = network
        self._address = address
        self._opening: asyncio.Task[None] | None = None

    async def write(self, frame: bytes) -> None:
        self._open()
        await self._link.up.put(bytes(frame))

    async def read(self) -> bytes | None:
        self._open()
        return await self._link.down.get()

    def cancel(self) -> None:
        self._link.cut("cancelled by the client", downward_too=False)

    def _open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect(), name="connects")

    async def _connect(self) -> None:
        try:
            listener = await self._network.reach(self._address)
        except CometError as error:
            self._link.refuse(error)
            return
        if listener.closed or self._link.gone:
            self._link.cut("the broker went away while the connection was made")
            return
        self._link.listener = listener
        listener.links[self._link] = None
        listener.node.spawn(self._link.serve(listener.broker), f"serves {self._link.client}")


class SimChannel:
    """comet._transport.Channel."""

    def __init__(self, network: Network, client: str, address: str) -> None:
        self._network = network
        self._client = client
        self._address = address
        self._streams: list[SimStream] = []

    def stream(self) -> SimStream:
        stream = SimStream(self._network, self._client, self._address)
        self._streams = [*self._streams[-15:], stream]
        return stream

    async def unary(self, method: str, request: Message, response: type[Message], timeout_s: float) -> Message:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(method, request.SerializeToString(), response)
        except TimeoutError:
            raise Timeout(f"{method} was not answered within {timeout_s} s") from None

    async def _call(self, path: str, request: bytes, response: type[Message]) -> Message:
        listener = await self._network.reach(self._address)
        if listener.closed:
            raise Unavailable("the broker went away while the connection was made")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        listener.calls[answer] = None
        listener.node.spawn(_answer(listener, listener.methods[path], request, answer), path)
        try:
            message = await answer
        finally:
            listener.calls.pop(answer, None)
        await asyncio.sleep(self._network.delay())
        return response.FromString(message.SerializeToString())

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()


async def _answer(listener: Listener, method: Method, request: bytes, answer: asyncio.Future[Any]) -> None:
    """Runs one unary call in the broker's node; an error crosses the wire as the real one does."""
    try:
        message = await method(method.request.FromString(request))
    except CometError as error:
        if not answer.done():
            answer.set_exception(error_from_pb(error_to_pb(error)))
    else:
        if not answer.done():
            answer.set_result(message)
