"""One call over the wire on the simulated network: the wire's own code on both sides, and a connection of bytes.

    WireStream ─ SimTransport ══ bytes ══ SimTransport ─ WireConnection ─ session

A connection has the failure modes of TCP. Its bytes keep their order and come in pieces of any size. One that is cut
has delivered a part of what was under way, which may end inside a frame. One that stalls is silent in one direction or
both, and goes on. One that has died swallows what is sent, in one direction or both, and a side that is not told
believes in it: nothing but the heartbeats of the call notices.

What is received is compared with what was sent: each frame is whole, and the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, Final

from comet.v1 import wire_pb2 as pb
from comet.wire.frames import Outgoing, joined
from comet.wire.framing import VERSION
from comet.wire.wire_stream import STREAM_CALL, WireStream
from comet_broker.rpc.audience import Audience
from comet_broker.rpc.methods import Endpoint
from comet_broker.rpc.wire_connection import WireConnection
from comet_broker.rpc.wire_listener import REPLICATE, WireListener
from comet_broker.streams.stream_writer import ServedStream
from comet_testing.simulation.link import TCP_GIVES_UP_S, WINDOW_BYTES, Linked, Way, Ways

CONNECTIONS_MAX: Final = 10_000
MEMORY_BYTES: Final = 1 << 30


class Ordered(dict[Any, None]):
    """A set in the order of insertion, so that a seed is one run."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class SimWireListener(WireListener):
    """The wire of one incarnation of a broker."""

    def __init__(self, broker: Endpoint) -> None:
        super().__init__(broker, Audience(), connections_max=CONNECTIONS_MAX, memory_bytes=MEMORY_BYTES)
        self._open: Any = Ordered()

    def open(self, hello: pb.WireHello, connection: WireConnection) -> ServedStream:
        assert isinstance(connection, SimWireConnection)
        return CheckedSession(super().open(hello, connection), connection.link)

    async def tick(self) -> None:
        await self._tick()


class CheckedSession:
    """A session that gets whole frames only, in order."""

    def __init__(self, session: ServedStream, link: WireLink) -> None:
        self._session = session
        self._link = link

    def receive(self, frame: Any) -> None:
        self._link.sent_up.compare(frame)
        self._session.receive(frame)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class SimWireConnection(WireConnection):
    def __init__(self, host: WireListener, peer: str, link: WireLink) -> None:
        super().__init__(host, peer)
        self.link = link

    async def _write(self, frame: Outgoing) -> None:
        self.link.sent_down.note(joined(frame))
        await super()._write(frame)


class Sent:
    """The frames of one direction that were sent and have not been received."""

    def __init__(self, network: Ways, way: Way) -> None:
        self._network = network
        self._way = way
        self._frames: deque[bytes] = deque()

    def note(self, frame: bytes) -> None:
        self._frames.append(bytes(frame))

    def compare(self, frame: bytes | bytearray) -> None:
        sent = self._frames.popleft() if self._frames else None
        if sent != frame:
            expected = "none was under way" if sent is None else f"the next one sent has {len(sent)}"
            self._network.complaints.append(f"a frame of {len(frame)} bytes came from {self._way[0]}, and {expected}")


class SimTransport(asyncio.Transport):
    """One end of a connection; what is written here arrives at the other."""

    def __init__(self, network: Ways, way: Way, context: Context, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.other: SimTransport | None = None
        self.ended: Callable[[], object] = lambda: None
        self.dead = False  # what is sent from here vanishes
        self.protocol = protocol
        self._network = network
        self._way = way
        self._context = context
        self._sent = bytearray()  # and has not arrived
        self._unread = bytearray()  # has arrived, and reading is paused
        self._stalled_until = 0.0
        self._closing = False  # from this side
        self._lost = False
        self._paused = False  # no reading
        self._full = False
        self._write_max = 64 << 10

    # ---- asyncio.Transport

    def write(self, data: Any) -> None:
        if self._closing or self._lost or not data:
            return
        self._sent += data
        if self.dead:
            return
        self._network.later(self._network.delay(), self._arrive)
        if not self._full and len(self._sent) > WINDOW_BYTES + self._write_max:
            self._full = True
            self.protocol.pause_writing()

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._write_max = high or 0

    def get_write_buffer_size(self) -> int:
        return max(0, len(self._sent) - WINDOW_BYTES)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.call(self._take)
        if self.other is not None:
            self._network.later(0.0, self.other._arrive)

    def close(self) -> None:
        raise NotImplementedError("the wire aborts its connections")

    def abort(self) -> None:
        """What was written arrives up to a random byte."""
        if self._closing:
            return
        self._closing = True
        if self._lost:
            return
        self.lose(None)
        length = self._network.random.randint(0, len(self._sent))
        del self._sent[length:]
        self._network.later(self._network.delay(), self._tell)

    # ---- the network's side

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls in the process at this end, if it lives and runs."""
        asyncio.get_running_loop().call_soon(function, *arguments, context=self._context)

    def stall(self, until: float) -> None:
        self._stalled_until = max(self._stalled_until, until)

    def lose(self, error: Exception | None) -> None:
        """This end is gone."""
        if not self._lost:
            self._lost = True
            self.ended()
            self.call(self._end, error)

    def _held(self, again: Callable[[], object]) -> bool:
        wait = self._stalled_until - self._network.now()
        if wait > 0:
            self._network.later(wait, again)
            return True
        return self._network.blocks(self._way, again)

    def _arrive(self) -> None:
        """Some of what was sent arrives, mostly all."""
        other = self.other
        if not self._sent or self.dead or other is None or other._paused or self._held(self._arrive):
            return
        if other._lost:
            self._sent.clear()
            return
        count = len(self._sent)
        if self._network.random.random() < 0.2:
            count = self._network.random.randint(1, count)
        data = bytes(self._sent[:count])
        del self._sent[:count]
        other.call(other._receive, data)
        if self._sent:
            self._network.later(self._network.delay(), self._arrive)
        if self._full and len(self._sent) <= WINDOW_BYTES:
            self._full = False
            self.call(self.protocol.resume_writing)

    def _receive(self, data: bytes) -> None:
        self._unread += data
        self._take()

    def _take(self) -> None:
        while self._unread and not self._paused and not self._closing:
            room: Any = self.protocol.get_buffer(len(self._unread))
            count = min(len(room), len(self._unread))
            assert count, "a protocol without room pauses"
            room[:count] = self._unread[:count]
            del self._unread[:count]
            self.protocol.buffer_updated(count)

    def _end(self, error: Exception | None) -> None:
        self._closing = True
        self.protocol.connection_lost(error)

    def _tell(self) -> None:
        """The other end hears that this one is gone, after what has got through."""
        other = self.other
        if other is None:
            return
        if self.dead:
            self._network.later(TCP_GIVES_UP_S, lambda: other.lose(TimeoutError("TCP gives up")))
            return
        if self._held(self._tell):
            return
        if self._sent and not other._lost:
            data, self._sent = bytes(self._sent), bytearray()
            other.call(other._receive, data)
        other.lose(None)

    def reset(self, error: Exception) -> None:
        """The connection broke: what was sent from here arrives up to a random byte."""
        other = self.other
        length = self._network.random.randint(0, len(self._sent))
        data, self._sent = bytes(self._sent[:length]), bytearray()
        if other is not None and not other._lost and not self.dead and data:
            other.call(other._receive, data)
        if other is not None:
            other.lose(error)


class WireLink:
    """A connection between a client, or a broker that follows, and one incarnation of a broker. As link.Link."""

    def __init__(self, network: Ways, client: str, address: str, *, replica: bool = False) -> None:
        self.client = client
        self.address = address
        self.replica = replica
        self.gone = False
        self.listener: Linked | None = None
        self.sent_up = Sent(network, (client, address))
        self.sent_down = Sent(network, (address, client))
        self._network = network
        hello = pb.WireHello(version=VERSION, call=REPLICATE if replica else STREAM_CALL)
        self.stream = WireStream(address, hello)
        self.up = SimTransport(network, (client, address), copy_context(), self.stream)  # the client's end
        self.down: SimTransport | None = None  # the broker's

    # ---- life

    async def connect(self) -> None:
        """Raises the error that prevents it."""
        listener = await self._network.reach(self.client, self.address)
        if self.gone or listener.closed:
            self._leave()
        else:
            self.listener = listener
            listener.links[self] = None
            context = listener.node.context.copy()
            connection = SimWireConnection(listener.wire, self.client, self)
            self.down = SimTransport(self._network, (self.address, self.client), context, connection)
            self.up.other, self.down.other = self.down, self.up
            self.up.ended = self.down.ended = self._leave
            self.down.call(connection.connection_made, self.down)
            self.stream.connection_made(self.up)
            await self.stream._greeted

    def cancel(self, why: str) -> None:
        """The client's process is gone."""
        del why
        self._leave()
        self.up.abort()

    def end(self) -> None:
        """The client ends the call."""
        self._leave()
        self.stream.cancel()

    def vanish(self) -> None:
        """The machine at one end is gone, and the other end is not told."""
        self._leave()
        self.die(up=True, down=True)

    @property
    def noticed(self) -> bool:
        """Whether both sides know that the connection is over."""
        return self.up.is_closing() and self.down is not None and self.down.is_closing()

    # ---- faults

    def cut(self, why: str) -> None:
        """Both ends hear of it, after a part of what was under way."""
        if not self._leave() or self.down is None:
            return
        error = ConnectionResetError(why)
        for end in (self.up, self.down):
            end.reset(error)

    def abandon(self, why: str) -> None:
        """The broker's process is gone."""
        del why
        if self._leave() and self.down is not None:
            self.down.abort()

    def die(self, *, up: bool, down: bool) -> None:
        """A firewall on the way has forgotten the connection: one direction, or both, swallow all that is sent, for
        good. Neither end is told."""
        for dies, end in [(up, self.up), (down, self.down)]:
            if dies and end is not None:
                end.dead = True

    def stall(self, seconds: float, *, up: bool, down: bool) -> None:
        until = self._network.now() + seconds
        if up:
            self.up.stall(until)
        if down and self.down is not None:
            self.down.stall(until)

    def _leave(self) -> bool:
        if self.gone:
            return False
        self.gone = True
        if self.listener is not None:
            self.listener.links.pop(self, None)
        return True


class SimWireStream:
    """comet.wire.transport.Stream."""

    def __init__(self, network: Ways, client: str, address: str, *, replica: bool) -> None:
        self._link = WireLink(network, client, address, replica=replica)
        self._opening: asyncio.Task[None] | None = None

    async def write(self, frame: bytes) -> None:
        await self._opened()
        self._link.sent_up.note(frame)
        await self._link.stream.write(frame)

    async def read(self) -> Any:
        await self._opened()
        frame = await self._link.stream.read()
        if frame is not None:
            self._link.sent_down.compare(frame)
        return frame

    def cancel(self) -> None:
        self._link.end()

    async def _opened(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._link.connect(), name="connects")
        if not self._opening.done():
            await asyncio.wait([self._opening])
        self._opening.result()
