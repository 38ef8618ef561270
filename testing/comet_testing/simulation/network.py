"""A network in memory, between clients, brokers and the metadata store: seeded delay, stalls, partitions, cuts.

    SimChannel.stream() ──► Link ── up   (client to broker) ──► Session.receive      in the broker's node
                                 └─ down (broker to client) ◄── StreamWriter.next_frame   in the broker's node
    SimPeerChannel.replicate()      the same between two brokers, with a ReplicaSession
    wire.SimWireStream              either of them over the wire's own code, and bytes

Each end has a name: a client its own, a broker its address. A way from one name to another can be blocked: what is
sent waits until it is open again. Neither end is told; only a keepalive stays unanswered.

Frames of one direction keep their order, as in TCP. Each direction holds at most WINDOW_BYTES that the other side
has not taken, as HTTP/2 does; beyond that the sender waits. A link that is cut loses an arbitrary suffix of what
was under way, in each direction on its own. A link that hangs is noticed after `keepalive_s` by the broker's end; the
client's end hears of that once something gets through. One that has died silently, as where a firewall forgets it, is
noticed by TCP after TCP_GIVES_UP_S. `keepalive_s` is gRPC's: a link of the wire has the call's own heartbeats only.

The network belongs to no node: what was sent arrives even when the sender has died meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from comet.errors import CometError, Timeout, Unavailable
from comet.wire.protobuf import error_from_pb, error_to_pb
from comet_broker.rpc.methods import Endpoint, Method
from comet_testing.simulation.link import KEEPALIVE_S, Link, Tap, Way
from comet_testing.simulation.loop import Node, SimLoop
from comet_testing.simulation.wire import SimWireListener, SimWireStream, WireLink

REFUSED_S_MAX: Final = 2.0  # how long it takes to learn that a machine is not there
CONNECT_S_MAX: Final = 5.0
PROBE_S_MAX: Final = 1.0  # as rpc.network has it


@dataclass(slots=True)
class Weather:
    """What links are like at the moment; faults change it."""

    delay_s_max: float = 0.002


class Gate(Protocol):
    """Refuses requests of clients before they are sent."""

    def refused_frame(self, way: Way, frame: bytes) -> bytes | None: ...
    def answered(self, way: Way, frame: bytes) -> None: ...
    def refused_call(self, way: Way, path: str, request: Message) -> CometError | None: ...


class Listener:
    """One incarnation of a broker on its address."""

    def __init__(self, node: Node, broker: Endpoint) -> None:
        self.node = node
        self.broker = broker
        self.methods: dict[str, Method] = {method.path: method for method in broker.methods}
        self.links: dict[Link | WireLink, None] = {}
        self.calls: dict[asyncio.Future[Message], None] = {}
        self.closed = False

    @cached_property
    def wire(self) -> SimWireListener:
        found = SimWireListener(self.broker)
        self.node.spawn(found.tick(), "looks after the wire")
        return found


class Network:
    """All addresses and links. `random` decides every delay."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.random = random
        self.keepalive_s = KEEPALIVE_S
        self.wires = 0.0  # the share of streams that are over the wire
        self.wire_random = Random(0)  # which of them; apart, so that a seed without the wire stays what it was
        self.complaints: list[str] = []
        self.weather = Weather()
        self.tap: Tap | None = None
        self.gate: Gate | None = None
        self._loop = loop
        self._context = copy_context()  # no node's
        self._listeners: dict[str, Listener] = {}
        self._dark: set[str] = set()  # addresses whose machine is off
        self._blocked: dict[Way, list[Callable[[], object]]] = {}  # and what waits for the way to open

    # ---- for pipes and links

    def now(self) -> float:
        return self._loop.time()

    def delay(self) -> float:
        return self.random.random() ** 3 * self.weather.delay_s_max

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        self._loop.call_later(seconds, callback, context=self._context)

    # ---- partitions

    def block(self, source: str, target: str) -> None:
        """Nothing sent from one to the other arrives until `open_all`, or `unblock`."""
        self._blocked.setdefault((source, target), [])
        for link in self.links():
            if isinstance(link, Link) and {link.client, link.address} == {source, target}:
                self.later(self.keepalive_s, lambda link=link: self._give_up(link))  # type: ignore[misc]

    def unblock(self, source: str, target: str) -> None:
        for callback in self._blocked.pop((source, target), ()):
            self.later(self.delay(), callback)

    def open_all(self) -> None:
        for way in list(self._blocked):
            self.unblock(*way)

    def blocks(self, way: Way, callback: Callable[[], object]) -> bool:
        """Whether a way is blocked; then calls back when it is open again."""
        waiting = self._blocked.get(way)
        if waiting is None:
            return False
        waiting.append(callback)
        return True

    def when_open(self, way: Way, callback: Callable[[], object]) -> None:
        if not self.blocks(way, lambda: self.when_open(way, callback)):
            callback()

    async def travel(self, source: str, target: str) -> None:
        """The time that a message takes, or for ever."""
        await asyncio.sleep(self.delay())
        while (source, target) in self._blocked:
            opened = asyncio.get_running_loop().create_future()
            self.blocks((source, target), lambda opened=opened: opened.done() or opened.set_result(None))  # type: ignore[misc]
            await opened

    def _give_up(self, link: Link) -> None:
        if (link.client, link.address) in self._blocked or (link.address, link.client) in self._blocked:
            link.abandon("no answer to a keepalive ping")

    # ---- for brokers

    def listen(self, address: str, node: Node, broker: Endpoint) -> Listener:
        assert address not in self._listeners, f"{address} is taken"
        listener = self._listeners[address] = Listener(node, broker)
        self._dark.discard(address)
        return listener

    def power_on(self, address: str) -> None:
        """The machine answers again, if only with a refusal."""
        self._dark.discard(address)

    def unlisten(self, address: str, *, silent: bool) -> None:
        """The process is gone. `silent`: its machine too, so that no end is told."""
        if silent:
            self._dark.add(address)
        listener = self._listeners.pop(address, None)
        if listener is None:
            return
        listener.closed = True
        for link in list(listener.links):
            if silent and isinstance(link, WireLink):
                link.vanish()
            elif silent:
                self.later(self.random.uniform(0.1, self.keepalive_s), lambda link=link: link.cut("silence"))  # type: ignore[misc]
                link.stall(self.keepalive_s * 2, up=True, down=False)
            else:
                link.abandon("the broker's process is gone")
        for call in list(listener.calls):
            if not silent and not call.done():
                call.set_exception(Unavailable("the connection was lost while waiting for the answer"))
        listener.calls.clear()

    def forsake(self, client: str, *, silent: bool) -> None:
        """The process that made these links is gone; `silent` as above."""
        for link in self.links():
            if link.client != client:
                continue
            if silent and isinstance(link, WireLink):
                link.vanish()
            elif silent:
                self.later(self.random.uniform(0.1, self.keepalive_s), lambda link=link: link.cut("silence"))  # type: ignore[misc]
            else:
                link.cancel("the client's process is gone")

    def listener(self, address: str) -> Listener | None:
        return self._listeners.get(address)

    def links(self) -> list[Link | WireLink]:
        return [link for listener in self._listeners.values() for link in listener.links]

    # ---- for clients, and for brokers that call others

    def connect(self, client: str) -> Callable[[str], SimChannel]:
        """comet.wire.transport.Connect for one client."""
        return lambda address: SimChannel(self, client, address)

    async def reach(self, client: str, address: str) -> Listener:
        """The listener at an address, after the time it takes to reach it."""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await self.travel(client, address)
                await self.travel(address, client)
        except TimeoutError:
            raise Unavailable(f"{address} does not answer") from None
        listener = self._listeners.get(address)
        if listener is None:
            await asyncio.sleep(self.random.random() ** 3 * REFUSED_S_MAX)
            raise Unavailable(f"{address} refused the connection")
        return listener

    async def refused(self, client: str, address: str) -> bool:
        """Whether a machine refuses connections there; one that is silent says nothing."""
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                await self.travel(client, address)
                if address in self._dark:
                    await asyncio.sleep(PROBE_S_MAX)
                refused = address not in self._listeners
                await self.travel(address, client)
        except TimeoutError:
            return False
        return refused


class PeerNetwork:
    """ports.Network of one broker."""

    def __init__(self, network: Network, own_address: str) -> None:
        self._network = network
        self._own = own_address

    def connect(self, address: str) -> SimPeerChannel:
        return SimPeerChannel(self._network, self._own, address)

    async def refused(self, address: str) -> bool:
        return await self._network.refused(self._own, address)


class SimStream:
    """comet.wire.transport.Stream."""

    def __init__(self, network: Network, client: str, address: str, *, replica: bool = False) -> None:
        self._link = Link(network, client, address, replica=replica)
        self._network = network
        self._address = address
        self._opening: asyncio.Task[None] | None = None

    async def write(self, frame: bytes) -> None:
        self._open()
        link, gate = self._link, self._network.gate
        answer = None if gate is None or link.replica else gate.refused_frame((link.client, link.address), frame)
        if answer is None:
            await link.up.put(bytes(frame))
        else:
            link.down.inject(answer)

    async def read(self) -> bytes | None:
        self._open()
        link, gate = self._link, self._network.gate
        frame = await link.down.get()
        if gate is not None and frame is not None and not link.replica:
            gate.answered((link.address, link.client), frame)
        return frame

    def cancel(self) -> None:
        self._link.cancel("cancelled by the client")

    def _open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect(), name="connects")

    async def _connect(self) -> None:
        link = self._link
        try:
            listener = await self._network.reach(link.client, self._address)
        except CometError as error:
            link.refuse(error)
            return
        if listener.closed or link.gone:
            link.cut("the broker went away while the connection was made")
            return
        link.listener = listener
        listener.links[link] = None
        listener.node.spawn(link.serve(listener.broker), f"serves {link.client}")


class SimChannel:
    """comet.wire.transport.Channel."""

    def __init__(self, network: Network, client: str, address: str) -> None:
        self._network = network
        self._client = client
        self._address = address
        self._streams: list[SimStream | SimWireStream] = []

    def stream(self) -> SimStream | SimWireStream:
        return self._new_stream(replica=False)

    def _new_stream(self, *, replica: bool) -> SimStream | SimWireStream:
        network = self._network
        kind = SimWireStream if network.wires and network.wire_random.random() < network.wires else SimStream
        stream = kind(network, self._client, self._address, replica=replica)
        self._streams = [*self._streams[-15:], stream]
        return stream

    async def unary(
        self, method: str, request: Message, response: type[Message], timeout_s: float, acting: Any = None
    ) -> Message:
        gate = self._network.gate
        try:
            async with asyncio.timeout(timeout_s):
                way = (self._client, self._address)
                refused = None if gate is None else gate.refused_call(way, method, request)
                if refused is not None:
                    await self._network.travel(self._address, self._client)
                    raise refused
                return await self._call(method, request.SerializeToString(), response)
        except TimeoutError:
            raise Timeout(f"{method} was not answered within {timeout_s} s") from None

    async def _call(self, path: str, request: bytes, response: type[Message]) -> Message:
        if self._network.tap is not None:
            self._network.tap.sent((self._client, self._address), path, request)
        listener = await self._network.reach(self._client, self._address)
        if listener.closed:
            raise Unavailable("the broker went away while the connection was made")
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        listener.calls[answer] = None
        complain = self._network.complaints.append
        listener.node.spawn(_answer(listener.methods[path], request, answer, complain), path)
        try:
            message = await answer
        except CometError:
            await self._network.travel(self._address, self._client)
            raise
        finally:
            listener.calls.pop(answer, None)
        await self._network.travel(self._address, self._client)
        return response.FromString(message.SerializeToString())

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()


class SimPeerChannel(SimChannel):
    """ports.PeerChannel."""

    async def replicate(self, _: object) -> SimStream | SimWireStream:
        return self._new_stream(replica=True)


async def _answer(method: Method, request: bytes, answer: asyncio.Future[Any], complain: Callable[[str], None]) -> None:
    """Runs one unary call in the broker's node; an error crosses the wire as the real one does."""
    task = asyncio.current_task()
    assert task is not None
    try:
        message = await method(method.request.FromString(request))
    except asyncio.CancelledError:
        if not task.cancelling():
            complain(f"{method.path} was cancelled by what it waits for, and not answered")
        raise
    except CometError as error:
        if not answer.done():
            answer.set_exception(error_from_pb(error_to_pb(error)))
    else:
        if not answer.done():
            answer.set_result(message)
