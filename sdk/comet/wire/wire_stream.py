"""The client's side of the wire, see proto/WIRE.md: transport.Stream as one connection, without gRPC."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from comet import limits
from comet.errors import CometError, MalformedFrame, Unavailable
from comet.v1 import wire_pb2 as pb
from comet.wire import framing, unix_socket
from comet.wire.frames import Frame, Outgoing
from comet.wire.framing import DATA, FrameReader, Kind
from comet.wire.tls import TlsFiles
from comet.wire.wire_protocol import WireProtocol

STREAM_CALL: Final = "comet.v1.Comet/Stream"
# Frames that are not taken yet: above the first size nothing more is read, below the second it is again.
UNREAD_BYTES_MAX: Final = 4 * limits.MIB
UNREAD_BYTES_LOW: Final = limits.MIB


class WireStream(WireProtocol):
    """One call at a broker. After a failure every method raises its error. Used on one event loop."""

    def __init__(self, address: str, hello: pb.WireHello) -> None:
        super().__init__()
        self.address = address
        self._hello = hello
        self._reader = FrameReader(framing.read_buffer(), framing.CONTROL_BYTES_MAX)
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unread: deque[Frame] = deque()
        self._unread_bytes = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None  # of `read`
        self._push: tuple[Callable[[Frame], None], Callable[[CometError | None], None]] | None = None
        self._over = False
        self._error: CometError | None = None  # why it is over; None: in good order

    @classmethod
    async def open(
        cls, address: str, hello: pb.WireHello, tls: TlsFiles | None, timeout_s: float, path: Path | None = None
    ) -> WireStream:
        """Connects to an address, or to a Unix socket of the broker there, and waits for the broker's Welcome. Raises
        the error that prevents it."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        stream = cls(address, hello)
        try:
            async with asyncio.timeout(timeout_s):
                context = None if tls is None else tls.client_context()
                if path is None:
                    await loop.create_connection(lambda: stream, host, int(port), ssl=context)
                else:
                    name = None if context is None else host
                    local = unix_socket.connect(path)
                    await loop.create_unix_connection(lambda: stream, sock=local, ssl=context, server_hostname=name)
                await stream._greeted
        except TimeoutError:
            stream.cancel()
            raise Unavailable(f"cannot reach a broker at {address}: no answer within {timeout_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"cannot reach a broker at {address}: {error}") from None
        except BaseException:
            stream.cancel()
            raise
        return stream

    # ---- transport.Stream

    async def write(self, frame: Outgoing) -> None:
        if self._over:
            raise self._failure()
        await self.send(frame)
        if self._over:
            raise self._failure()

    async def read(self) -> Frame | None:
        while not self._unread:
            if self._over:
                if self._error is None:
                    return None
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._unread.popleft()
        self._unread_bytes -= len(frame)
        if self._paused and self._unread_bytes < UNREAD_BYTES_LOW:
            self._resume_reading()
        return frame

    def push(self, take: Callable[[Frame], None], ended: Callable[[CometError | None], None]) -> None:
        """In place of `read`: hands over each frame in the turn of the loop in which it comes, and the end. Neither
        may raise."""
        assert self._waiter is None
        self._push = take, ended
        while self._unread:
            take(self._unread.popleft())
        self._unread_bytes = 0
        if self._paused:
            self._resume_reading()
        if self._over:
            ended(self._error)

    def cancel(self) -> None:
        self._end(Unavailable(f"the connection to {self.address} was interrupted"))

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._over:
            self.transport.abort()
        else:
            self.transport.write(framing.control(Kind.HELLO, self._hello.SerializeToString()))

    def get_buffer(self, _: int) -> Any:
        return self._reader.room()

    def buffer_updated(self, size: int) -> None:
        try:
            self.heard = True
            push = self._push
            lone = None if push is None or self._over else self._reader.lone(size)
            if push is not None and lone is not None:
                push[0](lone)
                return
            self._reader.filled(size)
            self._take()
        except (KeyboardInterrupt, SystemExit) as interrupt:  # uvloop takes it for the end of the connection
            asyncio.get_running_loop().call_soon(_interrupt, interrupt)

    def connection_lost(self, error: Exception | None) -> None:
        why = "the broker closed it" if error is None else str(error)
        self._end(Unavailable(f"the connection to {self.address} was lost: {why}"))
        self.resume_writing()

    # ---- reading

    def _take(self) -> None:
        next_frame, unread = self._reader.next, self._unread
        take = None if self._push is None else self._push[0]
        try:
            while (found := next_frame()) is not None and not self._over:
                kind, frame = found
                if kind == DATA and take is not None:
                    take(frame)
                elif kind == DATA and self._greeted.done():
                    unread.append(frame)
                    self._unread_bytes += len(frame)
                else:
                    self._take_control(kind, frame)
        except (CometError, DecodeError) as error:
            reason = error.message if isinstance(error, CometError) else "its last frame does not parse"
            text = f"{self.address} does not speak Comet's wire: {reason}"
            malformed = type(error) if isinstance(error, CometError) else MalformedFrame
            self._end(malformed(text) if self._greeted.done() else Unavailable(text))
        finally:
            self._reader.keep()
        if self._waiter is not None and unread and not self._waiter.done():
            self._waiter.set_result(None)
        if self._unread_bytes > UNREAD_BYTES_MAX and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        self._paused = False
        if self.transport is not None and not self._over:
            self.transport.resume_reading()

    def _take_control(self, kind: int, content: Frame) -> None:
        if kind == Kind.END:
            self._end(framing.parse_end(content))
        elif kind == Kind.WELCOME and not self._greeted.done():
            self._reader.bytes_max = limits.MESSAGE_BYTES_MAX
            self._greeted.set_result(None)
        else:
            raise MalformedFrame(f"a frame of kind {kind} came")

    # ---- the end

    def _end(self, error: CometError | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        if self.transport is not None:
            self.transport.abort()
        if not self._greeted.done():
            self._greeted.set_exception(self._failure())
            self._greeted.exception()  # it may be waited for no longer
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._push is not None:
            self._push[1](error)

    def _failure(self) -> CometError:
        return self._error or Unavailable(f"the broker at {self.address} has ended the stream")


def _interrupt(interrupt: BaseException) -> None:
    """Out of a callback, it ends the loop."""
    raise interrupt
