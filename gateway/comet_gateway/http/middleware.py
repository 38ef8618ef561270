"""The middleware around every request and WebSocket: pure ASGI, one layer, since layers cost time and break streams.

    request ─► id ─► Host ─► Origin ─► the routes ─► headers, compression ─► answer
                                       └─ admission: token, role, room for one more, body (per route)

In the scope, for routes:
    comet.request_id   text
    comet.headers      the request's headers as a dict of bytes
    comet.principal    auth.Principal, on routes that need a role
    comet.body         incoming_body.IncomingBody, except for GET
    comet.span         True, if a span of OpenTelemetry records the request
    comet.session      sessions.Visit, if a browser's session authenticates
    comet.send         the server's own send, without layers in between: for a stream's body after its first part, and
                       for a WebSocket, which sends thousands of messages a second
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from contextlib import suppress
from itertools import count
from time import perf_counter
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from comet.errors import CometError
from comet.processes.logs import log_context
from comet_gateway.http import compression
from comet_gateway.http.error_response import error_response
from comet_gateway.http.origins import HeaderPairs, Security
from comet_gateway.http.problems import Problem
from comet_gateway.http.server_spans import ServerSpans
from comet_gateway.metrics import ENDLESS, Metrics

log = logging.getLogger(__name__)

_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# version, trace id, parent id, flags; later versions may add parts
_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_SINGLE: Final = (
    b"host", b"origin", b"authorization", b"cookie", b"content-type", b"content-length", b"sec-fetch-site"
)  # fmt: skip


class Front:
    """The outermost middleware. Owned by the application."""

    def __init__(
        self, app: ASGIApp, *, security: Security, metrics: Metrics, draining: asyncio.Event,
        spans: ServerSpans | None = None,
    ) -> None:  # fmt: skip
        self._app = app
        self._security = security
        self._metrics = metrics
        self._draining = draining
        self._spans = spans
        self._ids = count(1)
        self._life = secrets.token_hex(6)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = scope["comet.headers"] = dict(scope["headers"])
        request_id = scope["comet.request_id"] = self._request_id(headers)
        with log_context(request_id=request_id, trace_id=trace_id_of(headers)):
            if scope["type"] == "websocket":
                await self._socket(scope, receive, send)
            elif self._spans is None:
                await self._http(scope, receive, send)
            else:
                await self._spans.around(self._http, scope, receive, send)

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is None or not _SANE_ID.fullmatch(given):
            return f"{self._life}-{next(self._ids):x}"
        return given.decode()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        if scope["method"] == "HEAD" and not scope["path"].endswith(ENDLESS):
            scope = {**scope, "method": "GET"}  # the server has its own scope, and sends no body; streams have no HEAD
        headers = scope["comet.headers"]
        answer = self._answer(scope, headers, send)
        try:
            if (preflight := self._check(scope, headers)) is not None:
                await answer.empty(204, preflight)
                return
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            pass  # the client has gone
        except Problem as problem:
            await answer.problem(problem)
        except Exception as error:  # noqa: BLE001 - this is the boundary: a request ends with an answer, in every case
            await answer.failed(error)
        finally:
            route = scope.get("route")
            template = "" if route is None else route.path_format
            self._metrics.answered(scope["method"], template, answer.status, perf_counter() - began, answer.sent_bytes)

    def _answer(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> _Answer:
        scope["comet.send"] = send
        extra = [*self._security.headers, (b"x-request-id", request_id(scope).encode())]
        if self._draining.is_set():
            extra.append((b"connection", b"close"))
        origin = headers.get(b"origin")
        if origin is not None and self._security.shares:
            extra += self._security.cors(origin) if self._security.readable(origin) else [(b"vary", b"origin")]
        accepts = headers.get(b"accept-encoding")
        return _Answer(send, scope, extra, None if accepts is None else compression.chosen(accepts))

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> HeaderPairs | None:
        """The answer to a preflight; None for other requests. Raises Problem."""
        if len(headers) != len(scope["headers"]):
            _refuse_doubles(scope["headers"])
        self._security.check_host(headers.get(b"host"))
        method = scope["method"]
        if method == "OPTIONS" and b"access-control-request-method" in headers and b"origin" in headers:
            return self._security.preflight(headers)
        self._security.check_origin(method, headers, scope["scheme"])
        return None

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["comet.headers"]
        answer = self._answer(scope, headers, send)
        try:
            if len(headers) != len(scope["headers"]):
                _refuse_doubles(scope["headers"])
            self._security.check_host(headers.get(b"host"))
            self._security.check_socket(headers, scope["scheme"])
            if self._draining.is_set():
                raise Problem("DRAINING", "this gateway is about to stop")
            await self._app(scope, receive, send)
        except Problem as problem:
            await answer.deny(problem)
        except Exception as error:  # noqa: BLE001 - as above
            await answer.failed_socket(error)


class _Answer:
    """One answer being sent. Lives as long as its request."""

    __slots__ = ("_encoding", "_extra", "_held", "_scope", "_send", "sent_bytes", "status")

    def __init__(self, send: Send, scope: Scope, extra: HeaderPairs, encoding: bytes | None) -> None:
        self._send = send
        self._scope = scope
        self._extra = extra
        self._encoding = encoding
        self._held: Message | None = None  # the head of an answer that may be compressed
        self.status = 0  # 0: not sent
        self.sent_bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"] = [*message["headers"], *self._extra]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            if self._encoding is None:
                await self._send(message)
            else:
                self._held = message
            return
        if message["type"] == "http.response.body":
            if self._held is not None:
                message = await self._begin(self._held, message)
                self._held = None
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def _begin(self, start: Message, message: Message) -> Message:
        """Sends the head, once the first part of the body is there; returns that part, perhaps compressed."""
        body, headers = message.get("body", b""), dict(start["headers"])
        if (
            not message.get("more_body", False)
            and b"content-encoding" not in headers
            and compression.worthwhile(headers.get(b"content-type", b""), len(body))
        ):
            assert self._encoding is not None
            body = await compression.compressed(body, self._encoding)
            others = [pair for pair in start["headers"] if pair[0] != b"content-length"]
            start["headers"] = [
                *others,
                (b"content-length", str(len(body)).encode()),
                (b"content-encoding", self._encoding),
                (b"vary", b"accept-encoding"),
            ]
            message = {**message, "body": body}
        await self._send(start)
        return message

    async def empty(self, status: int, headers: HeaderPairs) -> None:
        self._extra = [pair for pair in self._extra if pair[0] not in {name for name, _ in headers}]
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await self.send({"type": "http.response.body", "body": b""})

    async def problem(self, problem: Problem) -> None:
        """Answers with the problem; an answer that has begun stays unfinished, which the client notices."""
        if self.status:
            return
        body, headers = error_response(self._scope, problem)
        head = _head(headers, body)
        await self.send({"type": "http.response.start", "status": problem.kind.status, "headers": head})
        await self.send({"type": "http.response.body", "body": body})

    async def failed(self, error: Exception) -> None:
        """Answers an unexpected error; its details go to the log only."""
        if isinstance(known := error.__cause__, (CometError, Problem)) and self.status:
            method, path = self._scope["method"], self._scope["path"]
            log.warning("%s %s broke off: %s", method, path, known, extra={"method": method, "path": path})
            return
        _log(self._scope, error)
        await self.problem(_internal())

    async def deny(self, problem: Problem) -> None:
        """Refuses the handshake of a WebSocket with a problem."""
        if "websocket.http.response" not in self._scope.get("extensions", {}):
            await self._send({"type": "websocket.close", "code": 1008, "reason": problem.code})
            return
        body = problem.body(self._scope["comet.request_id"])
        head = [*_head(problem.headers(), body), *self._extra]
        await self._send({"type": "websocket.http.response.start", "status": problem.kind.status, "headers": head})
        await self._send({"type": "websocket.http.response.body", "body": body})

    async def failed_socket(self, error: Exception) -> None:
        _log(self._scope, error)
        try:
            await self.deny(_internal())
        except RuntimeError:  # already accepted
            with suppress(RuntimeError, OSError):
                await self._send({"type": "websocket.close", "code": 1011})


def _head(headers: dict[str, str], body: bytes) -> HeaderPairs:
    found = [(name.encode(), value.encode()) for name, value in headers.items()]
    return [*found, (b"content-length", str(len(body)).encode())]


def _internal() -> Problem:
    return Problem("INTERNAL", "unexpected error; see the gateway's log for this request id")


def _log(scope: Scope, error: Exception) -> None:
    method, path = scope.get("method", "WebSocket"), scope["path"]
    fields = {"method": method, "path": path}
    log.error("%s %s failed [%s]", method, path, scope["comet.request_id"], exc_info=error, extra=fields)


def _refuse_doubles(pairs: list[tuple[bytes, bytes]]) -> None:
    """Refuses duplicate security headers: a proxy and the gateway could read different ones."""
    names = [name for name, _ in pairs]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise Problem("INVALID_ARGUMENT", f"more than one {name.decode()} header")


def trace_id_of(headers: dict[bytes, bytes]) -> str:
    """The trace that the request belongs to, by its header of the W3C format; empty without a valid one."""
    found = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").strip())
    if found is None or (found[1] == b"00" and found[3]) or found[2] == b"0" * 32:
        return ""
    return found[2].decode()


def request_id(scope: Scope) -> str:
    """The id of the request being answered; empty outside of one."""
    found: str = scope.get("comet.request_id", "")
    return found
