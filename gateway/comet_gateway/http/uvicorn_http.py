"""uvicorn's HTTP/1.1 protocol with bounds that it lacks.

Bounded are the size of a request's head, of what a chunked body has beside its data (sizes, extensions, trailers), and
the time that a client takes to send the head, to continue its body, and to read the answer. A slow client would
otherwise hold its connection for ever.

An answer leaves in one write: uvicorn calls the kernel for the head, and again for the body. After an answer to a
request whose body has not arrived completely, the connection ends: the rest of the body would have to be parsed.

A request with an Upgrade to another protocol than WebSocket, as of clients that prefer HTTP/2, is parsed again without
it: the parser would take its body for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.slow_client import Unread
from comet_gateway.http.timeouts import LATE_S

HEAD_BYTES_MAX: Final = 64 * 1024  # request line and headers; trailers; bytes of a body between two pieces of its data
HEAD_S_MAX: Final = 15.0  # from the connection, or the first byte, to the end of the head
SILENCE_S_MAX: Final = 30.0  # in the middle of a body that the application is reading
CHECK_S: Final = 5.0
OPEN_MAX: Final = 20_000  # connections
LINGER_S: Final = 2.0  # for the client to read the answer and stop sending, before its connection is closed
_SIZED: Final = b"\r\ncontent-length: "
_CLOSE: Final = b"connection: close\r\n\r\n"


class Cork:
    """Joins the head of an answer with the next write; flushes in the loop's next turn at the latest.

    A complete answer to a request whose body has not arrived completely says that it closes the connection. A streamed
    one may go on after that body's end."""

    __slots__ = ("_cycle", "_head", "_linger", "_loop", "_open", "_transport")

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        loop: asyncio.AbstractEventLoop,
        cycle: RequestResponseCycle,
        linger: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._cycle = cycle
        self._linger = linger
        self._head = b""
        self._open = False

    def write(self, data: bytes) -> None:
        if self._open:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""
        else:
            if self._cycle.more_body and self._cycle.keep_alive and _SIZED in data:
                self._cycle.keep_alive = False
                data = data[:-2] + _CLOSE
            self._open, self._head = True, data
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self._flush()
        if self._cycle.more_body:
            self._linger()
        else:
            self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Protocol(HttpToolsProtocol):
    """One HTTP connection, until it becomes a WebSocket. Created by uvicorn, ends with the connection."""

    unread_s: ClassVar[float] = Limits().unread_s
    open_max: ClassVar[int] = OPEN_MAX

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._framing_bytes = 0  # since the last data of the body
        self._in_head = True
        self._in_body = False
        self._first = True
        self._heard = self.loop.time()  # start of the head, or the body's last progress
        self._check_timer: asyncio.TimerHandle | None = None
        self._dropping = False  # what the client sends
        self._linger_timer: asyncio.TimerHandle | None = None
        self._unread = Unread(self.unread_s)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.open_max:
            transport.abort()  # an answer would be awaited as long as a slow client likes
            return
        self._check_timer = self.loop.call_later(CHECK_S, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._unread.went_on()
        super().resume_writing()

    def handle_websocket_upgrade(self) -> None:
        self._leave()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            return
        self._unset_keepalive_if_required()
        if self._in_head:
            if not self._head_bytes and not self._first:
                self._heard = self.loop.time()
            self._head_bytes += len(data)
            self._feed(data)
            if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(_too_large("the head of the request"))
            return
        self._heard = self.loop.time()
        cycle, waiting = self.cycle, len(self.cycle.body)
        self._feed(data)
        if self.cycle is not cycle or len(cycle.body) > waiting:
            self._framing_bytes = 0
        elif self._in_body:
            self._framing_bytes += len(data)
            if self._framing_bytes > HEAD_BYTES_MAX:
                self._refuse(_too_large("the part of the body without data, as trailers are,"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as found:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._without_offer(data[found.args[0] :])
        except httptools.HttpParserError as error:
            raised = error.__context__  # by a callback
            self._refuse(raised if isinstance(raised, Problem) else Problem("INVALID_ARGUMENT", "not an HTTP request"))

    def _refuse(self, problem: Problem) -> None:
        """Answers instead of the application, and ends the connection."""
        if self._dropping or self.transport.is_closing():
            return
        self._dropping = True
        if not self.idle:
            cycle = self.cycle
            if not cycle.more_body:
                cycle.keep_alive = False  # the fault is in the next request: this one is answered first
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        body = problem.body()
        own = [(name.encode(), value.encode()) for name, value in problem.headers().items()]
        fields = [*self.server_state.default_headers, *own, (b"content-length", b"%d" % len(body))]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        self.transport.write(b"".join((STATUS_LINE[problem.kind.status], head, _CLOSE, body)))
        self._linger()

    def _linger(self) -> None:
        """Ends the connection while its client may still be sending.

        Closing it with unread data would reset it, and the client could lose the answer. So the client is told that
        nothing follows, and its data is dropped for a moment."""
        if self._linger_timer is not None or self.transport.is_closing():
            return
        self._dropping = True
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.close)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def on_headers_complete(self) -> None:
        if self._declines():
            return
        if _size(self.headers) + len(self.url) > HEAD_BYTES_MAX:
            raise _too_large("the head of the request")
        self._in_head, self._in_body, self._first = False, True, False
        before = self.cycle
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is before:
            return  # a WebSocket
        self.headers = []  # of the trailers, which are dropped; the application has those of the head
        if self.scope["method"] != "HEAD":
            cork = Cork(self.transport, self.loop, cycle, self._linger)
            cycle.transport = cork  # type: ignore[assignment] # as much as it uses

    def on_response_complete(self) -> None:
        cycle = self.cycle
        if cycle.response_complete and cycle.more_body:
            self._linger()
        else:
            super().on_response_complete()

    def _declines(self) -> bool:
        """Whether the request has an Upgrade to an unsupported protocol."""
        return self.parser.should_upgrade() and not self._should_upgrade()

    def _without_offer(self, rest: bytes) -> None:
        """Parses the request again without its Upgrade header, with the bytes behind its head."""
        method: bytes = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(Problem("INVALID_ARGUMENT", "this is not a proxy: CONNECT is not supported"))
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
        if self.headers and _size(self.headers) > HEAD_BYTES_MAX:
            raise _too_large("the trailers of the body")
        self._in_head, self._in_body, self._head_bytes, self._framing_bytes = True, False, 0, 0
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
        if (late and not self._dropping) or self._unread.too_long(self.transport, CHECK_S):
            self.transport.abort()

    def _leave(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def _too_large(what: str) -> Problem:
    return Problem("HEADERS_TOO_LARGE", f"{what} has more than {HEAD_BYTES_MAX} bytes")
