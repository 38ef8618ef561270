"""One connection of the wire: the broker's side, see proto/WIRE.md.

    Hello ─► the session of the call ─► Welcome ─► frames both ways ─► End

What a read brings is taken in one turn of the loop, and what it causes is written in that turn: each frame at once, by
one system call; acknowledgements that gather meanwhile are one frame. A connection is not read while its session is
backlogged, or the quota is used up.

Owned by its listener; on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from comet.errors import CometError, Internal, MalformedFrame, Timeout, Unavailable, UnsupportedVersion
from comet.v1 import wire_pb2 as pb
from comet.wire import framing
from comet.wire.bearer import HEADER
from comet.wire.frames import Frame, Outgoing
from comet.wire.framing import DATA, FrameReader, Kind
from comet.wire.wire_protocol import WireProtocol
from comet_broker import limits
from comet_broker.memory.in_flight import InFlight
from comet_broker.streams.stream_writer import Outbox, ServedStream

log = logging.getLogger(__name__)

# Seconds, which are ticks of the listener.
HELLO_S: Final = limits.CONNECTION_HANDSHAKE_MS // 1000
FRAME_S: Final = int(limits.UNARY_READ_S_MAX)  # for a frame to come whole, and longer for a large one
LINGER_S: Final = 2.0  # that a client has to read the End, and to close


class WireContext:
    """Who connects, as gRPC's context says it of a call."""

    def __init__(self, peer: str, certificate: Mapping[str, list[bytes]], authorization: str) -> None:
        self._peer = peer
        self._certificate = certificate
        self._authorization = authorization

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._certificate

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((HEADER, self._authorization),) if self._authorization else ()


class Host(Protocol):
    """The listener, as its connections see it."""

    outbox: Outbox
    buffer: memoryview  # in which all of them are read

    @property
    def in_flight(self) -> InFlight: ...
    @property
    def frame_bytes_max(self) -> int: ...
    def open(self, hello: pb.WireHello, connection: WireConnection) -> ServedStream:
        """The session of the call. Raises the CometError that refuses it."""

    def limits_reading(self, call: str) -> bool:
        """Whether the quota of bytes in flight holds back what the call sends."""

    def look_at_memory(self) -> None:
        """Called after a large frame."""

    def count_unfinished(self, connection: WireConnection, size: int) -> None:
        """Called when the memory of the frame changes that has not come whole."""

    def add(self, connection: WireConnection) -> None: ...
    def remove(self, connection: WireConnection) -> None: ...


class Patience:
    """Counts the seconds in which a client does not do what it should. A tick is a second."""

    def __init__(self) -> None:
        self.frames = 0  # taken
        self.age_s = 0
        self._frame_s = 0  # without progress in frames, while one has not come whole
        self._frames_seen = 0

    def tick(self, unfinished_bytes: int) -> None:
        """Raises Timeout."""
        self.age_s += 1
        stuck = unfinished_bytes and self.frames == self._frames_seen
        self._frame_s = self._frame_s + 1 if stuck else 0
        self._frames_seen = self.frames
        if self._frame_s > FRAME_S + unfinished_bytes // limits.LINK_BYTES_PER_S_MIN:
            raise Timeout(f"a frame has not come whole within {self._frame_s} s")


class WireConnection(WireProtocol):
    def __init__(self, host: Host, peer: str) -> None:
        super().__init__()
        self.peer = peer
        self.session: ServedStream | None = None
        self.ended = False
        self._host = host
        self._reader = FrameReader(host.buffer, framing.CONTROL_BYTES_MAX)
        self._limited = True
        self._input_over = False
        self._unfinished_bytes = 0
        self._pausing: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._patience = Patience()

    def __str__(self) -> str:
        return self.peer

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._host.add(self)

    def get_buffer(self, _: int) -> Any:
        return self._host.buffer if self.ended else self._reader.room()

    def buffer_updated(self, size: int) -> None:
        if self.ended:
            return  # what still comes is dropped, until the client has read the End
        self.heard = True
        self._reader.filled(size)
        if self._pausing is None:
            self._take()
        else:
            self._reader.keep()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.ended = True
        for timer in (self._linger, self._pausing):
            if timer is not None:
                timer.cancel()
        self._count_unfinished(0)
        self._close_session()
        self.resume_writing()
        self._host.remove(self)

    @property
    def _connected(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport

    @property
    def transport_name(self) -> str:
        return "unix" if self.peer.startswith("unix:") else "wire"

    @property
    def certificate(self) -> dict[str, list[bytes]]:
        """The names in the caller's certificate, by gRPC's names for them."""
        tls = self._connected.get_extra_info("ssl_object")
        found: dict[str, Any] = (tls.getpeercert() if tls is not None else None) or {}
        subject = [pair for names in found.get("subject", ()) for pair in names]
        return {
            "x509_subject_alternative_name": [value.encode() for _, value in found.get("subjectAltName", ())],
            "x509_common_name": [value.encode() for name, value in subject if name == "commonName"],
        }

    # ---- reading

    def _take(self) -> None:
        """Takes the frames that have come."""
        host = self._host
        host.outbox.hold()
        try:
            self._take_frames()
        except CometError as error:
            self.end(error)
        except Exception as error:
            log.exception("the connection of %s failed", self)
            self.end(Internal(f"the broker failed: {error!r}; see its log"))
        finally:
            self._reader.keep()
            unfinished_bytes = 0 if self.ended else self._reader.unfinished_bytes
            if unfinished_bytes != self._unfinished_bytes:
                self._count_unfinished(unfinished_bytes)
            host.outbox.flush()

    def _take_frames(self) -> None:
        next_frame, in_flight = self._reader.next, self._host.in_flight
        while not self.ended:
            found = next_frame()
            if found is None:
                return
            self._patience.frames += 1
            kind, frame = found
            session = self.session
            if kind != DATA or session is None:
                self._take_control(kind, frame)
                continue
            if session.closed:
                return
            if self._input_over:
                raise MalformedFrame("a frame of the call after the End")
            session.receive(frame)
            if len(frame) > limits.LARGE_FRAME_BYTES:
                del found, frame  # it may be the last reference
                self._host.look_at_memory()
            if (self._limited and in_flight.full) or session.answers.full or session.pause is not None:
                self._pause(session)
                return

    def _take_control(self, kind: int, content: Frame) -> None:
        if self.session is None:
            if kind != Kind.HELLO:
                raise MalformedFrame("the first frame of a connection must be a Hello of Comet's wire")
            self._greet(content)
        elif kind == Kind.END:
            self._input_over = True
            self.session.input_over()
        else:
            raise MalformedFrame(f"a frame of kind {kind} in the middle of a call")

    def _greet(self, content: Frame) -> None:
        try:
            hello = pb.WireHello.FromString(bytes(content))
        except DecodeError:
            raise MalformedFrame("the Hello of the connection does not parse") from None
        if hello.version != framing.VERSION:
            raise UnsupportedVersion(f"this broker speaks version {framing.VERSION} of the wire, not {hello.version}")
        session = self.session = self._host.open(hello, self)
        self._limited = self._host.limits_reading(hello.call)
        self._reader.bytes_max = self._host.frame_bytes_max
        welcome = pb.WireWelcome(version=framing.VERSION, frame_bytes_max=self._host.frame_bytes_max)
        self._connected.write(framing.control(Kind.WELCOME, welcome.SerializeToString()))
        session.writer.on_failure = self._failed
        session.writer.start(self._write, self._host.outbox, self._written)

    def _pause(self, session: ServedStream) -> None:
        self._connected.pause_reading()
        self._pausing = asyncio.get_running_loop().create_task(self._relieved(session), name=f"pause {self}")

    async def _relieved(self, session: ServedStream) -> None:
        """Goes on to read once there is room."""
        in_flight = self._host.in_flight
        while not session.closed:
            if self._limited and in_flight.full:
                await in_flight.relieved()
            elif session.answers.full:
                await session.answers.relieved()
            elif session.pause is not None:
                await session.pause()
                break
            else:
                break
        self._pausing = None
        if self.ended:
            return
        self._reader.resume()
        self._take()
        if self._pausing is None and not self.ended:
            self._connected.resume_reading()

    # ---- writing

    async def _write(self, frame: Outgoing) -> None:
        if self.ended:
            raise Unavailable(f"the connection of {self} is over")
        await self.send(frame)

    def _written(self, error: Exception | None) -> None:
        """Called after the session's last frame."""
        if error is not None and not self.ended:
            log.error("the stream of %s broke off", self, exc_info=error)
            self.end(Internal(f"the broker failed: {error!r}; see its log"))
        self.end()

    def _failed(self) -> None:
        assert self.session is not None
        self.end(self.session.writer.failure)

    # ---- the end

    def end(self, error: CometError | None = None) -> None:
        """Sends the End. The client closes the connection when it has read it; if it does not, it is cut off."""
        if self.ended:
            return
        self.ended = True
        self._connected.write(framing.end(error))
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._connected.abort)
        if self._pausing is not None:
            self._pausing.cancel()
            self._connected.resume_reading()
        self._reader.drop()
        self._count_unfinished(0)
        self._close_session()

    def cut(self) -> None:
        """Closes the connection at once."""
        self.ended = True
        self._connected.abort()

    def _close_session(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session.writer.stop()

    def _count_unfinished(self, size: int) -> None:
        self._unfinished_bytes = size
        self._host.count_unfinished(self, size)

    # ---- time

    def tick(self) -> None:
        """Called once a second."""
        if self.ended or self._pausing is not None:
            return
        try:
            self._patience.tick(self._unfinished_bytes)
        except Timeout as error:
            self.end(error)
            return
        if self.session is None:
            if self._patience.age_s > HELLO_S:
                self.cut()
        elif self.heard:
            self.heard = False
            self.session.heard()
