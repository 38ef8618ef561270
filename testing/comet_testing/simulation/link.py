"""One streaming call on the simulated network: two pipes, and the broker's side of it.

See `network` for who makes links and what can be done to all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from comet.errors import CometError, RecordTooLarge, Unavailable
from comet.limits import MESSAGE_BYTES_MAX
from comet_broker import limits
from comet_broker.rpc.methods import Endpoint
from comet_broker.streams.stream_writer import ServedStream

WINDOW_BYTES: Final = 256 << 10  # one direction of one stream; smaller than real, so that it fills
# After which gRPC's pings notice silence. The seeds that found earlier bugs keep the longer one of that time.
KEEPALIVE_S: Final = (limits.KEEPALIVE_MS + limits.KEEPALIVE_TIMEOUT_MS) / 1000
EARLIER_KEEPALIVE_S: Final = 30.0
TCP_GIVES_UP_S: Final = 900.0  # on what it has sent, without an acknowledgement

Way = tuple[str, str]  # from one name to another


class Tap(Protocol):
    """Sees what is sent."""

    def sent(self, way: Way, what: str, data: bytes) -> None: ...


class Ways(Protocol):
    """The part of the network that links use."""

    random: Random
    keepalive_s: float
    complaints: list[str]
    tap: Tap | None

    def now(self) -> float: ...
    def delay(self) -> float: ...
    def later(self, seconds: float, callback: Callable[[], object]) -> None: ...
    def blocks(self, way: Way, callback: Callable[[], object]) -> bool: ...
    def when_open(self, way: Way, callback: Callable[[], object]) -> None: ...
    async def reach(self, client: str, address: str) -> Any: ...


class Linked(Protocol):
    """The listener at one end of links."""

    links: dict[Any, None]


class Pipe:
    """One direction of one link."""

    def __init__(self, network: Ways, way: Way) -> None:
        self._network = network
        self._way = way
        self._under_way: deque[bytes] = deque()
        self._arrived: deque[bytes] = deque()
        self._held_bytes = 0
        self._ended = False  # the sender said that nothing more comes
        self._broken: CometError | None = None
        self.dead = False  # what is sent vanishes
        self._stalled_until = 0.0
        self._waiters: list[asyncio.Future[None]] = []

    async def put(self, frame: bytes) -> None:
        while self._broken is None and self._held_bytes >= WINDOW_BYTES:
            await self._change()
        if self._broken is not None:
            raise self._broken
        self._held_bytes += len(frame)
        if self._network.tap is not None:
            self._network.tap.sent(self._way, "frame", frame)
        if self.dead:
            return
        self._under_way.append(frame)
        self._network.later(self._network.delay(), self._arrive)

    def inject(self, frame: bytes) -> None:
        """A frame that the other side has not sent."""
        if self._broken is None and not self.dead:
            self._held_bytes += len(frame)
            self._under_way.append(frame)
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
        self._network.later(self._network.delay(), self._end)

    def _end(self) -> None:
        if not self.dead and not self._network.blocks(self._way, self._end):
            self._ended = True
            self._changed()

    def die(self) -> None:
        """What is under way, and all that is sent from now on, vanishes. It takes up room: it is never acknowledged."""
        self.dead = True
        self._under_way.clear()

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
        if self._network.blocks(self._way, self._arrive):
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
    """One streaming call between a client, or a broker that follows, and one incarnation of a broker."""

    def __init__(self, network: Ways, client: str, address: str, *, replica: bool = False) -> None:
        self.client = client
        self.address = address
        self.up = Pipe(network, (client, address))
        self.down = Pipe(network, (address, client))
        self.gone = False
        self.listener: Linked | None = None
        self.replica = replica
        self._network = network

    def cut(self, why: str) -> None:
        """The link is gone, and both ends know. What was under way arrives up to a random point."""
        if self._leave():
            error = Unavailable(f"the connection was lost: {why}")
            self.up.sever(error, self._network.random.randint(0, self.up.under_way))
            self.down.sever(error, self._network.random.randint(0, self.down.under_way))

    def cancel(self, why: str) -> None:
        """The client's end is gone; the broker hears of it once something gets through."""
        error = Unavailable(f"the connection was lost: {why}")
        if self._leave():
            self.down.sever(error, 0)
            arriving = self._network.random.randint(0, self.up.under_way)
            self._tell(self.up, (self.client, self.address), error, arriving)
        else:
            self.down.sever(error, 0)  # what the broker's end has said of it may never come

    def abandon(self, why: str) -> None:
        """The broker's end is gone; the client hears of it once something gets through."""
        if self._leave():
            error = Unavailable(f"the connection was lost: {why}")
            self.up.sever(error, self._network.random.randint(0, self.up.under_way))
            arriving = self._network.random.randint(0, self.down.under_way)
            self._tell(self.down, (self.address, self.client), error, arriving)

    def refuse(self, error: CometError) -> None:
        """The broker ended the call with a status; all it said before arrives first."""
        self.up.sever(error, 0)
        if self._leave():
            self._tell(self.down, (self.address, self.client), error, None)

    def _tell(self, pipe: Pipe, way: Way, error: CometError, arriving: int | None) -> None:
        """The far end of a pipe hears of the end of the link once something gets through; of a dead one, when TCP gives
        up."""

        def sever() -> None:
            if pipe.dead:
                self._network.later(TCP_GIVES_UP_S, lambda: pipe.sever(error, 0))
            else:
                pipe.sever(error, pipe.under_way if arriving is None else arriving)

        self._network.when_open(way, sever)

    def die(self, *, up: bool, down: bool) -> None:
        """A firewall on the way has forgotten the connection: one direction, or both, swallow all that is sent, for
        good. The broker's end finds its keepalive ping unanswered; the client's end is told nothing."""
        for dies, pipe in [(up, self.up), (down, self.down)]:
            if dies:
                pipe.die()
        self._network.later(self._network.keepalive_s, lambda: self.abandon("no answer to a keepalive ping"))

    def _leave(self) -> bool:
        if self.gone:
            return False
        self.gone = True
        if self.listener is not None:
            self.listener.links.pop(self, None)
        return True

    def stall(self, seconds: float, *, up: bool, down: bool) -> None:
        """Nothing gets through for a while; beyond the keepalive the link breaks."""
        until = self._network.now() + seconds
        if up:
            self.up.stall(until)
        if down:
            self.down.stall(until)
        keepalive_s = self._network.keepalive_s
        if seconds > keepalive_s:
            self._network.later(keepalive_s, lambda: self.cut("no answer to a keepalive ping"))

    async def serve(self, broker: Endpoint) -> None:
        """The broker's side, as rpc.service does it; runs in the broker's node."""
        session: ServedStream
        try:
            session = broker.open_replica_session(self.client) if self.replica else broker.open_session(self.client)
        except CometError as error:
            self.refuse(error)
            return
        session.writer.on_failure = lambda: self.refuse(
            session.writer.failure or Unavailable("the broker ended the call")
        )
        writer = asyncio.get_running_loop().create_task(self._write(session), name=f"writes to {self.client}")
        try:
            await self._read(session, broker.message_bytes_max)
            session.input_over()
            await asyncio.wait([writer])
        except CometError as error:
            self.refuse(error)  # nothing happens if it was cut
        finally:
            session.close()
            writer.cancel()
            self.down.end()
            self.up.sever(Unavailable("the broker ended the call"), 0)

    async def _read(self, session: ServedStream, frame_bytes_max: int) -> None:
        while not session.closed and (frame := await self.up.get()) is not None:
            _check_size(frame, frame_bytes_max)
            session.receive(frame)
            if session.answers.full:
                await session.answers.relieved()
            if session.pause is not None:
                await session.pause()

    async def _write(self, session: ServedStream) -> None:
        try:
            while (frame := await session.writer.next_frame()) is not None:
                _check_size(frame, MESSAGE_BYTES_MAX)
                await self.down.put(frame)
        except RecordTooLarge as error:
            self.refuse(error)
        except CometError:
            session.close()


def _check_size(frame: bytes, bytes_max: int) -> None:
    if len(frame) > bytes_max:
        raise RecordTooLarge(f"a frame of {len(frame)} bytes came, and {bytes_max} is the limit")
