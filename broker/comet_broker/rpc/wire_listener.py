"""The listener of the wire: accepts connections, within limits, and looks after them once a second.

    accept ─► TLS ─► WireConnection ─► Hello ─► who calls, and what it may do (Audience) ─► session

Connections of its Unix socket take the same way, and count in the same limits; before it, the caller's user is checked.
A connection counts from its acceptance on, so that handshakes that do not end are bounded, too. Frames that have not
come whole have a budget of memory: beyond it the connection with the oldest of them is ended.

Owned by the server; on its loop. Implements memory.guard.Sheddable.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from comet.errors import CometError, Draining, Forbidden, LimitExceeded, Unavailable, UnsupportedVersion
from comet.v1 import wire_pb2 as pb
from comet.wire import framing
from comet_broker import limits
from comet_broker.memory.in_flight import InFlight
from comet_broker.rpc.audience import Audience
from comet_broker.rpc.listeners import Certificates
from comet_broker.rpc.methods import COMET, REPLICATION, Endpoint
from comet_broker.rpc.unix_socket import UnixSocket, admit
from comet_broker.rpc.wire_connection import WireConnection, WireContext
from comet_broker.streams.stream_writer import Outbox, ServedStream

log = logging.getLogger(__name__)

STREAM: Final = f"{COMET}/Stream"
REPLICATE: Final = f"{REPLICATION}/Replicate"
BACKLOG: Final = 1024
ACCEPT_AGAIN_S: Final = 0.1  # after the process had no descriptor left
TICK_S: Final = 1.0


Address: TypeAlias = "tuple[str, int] | tuple[str, int, int, int]"


class WireListener:
    def __init__(self, broker: Endpoint, audience: Audience, *, connections_max: int, memory_bytes: int) -> None:
        self.outbox = Outbox()
        self.buffer = framing.read_buffer()
        self._broker = broker
        self._audience = audience
        self._connections_max = connections_max
        self._unfinished_max = int(limits.UNFINISHED_SHARE * memory_bytes)
        self._unfinished: dict[WireConnection, int] = {}  # the oldest first
        self._unfinished_bytes = 0
        self._open: set[WireConnection] = set()
        self._greeting: set[asyncio.Task[None]] = set()  # connections whose handshake is under way
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []
        self._unix: UnixSocket | None = None
        self._context: ssl.SSLContext | None = None
        self._emptied: asyncio.Event | None = None  # while it waits for the end of connections

    # ---- life

    def listen(self, host: str, port: int, certificates: Certificates | None) -> int:
        """The port that it listens on. Raises Unavailable."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind((host.strip("[]"), port))
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            hint = {"hint": "choose another --wire-port, or 0 for a free one"}
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}", details=hint) from None
        self._sockets.append(listening)
        self._context = None if certificates is None else certificates.context
        return int(listening.getsockname()[1])

    def listen_here(self, folder: Path) -> str:
        """The path of the Unix socket on which it listens in a folder that this process has locked, with the TLS of
        `listen`; empty: there is none, as the log says."""
        found = UnixSocket(folder)
        listening = found.listen(BACKLOG)
        if listening is None:
            return ""
        self._unix = found
        self._sockets.append(listening)
        return str(found.path)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._tick(), name="look after connections of the wire"),
            *(loop.create_task(self._accept(one), name="accept connections of the wire") for one in self._sockets),
        ]

    async def close(self, grace_s: float | None) -> None:
        """Takes no more connections; ends those that are left after so long."""
        accepting = [*self._tasks[1:], *self._greeting]
        for task in accepting:
            task.cancel()
        if accepting:
            await asyncio.wait(accepting)
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()
        if self._unix is not None:
            self._unix.remove()
        if self._open and grace_s:
            self._emptied = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._emptied.wait()
        for connection in list(self._open):
            connection.end(Draining("the broker has stopped", retry_after_ms=100))
        await asyncio.sleep(0)  # the transports write
        for connection in list(self._open):
            connection.cut()
        for task in self._tasks:
            task.cancel()

    # ---- connections

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self._open) + len(self._greeting) >= self._connections_max:
                accepted.close()
                continue
            peer = self._admitted(accepted, address)
            if peer is None:
                continue
            task = loop.create_task(self._greet(accepted, peer), name="greet a connection")
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    def _admitted(self, accepted: socket.socket, address: Address) -> str | None:
        """The peer's name; None: it was refused, and the connection is closed."""
        try:
            if accepted.family == socket.AF_UNIX:
                return admit(accepted)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer_of(address)
        except Forbidden as error:
            log.info("refused a connection: %s", error)
            if self._context is None:  # with TLS it could not read it
                with suppress(OSError):
                    accepted.send(framing.end(error))
        except OSError as error:
            log.debug("a connection was over at once: %s", error)
        accepted.close()
        return None

    async def _greet(self, accepted: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        handshake_s = None if self._context is None else limits.CONNECTION_HANDSHAKE_MS / 1000
        try:
            await loop.connect_accepted_socket(
                lambda: WireConnection(self, peer), accepted, ssl=self._context, ssl_handshake_timeout=handshake_s
            )
        except (OSError, ssl.SSLError) as error:
            log.debug("the handshake of %s failed: %s", peer, error, extra={"address": peer})
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def add(self, connection: WireConnection) -> None:
        self._open.add(connection)

    def remove(self, connection: WireConnection) -> None:
        self._open.discard(connection)
        if not self._open and self._emptied is not None:
            self._emptied.set()

    @property
    def connections(self) -> int:
        return len(self._open)

    # ---- what connections ask

    @property
    def in_flight(self) -> InFlight:
        return self._broker.in_flight

    @property
    def frame_bytes_max(self) -> int:
        return self._broker.message_bytes_max

    def look_at_memory(self) -> None:
        self._broker.look_at_memory()

    def limits_reading(self, call: str) -> bool:
        """Followers would fall out of sync because of clients."""
        return call == STREAM

    def open(self, hello: pb.WireHello, connection: WireConnection) -> ServedStream:
        broker, audience = self._broker, self._audience
        meant = (hello.broker_id or broker.broker_id, hello.cluster_id or broker.cluster_id)
        if meant != (broker.broker_id, broker.cluster_id):
            raise Unavailable(
                f"broker {broker.broker_id} of another cluster or name listens here now, not {hello.broker_id}"
            )
        context = WireContext(connection.peer, connection.certificate, hello.authorization)
        if hello.call == STREAM and audience.clients:
            return broker.open_session(connection.peer, audience.access(context), connection.transport_name)
        if hello.call == REPLICATE and audience.brokers:
            return broker.open_replica_session(connection.peer, audience.identify(context))
        raise UnsupportedVersion(f"this listener has no call {hello.call!r}")

    # ---- memory

    def count_unfinished(self, connection: WireConnection, size: int) -> None:
        """Ends the connection with the oldest unfinished frame while they are too large together."""
        self._unfinished_bytes += size - self._unfinished.pop(connection, 0)
        if size:
            self._unfinished[connection] = size
        while self._unfinished_bytes > self._unfinished_max:
            oldest = next(iter(self._unfinished))
            oldest.end(LimitExceeded("too many large frames are under way; try again", retry_after_ms=1000))

    def end_unfinished(self, error: CometError) -> int:
        """Ends the connections with an unfinished frame; those without a Hello are few bytes."""
        found = list(self._unfinished)
        for connection in found:
            connection.end(error)
        return len(found)

    def end_some(self, error: CometError) -> int:
        """Their streams are ended with those of other transports."""
        del error
        return 0

    # ---- time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for connection in list(self._open):
                connection.tick()


def peer_of(address: Address) -> str:
    """As gRPC writes it.

    >>> peer_of(("127.0.0.1", 4321)), peer_of(("::1", 4321))
    ('ipv4:127.0.0.1:4321', 'ipv6:%5B::1%5D:4321')
    """
    host, port = address[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
