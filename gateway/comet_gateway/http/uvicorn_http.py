"""uvicorn's HTTP/1.1 protocol with bounds that it lacks.

Bounded are the size of a request's head, and the time that a client takes to send the head, to continue its body, and
to read the answer. A slow client would otherwise hold its connection for ever.

An answer leaves in one write: uvicorn calls the kernel for the head, and again for the body.

A request with an Upgrade to another protocol than WebSocket, as of clients that prefer HTTP/2, is parsed again without
it: the parser would take its body for the next request."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from comet_gateway.config import Limits
from comet_gateway.http.slow_client import Unread

HEAD_BYTES_MAX: Final = 64 * 1024  # request line and headers
HEAD_S_MAX: Final = 15.0  # from the connection, or the first byte, to the end of the head
SILENCE_S_MAX: Final = 30.0  # in the middle of a body that the application is reading
CHECK_S: Final = 5.0
LATE_S: Final = 1.0  # of a check, on a busy machine

_FIELD_BYTES: Final = 4  # of a header, beside its name and value
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HeadTooLarge(Exception):
    """The head of a request is too large."""


class Cork:
    """Joins the head of an answer with the next write; flushes in the loop's next turn at the latest."""

    __slots__ = ("_head", "_loop", "_open", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._open = False

    def write(self, data: bytes) -> None:
        if self._open:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""
        else:
            self._open, self._head = True, data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Protocol(HttpToolsProtocol):
    """One HTTP connection, until it becomes a WebSocket. Created by uvicorn, ends with the connection."""

    unread_s: ClassVar[float] = Limits().unread_s

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._long_read = False  # whether the data being parsed may complete a head that is too large
        self._in_head = True
        self._in_body = False
        self._first = True
        self._heard = self.loop.time()  # start of the head, or the body's last progress
        self._check_timer: asyncio.TimerHandle | None = None
        self._unread = Unread(self.unread_s)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._check_timer = self.loop.call_later(CHECK_S, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._unread.went_on()
        super().resume_writing()

    def handle_websocket_upgrade(self) -> None:
        self._leave()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if not self._in_head:
            self._heard = self.loop.time()
        else:
            if not self._head_bytes and not self._first:
                self._heard = self.loop.time()
            self._head_bytes += len(data)
        self._long_read = self._head_bytes > HEAD_BYTES_MAX or len(data) > HEAD_BYTES_MAX
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as found:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._without_offer(data[found.args[0] :])
        except httptools.HttpParserError:
            if not self.transport.is_closing():  # else the head was refused
                self.send_400_response("Not an HTTP request.")

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        if self._long_read and self._head_size() > HEAD_BYTES_MAX:
            self._refuse_head()
            raise HeadTooLarge  # ends the parser
        if self._declines():
            return
        self._in_head, self._in_body, self._first = False, True, False
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.scope["method"] != "HEAD":
            self.cycle.transport = Cork(self.transport, self.loop)  # type: ignore[assignment] # as much as it uses

    def _head_size(self) -> int:
        """Bytes of the request line and headers, about."""
        return len(self.url) + sum(len(name) + len(value) + _FIELD_BYTES for name, value in self.headers)

    def _declines(self) -> bool:
        """Whether the request has an Upgrade to an unsupported protocol."""
        return self.parser.should_upgrade() and not self._should_upgrade()

    def _without_offer(self, rest: bytes) -> None:
        """Parses the request again without its Upgrade header, with the bytes behind its head."""
        method: bytes = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not supported.")
            return
        head = [b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                others = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
                head.append(b"connection:%b\r\n" % b",".join(others))
            elif name != b"upgrade":
                head.append(b"%b: %b\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"".join([*head, b"\r\n", rest]))

    def on_message_complete(self) -> None:
        if self._declines():
            return
        self._in_head, self._in_body, self._head_bytes = True, False, 0
        super().on_message_complete()

    def _check_progress(self) -> None:
        now = self.loop.time()
        assert self._check_timer is not None
        # After a pause of this process, data may have arrived meanwhile: the client is not to blame.
        self._heard = min(self._heard + max(now - self._check_timer.when() - LATE_S, 0), now)
        self._check_timer = self.loop.call_later(CHECK_S, self._check_progress)
        waited_s = now - self._heard
        waits_for_head = self._in_head and (self._first or self._head_bytes > 0)
        waits_for_body = self._in_body and not self.flow.read_paused
        late = (waits_for_head and waited_s > HEAD_S_MAX) or (waits_for_body and waited_s > SILENCE_S_MAX)
        if late or self._unread.too_long(self.transport, CHECK_S):
            self.transport.abort()

    def _leave(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
