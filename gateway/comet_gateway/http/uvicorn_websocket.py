"""uvicorn's WebSocket protocol, which the application uses directly: shared payloads are sent without a copy.

A server's frame is a head of two to ten bytes before the payload, without a mask; so a thousand clients get the same
payload bytes, and only the heads are made for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request

from comet_gateway.config import Limits
from comet_gateway.http.slow_client import Unread
from comet_gateway.http.timeouts import LATE_S
from comet_gateway.http.wire import EXTENSION

_TEXT: Final = 0x81  # a complete text message
CHECKS: Final = 10  # checks for unread data within `unread_s`
_JOINED_BYTES_MAX: Final = 32 * 1024  # below it, joining the parts is cheaper than a list


def head(size: int) -> bytes:
    """The head of a text message's frame."""
    if size < 126:
        return bytes((_TEXT, size))
    if size < 1 << 16:
        return bytes((_TEXT, 126, size >> 8, size & 0xFF))
    return bytes((_TEXT, 127)) + size.to_bytes(8, "big")


class SocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection. Created by uvicorn; the application finds it among the scope's extensions."""

    unread_s: ClassVar[float] = Limits().unread_s

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unread = Unread(self.unread_s)
        self._check_timer: asyncio.TimerHandle | None = None
        self._pong = b""  # to the last ping, while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._check_timer = self.loop.call_later(self.unread_s / CHECKS, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._unread.went_on()
        pong, self._pong = self._pong, b""
        if pong and not self.transport.is_closing():
            self.transport.write(pong)
        super().resume_writing()

    def _check_progress(self) -> None:
        self._check_timer = self.loop.call_later(self.unread_s / CHECKS, self._check_progress)
        if self._unread.too_long(self.transport, self.unread_s / CHECKS):
            self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope: dict[str, Any] | None = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"][EXTENSION] = {"socket": self}

    def handle_ping(self) -> None:
        """Answers pings; only the last one of a client that does not read (RFC 6455, 5.5.3), which bounds the pongs."""
        pongs = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))
        elif pongs:
            self._pong = pongs[-1]

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type != "text" or self.close_sent:
            super().send_receive_event_to_app()
            return
        data, self.frames = b"".join(self.frames), []
        try:
            text = data.decode()
        except UnicodeDecodeError:
            # As uvicorn does, but without a log line, since any client can cause it.
            self.conn.send_close(CloseCode.INVALID_DATA)
            self.handle_parser_exception()
            return
        self.queue.put_nowait({"type": "websocket.receive", "text": text})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def keepalive_timeout(self) -> None:
        if self.read_paused:
            # The client's data has not been read yet.
            self.pong_timer = None
            self.schedule_ping()
        elif self.transport.get_write_buffer_size():
            # The ping is still behind unread data, for which the client has `unread_s`.
            self._wait_on()
        elif self.pong_timer is not None and self.loop.time() - self.pong_timer.when() > LATE_S:
            # This process was paused: data that arrived meanwhile has not been read yet.
            self._wait_on()
        elif not self.gone:
            # As uvicorn does, but with a code that lets a client which recovers connect again.
            self.pong_timer = self.pending_ping_payload = None
            self.conn.fail(CloseCode.GOING_AWAY, "no answer to a ping")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()

    def _wait_on(self) -> None:
        assert self.ping_timeout is not None
        self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)

    # ---- what the application uses

    @property
    def full(self) -> bool:
        return not self.writable.is_set()

    @property
    def gone(self) -> bool:
        return self.disconnected or self.close_sent or self.transport.is_closing()

    async def drained(self) -> None:
        await self.writable.wait()

    def bound(self, waiting_bytes: int) -> None:
        self.transport.set_write_buffer_limits(high=waiting_bytes)

    def write_frames(self, frames: Sequence[Sequence[bytes]]) -> None:
        """Text messages, in one write."""
        pieces: list[bytes] = []
        total = 0
        for parts in frames:
            size = sum(map(len, parts))
            pieces.append(head(size))
            pieces += parts
            total += size
        if total <= _JOINED_BYTES_MAX:
            self.transport.write(b"".join(pieces))
        else:
            self.transport.writelines(pieces)

    def abort(self) -> None:
        self.transport.abort()
